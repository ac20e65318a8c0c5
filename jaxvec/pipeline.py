"""A stream of sentences → batches on the device, with tokenising and packing going on ahead of it."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxvec.packing import PackedBatch, Packing

CHUNK = 16_384  # sentences tokenised and packed together; packing never crosses a chunk
_IN_FLIGHT = 4  # batches sent ahead of the one whose result is awaited


@dataclass(frozen=True)
class Chunk:
    """Consecutive sentences of a stream and their vectors, still on the device.

    Attributes:
        sentences: the texts.
        batches: (float32 device array [rows · slots, dim], int64 index [rows · slots] of the sentence within the
            chunk, −1 for an empty slot), in no particular order.
        truncated: how many of the sentences were cut.
    """

    sentences: list[str]
    batches: list[tuple[Array, np.ndarray]]
    truncated: int

    def collect(self, dim: int) -> np.ndarray:
        """The vectors on the host, float32 [sentences, dim], in the order of the sentences."""
        vectors = np.empty((len(self.sentences), dim), np.float32)
        for result, index in self.batches:
            filled = index >= 0
            vectors[index[filled]] = np.asarray(result)[filled]
        return vectors


def dispatch(
    sentences: Iterable[str],
    prepare: Callable[[list[str], int], tuple[Packing, int]],
    run: Callable[[PackedBatch], Array],
    tick: Callable[[int], Any],
) -> Iterator[Chunk]:
    """Yields a chunk as soon as its batches have been computed; the next one is prepared meanwhile.

    Args:
        sentences: any number of them.
        prepare: (texts, row number of the first) → (packing, truncated), called on another thread.
        run: sends one batch of NumPy arrays to the device and returns its vectors without waiting for them.
        tick: called with the number of sentences whenever a batch has been computed.
    """
    texts, row = iter(sentences), 0

    def prepare_next(first_row: int) -> tuple[list[str], Packing, int]:
        chunk = list(islice(texts, CHUNK))
        return chunk, *prepare(chunk, first_row)

    with ThreadPoolExecutor(1, "jaxvec-tokens") as worker:
        following = worker.submit(prepare_next, row)
        while (prepared := following.result())[0]:
            chunk, packing, truncated = prepared
            row += len(chunk)
            following = worker.submit(prepare_next, row)
            sent: list[tuple[Array, np.ndarray]] = []
            for batch, index in zip(packing.batches, packing.indices, strict=True):
                sent.append((run(batch), index))
                if len(sent) > _IN_FLIGHT:
                    _await(*sent[-1 - _IN_FLIGHT], tick)
            for late in sent[-_IN_FLIGHT:]:
                _await(*late, tick)
            yield Chunk(chunk, sent, truncated)


def _await(vectors: Array, index: np.ndarray, tick: Callable[[int], Any]) -> None:
    jax.block_until_ready(vectors)
    tick(int((index >= 0).sum()))
