"""Documents to a finished segment: encoded once, resumably, then calibrated and coded."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.calibration.calibration import Calibration
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.journal import differences
from jaxvec.resume import encode_to, run_plan
from jaxvec.search.segment import ENDS, ROWS, TEXTS, check_file, file_facts, write_texts, write_vectors
from jaxvec.vectorfiles import atomic_write_bytes

Calibrate = Callable[[np.ndarray], Calibration]
RAW, DONE = "raw.npy", "encoded.json"


@dataclass(frozen=True, eq=False)
class Raw:
    """Encoded documents: the folder of their texts, and their un-normalised vectors [n, dim], memory-mapped."""

    folder: Path
    vectors: np.ndarray

    def __len__(self) -> int:
        return len(self.vectors)

    def batches(self) -> Iterator[np.ndarray]:
        """The vectors, some thousands at a time."""
        for start in range(0, len(self), ROWS):
            yield self.vectors[start : start + ROWS]


def encode_documents(
    work: Path,
    encoder: SentenceEncoder,
    sentences: Iterable[Any],
    batch_tokens: int | None,
    restart: bool,
    options: dict[str, Any] | None,
    tick: Callable[[int], Any],
) -> Raw:
    """Vectors and texts of all sentences, in the folder `work`; called again after a kill, it goes on.

    Raises:
        InputError: no sentences, or the folder holds work of another encoder or corpus.
    """
    if restart:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(exist_ok=True)
    plan = run_plan(encoder, batch_tokens=batch_tokens, **(options or {}))
    try:
        if (work / DONE).exists():
            _check_encoded(work, plan, sentences)
        else:
            encode_to(
                work / RAW,
                encoder,
                write_texts(work, sentences),
                normalize=False,
                batch_tokens=batch_tokens,
                options=options,
                tick=tick,
            )
            facts = {name: facts for name, facts in file_facts(work).items() if name in (TEXTS, ENDS, RAW)}
            atomic_write_bytes(work / DONE, json.dumps({"plan": plan, "files": facts}).encode())
    except InputError:
        if {file.name for file in work.iterdir()} <= {TEXTS, ENDS}:
            shutil.rmtree(work)  # nothing has been encoded
        raise
    vectors = np.load(work / RAW, mmap_mode="r")
    if not len(vectors):
        shutil.rmtree(work)
        raise InputError("the corpus holds no sentences; there is nothing to index")
    return Raw(work, vectors)


def finish_segment(
    folder: Path, raw: Raw, calibration: Calibration | None, metric: str, dtype: str
) -> dict[str, Any]:
    """Writes encoded documents as a segment, each vector corrected by `calibration`; returns what describes it."""
    folder.mkdir()
    dim = raw.vectors.shape[1] if calibration is None else calibration.dim
    batches = (batch if calibration is None else np.asarray(calibration(batch)) for batch in raw.batches())
    write_vectors(folder, batches, dim, metric, dtype)
    for name in (TEXTS, ENDS):
        shutil.copyfile(raw.folder / name, folder / name)
    return {"name": folder.name, "rows": len(raw), "files": file_facts(folder)}


def _check_encoded(work: Path, plan: dict[str, Any], sentences: Iterable[Any]) -> None:
    """Refuses finished vectors of another encoder or of other texts."""
    done = json.loads((work / DONE).read_bytes())
    if changed := differences(done["plan"], plan):
        raise InputError(
            f"{work} holds work of another run: {changed}; give --restart to throw it away, or another output"
        )
    again = work / "again"
    shutil.rmtree(again, ignore_errors=True)
    again.mkdir()
    for _ in write_texts(again, sentences):
        pass
    for name in (TEXTS, ENDS):
        try:
            check_file(again / name, done["files"][name])
        except InputError:
            raise InputError(
                f"{work} holds work on another corpus; give --restart to throw it away, or another output"
            ) from None
        os.replace(again / name, work / name)
    check_file(work / RAW, done["files"][RAW])
