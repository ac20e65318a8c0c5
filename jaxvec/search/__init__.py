"""Finding things by their vectors: exact top-k on the device, the index folder, hand-over to other indexes."""
