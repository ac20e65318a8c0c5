"""What vectors are read from, and how they are stored for scoring: float32, bfloat16, or int8 with one unit a row."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float, Shaped

from jaxvec.errors import InputError, is_whole

BLOCK = 65_536  # rows coded at a time
STORAGE = ("float32", "bfloat16", "int8")


@runtime_checkable
class Rows(Protocol):
    """What vectors are read from: a NumPy or JAX array, a memory map, or anything sliced like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, at: Any) -> Any: ...


def check_rows(vectors: Any) -> None:
    """Refuses what is not an array [n, dim] of numbers."""
    shape, dtype = getattr(vectors, "shape", None), getattr(vectors, "dtype", None)
    if shape is None or dtype is None:
        raise InputError(f"vectors is a {type(vectors).__name__}; expected an array [n, dim]")
    if len(shape) != 2 or shape[1] < 1:
        raise InputError(f"vectors have shape {shape}; expected [n, dim] with dim ≥ 1")
    if not _real(dtype):
        raise InputError(f"vectors hold {dtype}; expected real numbers")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuses an argument that is none of the choices."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def check_count(k: Any) -> None:
    """Refuses a k that is not a whole number of at least 1."""
    if not is_whole(k, 1):
        raise InputError(f"k is {k!r}; expected a whole number of at least 1")


def checked_queries(queries: Any, dim: int) -> Float[np.ndarray, "q dim"]:
    """Query vectors as float32, if they are finite real numbers [q, dim]."""
    queries = np.asarray(queries)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise InputError(f"queries have shape {queries.shape}; this corpus takes [q, {dim}]")
    if not _real(queries.dtype):
        raise InputError(f"queries hold {queries.dtype}; expected real numbers")
    queries = as_float32(queries)
    if not np.isfinite(queries).all():
        raise InputError("a query holds a value that is not finite in float32")
    return queries


def as_float32(vectors: Any) -> Float[np.ndarray, "*shape"]:
    """The same as float32; what does not fit becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return np.asarray(vectors, np.float32)


def masked(vectors: Any, valid: Bool[np.ndarray, " n"]) -> Any:
    """Zeros in place of the rows [n, dim] that are not valid, whatever they hold."""
    return vectors if valid.all() else np.where(valid[:, None], vectors, vectors.dtype.type(0))


def _real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def quantize(
    vectors: Any, dtype: str, metric: str, valid: Bool[np.ndarray, " n"] | None = None
) -> tuple[Shaped[np.ndarray, "n dim"], Float[np.ndarray, " n"] | None]:
    """Rows as they are stored for scoring, and the unit of each row's integers (int8) or None.

    int8 is symmetric, with one unit a row: its largest coordinate is ±127. For cosine rows are made unit first.
    Rows that are not `valid` may hold anything.

    Raises:
        InputError: a vector is not finite.

    Example:
        >>> codes, unit = quantize(np.array([[3.0, -4.0]], np.float32), "int8", "cosine")
        >>> codes.tolist(), unit.round(4)
        ([[95, -127]], array([0.0063], dtype=float32))
    """
    n, dim = vectors.shape
    codes = np.empty((n, dim), np.int8 if dtype == "int8" else ml_dtypes.bfloat16)
    unit = np.empty(n, np.float32) if dtype == "int8" else None
    for start in range(0, n, BLOCK):
        rows = np.asarray(vectors[start : start + BLOCK])
        rows = finite(as_float32(rows if valid is None else masked(rows, valid[start : start + BLOCK])))
        if metric == "cosine":
            rows = unit_rows(rows)
        if unit is not None:
            step = np.abs(rows).max(axis=1) / 127
            unit[start : start + len(rows)] = step
            rows = np.rint(rows / np.where(step > 0, step, 1)[:, None])
        codes[start : start + len(rows)] = rows
    return codes, unit


def finite(vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """The vectors themselves, if every value is finite."""
    if not np.isfinite(vectors).all():
        raise InputError("a vector holds a value that is not finite; encode it again with dtype float32")
    return vectors


def unit_rows(vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """Rows of length 1, on the host; a row of zeros stays one.

    >>> unit_rows(np.array([[3e30, 4e30], [0, 1e-30], [0, 0]], np.float32)).round(2).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 1.0], [0.0, 0.0]]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
        extreme = ~((length > 1e-15) & (length < 1e18))  # the square over- or underflows, or loses digits
        if extreme.any():
            largest = np.abs(vectors[extreme]).max(axis=1, initial=0)
            vectors = vectors.copy()
            vectors[extreme] /= np.where(largest > 0, largest, 1)[:, None]
            length[extreme] = np.sqrt(np.einsum("nd,nd->n", vectors[extreme], vectors[extreme]))
        return vectors / np.where(length > 0, length, 1)[:, None]
