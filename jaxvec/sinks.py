"""Where the vectors of a long run go: a folder of parts with a manifest, or one file that grows chunk by chunk."""

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxvec.errors import InputError
from jaxvec.journal import refuse_if_busy
from jaxvec.shards import MANIFEST, write_manifest
from jaxvec.vectorfiles import NpyWriter, check_target, open_writer

_OWN = re.compile(
    r"manifest\.json|\.manifest.*\.tmp|progress-\d+-of-\d+\.jsonl|part-\d{6,}\.(npy|parquet)|\.part-.*\.tmp"
)


@runtime_checkable
class Sink(Protocol):
    """Takes finished chunks, keeps them through a kill, and makes the output of them."""

    work: Path  # the folder for journals and unfinished data

    def begin(self) -> None:
        """Makes the folder."""
        ...

    def discard(self) -> None:
        """Removes all earlier work."""
        ...

    def abandon(self, journal: str) -> None:
        """Leaves no trace of a run that has finished nothing."""
        ...

    def open(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Makes ready to go on after `entries`; returns those whose data is still there."""
        ...

    def write(self, chunk: int, vectors: Float[np.ndarray, "n dim"], sentences: list[str]) -> dict[str, Any]:
        """Keeps a chunk; when it returns, the data is on the disk. Returns what the journal should note."""
        ...

    def finish(self, plan: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        """Makes the output of all chunks."""
        ...

    def close(self) -> None:
        """Closes what `open` opened, whether the output is finished or not."""
        ...


@dataclass
class PartsFolder:
    """A folder with one file a chunk, `part-000000.npy` or `.parquet`, and in the end a manifest that lists them.

    Several processes may write to it: each its own chunks.
    """

    work: Path
    dim: int
    suffix: str

    def begin(self) -> None:
        make_folder(self.work)

    def abandon(self, journal: str) -> None:
        (self.work / journal).unlink(missing_ok=True)
        with suppress(OSError):  # others are at work in it
            self.work.rmdir()

    def discard(self) -> None:
        if (self.work / MANIFEST).exists():
            raise InputError(
                f"{self.work} is finished, and only unfinished work is thrown away; remove it, or name another output"
            )
        for file in self.work.glob("*"):
            if _OWN.fullmatch(file.name):
                file.unlink(missing_ok=True)
        with suppress(OSError):  # there was none
            self.work.rmdir()

    def open(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = [entry for entry in entries if "file" in entry and "bytes" in entry]
        return [entry for entry in kept if _size(self.work / entry["file"]) == entry["bytes"]]

    def write(self, chunk: int, vectors: Float[np.ndarray, "n dim"], sentences: list[str]) -> dict[str, Any]:
        path = self.work / f"part-{chunk:06d}{self.suffix}"
        with open_writer(path, self.dim) as writer:
            writer.write(vectors, sentences)
        return {"file": path.name, "bytes": path.stat().st_size}

    def finish(self, plan: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        write_manifest(self.work, self.dim, plan, entries)
        for pattern in ("progress-*.jsonl", ".part-*.tmp", ".manifest*.tmp"):
            for file in self.work.glob(pattern):
                file.unlink(missing_ok=True)  # another process may be at it too

    def close(self) -> None:
        pass


@dataclass
class NpyFile:
    """One .npy file: rows are appended to a hidden one, which takes the name in the end."""

    path: Path
    dim: int
    suffix = ".npy"

    def __post_init__(self) -> None:
        self.work = hidden_sibling(self.path)
        self._file: Any = None

    def begin(self) -> None:
        if not (self.work / "rows.npy").exists():
            refuse_if_busy(self.work)
            self.discard()  # the kill came just after the output had got its name
        make_folder(self.work)

    def discard(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)

    def abandon(self, journal: str) -> None:
        self.discard()

    def open(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        data = self.work / "rows.npy"
        try:
            self._file = open(data, "r+b" if data.exists() else "x+b")  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{data} cannot be written: {error.strerror}") from None
        self._writer = NpyWriter(self._file, self.dim, str(self.path))
        self._sync()
        rows = sum(entry["rows"] for entry in entries)
        end = self._writer.header_bytes + rows * self.dim * 4
        if _size(data) < end:
            raise InputError(
                f"{self.work} has lost data that was noted as written; give --restart to begin again"
            )
        self._file.truncate(end)  # what a kill left unnoted
        self._file.seek(end)
        self._writer.rows = rows
        return entries

    def write(self, chunk: int, vectors: Float[np.ndarray, "n dim"], sentences: list[str]) -> dict[str, Any]:
        self._writer.write(vectors, sentences)
        self._sync()
        return {}

    def finish(self, plan: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        self._writer.close()
        self._sync()
        os.replace(self.work / "rows.npy", os.path.realpath(self.path))
        shutil.rmtree(self.work)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing flushes again, onto a disk that may be full
                self._file.close()

    def _sync(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error


class ParquetFile(PartsFolder):
    """One .parquet file: a Parquet file cannot grow after its footer, so chunks are parts until the end."""

    def __init__(self, path: Path, dim: int):
        super().__init__(hidden_sibling(path), dim, ".parquet")
        self.path = path

    def discard(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)

    def abandon(self, journal: str) -> None:
        self.discard()

    def finish(self, plan: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        from jaxvec.textfiles import import_pyarrow

        parquet = import_pyarrow(str(self.path)).parquet
        whole = self.work / "whole.parquet"
        with open_writer(whole, self.dim) as writer:
            for entry in entries:
                writer.out.write_table(parquet.read_table(self.work / entry["file"], schema=writer.schema))
        os.replace(whole, os.path.realpath(self.path))
        shutil.rmtree(self.work)


def open_sink(output: str | os.PathLike[str], dim: int, form: str | None = None) -> Sink:
    """The sink that the name of the output asks for.

    Args:
        output: a name ending in .npy or .parquet for one file, one without ending for a folder of parts.
        dim: the width of the vectors.
        form: "npy" (the default) or "parquet", for the parts of a folder.

    Raises:
        InputError: the output cannot be written, or is a folder of something else.
    """
    path = Path(output)
    try:
        hidden_sibling(path).exists()
    except OSError as error:  # a name that is too long, say
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    suffix = path.suffix.lower()
    if suffix in (".npy", ".parquet"):
        if form not in (None, suffix[1:]):
            raise InputError(f"{path}: one {suffix} file, but the format asked for is {form}; leave that out")
        open_writer(path, dim)  # refuses a path that cannot be written before any work is done
        return NpyFile(path, dim) if suffix == ".npy" else ParquetFile(path, dim)
    if form not in (None, "npy", "parquet"):
        raise InputError(f"format is {form!r}; expected npy or parquet")
    if suffix[1:].isalpha() and not path.is_dir():
        raise InputError(
            f"{path}: cannot tell the format; expected a name ending in .npy or .parquet, or one without ending for a folder"
        )
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir())
        begun = any(name == MANIFEST or name.startswith("progress-") for name in names)
        if foreign := [name for name in names if not (begun and _OWN.fullmatch(name))]:
            raise InputError(f"{path} is a folder with other files in it ({foreign[0]}); name a new one")
    elif path.is_file():
        raise InputError(
            f"{path} is a file; expected a name ending in .npy or .parquet, or that of a new folder"
        )
    else:
        try:
            check_target(path)
        except InputError:
            if not path.is_dir():  # which another process of the job may just have made
                raise
    suffix = f".{form or 'npy'}"
    if suffix == ".parquet":
        open_writer(path.parent / "part.parquet", dim)  # says what to install
    return PartsFolder(path, dim, suffix)


def make_folder(path: Path) -> None:
    """Makes a folder whose parent exists, if it is not there."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}") from None


def hidden_sibling(path: Path) -> Path:
    """The folder in which an unfinished output is kept."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.unfinished")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
