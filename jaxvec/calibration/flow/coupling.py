"""Coupling: one half of the coordinates moves the other by a network of any shape, and stays itself."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvec.calibration.flow.actnorm import ActNorm

HIGHEST = jax.lax.Precision.HIGHEST
BOUND = 2.0  # |log-scale| of an affine coupling stays below this


class Conditioner(nnx.Module):
    """linear, ActNorm, ReLU, twice; then a linear layer that starts at 0: the network inside a coupling.

    Weights start at N(0, 0.05²), the last layer's output is multiplied by exp(3 · log_scale): the released
    BERT-flow and Glow agree on all of it, but for the width of the filters, which is 1 for a vector.

    References: Kingma & Dhariwal 2018, §3.3; glow_ops_1x1.py of github.com/bohanli/BERT-flow.
    """

    def __init__(self, dim: int, hidden: int, out: int, key: Array, factor: float, dtype: Any = jnp.float32):
        first, second = jax.random.split(key)
        self.first = nnx.Param(0.05 * jax.random.normal(first, (dim, hidden), dtype))
        self.first_norm = ActNorm(hidden, factor, dtype)
        self.second = nnx.Param(0.05 * jax.random.normal(second, (hidden, hidden), dtype))
        self.second_norm = ActNorm(hidden, factor, dtype)
        self.last = nnx.Param(jnp.zeros((hidden, out), dtype))
        self.bias = nnx.Param(jnp.zeros(out, dtype))
        self.log_scale = nnx.Param(jnp.zeros(out, dtype))

    def __call__(self, x: Float[Array, "*event dim"]) -> Float[Array, "*event out"]:
        """What the other half is moved by; 0 at first."""
        x = jax.nn.relu(self.first_norm(_product(x, self.first)))
        x = jax.nn.relu(self.second_norm(_product(x, self.second)))
        return (_product(x, self.last) + self.bias[...]) * jnp.exp(3 * self.log_scale[...])

    def initialise(self, batch: Float[Array, "n *event dim"]) -> None:
        """Sets both ActNorms from a batch."""
        batch = jax.nn.relu(self.first_norm.initialise(_product(batch, self.first)))
        self.second_norm.initialise(_product(batch, self.second))


class AdditiveCoupling(nnx.Module):
    """(a, b) ↦ (a, b + m(a)); a is the first half of the coordinates, the larger one where dim is odd.

    One coordinate has no other half, and stays as it is.

    References: L. Dinh, D. Krueger, Y. Bengio, "NICE: Non-linear Independent Components Estimation", 2014,
    arXiv:1410.8516.

    Example:
        >>> layer = AdditiveCoupling(3, 8, jax.random.key(0))
        >>> layer.transform_and_log_det(jnp.array([1.0, 2.0, 3.0]))[0].tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self, dim: int, hidden: int, key: Array, factor: float = 1.0, dtype: Any = jnp.float32):
        self.kept = dim - dim // 2
        self.conditioner = Conditioner(self.kept, hidden, dim // 2, key, factor, dtype)

    def initialise(self, batch: Float[Array, "n *event dim"]) -> Float[Array, "n *event dim"]:
        """Sets the conditioner from a batch; the coupling itself is still the identity."""
        self.conditioner.initialise(batch[..., : self.kept])
        return batch

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, 0)."""
        a, b = x[..., : self.kept], x[..., self.kept :]
        return jnp.concatenate([a, b + self.conditioner(a)], axis=-1), jnp.zeros((), x.dtype)

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, 0)."""
        a, b = y[..., : self.kept], y[..., self.kept :]
        return jnp.concatenate([a, b - self.conditioner(a)], axis=-1), jnp.zeros((), y.dtype)


class AffineCoupling(nnx.Module):
    """(a, b) ↦ (a, (b + m(a)) · exp(s(a))), |s| < 2; otherwise as `AdditiveCoupling`.

    References: L. Dinh, J. Sohl-Dickstein, S. Bengio, "Density estimation using Real NVP", ICLR 2017,
    arXiv:1605.08803; Kingma & Dhariwal 2018, §3.3 (whose scale is bounded above only).

    Example:
        >>> layer = AffineCoupling(3, 8, jax.random.key(0))
        >>> float(layer.transform_and_log_det(jnp.array([1.0, 2.0, 3.0]))[1])
        0.0
    """

    def __init__(self, dim: int, hidden: int, key: Array, factor: float = 1.0, dtype: Any = jnp.float32):
        self.kept = dim - dim // 2
        self.conditioner = Conditioner(self.kept, hidden, 2 * (dim // 2), key, factor, dtype)

    def initialise(self, batch: Float[Array, "n *event dim"]) -> Float[Array, "n *event dim"]:
        """Sets the conditioner from a batch; the coupling itself is still the identity."""
        self.conditioner.initialise(batch[..., : self.kept])
        return batch

    def transform_and_log_det(
        self, x: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(y, log|det ∂y/∂x|)."""
        a, b = x[..., : self.kept], x[..., self.kept :]
        shift, log_scale = self._moves(a)
        return jnp.concatenate([a, (b + shift) * jnp.exp(log_scale)], axis=-1), jnp.sum(log_scale)

    def inverse_and_log_det(
        self, y: Float[Array, "*event dim"]
    ) -> tuple[Float[Array, "*event dim"], Float[Array, ""]]:
        """(x, log|det ∂x/∂y|)."""
        a, b = y[..., : self.kept], y[..., self.kept :]
        shift, log_scale = self._moves(a)
        return jnp.concatenate([a, b * jnp.exp(-log_scale) - shift], axis=-1), -jnp.sum(log_scale)

    def _moves(self, a: Array) -> tuple[Array, Array]:
        shift, raw = jnp.split(self.conditioner(a), 2, axis=-1)
        return shift, BOUND * jnp.tanh(raw / BOUND)


def _product(x: Array, weight: Any) -> Array:
    return jnp.matmul(x, weight[...], precision=HIGHEST)
