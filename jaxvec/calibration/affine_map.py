"""Affine: the one form of every linear correction, x ↦ (x − mean) @ kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.errors import InputError

HIGHEST = jax.lax.Precision.HIGHEST


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mean", "kernel", "bias", "spectrum", "count"],
    meta_fields=["method", "rtol"],
)
@dataclass(frozen=True, eq=False)
class Affine:
    """x [..., d] ↦ (x − mean) @ kernel + bias, float32 [..., dim] at precision HIGHEST.

    A pytree of floating arrays: pass it to, make it in, or close over it in `jit`, `vmap`, `grad`,
    `shard_map`. `bias` is None, which is 0, in everything that is fitted; only `then` makes one, because a
    composition need not have a mean: none solves mean' @ K₁ = mean₁ @ K₁ + mean₂ where K₁ is singular.

    What the fit saw is kept in two arrays, so that a refit never compiles again: `spectrum` [d], the
    variances along the fitted directions (or coordinates), and `count`. `rank`, `cut`,
    `explained_variance_ratio` and `condition_number` are read off them, and are traced where they are.
    All of them are None in an Affine that was not fitted.

    Example:
        >>> import jax.numpy as jnp
        >>> halve = Affine(jnp.array([1.0, 2.0]), jnp.array([[0.5], [0.0]]))
        >>> halve(jnp.array([[3.0, 9.0]])).tolist(), halve.input_dim, halve.dim
        ([[1.0]], 2, 1)
    """

    mean: Any  # Float[Array, "d"]
    kernel: Any  # Float[Array, "d dim"]
    bias: Any = None  # Float[Array, "dim"] | None
    spectrum: Any = None  # Float[Array, "d"] | None, variances
    count: Any = None  # Float[Array, ""] | None, Σ of the weights of the fitted vectors
    method: str = "affine"
    rtol: float = 0.0

    @classmethod
    def from_arrays(
        cls,
        mean: Float[Array | np.ndarray, "..."],
        kernel: Float[Array | np.ndarray, "..."],
        bias: Float[Array | np.ndarray, "..."] | None = None,
    ) -> "Affine":
        """An Affine from plain arrays mean [d], kernel [d, dim] and, if any, bias [dim], made float32.

        Raises:
            InputError: shapes that do not fit together, or a value that is not finite.
        """
        arrays = [np.asarray(array, np.float32) for array in (mean, kernel, bias) if array is not None]
        shapes = [array.shape for array in arrays]
        if arrays[1].ndim != 2 or shapes != [shapes[1][:1], shapes[1], shapes[1][1:]][: len(shapes)]:
            raise InputError(f"mean, kernel, bias have shapes {shapes}; expected [d], [d, dim] and [dim]")
        if not all(np.isfinite(array).all() for array in arrays):
            raise InputError("mean, kernel or bias holds a value that is not finite; fit it again")
        return cls(*map(jnp.asarray, arrays))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], arrays: Mapping[str, Any]) -> "Affine":
        """The Affine of which these are `spec()` and `to_arrays()`, concrete or traced; see `rebuild`."""
        if any(isinstance(array, jax.core.Tracer) for array in arrays.values()):
            return cls(**arrays)
        return cls.from_arrays(**arrays)

    def spec(self) -> dict[str, Any]:
        """Its plain values, as JSON takes them."""
        return {"kind": "affine"}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The float32 arrays on the host: "mean", "kernel" and, after `then`, "bias"."""
        arrays = {"mean": self.mean, "kernel": self.kernel, "bias": self.bias}
        return {name: np.asarray(array) for name, array in arrays.items() if array is not None}

    def __call__(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch dim"]:
        """The corrected vectors; any floating dtype comes in, float32 goes out.

        Raises:
            InputError: vectors whose last axis is not `input_dim` long.
        """
        vectors = jnp.asarray(vectors)
        if vectors.ndim == 0 or vectors.shape[-1] != self.input_dim:
            raise InputError(f"vectors have shape {vectors.shape}; this map takes [..., {self.input_dim}]")
        return _apply(self.mean, self.kernel, self.bias, vectors)

    def then(self, other: "Affine") -> "Affine":
        """One Affine that equals `other(self(x))` for every x.

        Example:
            >>> import jax.numpy as jnp
            >>> project = Affine(jnp.array([1.0, 2.0]), jnp.array([[1.0], [0.0]]))
            >>> both = project.then(Affine(jnp.array([3.0]), jnp.array([[2.0]])))
            >>> both(jnp.array([5.0, 5.0])).tolist(), both.kernel.shape
            ([2.0], (2, 1))
        """
        if other.input_dim != self.dim:
            raise InputError(f"a map to {self.dim} coordinates cannot go before one from {other.input_dim}")
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self, other)))
        dtype, xp = (np.float32, jnp) if traced else (np.float64, np)
        product = partial(jnp.matmul, precision=HIGHEST) if traced else np.matmul

        def widened(array: Any, size: int) -> Any:
            return xp.zeros(size, dtype) if array is None else xp.asarray(array).astype(dtype)

        second = xp.asarray(other.kernel).astype(dtype)
        kernel = product(xp.asarray(self.kernel).astype(dtype), second)
        middle = widened(self.bias, self.dim) - widened(other.mean, self.dim)
        bias = product(middle, second) + widened(other.bias, other.dim)
        method = f"{self.method} then {other.method}"
        return Affine(self.mean, jnp.float32(kernel), jnp.float32(bias), method=method)

    @property
    def input_dim(self) -> int:
        """The number of coordinates d that come in."""
        return self.kernel.shape[-2]

    @property
    def dim(self) -> int:
        """The number of coordinates that go out."""
        return self.kernel.shape[-1]

    @property
    def rank(self) -> Any:
        """How many of the d fitted directions have a variance above rtol × the largest."""
        if self.spectrum is None:
            return None
        rank = jnp.sum(self._kept())
        return rank if isinstance(rank, jax.core.Tracer) else int(rank)

    @property
    def cut(self) -> Any:
        """How many of the d fitted directions have no variance to speak of: d − rank."""
        return None if self.spectrum is None else self.input_dim - self.rank

    @property
    def explained_variance_ratio(self) -> Any:
        """Share of the whole variance along each of the first `dim` fitted directions, float32."""
        if self.spectrum is None:
            return None
        total = jnp.sum(self.spectrum)
        return self.spectrum[: self.dim] / jnp.where(total > 0, total, 1)

    @property
    def condition_number(self) -> Any:
        """Largest variance over the smallest that was not cut, of all d directions."""
        if self.spectrum is None:
            return None
        smallest = jnp.min(jnp.where(self._kept(), self.spectrum, jnp.inf))
        ratio = jnp.max(self.spectrum) / smallest
        return ratio if isinstance(ratio, jax.core.Tracer) else float(ratio)

    def figures(self) -> dict[str, Any]:
        """What the fit saw, for a report or a JSON file (outside tracing)."""
        figures = {"method": self.method, "input_dim": self.input_dim, "dim": self.dim}
        if self.spectrum is None:
            return figures
        reason = f"variance at most {self.rtol:g} of the largest" if self.rtol else "constant"
        return figures | {
            "count": float(self.count),
            "rank": self.rank,
            "cut": self.cut,
            "cut_reason": f"{self.cut} of {self.input_dim} directions: {reason}" if self.cut else None,
            "condition_number": self.condition_number,
            "explained_variance": float(jnp.sum(self.explained_variance_ratio)),
        }

    def _kept(self) -> Array:
        return self.spectrum > self.rtol * jnp.max(self.spectrum)


@jax.jit
def _apply(mean: Array, kernel: Array, bias: Array | None, vectors: Array) -> Array:
    centred = vectors.astype(jnp.float32) - mean
    product = jnp.matmul(centred, kernel, precision=HIGHEST)
    return product if bias is None else product + bias
