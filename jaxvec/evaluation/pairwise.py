"""Alignment and uniformity: what close pairs and all pairs of unit vectors look like, block by block."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.errors import InputError
from jaxvec.pooling import normalize

BLOCK = 512  # rows; a block of pairs is 1 MiB
HIGHEST = jax.lax.Precision.HIGHEST
Vectors = Float[Array | np.ndarray, "n d"]


def unit_rows(vectors: Vectors) -> Float[np.ndarray, "n d"]:
    """float32 on the host, each row divided by its length; zero rows stay zero."""
    return np.asarray(normalize(jnp.asarray(vectors, jnp.float32)))


def alignment(
    first: Float[Array | np.ndarray, "n d"], second: Float[Array | np.ndarray, "m d"], alpha: float = 2.0
) -> float:
    """Mean ‖u − v‖^alpha of pairs that mean the same, at unit length; the lower the better, 0 at best.

    Args:
        first: [n, d], un-normalised.
        second: [n, d]; row i means the same as row i of `first`.
        alpha: the power; 2 in the paper.

    Raises:
        InputError: no pair, or shapes that differ.

    Reference: T. Wang, P. Isola, "Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere", ICML 2020, arXiv:2005.10242.

    Example:
        >>> x = np.eye(3, dtype=np.float32)
        >>> alignment(x, 5 * x), round(alignment(x, x[::-1]), 3)
        (0.0, 1.333)
    """
    if first.shape != second.shape or not len(first):
        raise InputError(f"alignment needs pairs; got vectors of shapes {first.shape} and {second.shape}")
    u, v = unit_rows(first), unit_rows(second)
    return float(np.mean(np.linalg.norm(u - v, axis=1).astype(np.float64) ** alpha))


def uniformity(vectors: Vectors, t: float = 2.0) -> float:
    """log of the mean of exp(−t ‖u − v‖²) over all pairs of different rows, at unit length.

    The lower, the more evenly the vectors cover the sphere; 0 when all are equal. All n(n − 1)/2 pairs are
    taken, on the device, in constant memory.

    Args:
        vectors: [n, d], un-normalised.
        t: the steepness; 2 in the paper.

    Raises:
        InputError: fewer than 2 vectors.

    Reference: as for `alignment`.

    Example:
        >>> uniformity(np.ones((5, 3), np.float32)), round(uniformity(np.eye(2, dtype=np.float32)), 6)
        (0.0, -4.0)
    """
    n = len(vectors)
    if n < 2:
        raise InputError(f"uniformity is a property of 2 or more vectors; {n} came")
    unit = unit_rows(vectors)
    blocks = -(-n // BLOCK)
    padded = np.zeros((blocks * BLOCK, unit.shape[1]), np.float32)
    padded[:n] = unit
    parts = padded.reshape(blocks, BLOCK, -1)
    sums = [
        _block_sum(parts[i], parts[j], i * BLOCK, j * BLOCK, n, t)
        for i in range(blocks)
        for j in range(i, blocks)
    ]
    total = np.sum(jax.device_get(sums), dtype=np.float64)
    return float(np.log(total / (n * (n - 1) / 2)))


@jax.jit
def _block_sum(u: Array, v: Array, u_start: Any, v_start: Any, n: Any, t: Any) -> Array:
    dots = jnp.matmul(u, v.T, precision=HIGHEST)
    squares = jnp.sum(u * u, axis=1)[:, None] + jnp.sum(v * v, axis=1)[None, :] - 2 * dots
    row, column = u_start + jnp.arange(len(u))[:, None], v_start + jnp.arange(len(v))[None, :]
    return jnp.sum(jnp.where((row < column) & (column < n), jnp.exp(-t * jnp.maximum(squares, 0)), 0))
