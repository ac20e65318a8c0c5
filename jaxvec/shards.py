"""A folder of vectors: one part a chunk, and a manifest that lists them."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.errors import InputError
from jaxvec.journal import read_journal
from jaxvec.vectorfiles import atomic_write_bytes

MANIFEST, FORMAT_VERSION = "manifest.json", 1


def write_manifest(folder: Path, dim: int, plan: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """Lists the parts, in order; with it the folder is finished."""
    rows = sum(part["rows"] for part in parts)
    head = {"jaxvec_vectors": FORMAT_VERSION, "rows": rows, "dim": dim, "plan": plan}
    lines = [
        *(f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items())
    ]
    listed = ",\n".join(f"  {json.dumps(part)}" for part in parts)
    text = "{\n" + ",\n".join([*lines, f' "parts": [\n{listed}\n ]']) + "\n}\n"
    atomic_write_bytes(folder / MANIFEST, text.encode())


def finished_parts(work: Path) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The plan and the entries of every run in this folder, by file: those of its manifest and of its journals."""
    found = {}
    for path in sorted(work.glob("progress-*.jsonl")):
        plan, entries = read_journal(path)
        if plan is not None:
            found[path.name] = plan, entries
    # Last: the process that finishes the folder writes the manifest before it removes the journals.
    with suppress(FileNotFoundError):
        manifest = read_manifest(work / MANIFEST)
        found[MANIFEST] = manifest["plan"], manifest["parts"]
    return found


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder of vectors.

    Raises:
        FileNotFoundError: there is none.
        InputError: it is damaged, of something else, or of another version.
    """
    with suppress(ValueError):
        manifest = json.loads(path.read_bytes())
        if isinstance(manifest, dict) and manifest.get("jaxvec_vectors") not in (None, FORMAT_VERSION):
            raise InputError(f"{path}: not a manifest of version {FORMAT_VERSION}; update jaxvec")
        if (
            isinstance(manifest, dict)
            and {"jaxvec_vectors", "rows", "dim", "plan", "parts"} <= manifest.keys()
        ):
            return manifest
    raise InputError(f"{path} is damaged, or not of a folder of vectors; encode again into another folder")


@dataclass(frozen=True)
class Shards:
    """A finished folder of vectors: iterating gives its parts in order, float32 [rows, dim], .npy ones memory-mapped.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> np.save(folder / "part-000000.npy", np.ones((2, 3), np.float32))
        >>> write_manifest(folder, 3, {}, [{"file": "part-000000.npy", "rows": 2}])
        >>> shards = Shards.open(folder)
        >>> shards.rows, shards.dim, [part.shape for part in shards]
        (2, 3, [(2, 3)])
    """

    folder: Path
    rows: int
    dim: int
    files: Sequence[str]

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Shards":
        """Opens a folder that `jaxvec encode` wrote.

        Raises:
            InputError: there is no manifest in it, or it is of a newer version.
        """
        folder = Path(folder)
        try:
            manifest = read_manifest(folder / MANIFEST)
        except OSError:
            unfinished = any(folder.glob("progress-*.jsonl"))
            reason = "no such folder of vectors"
            if unfinished:
                reason = "the run that writes it is not finished; give its command again"
            elif within := sorted(folder.glob(f"*/{MANIFEST}")):
                reason = f"it holds a folder of vectors for each text; open them, as {within[0].parent}"
            raise InputError(f"{folder}: {reason} (no {MANIFEST})") from None
        return cls(folder, manifest["rows"], manifest["dim"], tuple(p["file"] for p in manifest["parts"]))

    def __iter__(self) -> Iterator[np.ndarray]:
        for name in self.files:
            path = self.folder / name
            yield np.load(path, mmap_mode="r") if path.suffix == ".npy" else _parquet_vectors(path, self.dim)


def _parquet_vectors(path: Path, dim: int) -> np.ndarray:
    from jaxvec.textfiles import import_pyarrow

    column = import_pyarrow(str(path)).parquet.read_table(path, columns=["vector"])["vector"]
    return column.combine_chunks().flatten().to_numpy().reshape(-1, dim)
