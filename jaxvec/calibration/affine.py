"""The linear corrections, each one an Affine computed from Moments: whitening, standardize, and others."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.affine_map import HIGHEST, Affine
from jaxvec.calibration.moments import Moments
from jaxvec.calibration.shrinkage import shrinkage_intensity
from jaxvec.calibration.solvers import choose_solver, eigendecomposition
from jaxvec.errors import InputError

RTOL = 1e-6  # between a direction a LayerNorm output lacks (1e-16) and the smallest it has (1e-5)
CONSTANT = 1e-6  # a standard deviation below this share of the mean is float32 rounding

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
        moments: of the vectors, un-normalised; 2 or more.
        dim: keep this many leading directions; None keeps all.
        solver: "float64" solves on the host (the default outside tracing); "eigh" (the default while
            tracing) and "svd" are float32 `jnp.linalg`. At n = 20,000, d = 768 and condition number 1e5 they
            leave a max|cov − I| of 5e-4 to 8e-4.
        rtol: a direction whose variance is at most rtol × the largest is cut.
        shrinkage: fraction of the way from Σ to (tr Σ / d)·I, or "ledoit-wolf" or "oas" to estimate it.
            Shrunk directions are not cut.
        power: 1 whitens, between 0 and 1 whitens in part, 0 only rotates.
        zca: rotate back, U Λ^(−power/2) Uᵀ, so that vectors stay near where they were; not with `dim`.

    Returns:
        mean [d] and kernel [d, min(dim, rank)], with a warning where that is less than `dim`; while tracing,
        [d, dim] with the cut columns zero. With zca, [d, d].

    Raises:
        InputError: fewer than 2 vectors, equal vectors only, or an argument out of range.

    References: J. Su, J. Cao, W. Liu, Y. Ou, "Whitening Sentence Representations for Better Semantics and
    Faster Retrieval", 2021, arXiv:2103.15316, Algorithm 1. A. Kessy, A. Lewin, K. Strimmer, "Optimal
    Whitening and Decorrelation", The American Statistician 72, 2018 (PCA and ZCA whitening).
    """
    if zca and dim is not None:
        raise InputError("zca keeps all coordinates; give dim=None, or zca=False for the leading directions")
    if not 0 <= power <= 1:
        raise InputError(f"power is {power!r}; expected 0 (rotation only) to 1 (whitening)")
    values, vectors = _principal_directions(moments, _checked(moments).covariance(), solver, rtol)
    if shrinkage is not None:
        alpha = shrinkage_intensity(moments, shrinkage)
        values = (1 - alpha) * values + alpha * values.mean()
    return _projection(moments, "whitening", values, vectors, dim, rtol, power, zca)


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
    values, vectors = _principal_directions(moments, _checked(moments).covariance(), solver, rtol)
    return _projection(moments, "pca", values, vectors, dim, rtol, power=0.0, zca=False)


def standardize(moments: Moments) -> Affine:
    """Standardisation (the SN baseline): subtract the mean, divide each coordinate by its deviation (ddof 1).

    A coordinate that is constant, up to float32 rounding of its mean, is centred and not divided. `rank`
    counts the others, and `spectrum` holds the variances in the coordinates' order.

    Raises:
        InputError: fewer than 2 vectors.

    References: J. Huang et al., "WhiteningBERT: An Easy Unsupervised Sentence Embedding Approach", 2021,
    arXiv:2104.01767, compare whitening with such a normalisation.

    Example:
        >>> import numpy as np
        >>> x = np.array([[1, 5], [2, 5], [3, 5]], np.float32)
        >>> standardize(Moments.of(x))(x).tolist()
        [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    covariance = _checked(moments).covariance()
    xp = jnp if isinstance(covariance, jax.Array) else np
    variances = xp.maximum(xp.diagonal(covariance), 0)
    constant = variances <= (CONSTANT * moments.mean) ** 2
    deviations = xp.where(constant, 1, xp.sqrt(variances))
    return _affine(moments, xp.diag(1 / deviations), xp.where(constant, 0, variances), "standardize", 0.0)


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
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k < moments.dim:
        raise InputError(f"k is {k!r}; expected 1 … {moments.dim - 1} of {moments.dim} directions")
    covariance = _checked(moments).covariance(ddof=1 if center else 0)
    xp = jnp if isinstance(covariance, jax.Array) else np
    matrix = covariance if center else covariance + xp.outer(moments.mean, moments.mean)
    values, vectors = _principal_directions(moments, matrix, solver, RTOL)
    if not isinstance(values, jax.core.Tracer) and (rank := int((values > RTOL * values[0]).sum())) < k:
        raise InputError(f"k is {k}, but the vectors vary in {rank} directions only; take a smaller k")
    leading = vectors[:, :k]
    kernel = np.eye(moments.dim, dtype=np.float32) - _product(leading, leading.T)
    return _affine(moments, kernel, values, "remove_components", RTOL, center)


def _checked(moments: Moments) -> Moments:
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
    return moments


def _principal_directions(moments: Moments, matrix: Any, solver: str | None, rtol: float) -> tuple[Any, Any]:
    if not 0 <= rtol < 1:
        raise InputError(f"rtol is {rtol!r}; expected a share of the largest variance, from 0 to below 1")
    traced = isinstance(matrix, jax.core.Tracer)
    values, vectors = eigendecomposition(matrix, choose_solver(solver, traced), rtol)
    if not traced and not values[0] > 0:
        raise InputError(f"all {moments.count} vectors are equal: they have no direction to fit")
    return values, vectors


def _projection(
    moments: Moments,
    method: str,
    values: Any,
    vectors: Any,
    dim: int | None,
    rtol: float,
    power: float,
    zca: bool,
) -> Affine:
    d = moments.dim
    asked = d if dim is None else dim
    if isinstance(asked, bool) or not isinstance(asked, int | np.integer) or not 1 <= asked <= d:
        raise InputError(f"dim is {dim!r}; expected 1 … {d}, or None for all directions")
    xp = jnp if isinstance(values, jax.Array) else np
    keep = values > rtol * values[0]
    scale = xp.where(keep, xp.where(keep, values, 1) ** (-power / 2), 0)
    kernel = vectors * scale
    if zca:
        return _affine(moments, _product(kernel, vectors.T), values, method, rtol)
    if not isinstance(values, jax.core.Tracer) and asked > (rank := int(keep.sum())):
        if dim is not None:
            warnings.warn(
                f"{method} to {dim} dimensions was asked for, but the {moments.count} vectors vary in {rank} "
                f"directions only (variance above {rtol:g} of the largest); it gives {rank} dimensions",
                stacklevel=3,
            )
        asked = rank
    return _affine(moments, kernel[:, :asked], values, method, rtol)


def _affine(
    moments: Moments, kernel: Any, spectrum: Any, method: str, rtol: float, center: bool = True
) -> Affine:
    mean = moments.mean if center else np.zeros(moments.dim, np.float32)
    arrays = (jnp.asarray(array, jnp.float32) for array in (mean, kernel, spectrum, moments.count))
    mean, kernel, spectrum, count = map(jax.lax.stop_gradient, arrays)
    return Affine(mean, kernel, spectrum=spectrum, count=count, method=method, rtol=rtol)


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=HIGHEST) if isinstance(a, jax.Array) else a @ b
