"""Affine: the one form of every linear correction, x ↦ (x − mean) @ kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.calibration.fit_record import FitRecord
from jaxvec.errors import InputError

HIGHEST = jax.lax.Precision.HIGHEST


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "kernel", "bias", "fits"], meta_fields=[])
@dataclass(frozen=True, eq=False, repr=False)
class Affine:
    """x [..., d] ↦ (x − mean) @ kernel + bias, float32 [..., dim] at precision HIGHEST.

    A pytree of floating arrays: pass it to, make it in, or close over it in `jit`, `vmap`, `grad`,
    `shard_map`. `bias` is None, which is 0, in everything that is fitted; only `then` makes one, because a
    composition need not have a mean: none solves mean' @ K₁ = mean₁ @ K₁ + mean₂ where K₁ is singular.

    `fits` says what each fit saw, in the order of a composition. `rank`, `cut`, `explained_variance_ratio`,
    `condition_number` and `count` are those of the last one; see `FitRecord`.

    Example:
        >>> import jax.numpy as jnp
        >>> halve = Affine(jnp.array([1.0, 2.0]), jnp.array([[0.5], [0.0]]))
        >>> halve(jnp.array([[3.0, 9.0]])).tolist(), halve
        ([[1.0]], Affine(affine: 2 → 1))
    """

    mean: Any  # Float[Array, "d"]
    kernel: Any  # Float[Array, "d dim"]
    bias: Any = None  # Float[Array, "dim"] | None
    fits: tuple[FitRecord, ...] = ()

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
        traced = any(isinstance(array, jax.core.Tracer) for array in arrays.values())
        affine = cls(**arrays) if traced else cls.from_arrays(**arrays)
        return replace(affine, fits=tuple(map(FitRecord.from_spec, spec.get("fits", ()))))

    def spec(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON takes it: what the fits saw."""
        return {"kind": "affine", "fits": [fit.spec() for fit in self.fits]}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The float32 arrays on the host: "mean", "kernel" and, after `then`, "bias"."""
        arrays = {"mean": self.mean, "kernel": self.kernel, "bias": self.bias}
        return {name: np.asarray(array, np.float32) for name, array in arrays.items() if array is not None}

    def __call__(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch dim"]:
        """The corrected vectors; any floating dtype comes in, float32 goes out.

        Raises:
            InputError: vectors whose last axis is not `input_dim` long, or a stack of maps outside `vmap`.
        """
        if self.kernel.ndim != 2:
            raise InputError(
                f"this is a stack of {self.kernel.shape[0]} maps; apply each with "
                "jax.vmap(lambda affine, x: affine(x))"
            )
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
        fits = (self.fits or (FitRecord(),)) + (other.fits or (FitRecord(),))
        return Affine(jnp.asarray(self.mean), jnp.float32(kernel), jnp.float32(bias), fits)

    @property
    def input_dim(self) -> int:
        """The number of coordinates d that come in."""
        return self.kernel.shape[-2]

    @property
    def dim(self) -> int:
        """The number of coordinates that go out."""
        return self.kernel.shape[-1]

    @property
    def method(self) -> str:
        """What made it, such as "whitening" or "remove_components then pca"."""
        return " then ".join(fit.method for fit in self.fits) or "affine"

    @property
    def count(self) -> Any:
        """Σ of the weights of the vectors of the last fit; None in a map that was not fitted."""
        return self._last_fit.count

    @property
    def rank(self) -> Any:
        """How many of the d directions of the last fit vary and are not removed."""
        return self._last_fit.rank

    @property
    def cut(self) -> Any:
        """How many of the d directions of the last fit do not vary, or are removed: d − rank."""
        return self._last_fit.cut

    @property
    def explained_variance_ratio(self) -> Any:
        """Share of the whole variance along each direction that the last fit keeps, float32."""
        return self._last_fit.explained_variance_ratio

    @property
    def condition_number(self) -> Any:
        """Largest variance over the smallest, of the directions of the last fit that vary and stay."""
        return self._last_fit.condition_number

    def figures(self) -> dict[str, Any]:
        """What the last fit saw and was asked for, and in "steps" what each did, for a report or a JSON file.

        Raises:
            InputError: a stack of maps, as `vmap` makes it.
        """
        steps = {"steps": [fit.figures() for fit in self.fits]} if len(self.fits) > 1 else {}
        whole = {"method": self.method, "input_dim": self.input_dim, "dim": self.dim}
        return self._last_fit.figures() | whole | steps

    @property
    def _last_fit(self) -> FitRecord:
        return next((fit for fit in reversed(self.fits) if fit.spectrum is not None), FitRecord())

    def __repr__(self) -> str:
        sizes = [str(size) for size in getattr(self.kernel, "shape", "??")]
        return f"Affine({self.method}: {' × '.join(sizes[:-1])} → {sizes[-1]})"


@jax.jit
def _apply(mean: Array, kernel: Array, bias: Array | None, vectors: Array) -> Array:
    centred = vectors.astype(jnp.float32) - mean
    product = jnp.matmul(centred, kernel, precision=HIGHEST)
    return product if bias is None else product + bias
