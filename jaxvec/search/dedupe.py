"""Near-duplicates: all pairs of vectors whose cosine reaches a threshold, streamed."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.errors import InputError
from jaxvec.pipeline import local_rows
from jaxvec.search.storage import Rows, check_rows, finite, unit_rows
from jaxvec.search.topk import GROUP, HIGHEST

BLOCK, QUERIES = 16_384, 1_024
SLACK = 1e-5  # more than float32 scores of unit vectors differ by


def near_duplicates(vectors: Rows, threshold: float = 0.95) -> Iterator[tuple[int, int, float]]:
    """Yields (i, j, cosine), i < j, for every pair whose cosine is at least `threshold`, in the order of (i, j).

    Every pair is looked at: n² / 2 products on the devices, in bounded memory. Only where the best of 32
    neighbouring scores reaches the threshold does anything come back to be looked at one by one.

    Args:
        vectors: float [n, dim]: an array, or a memory map of any size. A vector of zeros is nobody's duplicate.
        threshold: above 0, at most 1; what differs from 1 by less than float32 resolves (1e-6) counts as 1.

    Raises:
        InputError: another threshold, vectors that are not [n, dim], or one that is not finite.

    Example:
        >>> vectors = np.array([[1, 0], [0, 1], [3, 0.1], [0, 2]], np.float32)
        >>> [(i, j, round(cosine, 2)) for i, j, cosine in near_duplicates(vectors, 0.9)]
        [(0, 2, 1.0), (1, 3, 1.0)]
    """
    if not 0 < threshold <= 1:
        raise InputError(f"threshold is {threshold}; expected a cosine above 0, at most 1")
    check_rows(vectors)
    return _pairs(vectors, threshold)


def _pairs(vectors: Rows, threshold: float) -> Iterator[tuple[int, int, float]]:
    n, rows = vectors.shape[0], local_rows()
    if not n:
        return
    unit = GROUP * rows.mesh.size
    block = -(-min(n, BLOCK) // unit) * unit
    queries = min(block, QUERIES)
    for first in range(0, n, queries):
        asked = _unit_block(vectors, first, queries)
        found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for start in range(first // block * block, n, block):
            documents = _unit_block(vectors, start, block)
            hits = _groups(asked, jax.device_put(documents, rows), jnp.float32(threshold - SLACK))
            found.append(_scored(asked, documents, np.argwhere(np.asarray(hits)), first, start, threshold))
        i, j, scores = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.lexsort((j, i))
        yield from zip(i[order].tolist(), j[order].tolist(), scores[order].tolist(), strict=True)


def _scored(
    asked: np.ndarray, documents: np.ndarray, hits: np.ndarray, first: int, start: int, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs within the groups that were hit: rows of both, and their cosines."""
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    for piece in np.array_split(hits, max(1, len(hits) // 4096)):
        columns = piece[:, 1:] * GROUP + np.arange(GROUP)
        scores = np.einsum("hgd,hd->hg", documents[columns], asked[piece[:, 0]])
        i = np.broadcast_to(piece[:, :1] + first, columns.shape)
        # A row of zeros is nobody's duplicate, nor is what fills a block up.
        keep = (scores >= threshold - 1e-6) & (scores > 0) & (columns + start > i)
        parts.append((i[keep], (columns + start)[keep], np.minimum(scores[keep], 1)))
    i, j, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
    return i, j, scores


def _unit_block(vectors: Rows, start: int, size: int) -> np.ndarray:
    block = np.zeros((size, vectors.shape[1]), np.float32)
    part = np.asarray(vectors[start : start + size], np.float32)
    block[: len(part)] = unit_rows(finite(part))
    return block


@jax.jit
def _groups(asked: Any, documents: Any, threshold: Any) -> Any:
    scores = jnp.dot(asked, documents.T, precision=HIGHEST)
    return jnp.max(scores.reshape(len(asked), -1, GROUP), axis=-1) >= threshold
