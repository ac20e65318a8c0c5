"""Whether a calibration can be fitted on these moments, and what in them is only rounding."""

import warnings
from typing import Any

import jax
import numpy as np

from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError

CONSTANT = 1e-6  # a standard deviation below this share of the mean is float32 rounding
SMALLEST = 1e-24  # a variance below this loses the directions of 1e-6 of it to float32's smallest number


def checked(moments: Moments) -> Moments:
    """The moments, if a calibration can be fitted on them; while tracing only their type is looked at.

    Warns, for the caller's caller, where all vectors have length 1: calibrations are for un-normalised ones.

    Raises:
        InputError: what is not Moments, a stack of them, fewer than 2 vectors, sums that are not finite, or
            vectors so small that their squares are not float32 numbers.
    """
    if not isinstance(moments, Moments):
        raise InputError(
            f"got {type(moments).__name__}; a calibration is fitted on moments: jaxvec.Moments.of(vectors)"
        )
    if moments.centre.high.ndim != 1:
        raise InputError(
            f"these are the moments of {moments.centre.high.shape[0]} samples; fit each with jax.vmap, "
            "or take one: jax.tree.map(lambda leaf: leaf[0], moments)"
        )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(moments)):
        return moments
    if moments.count < 2:
        raise InputError(
            f"a calibration is fitted on 2 or more vectors, these moments hold {moments.count}; "
            "fit once on a corpus, then apply it to single sentences"
        )
    if not (np.isfinite(moments.mean).all() and np.isfinite(moments.m2).all()):
        raise InputError(
            "the moments are not finite; drop rows with NaN or infinity, or scale the vectors down"
        )
    largest = float(np.abs(moments.covariance()).max())
    if noise(moments) < largest < SMALLEST:
        raise InputError(
            f"the vectors' largest variance is {largest:.0e}, and what is below {SMALLEST:g} leaves float32; "
            "multiply the vectors by a constant first"
        )
    if _have_unit_length(moments):
        warnings.warn(
            "every vector has length 1; calibrations are fitted on un-normalised vectors "
            "(encoder.encode(…, normalize=False), or encoder.moments), and give other scores on these",
            stacklevel=3,
        )
    return moments


def noise(moments: Moments) -> Any:
    """The variance of float32 rounding along any direction: CONSTANT² · ‖mean‖² / d.

    What varies less is as good as constant: inverting it would invert noise.
    """
    return CONSTANT**2 * (moments.mean**2).mean()


def is_constant(moments: Moments) -> bool:
    """Whether all vectors are equal up to float32 rounding, so that no calibration can be fitted on them."""
    return not (moments.deviations**2 > noise(moments)).any()


def refuse_constant(moments: Moments, spectrum: Any) -> None:
    """Raises an InputError if no direction has a variance; not while tracing."""
    if isinstance(spectrum, jax.core.Tracer) or (spectrum > 0).any():
        return
    tiny = " (or too small: multiply them by a constant)" if 0 < np.abs(moments.mean).max() < 1e-12 else ""
    raise InputError(
        f"all {moments.count} vectors are equal up to float32 rounding{tiny}: they have no direction to fit"
    )


def _have_unit_length(moments: Moments) -> bool:
    """Whether ‖x‖² has mean 1 and no variance, from the sums of second to fourth order around the mean."""
    n, mean = moments.count, moments.mean
    covariance, skew = moments.m2 / n, moments.cubic.float64() / n
    inner, outer = np.trace(covariance), mean @ mean
    square = outer + inner
    fourth = moments.quartic.float64() / n + 4 * mean @ (skew + covariance @ mean) + outer**2
    variance = fourth + 2 * outer * inner - square**2
    return bool(abs(square - 1) < 1e-3 and variance < 1e-4)
