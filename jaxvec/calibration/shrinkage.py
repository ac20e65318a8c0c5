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
    check_shrinkage(shrinkage)
    if shrinkage == "ledoit-wolf":
        return _ledoit_wolf(moments)
    if shrinkage == "oas":
        return _oas(moments)
    return shrinkage


def check_shrinkage(shrinkage: Any) -> None:
    """Refuses what is neither an estimator's name nor a number from 0 to 1."""
    if shrinkage in ("ledoit-wolf", "oas"):
        return
    if isinstance(shrinkage, str) or not 0 <= shrinkage <= 1:
        raise InputError(
            f'shrinkage is {shrinkage!r}; expected "ledoit-wolf", "oas", a number from 0 to 1, or None'
        )


def _ledoit_wolf(moments: Moments) -> Any:
    n, d, covariance, scale, xp = _ingredients(moments)
    if d == 1:
        return 0.0
    fourth = (moments.quartic.high if xp is jnp else moments.quartic.float64()) / scale / scale
    # By Cauchy and Schwarz (Σ‖y‖²)² ≤ n Σ‖y‖⁴, unless fourth powers have left float32 at either end.
    if xp is np and not 0.999 * n * d**2 <= fourth < np.inf:
        raise InputError(
            f"the fourth powers of vectors of variance {scale:.0e}, which Ledoit–Wolf needs, leave float32; "
            'scale the vectors to a variance near 1 first, or take shrinkage="oas"'
        )
    squared = (covariance**2).sum()
    spread = (fourth / n - squared) / n
    distance = squared - d
    ratio = xp.minimum(spread, distance) / xp.where(distance > 0, distance, 1)
    return xp.maximum(ratio, 0)


def _oas(moments: Moments) -> Any:
    n, d, covariance, _, xp = _ingredients(moments)
    if d == 1:
        return 0.0
    mean_square = (covariance**2).mean()
    divisor = (n + 1) * (mean_square - 1 / d)
    ratio = (mean_square + 1) / xp.where(divisor > 0, divisor, 1)
    return xp.where(divisor > 0, xp.minimum(ratio, 1), 1)


def _ingredients(moments: Moments) -> tuple[Any, int, Any, Any, Any]:
    """Count, d, the covariance scaled to a mean variance of 1, that mean variance, and the array module."""
    covariance = moments.covariance(ddof=0)
    xp = jnp if isinstance(covariance, jax.Array) else np
    scale = xp.trace(covariance) / moments.dim
    scale = xp.where(scale > 0, scale, 1)
    return moments.count, moments.dim, covariance / scale, scale, xp
