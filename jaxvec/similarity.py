"""Cosines of every vector with every other: what two texts have in common, as a number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxvec.errors import InputError
from jaxvec.search.storage import as_float32, unit_rows


def cosines(a: Any, b: Any) -> Float[np.ndarray, "..."]:
    """Cosine of every vector of `a` with every vector of `b`, arguments and errors as for `SentenceEncoder.similarity`.

    >>> cosines(np.array([[1.0, 0.0], [0.0, 1e-30]]), np.array([3e25, 4e25])).round(2).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    a, b = (x if isinstance(x, jax.Array) else np.asarray(x) for x in (a, b))
    numeric = jnp.issubdtype(a.dtype, jnp.number) and jnp.issubdtype(b.dtype, jnp.number)
    if not numeric or not a.shape or a.shape[-1:] != b.shape[-1:]:
        raise InputError(
            f"a is {a.dtype} {a.shape} and b is {b.dtype} {b.shape}; expected vectors [n, dim] and [m, dim]"
        )
    first, second = (unit_rows(np.atleast_2d(as_float32(x))).reshape(x.shape) for x in (a, b))
    return np.asarray(jnp.matmul(first, second.T, precision=jax.lax.Precision.HIGHEST))
