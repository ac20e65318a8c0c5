"""Between the levels of a Glow: half of the coordinates leaves as latent, and space becomes channels."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

HIGHEST = jax.lax.Precision.HIGHEST


class Split(nnx.Module):
    """(a, b) ↦ (a, (b − μ(a)) · exp(−s(a))): what leaves at a level, standardised by a learned prior given what stays.

    μ and s are linear in a and start at 0, where the prior is N(0, I). a is the first half, the larger one
    where dim is odd; after the transform it is the part that goes on to the next level.

    References: Kingma & Dhariwal 2018, §3.6 and its released code; Dinh et al. 2017, §3.6.

    Example:
        >>> y, log_det = Split(3).transform_and_log_det(jnp.array([1.0, 2.0, 3.0]))
        >>> y.tolist(), abs(float(log_det))
        ([1.0, 2.0, 3.0], 0.0)
    """

    def __init__(self, dim: int, dtype: Any = jnp.float32):
        self.kept = dim - dim // 2
        self.kernel = nnx.Param(jnp.zeros((self.kept, 2 * (dim // 2)), dtype))
        self.bias = nnx.Param(jnp.zeros(2 * (dim // 2), dtype))

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, log|det ∂y/∂x|)."""
        a, b = x[..., : self.kept], x[..., self.kept :]
        mean, log_deviation = self._prior(a)
        y = jnp.concatenate([a, (b - mean) * jnp.exp(-log_deviation)], axis=-1)
        return y, -jnp.sum(log_deviation)

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, log|det ∂x/∂y|)."""
        a, b = y[..., : self.kept], y[..., self.kept :]
        mean, log_deviation = self._prior(a)
        x = jnp.concatenate([a, mean + b * jnp.exp(log_deviation)], axis=-1)
        return x, jnp.sum(log_deviation)

    def _prior(self, a: Array) -> tuple[Array, Array]:
        mean, raw = jnp.split(jnp.matmul(a, self.kernel[...], precision=HIGHEST) + self.bias[...], 2, axis=-1)
        return mean, 2 * jnp.tanh(raw / 2)


class Squeeze(nnx.Module):
    """[h, w, c] ↦ [h/2, w/2, 4c]: every 2×2 block of positions becomes one with four times the channels.

    References: Kingma & Dhariwal 2018, §3.6; Dinh et al. 2017, §3.6.

    Example:
        >>> Squeeze().transform_and_log_det(jnp.arange(4.0).reshape(2, 2, 1))[0].tolist()
        [[[0.0, 1.0, 2.0, 3.0]]]
    """

    def transform_and_log_det(
        self, x: Float[Array, "height width channels"]
    ) -> tuple[Float[Array, "rows columns wide"], Float[Array, ""]]:
        """(y, 0)."""
        height, width, channels = x.shape
        blocks = x.reshape(height // 2, 2, width // 2, 2, channels).transpose(0, 2, 1, 3, 4)
        return blocks.reshape(height // 2, width // 2, 4 * channels), jnp.zeros((), x.dtype)

    def inverse_and_log_det(
        self, y: Float[Array, "rows columns wide"]
    ) -> tuple[Float[Array, "height width channels"], Float[Array, ""]]:
        """(x, 0)."""
        rows, columns, wide = y.shape
        blocks = y.reshape(rows, columns, 2, 2, wide // 4).transpose(0, 2, 1, 3, 4)
        return blocks.reshape(2 * rows, 2 * columns, wide // 4), jnp.zeros((), y.dtype)
