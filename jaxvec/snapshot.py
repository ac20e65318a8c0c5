"""Moments of a corpus too long for one sitting: kept on the disk every few seconds, so that a killed run goes on."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from jaxvec.calibration.device_moments import DeviceMoments
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError
from jaxvec.journal import Journal, damaged, refuse_if_busy, text_digest
from jaxvec.pipeline import check_batch_tokens, local_rows, refuse_single_text
from jaxvec.resume import Corpus, check_share, run_plan
from jaxvec.sinks import hidden_sibling, make_folder
from jaxvec.vectorfiles import atomic_write_bytes

if TYPE_CHECKING:
    from jaxvec.encoder import SentenceEncoder

_SECONDS = 5  # between snapshots; a snapshot waits for the device


def moments_to_go_on_with(
    output: str | os.PathLike[str],
    encoder: "SentenceEncoder",
    sentences: Iterable[str],
    *,
    batch_tokens: int | None = None,
    share: tuple[int, int] = (0, 1),
    restart: bool = False,
    options: dict[str, Any] | None = None,
    tick: Callable[[int], Any] = lambda count: None,
) -> Moments:
    """`encoder.moments(sentences)`, which a later call with the same arguments goes on with after a kill.

    The work is kept in a hidden folder beside `output`; `save_and_forget` writes the output and removes it.
    Arguments and errors are those of `jaxvec.encode_to`; with a share these are the moments of that share.
    """
    refuse_single_text(sentences)
    check_batch_tokens(batch_tokens)
    check_share(share)
    if share[1] > 1 and restart:
        raise InputError(
            f"{output}: several processes share its work, so none may throw it away; remove it first"
        )
    work = hidden_sibling(Path(output))
    if restart:
        refuse_if_busy(work)
        forget_moments(output)
    make_folder(work)
    name = f"{share[0]}-of-{share[1]}"
    state = work / f"moments-{name}.safetensors"
    plan = {**run_plan(encoder, batch_tokens=batch_tokens, share=name), **(options or {})}
    with Journal(work / f"progress-{name}.jsonl", plan) as journal:
        noted = {entry["chunk"]: entry for entry in journal.entries}
        moments, chunks = _read(state, encoder.dim)
        if chunks > len(noted):
            raise damaged(state)  # it counts chunks that the journal does not know, and would encode again
        corpus = Corpus(sentences, {c: noted[c] for c in sorted(noted)[:chunks]}, share, Path(output))
        saved = time.monotonic()
        try:
            for texts, moments in encoder.running_moments(  # noqa: B020
                corpus.owed_sentences(), moments, batch_tokens=batch_tokens, tick=tick
            ):
                chunk, chunks = corpus.owed.popleft(), chunks + 1
                journal.append({"chunk": chunk, "rows": len(texts), "text": text_digest(texts)})
                if time.monotonic() - saved > _SECONDS:
                    _write(state, moments, chunks)
                    saved = time.monotonic()
            if chunks > 1:
                _write(state, moments, chunks)
        finally:
            if not state.exists():  # a run of seconds, or one that has finished nothing, leaves no trace
                (work / f"progress-{name}.jsonl").unlink(missing_ok=True)
                with suppress(OSError):  # others are at work in it
                    work.rmdir()
    return moments.merged()


def save_and_forget(output: str | os.PathLike[str], save: Callable[[Path], Any]) -> None:
    """Calls `save` with a folder among the kept work, gives that the name of `output`, and removes the rest.

    A kill in between leaves nothing that the next call for this output does not find.
    """
    work = hidden_sibling(Path(output))
    make_folder(work)
    whole = work / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    save(whole)
    try:
        os.replace(whole, os.path.realpath(output))
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}") from None
    forget_moments(output)


def forget_moments(output: str | os.PathLike[str]) -> None:
    """Removes what `moments_to_go_on_with` has kept for this output."""
    shutil.rmtree(hidden_sibling(Path(output)), ignore_errors=True)


def _write(path: Path, moments: DeviceMoments, chunks: int) -> None:
    from safetensors.numpy import save

    arrays = {f"{i:02d}": leaf for i, leaf in enumerate(jax.tree.leaves(moments.host()))}
    atomic_write_bytes(path, save(arrays, {"chunks": json.dumps(chunks)}))


def _read(path: Path, dim: int) -> tuple[DeviceMoments, int]:
    from safetensors import safe_open

    empty, rows = Moments.empty(dim), local_rows()
    if not path.exists():
        return DeviceMoments.empty(dim, rows), 0
    try:
        with safe_open(path, framework="np") as file:
            leaves = [file.get_tensor(name) for name in sorted(file.keys())]
            moments = jax.tree.structure(empty).unflatten(leaves)
            chunks = json.loads(file.metadata()["chunks"])
    except Exception:  # the library's own types
        raise damaged(path) from None
    devices = leaves[0].shape[:1]
    if any(a.shape != (*devices, *b.shape) for a, b in zip(leaves, jax.tree.leaves(empty), strict=True)):
        raise damaged(path)
    return DeviceMoments.place(moments, rows), chunks
