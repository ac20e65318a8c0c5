"""ActNorm: a shift and a scale for every coordinate, set once from data by an explicit call."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

FLOOR = 1e-3  # a coordinate's deviation counts as at least this share of the largest


class ActNorm(nnx.Module):
    """y = (x + shift) · exp(factor · log_scale), coordinate by coordinate.

    It starts as the identity. `initialise` alone sets it from data; loading or calling it never does, so there
    is no hidden "initialised" flag to get lost. A (nearly) constant coordinate is scaled as if its deviation
    were 1e-3 of the largest coordinate's.

    Args:
        dim: coordinates of the last axis; the event may have others before it, which share shift and scale.
        factor: what the stored log-scale is multiplied by: 3 in the released code, so that it learns faster.

    References: D. P. Kingma, P. Dhariwal, "Glow: Generative Flow with Invertible 1×1 Convolutions", NeurIPS
    2018, arXiv:1807.03039, §3.1.

    Example:
        >>> layer = ActNorm(2)
        >>> _ = layer.initialise(jnp.array([[0.0, 10.0], [2.0, 30.0]]))
        >>> layer.transform_and_log_det(jnp.array([2.0, 10.0]))[0].round(3).tolist()
        [1.0, -1.0]
    """

    def __init__(self, dim: int, factor: float = 1.0, dtype: Any = jnp.float32):
        self.factor = factor
        self.shift = nnx.Param(jnp.zeros(dim, dtype))
        self.log_scale = nnx.Param(jnp.zeros(dim, dtype))

    def initialise(self, batch: Float[Array, "n *event dim"]) -> Float[Array, "n *event dim"]:
        """Sets mean 0 and variance 1 on this batch, and returns it so transformed."""
        rows = batch.reshape(-1, batch.shape[-1])
        # Around the first row, so that a constant coordinate is centred to exact zeros.
        mean = rows[0] + jnp.mean(rows - rows[0], axis=0)
        deviation = jnp.sqrt(jnp.mean((rows - mean) ** 2, axis=0))
        largest = jnp.max(deviation, initial=0.0)
        deviation = jnp.maximum(deviation, FLOOR * jnp.where(largest > 0, largest, 1.0))
        self.shift[...] = -mean
        self.log_scale[...] = -jnp.log(deviation) / self.factor
        return (batch + self.shift[...]) * jnp.exp(self.factor * self.log_scale[...])

    def __call__(self, x: Float[Array, "*event dim"]) -> Float[Array, "*event dim"]:
        """The transformed event alone, for use inside a conditioner."""
        return (x + self.shift[...]) * jnp.exp(self.factor * self.log_scale[...])

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, log|det ∂y/∂x|)."""
        return self(x), self._log_det(x)

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, log|det ∂x/∂y|)."""
        x = y * jnp.exp(-self.factor * self.log_scale[...]) - self.shift[...]
        return x, -self._log_det(y)

    def _log_det(self, x: Array) -> Array:
        return positions(x) * self.factor * jnp.sum(self.log_scale[...])


def positions(x: Float[Array, "*event dim"]) -> int:
    """How many positions of an event share what acts on its last axis: 1 for a vector."""
    return x.size // max(x.shape[-1], 1)
