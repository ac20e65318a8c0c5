"""Invertible maps that mix the coordinates of a vector: Glow's 1×1 convolution, and permutations."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from jaxvec.calibration.flow.actnorm import positions

HIGHEST = jax.lax.Precision.HIGHEST


class Fixed(nnx.Variable):
    """An array that belongs to a flow and is not trained."""


class LUMatrix(nnx.Module):
    """y = L U diag(exp(log_diagonal)) R x: a 1×1 convolution by its triangular factors.

    L is unit lower and U unit upper triangular, and both start at the identity. The fixed R, a random rotation,
    takes the place of the permutation in Glow's PLU form, so that the layer starts at a rotation, weight decay
    pulls towards it, and the log-determinant, Σ log_diagonal, needs no decomposition.

    References: Kingma & Dhariwal 2018, §3.2.

    Example:
        >>> layer = LUMatrix(3, jax.random.key(0))
        >>> x = jnp.array([1.0, 2.0, 3.0])
        >>> y, log_det = layer.transform_and_log_det(x)
        >>> bool(jnp.allclose(layer.inverse_and_log_det(y)[0], x, atol=1e-6)), float(log_det)
        (True, 0.0)
    """

    def __init__(self, dim: int, key: Array, dtype: Any = jnp.float32):
        self.rotation = Fixed(rotation(dim, key, dtype))
        self.lower = nnx.Param(jnp.zeros((dim, dim), dtype))
        self.upper = nnx.Param(jnp.zeros((dim, dim), dtype))
        self.log_diagonal = nnx.Param(jnp.zeros(dim, dtype))

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, log|det ∂y/∂x|)."""
        y = jnp.matmul(x, self.rotation[...].T, precision=HIGHEST) * jnp.exp(self.log_diagonal[...])
        y += jnp.matmul(y, jnp.triu(self.upper[...], 1).T, precision=HIGHEST)
        y += jnp.matmul(y, jnp.tril(self.lower[...], -1).T, precision=HIGHEST)
        return y, positions(x) * jnp.sum(self.log_diagonal[...])

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, log|det ∂x/∂y|)."""
        columns = solve_triangular(self.lower[...], _columns(y), lower=True, unit_diagonal=True)
        columns = solve_triangular(self.upper[...], columns, lower=False, unit_diagonal=True)
        rotated = columns.T * jnp.exp(-self.log_diagonal[...])
        x = jnp.matmul(rotated, self.rotation[...], precision=HIGHEST).reshape(y.shape)
        return x, -positions(y) * jnp.sum(self.log_diagonal[...])


class DenseMatrix(nnx.Module):
    """y = W x, W any invertible matrix; it starts at a random rotation.

    References: Kingma & Dhariwal 2018, §3.2, eq. 9.

    Example:
        >>> layer = DenseMatrix(3, jax.random.key(0))
        >>> bool(abs(layer.transform_and_log_det(jnp.ones(3))[1]) < 1e-5)
        True
    """

    def __init__(self, dim: int, key: Array, dtype: Any = jnp.float32):
        self.matrix = nnx.Param(rotation(dim, key, dtype))

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, log|det ∂y/∂x|)."""
        matrix = self.matrix[...]
        return jnp.matmul(x, matrix.T, precision=HIGHEST), positions(x) * log_abs_det_and_inverse(matrix)[0]

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, log|det ∂x/∂y|)."""
        log_det, inverse = log_abs_det_and_inverse(self.matrix[...])  # once, however many rows are mapped
        return jnp.matmul(y, inverse.T, precision=HIGHEST), -positions(y) * log_det


class Reversal(nnx.Module):
    """The coordinates in reverse order: what the released BERT-flow does in place of a learned mixing."""

    def __init__(self, dim: int, key: Array, dtype: Any = jnp.float32):
        pass

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, 0)."""
        return x[..., ::-1], jnp.zeros((), x.dtype)

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, 0)."""
        return y[..., ::-1], jnp.zeros((), y.dtype)


class Permutation(nnx.Module):
    """The coordinates in a random order, fixed when the flow is made."""

    def __init__(self, dim: int, key: Array, dtype: Any = jnp.float32):
        # As floats: the parameters of a calibration are floating arrays. Exact below 2^24.
        self.order = Fixed(jax.random.permutation(key, dim).astype(dtype))

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, 0)."""
        return x[..., self.order[...].astype(jnp.int32)], jnp.zeros((), x.dtype)

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, 0)."""
        return y[..., jnp.argsort(self.order[...])], jnp.zeros((), y.dtype)


def rotation(dim: int, key: Array, dtype: Any = jnp.float32) -> Float[Array, "dim dim"]:
    """A random rotation matrix, uniform over the orthogonal group."""
    q, r = _qr(jax.random.normal(key, (dim, dim), dtype))
    return q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(dtype)


def _columns(y: Array) -> Array:
    return y.reshape(-1, y.shape[-1]).T


@jax.custom_batching.sequential_vmap
def _qr(matrix: Array) -> tuple[Array, Array]:
    # One matrix at a time, also under vmap: on JAX 0.10's CPU backend, several decompositions of stacked
    # matrices in one program wait for each other for ever.
    return tuple(jnp.linalg.qr(matrix))


@jax.custom_jvp
def log_abs_det_and_inverse(
    matrix: Float[Array, "dim dim"],
) -> tuple[Float[Array, ""], Float[Array, "dim dim"]]:
    """(log|det W|, W⁻¹); their derivatives are tr(W⁻¹ dW) and −W⁻¹ dW W⁻¹."""
    return _decomposed(matrix)


@log_abs_det_and_inverse.defjvp
def _derivatives(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Any, Any]:
    log_det, inverse = log_abs_det_and_inverse(primals[0])
    moved = jnp.matmul(inverse, tangents[0], precision=HIGHEST)
    return (log_det, inverse), (jnp.trace(moved), -jnp.matmul(moved, inverse, precision=HIGHEST))


@jax.custom_batching.sequential_vmap
def _decomposed(matrix: Array) -> tuple[Array, Array]:
    q, r = _qr(matrix)
    inverse = solve_triangular(r, q.T, lower=False)
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r)))), inverse
