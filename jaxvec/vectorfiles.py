"""Vectors into files, streamed, and never a half-written file under the final name: the last step of the road."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxvec.errors import InputError
from jaxvec.textfiles import import_pyarrow


class NpyWriter:
    """Rows of a .npy file of unknown length: the header's row count is filled in at the end.

    Sentences are not stored; row i of the file belongs to line i of the text. Made by `open_writer`.
    """

    def __init__(self, file: Any, dim: int, name: str):
        self.file, self.dim, self.name = file, dim, name
        self.rows = 0
        self.header_bytes = self._write_header()

    def write(self, vectors: Float[np.ndarray, "n dim"], sentences: list[str]) -> None:
        """Append `vectors` [n, dim] (any float type, stored as float32) of the n `sentences`."""
        _check(self, vectors, sentences)
        with _named(self.name):
            self.file.write(vectors.astype("<f4", order="C", copy=False).tobytes())
        self.rows += len(vectors)

    def close(self) -> None:
        with _named(self.name):
            self.file.seek(0)
            header_bytes = self._write_header()
        if header_bytes != self.header_bytes:
            raise AssertionError(
                "numpy pads the header of a .npy file so that its row count can grow in place"
            )

    def _write_header(self) -> int:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self.dim)}
        np.lib.format.write_array_header_1_0(self.file, shape)
        return self.file.tell()


class ParquetWriter:
    """Columns `text` (string) and `vector` (fixed-size list of float32) of a .parquet file.

    Every write is one row group, so write thousands of rows at a time. Made by `open_writer`.
    """

    def __init__(self, file: Any, dim: int, name: str):
        self.pa = import_pyarrow(name)
        self.dim, self.name = dim, name
        self.schema = self.pa.schema(
            {"text": self.pa.string(), "vector": self.pa.list_(self.pa.float32(), dim)}
        )
        self.out = self.pa.parquet.ParquetWriter(
            file,
            self.schema,
            compression="zstd",
            # Vectors do not repeat; with their bytes split by significance, zstd makes them a sixth smaller.
            use_dictionary=False,
            use_byte_stream_split=["vector.list.element"],
        )

    def write(self, vectors: Float[np.ndarray, "n dim"], sentences: list[str]) -> None:
        """Append `vectors` [n, dim] (any float type, stored as float32) and the n `sentences`."""
        _check(self, vectors, sentences)
        flat = self.pa.array(vectors.astype(np.float32, copy=False).ravel())
        column = self.pa.FixedSizeListArray.from_arrays(flat, self.dim)
        table = self.pa.table([self.pa.array(sentences, self.pa.string()), column], self.schema)
        with _named(self.name):
            self.out.write_table(table)

    def close(self) -> None:
        with _named(self.name):
            self.out.close()


WRITERS = {".npy": NpyWriter, ".parquet": ParquetWriter}


def open_writer(path: str | Path, dim: int) -> AbstractContextManager[NpyWriter | ParquetWriter]:
    """A writer of [n, dim] float32 vectors, for `with`: .npy (vectors) or .parquet (sentences and vectors).

    Rows go to a hidden file in the same folder, in constant memory; it takes the name `path`, and the place
    of an earlier file of that name, when the block ends without an exception, and is removed otherwise.

    Args:
        path: the file to write, named .npy or .parquet; its folder must exist.
        dim: the width of the vectors.

    Raises:
        InputError: by the call, if the path cannot be written or its name says neither format; later, if the
            disk is full, or if vectors and sentences do not fit each other or `dim`.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "vectors.npy"
        >>> with open_writer(path, dim=3) as writer:
        ...     writer.write(np.ones((2, 3), np.float32), ["one", "two"])
        ...     writer.write(np.zeros((1, 3), np.float32), ["three"])
        >>> np.load(path, mmap_mode="r").shape
        (3, 3)
    """
    writer = WRITERS.get(Path(path).suffix.lower())
    if writer is None:
        raise InputError(f"{path}: cannot tell the format; expected a name ending in {' or '.join(WRITERS)}")
    if dim < 1:
        raise InputError(f"dim={dim}: vectors have at least one component")
    if writer is ParquetWriter:
        import_pyarrow(str(path))
    check_target(path)
    return _writer(writer, path, dim)


@contextmanager
def _writer(kind: Any, path: str | Path, dim: int) -> Iterator[Any]:
    with new_file(path) as file:
        writer = kind(file, dim, str(path))
        try:
            yield writer
        except BaseException:
            with suppress(Exception):  # pyarrow's writer, left open, would write to the closed file later
                writer.close()
            raise
        writer.close()


def atomic_write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`: afterwards the file is there in full, or, after an error or a kill, as it was.

    Raises:
        InputError: the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "config.json"
        >>> atomic_write_bytes(path, b"{}")
        >>> path.read_bytes()
        b'{}'
    """
    check_target(path)
    with new_file(path) as file, _named(path):
        file.write(data)


def atomic_folder(path: str | Path) -> AbstractContextManager[Path]:
    """A new folder, for `with`: files are written to a hidden sibling, which takes the name at the end.

    Raises:
        InputError: by the call, if `path` is a file or a folder that is not empty, or has no parent folder.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model"
        >>> with atomic_folder(path) as folder:
        ...     _ = (folder / "config.json").write_text("{}")
        >>> [file.name for file in path.iterdir()]
        ['config.json']
    """
    target = Path(os.path.realpath(path))
    _check_parent(target, path)
    if target.exists() and not target.is_dir():
        raise InputError(f"{path} is a file; expected the name of a new folder")
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{path} is a folder that is not empty: name a new one, or remove it first")
    return _folder(path, target)


@contextmanager
def _folder(path: str | Path, target: Path) -> Iterator[Path]:
    folder = _temporary(target)
    try:
        with _named(path):
            folder.mkdir()
            yield folder
            for file in folder.rglob("*"):
                if file.is_file():
                    _sync(file)
            os.replace(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def new_file(path: str | Path) -> Iterator[Any]:
    """A file under a temporary name that takes the name `path` when the block ends well."""
    target = Path(os.path.realpath(path))  # a symbolic link stays one; its target is replaced
    temporary = _temporary(target)
    with _named(path):
        # Not tempfile: its files are private (0600), while results follow the umask.
        file = open(temporary, "xb")  # noqa: SIM115
    try:
        yield file
        with _named(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):  # closing flushes again, onto a disk that may be full
            file.close()
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path} cannot be written: {reason}; what was there before is unchanged") from error


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


def _sync(path: Path) -> None:
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def _check_parent(target: Path, path: str | Path) -> None:
    if not target.parent.is_dir():
        raise InputError(f"{path}: there is no folder {target.parent}; make it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: the folder {target.parent} is not writable")


def check_target(path: str | Path) -> None:
    """Refuses a path at which no ordinary file or folder can be made."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path} is a folder; expected the name of a file")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise InputError(
            f"{path} is a device, a pipe or a link to itself; expected the name of an ordinary file"
        )
    _check_parent(target, path)


def _check(writer: Any, vectors: np.ndarray, sentences: list[str]) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != writer.dim or len(vectors) != len(sentences):
        raise InputError(
            f"{writer.name}: got vectors of shape {vectors.shape} for {len(sentences)} sentences; "
            f"expected ({len(sentences)}, {writer.dim})"
        )
