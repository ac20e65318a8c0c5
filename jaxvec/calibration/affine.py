"""The linear corrections, each one an Affine computed from Moments: whitening, standardize, and others."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.affine_map import HIGHEST, Affine
from jaxvec.calibration.fit_checks import CONSTANT, checked, noise, refuse_constant
from jaxvec.calibration.fit_record import FitRecord
from jaxvec.calibration.moments import Moments
from jaxvec.calibration.shrinkage import shrinkage_intensity
from jaxvec.calibration.solvers import choose_solver, eigendecomposition
from jaxvec.errors import InputError, is_whole

RTOL = 1e-6  # between a direction a LayerNorm output lacks (1e-16) and the smallest it has (1e-5)

__all__ = ["Affine", "pca", "remove_components", "standardize", "whitening"]


def whitening(
    moments: Moments,
    dim: int | None = None,
    solver: str | None = None,
    rtol: float = RTOL,
    shrinkage: float | str | None = None,
    power: float = 1.0,
    zca: bool = False,
) -> Affine:
    """Whitening: x ↦ (x − mean) U Λ^(−power/2), with Σ = U Λ Uᵀ the covariance (ddof 1), Λ descending.

    The recipe of the paper, in its own terms and equal to this up to the sign of columns where Σ is well
    conditioned. It has no cut: where Σ lacks a direction, it divides noise by noise.

        >>> import jax, jax.numpy as jnp, numpy as np
        >>> @jax.jit
        ... def recipe(x):
        ...     mu = x.mean(0)
        ...     u, s, _ = jnp.linalg.svd(jnp.cov(x.T))
        ...     return (x - mu) @ u @ jnp.diag(1 / jnp.sqrt(s))
        >>> x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32) * np.arange(1, 9)
        >>> x = x.astype(np.float32)
        >>> white = whitening(Moments.of(x), dim=4)
        >>> bool(np.allclose(abs(recipe(x)[:, :4]), abs(white(x)), atol=1e-4))
        True

    The fit is traceable: fit and use become one program, with no gradient through the fit.

        >>> fit_and_apply = jax.jit(lambda x: whitening(Moments.of(x), dim=4)(x))
        >>> bool(np.allclose(fit_and_apply(x), white(x), atol=1e-3))
        True

    Args:
        moments: of the vectors, un-normalised (unit vectors bring a warning); 2 or more.
        dim: keep this many leading directions; None keeps all.
        solver: "float64" solves on the host (the default outside tracing); "eigh" (the default while
            tracing) and "svd" are float32 `jnp.linalg`. At n = 20,000, d = 768 and condition number 1e5 they
            leave a max|cov − I| of 5e-4 to 8e-4.
        rtol: a direction whose variance is at most rtol × the largest, or is float32 rounding of the mean
            (at most 1e-12 · ‖mean‖² / d), is cut.
        shrinkage: fraction of the way from Σ to (tr Σ / d)·I, or "ledoit-wolf" or "oas" to estimate it.
            Shrunk directions are not cut.
        power: 1 whitens, between 0 and 1 whitens in part, 0 only rotates.
        zca: rotate back, U Λ^(−power/2) Uᵀ, so that vectors stay near where they were; not with `dim`.

    Returns:
        mean [d] and kernel [d, min(dim, rank)], with a warning where that is less than `dim`; while tracing,
        [d, dim] with the cut columns zero. With zca, [d, d].

    Raises:
        InputError: fewer than 2 vectors, equal vectors only, sums that leave float32, or an argument out of
            range. While tracing, where nothing can be raised, such a kernel is zero or NaN.

    References: J. Su, J. Cao, W. Liu, Y. Ou, "Whitening Sentence Representations for Better Semantics and
    Faster Retrieval", 2021, arXiv:2103.15316, Algorithm 1. A. Kessy, A. Lewin, K. Strimmer, "Optimal
    Whitening and Decorrelation", The American Statistician 72, 2018 (PCA and ZCA whitening).
    """
    check_options(checked(moments).dim, dim=dim, power=power, zca=zca, rtol=rtol)
    values, vectors, solver = principal_directions(moments, moments.covariance(), solver, rtol)
    alpha = None
    if shrinkage is not None:
        alpha = shrinkage_intensity(moments, shrinkage)
        values = (1 - alpha) * values + alpha * values.mean()
    asked = shrinkage if isinstance(shrinkage, str | None) else float(shrinkage)
    options = {
        "rtol": float(rtol),
        "shrinkage": asked,
        "power": float(power),
        "zca": bool(zca),
        "solver": solver,
    }
    return _projection(moments, "whitening", values, vectors, dim, options, alpha)


def check_options(
    width: int,
    *,
    dim: int | None = None,
    power: float = 1.0,
    zca: bool = False,
    rtol: float = RTOL,
    k: int = 1,
    **others: Any,
) -> None:
    """Refuses what no vectors of this width could be fitted with; the options are those of the fits here."""
    if zca and dim is not None:
        raise InputError("zca keeps all coordinates; give dim=None, or zca=False for the leading directions")
    if not 0 <= power <= 1:
        raise InputError(f"power is {power!r}; expected 0 (rotation only) to 1 (whitening)")
    if not 0 <= rtol < 1:
        raise InputError(f"rtol is {rtol!r}; expected a share of the largest variance, from 0 to below 1")
    if dim is not None and not (is_whole(dim, 1) and dim <= width):
        raise InputError(f"dim is {dim!r}; expected 1 … {width}, or None for all directions")
    if not (is_whole(k, 1) and k < max(width, 2)):
        raise InputError(f"k is {k!r}; expected 1 … {width - 1} of {width} directions")


def pca(moments: Moments, dim: int | None = None, solver: str | None = None, rtol: float = RTOL) -> Affine:
    """Principal components: centre, then project on the `dim` leading eigenvectors of the covariance.

    Whitening with power 0; arguments, shapes and errors are those of `whitening`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
        >>> projected = pca(Moments.of(x), dim=2)(x)
        >>> projected.shape, bool(abs(np.cov(projected.T)[0, 1]) < 1e-5)
        ((500, 2), True)

    References: K. Pearson, "On lines and planes of closest fit to systems of points in space", 1901.
    """
    check_options(checked(moments).dim, dim=dim, rtol=rtol)
    values, vectors, solver = principal_directions(moments, moments.covariance(), solver, rtol)
    return _projection(moments, "pca", values, vectors, dim, {"rtol": float(rtol), "solver": solver})


def standardize(moments: Moments) -> Affine:
    """Standardisation (the SN baseline): subtract the mean, divide each coordinate by its deviation (ddof 1).

    A coordinate that is constant, up to float32 rounding of its mean, is centred and not divided. `rank`
    counts the others, and the fit's `spectrum` holds the variances in the coordinates' order (at least 1e-38,
    the smallest that float32 holds; a few LayerNorm coordinates vary by 1e-32).

    Raises:
        InputError: fewer than 2 vectors, or equal vectors only.

    References: B. Li et al., "On the Sentence Embeddings from Pre-trained Language Models" (BERT-flow), EMNLP
    2020, arXiv:2011.05864, where it is the baseline "SN".

    Example:
        >>> import numpy as np
        >>> x = np.array([[1, 5], [2, 5], [3, 5]], np.float32)
        >>> standardize(Moments.of(x))(x).tolist()
        [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    deviations = checked(moments).deviations
    xp = jnp if isinstance(deviations, jax.Array) else np
    refuse_constant(moments, deviations**2 - noise(moments))
    varies = deviations > CONSTANT * xp.abs(moments.mean)
    kernel = xp.diag(1 / xp.where(varies, deviations, 1))
    variances = xp.where(varies, xp.maximum(deviations**2, np.finfo(np.float32).tiny), 0)
    return _affine(moments, kernel, variances, "standardize", {})


def remove_components(moments: Moments, k: int, center: bool = True, solver: str | None = None) -> Affine:
    """All-but-the-top: centre, then take off what lies along the k leading directions; still d coordinates.

    With `center=True` the directions are the leading eigenvectors of the covariance (the right singular
    vectors of the centred vectors), and the centring stays. With `center=False` they are those of the second
    moment about 0, and nothing is centred: with k = 1, the common component that SIF removes.

    Args:
        moments: of the vectors, un-normalised; 2 or more.
        k: 1 or more, below d, and (outside tracing) not above the rank.
        center: see above.
        solver: as for `whitening`.

    Raises:
        InputError: fewer than 2 vectors, equal vectors only, or k out of range.

    References: J. Mu, P. Viswanath, "All-but-the-Top", ICLR 2018, arXiv:1702.01417, Algorithm 1. S. Arora,
    Y. Liang, T. Ma, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", ICLR 2017, Algorithm 1.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32) * [9, 1, 1]
        >>> x = x.astype(np.float32)
        >>> remove_components(Moments.of(x), k=1)(x).var(0).round(1).tolist()[0]
        0.0
    """
    d = checked(moments).dim
    check_options(d, k=k)
    covariance = moments.covariance(ddof=1 if center else 0)
    xp = jnp if isinstance(covariance, jax.Array) else np
    matrix = covariance if center else covariance + xp.outer(moments.mean, moments.mean)
    values, vectors, solver = principal_directions(moments, matrix, solver, RTOL)
    if not isinstance(values, jax.core.Tracer) and (rank := int((values > RTOL * values[0]).sum())) < k:
        raise InputError(f"k is {k}, but the vectors vary in {rank} directions only; take a smaller k")
    leading = vectors[:, :k]
    kernel = np.eye(d, dtype=np.float32) - _product(leading, leading.T)
    options = {"rtol": RTOL, "k": int(k), "center": bool(center), "solver": solver}
    return _affine(moments, kernel, values, "remove_components", options, removed=int(k), center=center)


def principal_directions(
    moments: Moments, matrix: Any, solver: str | None, rtol: float
) -> tuple[Any, Any, str]:
    """Eigenvalues, 0 where they are rounding; eigenvectors; and the solver that was used."""
    solver = choose_solver(solver, isinstance(matrix, jax.core.Tracer))
    values, vectors = eigendecomposition(matrix, solver, rtol)
    values = values * ~(values <= noise(moments))  # what is not a number stays so
    refuse_constant(moments, values)
    return values, vectors, solver


def _projection(
    moments: Moments,
    method: str,
    values: Any,
    vectors: Any,
    dim: int | None,
    options: dict[str, Any],
    intensity: Any = None,
) -> Affine:
    d, rtol = moments.dim, options["rtol"]
    asked = d if dim is None else dim
    options = {"dim": None if dim is None else int(dim), **options}
    xp = jnp if isinstance(values, jax.Array) else np
    keep = ~(values <= rtol * values[0])
    scale = xp.where(keep, xp.where(keep, values, 1) ** (-options.get("power", 0.0) / 2), 0)
    kernel = vectors * scale
    if options.get("zca"):
        return _affine(moments, _product(kernel, vectors.T), values, method, options, intensity)
    if not isinstance(values, jax.core.Tracer) and asked > (rank := int(keep.sum())):
        if dim is not None:
            warnings.warn(
                f"{method} to {dim} dimensions was asked for, but the {moments.count} vectors vary in {rank} "
                f"directions only (variance above {rtol:g} of the largest); it gives {rank} dimensions",
                stacklevel=3,
            )
        asked = rank
    return _affine(moments, kernel[:, :asked], values, method, options, intensity)


def _affine(
    moments: Moments,
    kernel: Any,
    spectrum: Any,
    method: str,
    options: dict[str, Any],
    intensity: Any = None,
    removed: int = 0,
    center: bool = True,
) -> Affine:
    mean = moments.mean if center else np.zeros(moments.dim, np.float32)
    arrays = [
        None if array is None else jnp.asarray(array, jnp.float32)
        for array in (mean, kernel, spectrum, intensity)
    ]
    mean, kernel, spectrum, intensity = jax.lax.stop_gradient(arrays)
    record = FitRecord(
        method=method,
        spectrum=spectrum,
        counted=moments.counted,
        intensity=intensity,
        options=tuple(options.items()),
        removed=removed,
        dim=kernel.shape[1],
    )
    return Affine(mean, kernel, fits=(record,))


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=HIGHEST) if isinstance(a, jax.Array) else a @ b
