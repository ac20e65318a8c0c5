"""A weight file mapped into memory, and arrays as views of it: what every reader of weights begins with."""

import mmap
from pathlib import Path

import numpy as np

from jaxvec.errors import InputError


def map_file(path: Path) -> mmap.mmap:
    """Map a weight file read-only; refuse an empty one and a Git-LFS pointer by name."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise InputError(f"{path} is empty (0 bytes); download it again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if mapped[:23] == b"version https://git-lfs":
        raise InputError(f"{path} is a Git-LFS pointer, not the weights; run `git lfs pull`")
    return mapped


def is_shape(value: object) -> bool:
    """Whether this is a list or tuple of whole numbers ≥ 0."""
    return isinstance(value, list | tuple) and all(type(size) is int and size >= 0 for size in value)


def array_at(buffer: mmap.mmap, offset: int, shape: list | tuple, dtype: np.dtype, what: str) -> np.ndarray:
    """A row-major view of the buffer from this byte on; a copy where XLA could not take the alignment."""
    try:
        array = np.ndarray(tuple(shape), dtype, buffer, offset)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{what}: {dtype} {list(shape)} does not fit in the file ({error})") from error
    return np.require(array, requirements="A")
