"""What every calibration is, and how one comes back from plain values: the last station of the road."""

import hashlib
import importlib
import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.errors import InputError

_HOMES = {
    "affine": ("jaxvec.calibration.affine_map", "Affine"),
    "chain": ("jaxvec.calibration.chain", "Chain"),
    "flow": ("jaxvec.calibration.flow", "Flow"),
}


@runtime_checkable
class Calibration(Protocol):
    """A correction of vectors: a pure function made of floating arrays and a few plain values.

    `to_arrays()` and `spec()` say everything: `rebuild(spec, arrays)` is the same calibration again.
    """

    @property
    def input_dim(self) -> int:
        """The number of coordinates that come in."""

    @property
    def dim(self) -> int:
        """The number of coordinates that go out."""

    def __call__(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch dim"]:
        """The corrected vectors, float32; pure JAX."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Its floating arrays on the host, by name."""

    def spec(self) -> dict[str, Any]:
        """The rest, as JSON takes it; "kind" names the class."""

    def figures(self) -> dict[str, Any]:
        """What the fit saw, for a report or a JSON file."""


def calibration_digest(calibration: Calibration) -> str:
    """What tells one calibration from another: a digest of its plain values and its arrays."""
    digest = hashlib.sha256(json.dumps(calibration.spec(), sort_keys=True).encode())
    for name, array in sorted(calibration.to_arrays().items()):
        digest.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def rebuild(spec: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """The calibration of which these are `spec()` and `to_arrays()`.

    Args:
        spec: plain values; "kind" is "affine", "flow" or "chain".
        arrays: floating arrays by name, concrete or traced: `rebuild(spec, arrays)(vectors)` is a pure function
            of the arrays, so that they can be the parameters of a program.

    Raises:
        InputError: an unknown kind, or arrays that are not those of the spec.

    Example:
        >>> from jaxvec.calibration.affine_map import Affine
        >>> halve = Affine(jnp.array([1.0, 2.0]), jnp.array([[0.5], [0.0]]))
        >>> rebuild(halve.spec(), halve.to_arrays())(jnp.array([3.0, 9.0])).tolist()
        [1.0]
    """
    if spec.get("kind") not in _HOMES:
        raise InputError(f"a calibration of kind {spec.get('kind')!r}; this jaxvec knows {', '.join(_HOMES)}")
    module, name = _HOMES[spec["kind"]]
    return getattr(importlib.import_module(module), name).from_spec(spec, arrays)


def accepted(calibration: Any, width: int) -> Calibration:
    """The calibration in float32, checked, so that what an encoder takes it can also save and load.

    Args:
        calibration: what a user gave; concrete.
        width: of the vectors that are to go through it.

    Raises:
        InputError: no calibration, a traced one, a stack of several, or one that is mis-shaped, not finite or for
            vectors of another width.
    """
    if isinstance(calibration, type) or not all(
        hasattr(calibration, name) for name in ("spec", "to_arrays", "figures")
    ):
        kind = calibration.__name__ if isinstance(calibration, type) else type(calibration).__name__
        raise InputError(f"got {kind}; expected a calibration, such as jaxvec.whitening(moments)")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(calibration)):
        raise InputError(
            "the calibration is traced; inside jit apply it to the vectors of `function()` instead"
        )
    arrays = calibration.to_arrays()
    if bad := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise InputError(f"the calibration's {', '.join(bad)} holds a value that is not finite; fit it again")
    checked = rebuild(calibration.spec(), arrays)
    if checked.input_dim != width:
        raise InputError(
            f"the calibration takes vectors of width {checked.input_dim}, this encoder gives {width}; "
            "fit it on this encoder's own vectors, with the same pooling and layers"
        )
    return checked


def device_arrays(calibration: Calibration) -> dict[str, Array]:
    """Its arrays on the device, uncommitted, as the parameters of a program."""
    with jax.ensure_compile_time_eval():  # kept for later, whatever is being traced now
        return {name: jnp.asarray(array) for name, array in calibration.to_arrays().items()}
