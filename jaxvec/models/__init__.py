"""Encoders: configuration, modules and checkpoints."""
