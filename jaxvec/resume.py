"""Long runs over a corpus, which go on where they were killed: encoding to disk, and moments."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxvec.calibration.calibration import calibration_digest
from jaxvec.errors import InputError
from jaxvec.journal import Journal, refuse_changes, refuse_if_busy, text_digest
from jaxvec.pipeline import CHUNK, check_batch_tokens, refuse_single_text
from jaxvec.shards import finished_parts
from jaxvec.sinks import PartsFolder, open_sink
from jaxvec.tokens import refuse_bad_rows

if TYPE_CHECKING:
    from jaxvec.encoder import SentenceEncoder


@dataclass(frozen=True)
class Finished:
    """What `encode_to` has done.

    Attributes:
        rows: sentences of the whole corpus.
        before: how many of them earlier runs had encoded.
        complete: False while other processes still owe their chunks.
    """

    rows: int
    before: int
    complete: bool


def encode_to(
    output: str | os.PathLike[str],
    encoder: "SentenceEncoder",
    sentences: Iterable[str],
    *,
    normalize: bool | None = None,
    batch_tokens: int | None = None,
    form: str | None = None,
    share: tuple[int, int] = (0, 1),
    restart: bool = False,
    options: dict[str, Any] | None = None,
    tick: Callable[[int], Any] = lambda count: None,
) -> Finished:
    """Encodes any number of sentences to disk in constant memory; killed and called again, it goes on.

    Chunks of 16,384 sentences are written one after another and noted in a journal. A later call with the same
    output, model, options and corpus checks that the finished chunks are of the same text, and encodes the rest:
    on the same devices the output has the same bytes as if nothing had happened.

    Args:
        output: a name ending in .npy (float32 [n, dim], for `np.load(…, mmap_mode="r")`) or .parquet (columns text and
            vector) for one file; one without ending for a folder of parts, which `jaxvec.Shards.open` reads.
        encoder: the encoder.
        sentences: the whole corpus, from its beginning, in every call and in every process.
        normalize: as for `SentenceEncoder.encode`.
        batch_tokens: as for `SentenceEncoder.encode`.
        form: "npy" or "parquet", for the parts of a folder.
        share: (i, n): this process encodes every n-th chunk, from the i-th on, into a folder that all n share. They
            need not know of each other; the last one to finish writes the manifest.
        restart: throw unfinished work for this output away instead of going on with it.
        options: what else decides the vectors, such as how the corpus is read, as plain JSON values.
        tick: called with the number of sentences whenever a batch has been computed.

    Raises:
        InputError: the output holds work of another model, corpus or option, which is named; or cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from jaxvec.encoder import SentenceEncoder
        >>> path = os.path.join(tempfile.mkdtemp(), "vectors.npy")
        >>> encode_to(path, SentenceEncoder.load(), ["A dog barks.", "It rains."])
        Finished(rows=2, before=0, complete=True)
        >>> np.load(path, mmap_mode="r").shape
        (2, 384)
    """
    refuse_single_text(sentences)
    check_batch_tokens(batch_tokens)
    check_share(share)
    sink = open_sink(output, encoder.dim, form)
    if share[1] > 1 and type(sink) is not PartsFolder:
        raise InputError(f"{output}: several processes write a folder of parts; give a name without suffix")
    if share[1] > 1 and restart:
        raise InputError(f"{output}: several processes share it, so none may throw it away; remove it first")
    plan = run_plan(encoder, normalize=normalize, batch_tokens=batch_tokens, format=sink.suffix[1:])
    plan |= options or {}
    try:
        json.dumps(plan)
    except TypeError as error:
        raise InputError(f"options are {options!r} ({error}); expected plain JSON values") from None
    if restart:
        refuse_if_busy(sink.work)
        sink.discard()
    sink.begin()
    own = f"progress-{share[0]}-of-{share[1]}.jsonl"
    earlier = finished_parts(sink.work)
    for name, (then, _) in earlier.items():
        if name != own:
            refuse_changes(Path(output), then, plan)
    with Journal(sink.work / own, plan) as journal:
        noted = {entry["chunk"]: entry for _, entries in earlier.values() for entry in entries}
        done: dict[int, dict[str, Any]] = {}
        try:
            done = {entry["chunk"]: entry for entry in sink.open([noted[chunk] for chunk in sorted(noted)])}
            corpus = Corpus(sentences, done, share, Path(output))
            for texts, vectors in encoder.stream(
                corpus.owed_sentences(), normalize=normalize, batch_tokens=batch_tokens, tick=tick
            ):
                chunk = corpus.owed.popleft()
                kept = sink.write(chunk, vectors, texts)
                journal.append({"chunk": chunk, "rows": len(texts), "text": text_digest(texts), **kept})
            parts = {
                part["chunk"]: part for _, entries in finished_parts(sink.work).values() for part in entries
            }
            if complete := len(parts) == corpus.chunks:
                sink.finish(plan, [parts[chunk] for chunk in range(corpus.chunks)])
        except BaseException:
            if not noted and not journal.entries:
                sink.abandon(own)
            elif not journal.entries:
                (sink.work / own).unlink(missing_ok=True)
            raise
        finally:
            sink.close()
    before = sum(entry["rows"] for entry in done.values())
    return Finished(corpus.rows, before, complete)


def check_share(share: tuple[int, int]) -> None:
    """Refuses a share that is not (i, n) with whole numbers 0 ≤ i < n."""
    whole = isinstance(share, tuple) and len(share) == 2 and all(type(number) is int for number in share)
    if not whole or not 0 <= share[0] < share[1]:
        raise InputError(
            f"share is {share!r}; expected (i, n): the i-th of n processes, with i from 0 to n − 1"
        )


def run_plan(encoder: "SentenceEncoder", **options: Any) -> dict[str, Any]:
    """All that decides the bytes of a run's vectors, as plain JSON values, for its journal."""
    import jax

    from jaxvec import __version__

    devices = jax.local_devices()
    digest = None if encoder.calibration is None else calibration_digest(encoder.calibration)
    weights = None
    if encoder.token_weights is not None:
        weights = hashlib.sha256(np.asarray(encoder.token_weights).tobytes()).hexdigest()
    described = {name: value for name, value in encoder.describe().items() if name != "model"}
    options = {name: v.item() if isinstance(v, np.generic) else v for name, v in options.items()}
    return {
        "model": encoder.fingerprint,
        "calibration": digest,
        "token_weights": weights,
        "attention": encoder.attention,
        **described,
        **options,
        "chunk": CHUNK,
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "versions": f"jaxvec {__version__}, jax {jax.__version__}",
    }


