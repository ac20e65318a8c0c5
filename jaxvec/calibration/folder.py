"""A calibration on disk: safetensors for arrays, JSON for everything else, a checksum over both."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.errors import InputError
from jaxvec.vectorfiles import atomic_folder

FORMAT_VERSION = 1
META, ARRAYS, SUMS = "jaxvec.json", "calibration.safetensors", "SHA256SUMS"


def is_calibration(folder: Path) -> bool:
    """Whether `folder` was written by `write_calibration`."""
    return (folder / META).is_file()


def write_calibration(folder: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Writes the folder under a temporary name and renames it, so that it is whole or absent.

    Args:
        folder: must not exist, or be empty.
        arrays: float32 arrays by name.
        meta: whatever JSON takes; "format_version" is added.
    """
    from safetensors.numpy import save

    files = {
        ARRAYS: save({name: np.ascontiguousarray(array) for name, array in arrays.items()}),
        META: json.dumps({"format_version": FORMAT_VERSION, **meta}, indent=1, ensure_ascii=False).encode()
        + b"\n",
    }
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    with atomic_folder(folder) as temporary:
        for name, data in {**files, SUMS: sums.encode()}.items():
            (temporary / name).write_bytes(data)


def read_calibration(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the JSON of a folder that `write_calibration` wrote.

    Raises:
        InputError: a file is missing or not as it was written, or a newer version wrote it.
    """
    from safetensors.numpy import load

    files = {}
    for name in (META, ARRAYS, SUMS):
        try:
            files[name] = (folder / name).read_bytes()
        except OSError as error:
            raise InputError(
                f"{folder / name}: {error.strerror}; the folder is incomplete, have it fitted again"
            ) from None
    try:
        version = json.loads(files[META])["format_version"]
    except (ValueError, TypeError, KeyError):
        version = None  # damaged: the checksum says so
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise InputError(
            f"{folder}: format version {version}; this jaxvec reads {FORMAT_VERSION}. Update jaxvec, or have it fitted again"
        )
    expected = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in (ARRAYS, META))
    if files[SUMS] != expected.encode():
        raise InputError(
            f"{folder}: its files are not as they were written ({SUMS} does not match); have it fitted again"
        )
    return load(files[ARRAYS]), json.loads(files[META])
