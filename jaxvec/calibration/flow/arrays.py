"""A Glow as a flat dict of named arrays, and back: what is trained, saved and handed to a program."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
from flax import nnx

from jaxvec.calibration.flow.glow import Glow, GlowConfig
from jaxvec.calibration.flow.linear import Fixed
from jaxvec.errors import InputError


def arrays_of(glow: Glow) -> tuple[dict[str, Any], dict[str, Any]]:
    """(trained, fixed) arrays of a module, by name: "levels.0.1.norm.shift"."""
    trained: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(nnx.state(glow)):
        group = fixed if isinstance(variable, Fixed) else trained
        group[".".join(map(str, path))] = variable[...]
    return trained, fixed


def glow_of(config: GlowConfig, shape: tuple[int, ...], arrays: Mapping[str, Any]) -> Glow:
    """The module that holds these arrays, concrete or traced.

    Raises:
        InputError: an array is missing, too many, or of another shape.

    Example:
        >>> config = GlowConfig(levels=1, depth=1, hidden=2)
        >>> trained, fixed = arrays_of(Glow(config, (3,), jax.random.key(0)))
        >>> glow_of(config, (3,), trained | fixed).levels[0][0].norm.shift.shape
        (3,)
    """
    graph, abstract = _skeleton(config, shape)
    expected = {name: variable.get_value().shape for name, (_, variable) in abstract.items()}
    found = {name: array.shape for name, array in arrays.items()}
    if expected != found:
        wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
        raise InputError(
            f"the arrays of a flow do not fit its configuration: {', '.join(wrong[:5])}"
            f"{' and others' if len(wrong) > 5 else ''} missing, unexpected or of another shape; fit it again"
        )
    flat = [(path, variable.replace(arrays[name])) for name, (path, variable) in abstract.items()]
    return nnx.merge(graph, nnx.from_flat_state(flat))


@cache
def _skeleton(config: GlowConfig, shape: tuple[int, ...]) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    graph, state = nnx.split(nnx.eval_shape(lambda: Glow(config, shape, jax.random.key(0))))
    flat = nnx.to_flat_state(state)
    return graph, {".".join(map(str, path)): (path, variable) for path, variable in flat}
