"""Eigenvectors of a symmetric d×d matrix: on the host in float64, or traceable in float32."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.errors import InputError

SOLVERS = ("float64", "eigh", "svd")
HIGHEST = jax.lax.Precision.HIGHEST


def choose_solver(solver: str | None, traced: bool) -> str:
    """The solver asked for, or the default: "eigh" while tracing, "float64" outside.

    Raises:
        InputError: an unknown name, or "float64" (which runs on the host) while tracing.
    """
    if solver is None:
        return "eigh" if traced else "float64"
    if solver not in SOLVERS:
        raise InputError(f"solver is {solver!r}; expected one of {', '.join(map(repr, SOLVERS))}, or None")
    if traced and solver == "float64":
        raise InputError('solver "float64" runs on the host; inside jit use solver="eigh" or "svd"')
    return solver


def eigendecomposition(
    matrix: Float[Array | np.ndarray, "d d"], solver: str, rtol: float
) -> tuple[Float[Array | np.ndarray, " d"], Float[Array | np.ndarray, "d d"]]:
    """Eigenvalues [d], descending and clipped at 0, and eigenvectors [d, d] in columns.

    The sign of each column is fixed: its entry of largest magnitude is positive. "float64" takes a concrete
    matrix and gives float64 NumPy; "eigh" and "svd" are float32 `jnp.linalg`, refined (see `refined`) where
    an eigenvalue is above rtol × the largest.

    Example:
        >>> import numpy as np
        >>> values, vectors = eigendecomposition(np.diag([1.0, 4.0]), "float64", rtol=1e-6)
        >>> values.tolist(), vectors.tolist()
        ([4.0, 1.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    if solver == "float64":
        matrix = np.ascontiguousarray(matrix, np.float64)
        return _on_the_host(matrix.tobytes(), len(matrix))
    matrix = jnp.asarray(matrix, jnp.float32)
    vectors = jnp.linalg.svd(matrix)[0] if solver == "svd" else jnp.linalg.eigh(matrix)[1]
    values, vectors = refined(matrix, vectors, rtol)
    # A coordinate without variance has no part in a direction that is kept, not even a rounding error.
    varies, kept = jnp.diagonal(matrix) > 0, values > rtol * values[0]
    vectors = jnp.where(varies[:, None] | ~kept, vectors, 0)
    return values, _with_fixed_signs(vectors, jnp)


@lru_cache(maxsize=4)  # several calibrations of the same moments need it once
def _on_the_host(matrix: bytes, d: int) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(np.frombuffer(matrix, np.float64).reshape(d, d))
    found = np.maximum(values[::-1], 0), _with_fixed_signs(vectors[:, ::-1], np)
    for array in found:
        array.flags.writeable = False
    return found


def refined(
    matrix: Float[Array, "d d"], vectors: Float[Array, "d d"], rtol: float
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Float32 eigenvectors, made to diagonalise `matrix` to what a float32 product can see.

    A float32 decomposition errs by about 1e-7 (eigh) to 1e-6 (svd) of the largest eigenvalue, in every
    direction: at condition number 1e5 that leaves max|cov − I| of 2.7e-2 and 1.6e-1 after whitening. The
    Rayleigh quotients VᵀMV, scaled to a unit diagonal, show the error; their Cholesky factor takes it off,
    from the large directions down to the small, so that the accurate ones stay as they are. That leaves 5e-4.
    """
    quotients = jnp.matmul(vectors.T, jnp.matmul(matrix, vectors, precision=HIGHEST), precision=HIGHEST)
    quotients = (quotients + quotients.T) / 2
    values = jnp.maximum(jnp.diagonal(quotients), 0)
    order = jnp.argsort(-values)
    values, vectors, quotients = values[order], vectors[:, order], quotients[order][:, order]
    keep = values > rtol * values[0]
    scale = jnp.where(keep, jax.lax.rsqrt(jnp.where(keep, values, 1)), 0)
    metric = quotients * scale[:, None] * scale + jnp.diag(jnp.where(keep, 0.0, 1.0))
    factor = jnp.linalg.cholesky(metric)
    # Not positive definite: many directions are at the float32 noise, and there is nothing to refine by.
    factor = jnp.where(jnp.isfinite(factor).all(), factor, jnp.eye(len(values)))
    white = jax.scipy.linalg.solve_triangular(factor, (vectors * scale).T, lower=True).T
    lengths = jnp.sum(white * white, axis=0)
    new_values = 1 / jnp.where(keep, lengths, 1)
    values = jnp.where(keep, new_values, values)
    vectors = jnp.where(keep, white * jnp.sqrt(new_values), vectors)
    order = jnp.argsort(-values)  # a direction mixed with one that is missing falls back behind the others
    return values[order], vectors[:, order]


def _with_fixed_signs(vectors: Any, xp: Any) -> Any:
    largest = xp.take_along_axis(vectors, xp.argmax(xp.abs(vectors), axis=0)[None], axis=0)
    return vectors * xp.where(largest < 0, -1, 1).astype(vectors.dtype)
