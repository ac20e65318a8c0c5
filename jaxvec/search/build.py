"""Documents to a finished segment: encoded once, resumably, then calibrated and coded."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.calibration.calibration import Calibration
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.journal import json_object, locked, refuse_changes
from jaxvec.pipeline import refuse_single_text
from jaxvec.resume import encode_to, run_plan
from jaxvec.search.description import ENCODER, META, encoder_facts, sealed
from jaxvec.search.segment import ENDS, ROWS, TEXTS, file_facts, write_texts, write_vectors
from jaxvec.sinks import hidden_sibling
from jaxvec.vectorfiles import atomic_folder, atomic_write_bytes

Calibrate = Callable[[np.ndarray], Calibration]
SEGMENT = "segment-{:06d}"
RAW, CORPUS, FINISHED = "raw.npy", "corpus.json", "finished"  # in the folder of unfinished work


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

    def forget(self) -> None:
        """Removes them; without vectors the rest does not count any more."""
        for name in (RAW, CORPUS, TEXTS, ENDS):
            (self.folder / name).unlink(missing_ok=True)


def write_index(
    folder: Path,
    encoder: SentenceEncoder,
    sentences: Iterable[Any],
    calibrate: Calibrate | None,
    metric: str,
    dtype: str,
    restart: bool,
    **run: Any,
) -> SentenceEncoder:
    """Writes a new index of one segment, and returns the encoder of its queries; arguments as for `Index.build`."""
    target = Path(os.path.realpath(folder))
    work = hidden_sibling(target)
    with _unfinished(work, restart):
        atomic_folder(folder)  # another process may just have made it
        raw = _encoded(work, encoder, sentences, **run)
        fitted = None if calibrate is None else calibrate(raw.vectors)
        if fitted is not None:
            encoder = encoder.with_calibration(fitted, {"documents": len(raw)})
        with atomic_folder(work / FINISHED) as made:
            segment = _finished(made / SEGMENT.format(0), raw, fitted, metric, dtype)
            if encoder.provenance is not None:
                encoder.save(made / ENCODER)
            meta = {
                "metric": metric,
                "dtype": dtype,
                "dim": encoder.dim,
                "encoder": encoder_facts(encoder),
                "segments": [segment],
                "removed": [],
            }
            (made / META).write_bytes(sealed(meta))
        os.replace(work / FINISHED, target)
        raw.forget()
    return encoder


def write_segment(
    folder: Path,
    encoder: SentenceEncoder,
    sentences: Iterable[Any],
    metric: str,
    dtype: str,
    restart: bool,
    listed: Callable[[dict[str, Any]], Any],
    **run: Any,
) -> Any:
    """Writes more documents as a segment, beside those of an index; returns what `listed` makes of its description."""
    work = hidden_sibling(folder)
    with _unfinished(work, restart):
        raw = _encoded(work, encoder, sentences, **run)
        with atomic_folder(work / FINISHED) as made:
            segment = _finished(made / folder.name, raw, None, metric, dtype)
        shutil.rmtree(folder, ignore_errors=True)  # a kill came before it was listed
        os.replace(work / FINISHED / folder.name, folder)
        found = listed(segment)
        raw.forget()
    return found


def forget_work(made: Path) -> None:
    """Removes the work for an index or a segment that is there; it is left where a kill came at the very end."""
    shutil.rmtree(hidden_sibling(made), ignore_errors=True)


@contextmanager
def _unfinished(work: Path, restart: bool) -> Iterator[None]:
    """The folder `work`, for one process at a time; afterwards it is there only if it is worth going on with."""
    work.mkdir(exist_ok=True)
    encoding = hidden_sibling(work / RAW)
    with locked(work):
        kept = (RAW, CORPUS, TEXTS, ENDS) if (work / RAW).exists() else (encoding.name,)
        for path in list(work.iterdir()):
            if restart or path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield
        finally:
            if not (encoding.exists() or (work / RAW).exists()):
                shutil.rmtree(work)


def _encoded(
    work: Path,
    encoder: SentenceEncoder,
    sentences: Iterable[Any],
    batch_tokens: int | None,
    options: dict[str, Any] | None,
    tick: Callable[[int], Any],
) -> Raw:
    """Vectors and texts of all sentences, in the folder `work`; called again after a kill, it goes on.

    Raises:
        InputError: no sentences, or the folder holds work of another encoder or corpus.
    """
    refuse_single_text(sentences)
    plan = run_plan(encoder, batch_tokens=batch_tokens, **(options or {}))

    def noted() -> Iterator[Any]:
        yield from write_texts(work, sentences)
        # All that belongs to the vectors is there before they get their name.
        facts = {"plan": plan, "texts": file_facts(work, (TEXTS, ENDS))}
        atomic_write_bytes(work / CORPUS, json.dumps(facts).encode())

    if (work / RAW).exists():
        _check_corpus(work, plan, sentences)
    else:
        encode_to(
            work / RAW,
            encoder,
            noted(),
            normalize=False,
            batch_tokens=batch_tokens,
            options=options,
            tick=tick,
        )
    raw = Raw(work, np.load(work / RAW, mmap_mode="r"))
    if not len(raw):
        raw.forget()
        raise InputError("the corpus holds no sentences; there is nothing to index")
    return raw


def _check_corpus(work: Path, plan: dict[str, Any], sentences: Iterable[Any]) -> None:
    """Refuses finished vectors of another encoder or of other texts."""
    noted = json_object(work / CORPUS, (work / CORPUS).read_bytes(), "plan", "texts")
    refuse_changes(work, noted["plan"], plan)
    again = work / "again"
    again.mkdir()
    for _ in write_texts(again, sentences):
        pass
    if file_facts(again, (TEXTS, ENDS)) != noted["texts"]:
        raise InputError(
            f"{work} holds work on another corpus; give --restart to throw it away, or another output"
        )
    shutil.rmtree(again)


def _finished(
    folder: Path, raw: Raw, calibration: Calibration | None, metric: str, dtype: str
) -> dict[str, Any]:
    """Writes encoded documents as a segment, each vector corrected by `calibration`; returns what describes it."""
    folder.mkdir()
    dim = raw.vectors.shape[1] if calibration is None else calibration.dim
    batches = (batch if calibration is None else np.asarray(calibration(batch)) for batch in raw.batches())
    write_vectors(folder, batches, dim, metric, dtype)
    for name in (TEXTS, ENDS):
        shutil.copyfile(raw.folder / name, folder / name)
    names = sorted(path.name for path in folder.iterdir())
    return {"name": folder.name, "rows": len(raw), "files": file_facts(folder, names)}
