"""Documents on disk: their vectors, codes and texts, each one file, memory-mapped and checksummed."""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxvec.errors import InputError
from jaxvec.search.storage import quantize, unit_rows
from jaxvec.vectorfiles import open_writer

ROWS = 16_384  # vectors in memory at a time
VECTORS, CODES, UNITS, TEXTS, ENDS = "vectors.npy", "codes.npy", "units.npy", "texts.utf8", "ends.npy"


@dataclass(frozen=True, eq=False)
class Segment:
    """Documents that were added together.

    Attributes:
        vectors: float32 [n, dim], unit length where the metric is cosine.
        codes: the same as bfloat16 or int8, or None.
        units: float32 [n], the unit of each row's int8 codes, or None.
        texts: the UTF-8 bytes of all texts, one after another.
        ends: int64 [n], where each text ends.
    """

    vectors: np.ndarray
    codes: np.ndarray | None
    units: np.ndarray | None
    texts: np.ndarray
    ends: np.ndarray

    def text(self, row: int) -> str:
        """The text of a row."""
        begin = 0 if row == 0 else int(self.ends[row - 1])
        return self.texts[begin : int(self.ends[row])].tobytes().decode()


def write_texts(folder: Path, sentences: Iterable[Any]) -> Iterator[Any]:
    """Passes sentences on, and keeps them in `folder`; complete when the iterator is exhausted."""
    ends: list[int] = []
    end = 0
    try:
        with open(folder / TEXTS, "wb") as file:
            for sentence in sentences:
                # What is not text is refused by row when it is tokenised.
                data = sentence.encode("utf-8", "replace") if isinstance(sentence, str) else b""
                file.write(data)
                end += len(data)
                ends.append(end)
                yield sentence
        np.save(folder / ENDS, np.array(ends, np.int64))
    except OSError as error:
        raise InputError(f"{folder / TEXTS} cannot be written: {error.strerror or error}") from None


def write_vectors(folder: Path, batches: Iterable[np.ndarray], dim: int, metric: str, dtype: str) -> None:
    """Writes vectors [n, dim], a batch at a time, and their codes beside them."""
    units = []
    with ExitStack() as stack:
        writer = stack.enter_context(open_writer(folder / VECTORS, dim))
        codes = None if dtype == "float32" else stack.enter_context(open(folder / CODES, "wb"))
        kind = np.dtype(np.int8 if dtype == "int8" else np.uint16)
        if codes is not None:
            _npy_header(codes, 0, dim, kind)
        for vectors in batches:
            rows = unit_rows(vectors) if metric == "cosine" else vectors
            if not np.isfinite(rows).all():
                raise InputError("some vector is not finite; encode with dtype float32, or fit again")
            writer.write(rows, [""] * len(rows))
            if codes is not None:
                coded, unit = quantize(rows, dtype, "dot")
                codes.write(coded.view(kind).tobytes())
                if unit is not None:
                    units.append(unit)
        if codes is not None:
            codes.seek(0)
            _npy_header(codes, writer.rows, dim, kind)
    if units:
        np.save(folder / UNITS, np.concatenate(units))


def read_segment(folder: Path, files: dict[str, dict[str, int]], dim: int, rows: int, dtype: str) -> Segment:
    """Opens what was written, after checking sizes and checksums.

    Raises:
        InputError: a file is missing, cut, or not as it was written.
    """
    for name, facts in files.items():
        check_file(folder / name, facts)
    try:
        arrays = {name: np.load(folder / name, mmap_mode="r") for name in files if name.endswith(".npy")}
        size = (folder / TEXTS).stat().st_size
        # An empty file cannot be mapped.
        texts = np.memmap(folder / TEXTS, np.uint8, "r") if size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} cannot be read: {error}; index the corpus again") from None
    if arrays[VECTORS].shape != (rows, dim) or arrays[ENDS].shape != (rows,):
        raise InputError(f"{folder}: its files do not belong together; index the corpus again")
    codes = arrays.get(CODES)
    if dtype == "bfloat16":
        codes = codes.view(ml_dtypes.bfloat16)
    return Segment(arrays[VECTORS], codes, arrays.get(UNITS), texts, arrays[ENDS])


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Size and CRC-32 of files in a folder, by name."""
    return {name: {"bytes": (folder / name).stat().st_size, "crc32": _crc32(folder / name)} for name in names}


def check_file(path: Path, facts: dict[str, int]) -> None:
    """Refuses a file that is not as it was written."""
    try:
        size = path.stat().st_size
    except OSError:
        raise InputError(f"{path} is missing; index the corpus again") from None
    if size != facts["bytes"]:
        raise InputError(f"{path} has {size} bytes, not {facts['bytes']}; index the corpus again")
    if _crc32(path) != facts["crc32"]:
        raise InputError(f"{path} is damaged (its checksum is another); index the corpus again")


def _crc32(path: Path) -> int:
    total = 0
    with open(path, "rb") as file:
        while data := file.read(1 << 22):
            total = zlib.crc32(data, total)
    return total


def _npy_header(file: Any, rows: int, dim: int, kind: np.dtype) -> None:
    header = {"descr": kind.str, "fortran_order": False, "shape": (rows, dim)}
    np.lib.format.write_array_header_1_0(file, header)


class Joined:
    """Several arrays [n, …], read as if they were one: by a slice, a row, an array of rows or a mask."""

    def __init__(self, parts: list[np.ndarray]):
        self.parts = parts
        self.starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        self.shape = (int(self.starts[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Any) -> np.ndarray:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            found = [
                part[max(start - begin, 0) : max(stop - begin, 0)]
                for part, begin in zip(self.parts, self.starts, strict=False)
            ]
            found = [part for part in found if len(part)] or found[:1]
            return found[0] if len(found) == 1 else np.concatenate(found)
        at = self._row_numbers(at)
        out = np.empty((*at.shape, *self.shape[1:]), self.dtype)
        which = np.searchsorted(self.starts, at, side="right") - 1
        for number, part in enumerate(self.parts):
            mine = which == number
            if mine.any():
                out[mine] = part[at[mine] - self.starts[number]]
        return out

    def _row_numbers(self, at: Any) -> np.ndarray:
        rows = np.asarray(None if isinstance(at, tuple) else at)
        if rows.dtype == bool and rows.shape == (len(self),):
            return np.flatnonzero(rows)
        if rows.size and not np.issubdtype(rows.dtype, np.integer):
            raise IndexError(f"index by a slice, a row, an array of rows, or a mask of {len(self)}")
        if ((rows < -len(self)) | (rows >= len(self))).any():
            raise IndexError(f"a row is out of bounds: there are {len(self)}")
        return np.where(rows < 0, rows + len(self), rows).astype(np.int64)


class Selected:
    """Some rows of an array, read as if they were one."""

    def __init__(self, rows: Any, numbers: np.ndarray):
        self.rows, self.numbers = rows, numbers
        self.shape, self.dtype = (len(numbers), *rows.shape[1:]), rows.dtype

    def __getitem__(self, at: Any) -> np.ndarray:
        return self.rows[self.numbers[at]]
