"""FitRecord: what a fit saw and was asked for, kept beside the map that came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.twofloat import TwoFloat
from jaxvec.errors import InputError


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["spectrum", "counted", "intensity"],
    meta_fields=["method", "options", "removed", "dim"],
)
@dataclass(frozen=True, eq=False, kw_only=True)
class FitRecord:
    """One fit. Its measurements are arrays, so that a refit never compiles again; its options are static.

    Figures are Python numbers outside tracing and arrays while tracing; those of a stack of fits, as `vmap`
    makes it, are arrays with one entry a fit. All are None where `spectrum` is: the map was not fitted here.

    Example:
        >>> record = FitRecord(method="pca", spectrum=jnp.array([6.0, 2.0, 0.0]), options=(("rtol", 1e-6),), dim=1)
        >>> record.rank, record.cut, record.condition_number, record.explained_variance_ratio.tolist()
        (2, 1, 3.0, [0.75])
    """

    method: str = "affine"
    spectrum: Any = (
        None  # Float[Array, "*stack d"] | None, variances along the fitted directions or coordinates
    )
    counted: Any = None  # TwoFloat | None, Σ of the weights of the fitted vectors, [*stack]
    intensity: Any = None  # Float[Array, "*stack"] | None, of the shrinkage
    options: tuple[tuple[str, Any], ...] = ()
    removed: int = 0  # how many of the leading directions the map takes off
    dim: int = 0  # how many of those after them it keeps

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "FitRecord":
        """The record that `spec` gave."""
        options = tuple(spec["options"].items())
        if spec["spectrum"] is None:
            return cls(method=spec["method"], options=options)
        count, intensity = np.float64(spec["count"]), spec["intensity"]
        high = np.float32(count)
        return cls(
            method=spec["method"],
            spectrum=np.asarray(spec["spectrum"], np.float32),
            counted=TwoFloat(high, np.float32(count - high)),
            intensity=None if intensity is None else np.float32(intensity),
            options=options,
            removed=spec["removed"],
            dim=spec["dim"],
        )

    def spec(self) -> dict[str, Any]:
        """The record as JSON takes it, without loss."""
        values = {"method": self.method, "options": dict(self.options), "spectrum": None}
        if self.spectrum is None:
            return values
        if np.ndim(self.spectrum) != 1:
            raise InputError(
                f"this is a stack of {np.shape(self.spectrum)[0]} fits; take one, say the first: "
                "jax.tree.map(lambda leaf: leaf[0], fitted)"
            )
        return values | {
            # The shortest decimals that are these float32 numbers.
            "spectrum": [float(str(value)) for value in np.asarray(self.spectrum)],
            "count": self.count,
            "intensity": None if self.intensity is None else float(str(np.float32(self.intensity))),
            "removed": self.removed,
            "dim": self.dim,
        }

    def figures(self) -> dict[str, Any]:
        """The record's figures, for a report or a JSON file (outside tracing, one fit)."""
        figures = {"method": self.method}
        values = self.spec()
        if self.spectrum is None:
            return figures
        missing, d = int(np.sum(~np.asarray(self._varies()))), len(values["spectrum"])
        rtol = dict(self.options).get("rtol")
        why = "constant" if rtol is None else f"variance at most {rtol:g} of the largest, or float32 rounding"
        reasons = [f"{self.removed} of {d} directions: the leading ones, removed"] if self.removed else []
        reasons += [f"{missing} of {d} directions: {why}"] if missing else []
        figures |= {
            "count": values["count"],
            "rank": self.rank,
            "cut": self.cut,
            "cut_reason": "; ".join(reasons) or None,
            "condition_number": self.condition_number,
            "explained_variance": float(np.asarray(self.explained_variance_ratio, np.float64).sum()),
            "options": values["options"],
        }
        return figures if self.intensity is None else figures | {"intensity": values["intensity"]}

    @property
    def count(self) -> Any:
        """Σ of the weights of the fitted vectors."""
        return None if self.counted is None else self.counted.number()

    @property
    def rank(self) -> Any:
        """How many of the d directions vary and are not removed."""
        return None if self.spectrum is None else _plain(jnp.sum(self._kept(), axis=-1), int)

    @property
    def cut(self) -> Any:
        """How many of the d directions do not vary, or are removed: d − rank."""
        return None if self.spectrum is None else self.spectrum.shape[-1] - self.rank

    @property
    def explained_variance_ratio(self) -> Any:
        """Share of the whole variance along each direction that the map keeps, float32."""
        if self.spectrum is None:
            return None
        total = jnp.sum(self.spectrum, axis=-1, keepdims=True)
        kept = self.spectrum[..., self.removed : self.removed + self.dim]
        return kept / jnp.where(total > 0, total, 1)

    @property
    def condition_number(self) -> Any:
        """Largest variance over the smallest, of the directions that vary and are not removed."""
        if self.spectrum is None:
            return None
        smallest = jnp.min(jnp.where(self._kept(), self.spectrum, jnp.inf), axis=-1)
        largest = jnp.max(jnp.where(self._kept(), self.spectrum, 0), axis=-1)
        return _plain(largest / smallest, float)

    def _varies(self) -> Any:
        rtol = dict(self.options).get("rtol", 0.0)
        return self.spectrum > rtol * jnp.max(self.spectrum, axis=-1, keepdims=True)

    def _kept(self) -> Any:
        return self._varies() & (jnp.arange(self.spectrum.shape[-1]) >= self.removed)


def _plain(number: Any, kind: Any) -> Any:
    return kind(number) if not isinstance(number, jax.core.Tracer) and number.ndim == 0 else number
