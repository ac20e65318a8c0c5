"""TensorFlow 1 checkpoints (`bert_model.ckpt`) read as NumPy arrays, without TensorFlow."""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxvec.errors import InputError
from jaxvec.models.mapped_file import array_at, map_file

# Variables of Google's BERT optimizer, saved beside the weights of a checkpoint in training.
_OPTIMIZER = ("global_step", "adam_m", "adam_v")
# tensorflow/core/framework/types.proto
_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("u1"),
    5: np.dtype("<i2"),
    6: np.dtype("i1"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
    14: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype("<u2"),
    19: np.dtype("<f2"),
    22: np.dtype("<u4"),
    23: np.dtype("<u8"),
}
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48


def read_tf_checkpoint(path: Path) -> dict[str, np.ndarray]:
    """Map a TensorFlow checkpoint of named variables ("tensor bundle", TensorFlow ≥ 0.12).

    The `.index` file is a sorted table (LevelDB's format) from variable names to `BundleEntryProto`; it
    says where in the `.data-?????-of-?????` files each variable lies. The index is checked against its
    checksums; the variables are read-only views of the data files and, as with safetensors, are not.

    Args:
        path: the `.index` file.

    Returns:
        Variable name → array, without Adam's moments and `global_step`.

    Raises:
        InputError: the index is damaged, a data file is missing or cut short, or the checkpoint holds
            something other than whole numeric variables.

    References:
        tensorflow/core/util/tensor_bundle/tensor_bundle.h, tensorflow/core/protobuf/tensor_bundle.proto
        and https://github.com/google/leveldb/blob/main/doc/table_format.md

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "bert_model.ckpt.index"
        >>> _ = path.write_bytes(b"too short")
        >>> read_tf_checkpoint(path)
        Traceback (most recent call last):
            ...
        jaxvec.errors.InputError: ...bert_model.ckpt.index is no index of a TensorFlow checkpoint, or cut short
    """
    index = map_file(path)
    try:
        entries = dict(_table(index, path))
        header = dict(_fields(entries.pop(b"")))
        variables = {
            name.decode("utf-8", "backslashreplace"): list(_fields(entry)) for name, entry in entries.items()
        }
    except InputError:
        raise
    except (ValueError, LookupError, struct.error) as error:
        raise InputError(f"{path} is damaged ({error!r}); download it again") from error
    if header.get(2, 0) != 0:
        raise InputError(
            f"{path}: the checkpoint was written on a big-endian machine; save it again on another"
        )
    shards: dict[int, mmap.mmap] = {}
    arrays = {}
    for name, fields in variables.items():
        if name.rsplit("/", 1)[-1] not in _OPTIMIZER:
            arrays[name] = _variable(path, name, fields, header.get(1, 0), shards)
    return arrays


def _variable(
    path: Path,
    name: str,
    fields: list[tuple[int, int | bytes]],
    shard_count: object,
    shards: dict[int, mmap.mmap],
) -> np.ndarray:
    """One variable as a view of its data file; `fields` are those of a BundleEntryProto."""
    what = f"{path}: variable {name!r}"
    entry = dict(fields)
    dtype = _DTYPES.get(entry.get(1, 0))
    if dtype is None:
        raise InputError(
            f"{what} has TensorFlow dtype {entry.get(1, 0)!r}, which is not numeric; expected a TensorFlow 1 "
            "checkpoint of named variables"
        )
    if 7 in entry:
        raise InputError(f"{what} is saved in slices; save the checkpoint again without a partitioner")
    shard, offset, size = (entry.get(field, 0) for field in (3, 4, 5))
    try:
        sizes = [dict(_fields(dim)).get(1, 0) for key, dim in _fields(entry.get(2, b"")) if key == 2]
    except (ValueError, LookupError, struct.error, TypeError) as error:
        raise InputError(f"{what}: the shape is damaged ({error!r})") from error
    if not all(isinstance(value, int) for value in (shard, offset, size, shard_count, *sizes)):
        raise InputError(f"{what}: the entry is damaged")
    if not shard < shard_count < 100_000:
        raise InputError(f"{what} lies in data file {shard} of {shard_count}; the index is damaged")
    if shard not in shards:
        data = path.with_suffix(f".data-{shard:05d}-of-{shard_count:05d}")
        if not data.is_file():
            raise InputError(f"{what} lies in {data.name}, which is not in the folder; download it")
        shards[shard] = map_file(data)
    array = array_at(shards[shard], offset, sizes, dtype, what)
    if array.nbytes != size:
        raise InputError(f"{what}: {dtype} {sizes} takes {array.nbytes} bytes, the index gives {size}")
    return array


def _table(index: mmap.mmap, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table: the footer names the index block, that names the data blocks."""
    if len(index) < _FOOTER or struct.unpack("<Q", index[-8:])[0] != _MAGIC:
        raise InputError(f"{path} is no index of a TensorFlow checkpoint, or cut short")
    handles = _varints(index[-_FOOTER:], 4)[0]
    for _, handle in _block(index, handles[2], handles[3], path):
        offset, size = _varints(handle, 2)[0]
        yield from _block(index, offset, size, path)


def _block(index: mmap.mmap, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Entries of one block; each key is given as a length shared with the key before it, and the rest."""
    block = index[offset : offset + size + 5]
    if len(block) != size + 5 or size < 4:
        raise InputError(f"{path}: a block of {size} bytes at byte {offset} does not fit in the file")
    compression, checksum = struct.unpack("<BI", block[size:])
    crc = _crc32c(block[: size + 1])
    if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != checksum:
        raise InputError(f"{path}: the block at byte {offset} fails its checksum; download the file again")
    if compression != 0:
        raise InputError(
            f"{path}: the index is compressed; save the checkpoint again with TensorFlow's Saver"
        )
    end = size - 4 - 4 * struct.unpack("<I", block[size - 4 : size])[0]
    at, key = 0, b""
    while at < end:
        (shared, rest, length), at = _varints(block, 3, at)
        key = key[:shared] + block[at : at + rest]
        at += rest + length
        yield key, block[at - length : at]


def _varints(data: bytes, count: int, at: int = 0) -> tuple[list[int], int]:
    """`count` base-128 numbers from position `at` on, and the position after them."""
    values = []
    for _ in range(count):
        value = shift = 0
        while data[at] >= 0x80:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
        values.append(value | data[at] << shift)
        at += 1
    return values, at


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field number and value of every field of a protocol buffer message, in order."""
    at = 0
    while at < len(message):
        (tag,), at = _varints(message, 1, at)
        if tag & 7 == 0:
            (value,), at = _varints(message, 1, at)
        elif tag & 7 == 2:
            (length,), at = _varints(message, 1, at)
            value, at = message[at : at + length], at + length
        elif tag & 7 in (1, 5):
            width = 8 if tag & 7 == 1 else 4
            value, at = message[at : at + width], at + width
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, value


def _crc_step(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC_TABLE = [_crc_step(byte) for byte in range(256)]


def _crc32c(data: bytes) -> int:
    """The Castagnoli cyclic redundancy check of a block (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
