"""Chunks of any size on the host, as float32 blocks of one fixed shape, so that one program is compiled."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.errors import InputError

BLOCK_ROWS = 4096  # one float32 product each; larger ones lose accuracy, smaller ones lose to the d×d merge
# One compiled program, which multiplies only the rows in use, rounded up to one of these.
ROW_BUCKETS = (256, 1024, 2048, 3072, BLOCK_ROWS)


def as_rows(vectors: Any) -> Any:
    """`vectors` as an array [n, d], or an InputError."""
    if not isinstance(vectors, jax.Array):
        try:
            vectors = np.asarray(vectors)
            if vectors.dtype.kind in "OUS":
                vectors = vectors.astype(np.float32)
        except (TypeError, ValueError):
            raise InputError(
                "vectors are not an array of numbers; expected [n, d], one row a sentence"
            ) from None
    if vectors.dtype.kind == "c":
        raise InputError(f"vectors are {vectors.dtype}; expected real numbers")
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise InputError(f"vectors have shape {vectors.shape}; expected [n, d], one row a sentence")
    return vectors


def as_weights(weights: Any, rows: int, xp: Any) -> Any:
    """Float32 weights [rows], ones for None; `xp` is the array module, numpy or jax.numpy."""
    given = xp.ones(rows, np.float32) if weights is None else xp.asarray(weights)
    if given.shape != (rows,):
        raise InputError(f"weights have shape {given.shape}; expected one weight for each of {rows} rows")
    weights = given.astype(np.float32)
    if xp is np and given.dtype.kind in "iu" and (rounded := weights != given).any():
        row = int(np.argmax(rounded))
        raise InputError(
            f"weight of row {row} is {given[row]}, which float32 cannot hold; give the row twice"
        )
    return weights


def fixed_blocks(chunk: Any, weights: Any) -> Iterator[tuple[Any, np.ndarray, int]]:
    """A concrete chunk [n, d] as blocks [BLOCK_ROWS, d], their weights, and the bucket of the rows in use.

    The rows that fill a block up are zero and have weight zero.

    Raises:
        InputError: a weight that is negative or not finite, by row.
    """
    rows = len(chunk)
    weights = as_weights(weights, rows, np)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"weight of row {row} is {weights[row]}; expected a finite number, 0 or more")
    if isinstance(chunk, jax.Array) and (
        len(devices := chunk.devices()) > 1 or next(iter(devices)).platform == "cpu"
    ):
        chunk = np.asarray(chunk)  # slicing compiles nothing; on a single CPU this is no copy
    for start in range(0, rows, BLOCK_ROWS):
        block = chunk[start : start + BLOCK_ROWS]
        used = len(block)
        block_weights = np.zeros(BLOCK_ROWS, np.float32)
        block_weights[:used] = weights[start : start + used]
        yield _filled_up(block), block_weights, int(np.searchsorted(ROW_BUCKETS, used))


def explicit_rows(vectors: Any, weights: Any) -> tuple[Any, Any] | None:
    """The mesh and axes over which an explicit mesh has the rows of traced vectors [n, d] or weights [n].

    None where nothing is laid out explicitly.
    """
    for sharding in (jax.typeof(vectors).sharding, jax.typeof(weights).sharding):
        if any(axes is not None for axes in sharding.spec):
            return sharding.mesh, sharding.spec[0]
    return None


def first_bad_row(chunk: Any) -> int | None:
    """The first row of a concrete chunk that is not finite as float32, if any."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.asarray(chunk).astype(np.float32)).all(axis=1)
    return None if finite.all() else int(np.argmin(finite))


def _filled_up(block: Any) -> Any:
    used, dim = block.shape
    if isinstance(block, jax.Array):
        return jnp.pad(block.astype(jnp.float32), ((0, BLOCK_ROWS - used), (0, 0)))
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity, and is named later
        if used == BLOCK_ROWS:
            return np.asarray(block, np.float32)
        filled = np.zeros((BLOCK_ROWS, dim), np.float32)
        filled[:used] = block
    return filled
