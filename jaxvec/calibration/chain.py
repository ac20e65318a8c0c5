"""Calibrations one after another, where they do not fold into a single map."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxvec.calibration.affine_map import Affine
from jaxvec.calibration.calibration import Calibration, rebuild
from jaxvec.errors import InputError


@partial(jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Chain:
    """`parts[-1](… parts[0](vectors))`: a pytree, made by `compose`."""

    parts: tuple[Any, ...]  # of Calibration

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], arrays: Mapping[str, Any]) -> "Chain":
        """The chain of which these are `spec()` and `to_arrays()`; see `rebuild`."""
        parts = []
        for number, part in enumerate(spec["parts"]):
            stem = f"{number}."
            own = {name.removeprefix(stem): a for name, a in arrays.items() if name.startswith(stem)}
            parts.append(rebuild(part, own))
        return cls(tuple(parts))

    @property
    def input_dim(self) -> int:
        """The number of coordinates that come in."""
        return self.parts[0].input_dim

    @property
    def dim(self) -> int:
        """The number of coordinates that go out."""
        return self.parts[-1].dim

    def __call__(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch dim"]:
        """The vectors after every part, float32."""
        for part in self.parts:
            vectors = part(vectors)
        return vectors

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The parts' arrays on the host; names begin with the part's number."""
        return {
            f"{number}.{name}": array
            for number, part in enumerate(self.parts)
            for name, array in part.to_arrays().items()
        }

    def spec(self) -> dict[str, Any]:
        """The parts' specs, in order."""
        return {"kind": "chain", "parts": [part.spec() for part in self.parts]}

    def figures(self) -> dict[str, Any]:
        """What the parts' fits saw, in order."""
        return {
            "method": " then ".join(part.figures()["method"] for part in self.parts),
            "input_dim": self.input_dim,
            "dim": self.dim,
            "parts": [part.figures() for part in self.parts],
        }


def compose(first: Calibration, second: Calibration) -> Calibration:
    """`second` after `first`: neighbours that are affine become one Affine, others a Chain.

    Raises:
        InputError: `second` does not take the width that `first` gives.

    Example:
        >>> import jax.numpy as jnp
        >>> project = Affine(jnp.array([1.0, 2.0]), jnp.array([[1.0], [0.0]]))
        >>> type(compose(project, Affine(jnp.array([3.0]), jnp.array([[2.0]])))).__name__
        'Affine'
    """
    if second.input_dim != first.dim:
        raise InputError(
            f"a calibration to {first.dim} coordinates cannot go before one from {second.input_dim}"
        )
    parts: list[Any] = []
    for part in (*_parts(first), *_parts(second)):
        if parts and isinstance(parts[-1], Affine) and isinstance(part, Affine):
            parts[-1] = parts[-1].then(part)
        else:
            parts.append(part)
    return parts[0] if len(parts) == 1 else Chain(tuple(parts))


def _parts(calibration: Calibration) -> tuple[Any, ...]:
    return calibration.parts if isinstance(calibration, Chain) else (calibration,)
