"""What vectors are read from, and how they are stored for scoring: float32, bfloat16, or int8 with one unit a row."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Float, Shaped

from jaxvec.errors import InputError

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
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise InputError(f"vectors hold {dtype}; expected real numbers")


def quantize(
    vectors: Any, dtype: str, metric: str
) -> tuple[Shaped[np.ndarray, "n dim"], Float[np.ndarray, " n"] | None]:
    """Rows as they are stored for scoring, and the unit of each row's integers (int8) or None.

    int8 is symmetric, with one unit a row: its largest coordinate is ±127. For cosine rows are made unit first.

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
        rows = finite(np.asarray(vectors[start : start + BLOCK], np.float32))
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
    """Rows of length 1, on the host; a row of zeros stays one."""
    length = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return vectors / np.where(length > 0, length, 1)[:, None]