@dataclass
class Corpus:
    """The sentences of a corpus that this process still owes; the finished ones are compared with what was encoded.

    Attributes:
        owed: numbers of the chunks that have been handed out and not come back.
        chunks: chunks of the whole corpus, once it has been read.
        rows: sentences, likewise.
    """

    sentences: Iterable[str]
    done: dict[int, dict[str, Any]]
    share: tuple[int, int]
    output: Path
    owed: deque[int] = field(default_factory=deque)
    chunks: int = 0
    rows: int = 0

    def owed_sentences(self) -> Iterator[str]:
        texts = iter(self.sentences)
        while chunk := list(islice(texts, CHUNK)):
            try:
                "".join(chunk).encode()
            except (TypeError, UnicodeEncodeError):
                refuse_bad_rows(chunk, self.rows)
            entry = self.done.get(self.chunks)
            if entry is not None:
                self._compare(entry, chunk)
            elif self.chunks % self.share[1] == self.share[0]:
                self.owed.append(self.chunks)
            self.chunks += 1
            self.rows += len(chunk)
            if self.owed and self.owed[-1] == self.chunks - 1:
                yield from chunk
        if self.done and max(self.done) >= self.chunks:
            raise self._changed(f"it ends after {self.rows} sentences")

    def _compare(self, entry: dict[str, Any], chunk: list[str]) -> None:
        if entry["rows"] != len(chunk) or entry.get("text") != text_digest(chunk):
            raise self._changed(
                f"sentences {self.rows + 1} to {self.rows + entry['rows']} are not what they were"
            )

    def _changed(self, how: str) -> InputError:
        return InputError(
            f"{self.output} holds work on another corpus: {how}. Give the same text to go on with it, --restart to "
            "throw it away, or another output"
        )
