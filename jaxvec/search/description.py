"""index.json: what an index is, which encoder made it, and a seal over both."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxvec.calibration.calibration import calibration_digest
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.journal import locked
from jaxvec.sinks import hidden_sibling
from jaxvec.vectorfiles import check_target

META, ENCODER, FORMAT_VERSION = "index.json", "encoder", 1
_SAME = ("fingerprint", "pooling", "layers", "calibration")


def encoder_facts(encoder: SentenceEncoder) -> dict[str, Any]:
    """What tells one encoder's vectors from another's, and how to load it again."""
    digest = None if encoder.calibration is None else calibration_digest(encoder.calibration)
    return {
        **encoder.describe(),
        "model": encoder.source,
        "fingerprint": encoder.fingerprint,
        "calibration": digest,
    }


def load_encoder(folder: Path, facts: dict[str, Any]) -> SentenceEncoder:
    """The encoder of these facts, with the calibration that the index keeps."""
    kept = folder / ENCODER
    if facts["calibration"] is not None:
        if not kept.is_dir():
            raise InputError(f"{kept}, the calibration of this index, is missing; index the corpus again")
        return SentenceEncoder.load(kept, max_length=facts["max_length"])
    try:
        return SentenceEncoder.load(
            kept if kept.is_dir() else facts["model"],
            pooling=facts["pooling"],
            layers=tuple(facts["layers"]),
            max_length=facts["max_length"],
        )
    except InputError as error:
        raise InputError(
            f"{folder}: cannot load the encoder it was made with ({error}). Put that model, or a link to it, at {kept}"
        ) from None


def refuse_other_encoder(folder: Path, then: dict[str, Any], encoder: SentenceEncoder) -> None:
    """Refuses an encoder that is not the one of these facts, naming what differs."""
    now = encoder_facts(encoder)
    changed = [f"{name} {now[name]!r} instead of {then[name]!r}" for name in _SAME if now[name] != then[name]]
    if changed:
        raise InputError(
            f"{folder} was made with another encoder: {encoder.name} has {', '.join(changed)}. Search with the model "
            f"it was made with ({then['model']}), or index the corpus again"
        )


def sealed(meta: dict[str, Any]) -> bytes:
    """The bytes of index.json: JSON, and a line with its SHA-256."""
    body = json.dumps({"jaxvec_index": FORMAT_VERSION, **meta}, ensure_ascii=False, indent=1)
    return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode()


def read_meta(folder: Path) -> dict[str, Any]:
    """What index.json says.

    Raises:
        InputError: not an index, unfinished, damaged, or of a newer version.
    """
    try:
        body, seal = (folder / META).read_bytes().decode().rstrip("\n").rsplit("\n", 1)
    except OSError:
        reason = (
            "the run that makes it is not finished: give its `jaxvec index` command again"
            if hidden_sibling(folder).is_dir()
            else "expected a folder written by `jaxvec index`"
        )
        raise InputError(f"{folder} is not an index: {reason}") from None
    except ValueError:
        body = seal = ""
    if hashlib.sha256(body.encode()).hexdigest() != seal:
        raise InputError(f"{folder / META} is damaged; index the corpus again")
    meta = json.loads(body)
    if meta["jaxvec_index"] != FORMAT_VERSION:
        raise InputError(f"{folder}: an index of version {meta['jaxvec_index']}; update jaxvec")
    return meta


@contextmanager
def alone(folder: Path, meta: dict[str, Any]) -> Iterator[None]:
    """Nobody else changes the index, which still is as `meta` says, while the block lasts."""
    check_target(folder / META)
    with locked(folder):
        if read_meta(folder) != meta:
            raise InputError(f"{folder} was changed meanwhile; open it again")
        for left in folder.glob(f".{META}.*.tmp"):  # by a kill
            left.unlink()
        yield
