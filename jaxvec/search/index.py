"""A folder of documents that can be searched: texts, calibrated vectors, and which encoder made them."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.pipeline import refuse_single_text
from jaxvec.search.build import SEGMENT, Calibrate, forget_work, write_index, write_segment
from jaxvec.search.corpus import METRICS, Corpus
from jaxvec.search.description import META, alone, load_encoder, read_meta, refuse_other_encoder, sealed
from jaxvec.search.segment import Joined, Segment, Selected, read_segment
from jaxvec.search.storage import STORAGE, check_choice, check_count
from jaxvec.vectorfiles import atomic_folder, atomic_write_bytes


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Attributes:
        id: its number: the first document is 0; numbers are never given twice.
        score: cosine, or the inner product where the index is made for that.
        text: the document.
    """

    id: int
    score: float
    text: str


@dataclass(frozen=True, eq=False)
class Index:
    """An opened index folder; made by `Index.build`, opened by `Index.open`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "index"
        >>> documents = ["A dog barks.", "Stocks fell today.", "The train is late."]
        >>> index = Index.build(folder, SentenceEncoder.load(), documents)
        >>> index.search(["Shares lost value."], k=1)[0][0].text
        'Stocks fell today.'
        >>> index = Index.open(folder).add(["The bus did not come."]).remove([2])
        >>> [hit.id for hit in index.search(["public transport"], k=1)[0]]
        [3]
    """

    folder: Path
    meta: dict[str, Any]
    segments: tuple[Segment, ...]

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        encoder: SentenceEncoder,
        sentences: Iterable[Any],
        *,
        calibrate: Calibrate | None = None,
        metric: str = "cosine",
        dtype: str = "float32",
        batch_tokens: int | None = None,
        restart: bool = False,
        options: dict[str, Any] | None = None,
        tick: Callable[[int], Any] = lambda count: None,
    ) -> "Index":
        """Encodes documents and writes the folder, in constant memory; killed and called again, it goes on.

        Args:
            folder: a new one, or an empty one.
            encoder: encodes the documents, un-normalised, and later the queries.
            sentences: the documents, from the first, in every call.
            calibrate: fits a calibration on the documents' vectors, float32 [n, dim] in a memory map: say
                `lambda vectors: jaxvec.whitening(jaxvec.Moments.of(vectors), dim=256)`. None leaves vectors as
                they are.
            metric: "cosine" or "dot".
            dtype: what is scanned: "float32", or "bfloat16" or "int8", beside which the float32 vectors stay on disk
                for the last scoring.
            batch_tokens: tokens encoded at a time.
            restart: throw unfinished work for this folder away instead of going on with it.
            options: what else decides the vectors, as plain JSON values, such as how the corpus is read.
            tick: called with the number of sentences whenever a batch has been encoded.

        Raises:
            InputError: no documents, a folder that is not empty, or unfinished work of another model or corpus.
        """
        check_choice("metric", metric, METRICS)
        check_choice("dtype", dtype, STORAGE)
        if (Path(folder) / META).is_file():
            forget_work(Path(folder))
        atomic_folder(folder)
        if encoder.token_weights is not None and encoder.provenance is None:
            raise InputError(
                "pooling 'sif' has token weights to keep: give the index a folder fitted with it"
            )
        encoder = write_index(
            Path(folder),
            encoder,
            sentences,
            calibrate,
            metric,
            dtype,
            restart,
            batch_tokens=batch_tokens,
            options=options,
            tick=tick,
        )
        opened = cls.open(folder)
        opened.__dict__["encoder"] = encoder
        return opened

    @classmethod
    def open(cls, folder: str | os.PathLike[str], encoder: SentenceEncoder | None = None) -> "Index":
        """Opens a folder, after checking that every byte is as it was written.

        Args:
            folder: written by `build` or `jaxvec index`.
            encoder: encodes the queries; None loads the one that the documents were encoded with, when it is needed.

        Raises:
            InputError: not an index, unfinished, damaged, or made with another encoder.
        """
        folder = Path(folder)
        meta = read_meta(folder)
        segments = tuple(
            read_segment(folder / part["name"], part["files"], meta["dim"], part["rows"], meta["dtype"])
            for part in meta["segments"]
        )
        index = cls(folder, meta, segments)
        if encoder is not None:
            refuse_other_encoder(folder, meta["encoder"], encoder)
            index.__dict__["encoder"] = encoder
        return index

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The encoder that the documents were encoded with.

        Raises:
            InputError: it cannot be loaded any more, or has other weights now.
        """
        encoder = load_encoder(self.folder, self.meta["encoder"])
        refuse_other_encoder(self.folder, self.meta["encoder"], encoder)
        return encoder

    def __len__(self) -> int:
        """How many documents can be found."""
        return int(self.valid.sum())

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.meta["dim"]

    @cached_property
    def valid(self) -> np.ndarray:
        """bool [documents ever added], False where one was removed."""
        valid = np.ones(sum(part["rows"] for part in self.meta["segments"]), bool)
        for start, stop in self.meta["removed"]:
            valid[start:stop] = False
        return valid

    @cached_property
    def vectors(self) -> Joined:
        """float32 [documents ever added, dim], memory-mapped; of unit length where the metric is cosine."""
        return Joined([segment.vectors for segment in self.segments])

    @cached_property
    def corpus(self) -> Corpus:
        """The vectors, ready for search."""
        codes, scale = self.vectors, None
        if self.meta["dtype"] != "float32":
            codes = Joined([segment.codes for segment in self.segments])
        if self.meta["dtype"] == "int8":
            scale = np.concatenate([segment.units for segment in self.segments])
        valid = None if self.valid.all() else self.valid
        return Corpus(self.vectors, codes, scale, valid, self.meta["metric"], unit=True)

    def text(self, number: int) -> str:
        """The document of that number, removed or not."""
        row = number
        for segment in self.segments:
            if 0 <= row < len(segment.ends):
                return segment.text(row)
            row -= len(segment.ends)
        raise InputError(f"there is no document {number}; the index has seen {len(self.valid)}")

    def top_k(
        self, queries: Float[Array | np.ndarray, "q dim"], k: int
    ) -> tuple[Float[np.ndarray, "q m"], Int[np.ndarray, "q m"]]:
        """Scores and document numbers of the k best for query vectors, as `Corpus.top_k`."""
        return self.corpus.top_k(queries, k)

    def search(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]:
        """The k best documents for each query, best first.

        Raises:
            InputError: k < 1, a query that is not text, or an encoder that is not the documents' own any more.
        """
        refuse_single_text(queries, "queries")
        check_count(k)
        scores, numbers = self.top_k(self.encoder.encode(queries, normalize=False), k)
        return [
            [
                Hit(int(number), float(score), self.text(int(number)))
                for score, number in zip(*row, strict=True)
            ]
            for row in zip(scores, numbers, strict=True)
        ]

    def add(
        self,
        sentences: Iterable[Any],
        *,
        batch_tokens: int | None = None,
        restart: bool = False,
        options: dict[str, Any] | None = None,
        tick: Callable[[int], Any] = lambda count: None,
    ) -> "Index":
        """Encodes more documents, with the same encoder and calibration; the others stay as they are.

        Returns:
            The index as it is now; killed and called again with the same documents, it goes on.

        Raises:
            InputError: no documents, or unfinished work on others.
        """
        with alone(self.folder, self.meta):
            for part in self.meta["segments"]:
                forget_work(self.folder / part["name"])
            return write_segment(
                self.folder / SEGMENT.format(len(self.segments)),
                self.encoder,
                sentences,
                self.meta["metric"],
                self.meta["dtype"],
                restart,
                lambda part: self._rewritten(segments=[*self.meta["segments"], part]),
                batch_tokens=batch_tokens,
                options=options,
                tick=tick,
            )

    def remove(self, numbers: Iterable[int]) -> "Index":
        """Takes documents out; nothing is encoded or copied, and the others keep their numbers.

        Returns:
            The index as it is now.

        Raises:
            InputError: a number that no document has.
        """
        valid = self.valid.copy()
        for number in numbers:
            known = isinstance(number, int | np.integer) and 0 <= number < len(valid)
            if not known or not self.valid[number]:
                raise InputError(f"there is no document {number} to remove")
            valid[number] = False
        edges = np.flatnonzero(np.diff(np.concatenate([[True], valid, [True]]).astype(np.int8)))
        with alone(self.folder, self.meta):
            return self._rewritten(removed=edges.reshape(-1, 2).tolist())

    @property
    def found(self) -> Any:
        """The vectors of the documents that can be found, as one array to read from."""
        return self.vectors if self.valid.all() else Selected(self.vectors, np.flatnonzero(self.valid))

    def blocks(self, rows: int = 16_384) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (numbers, float32 vectors) of the documents that can be found, in order."""
        for start in range(0, len(self.valid), rows):
            kept = np.flatnonzero(self.valid[start : start + rows])
            if len(kept):
                yield kept + start, self.vectors[start : start + rows][kept]

    def _rewritten(self, **changes: Any) -> "Index":
        atomic_write_bytes(self.folder / META, sealed(self.meta | changes))
        opened = Index.open(self.folder)
        if "encoder" in self.__dict__:
            opened.__dict__["encoder"] = self.encoder
        return opened
