"""How far to shrink a covariance towards a multiple of the identity, from its moments alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError


def shrinkage_intensity(moments: Moments, shrinkage: float | str) -> Any:
    """The α of (1 − α)·Σ + α·(tr Σ / d)·I: a number as given, or "ledoit-wolf" or "oas" estimated.

    Equal to scikit-learn's `ledoit_wolf` and `oas` on the same vectors (which, like these formulas, take Σ
    with divisor n). Ledoit–Wolf needs Σ‖x − mean‖⁴, which the moments carry and merge.

    Raises:
        InputError: an unknown name, or a number outside 0 … 1.

    References: O. Ledoit, M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
    J. Multivariate Analysis 88, 2004; Y. Chen, A. Wiesel, Y. C. Eldar, A. O. Hero, "Shrinkage algorithms for
    MMSE covariance estimation", IEEE Trans. Signal Processing 58, 2010, eq. 23.

    Example:
        >>> import numpy as np
        >>> few = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
        >>> round(float(shrinkage_intensity(Moments.of(few), "ledoit-wolf")), 2)
        0.87
    """
    if shrinkage == "ledoit-wolf":
        return _ledoit_wolf(moments)
    if shrinkage == "oas":
        return _oas(moments)
    if isinstance(shrinkage, str) or not 0 <= shrinkage <= 1:
        raise InputError(
            f'shrinkage is {shrinkage!r}; expected "ledoit-wolf", "oas", a number from 0 to 1, or None'
        )
    return shrinkage


def _ledoit_wolf(moments: Moments) -> Any:
    n, d, covariance, xp = _ingredients(moments)
    if d == 1:
        return 0.0
    fourth = moments.quartic.high if xp is jnp else moments.quartic.float64()
    squared = (covariance**2).sum()
    spread = (fourth / n - squared) / n
    distance = squared - xp.trace(covariance) ** 2 / d
    ratio = xp.minimum(spread, distance) / xp.where(distance > 0, distance, 1)
    return xp.maximum(ratio, 0)


def _oas(moments: Moments) -> Any:
    n, d, covariance, xp = _ingredients(moments)
    if d == 1:
        return 0.0
    mean_square, mean_variance = (covariance**2).mean(), (xp.trace(covariance) / d) ** 2
    divisor = (n + 1) * (mean_square - mean_variance / d)
    ratio = (mean_square + mean_variance) / xp.where(divisor > 0, divisor, 1)
    return xp.where(divisor > 0, xp.minimum(ratio, 1), 1)


def _ingredients(moments: Moments) -> tuple[Any, int, Any, Any]:
    covariance = moments.covariance(ddof=0)
    return moments.count, moments.dim, covariance, jnp if isinstance(covariance, jax.Array) else np
