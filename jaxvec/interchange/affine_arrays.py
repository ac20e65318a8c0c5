"""An Affine to and from the linear maps of other libraries: scikit-learn's PCA and FAISS's LinearTransform.

Plain NumPy needs no file of its own: `Affine.to_arrays` and `Affine.from_arrays`. Both libraries multiply first
and add afterwards, so what they add is computed here in float64.
"""

import warnings
from typing import Any

import numpy as np

from jaxvec.calibration.affine import RTOL
from jaxvec.calibration.affine_map import Affine
from jaxvec.errors import InputError


def to_sklearn(affine: Affine) -> Any:
    """A fitted `sklearn.decomposition.PCA` whose `transform` is the Affine; it takes and keeps float64.

    Where the kernel's columns are orthogonal but not of unit length (every whitening but ZCA), the PCA has
    `whiten=True`, unit `components_`, and in `explained_variance_` the squares that it divides by, so that
    `inverse_transform` works too. Any other kernel becomes `components_` as it is, with `whiten=False`: then
    `inverse_transform` is an inverse for orthonormal columns only. Where the fit is known (of a whitening, a PCA
    or a standardisation), so are `explained_variance_ratio_`, `noise_variance_` and `n_samples_`.

    Args:
        affine: float32 mean [d] and kernel [d, dim].

    Raises:
        InputError: scikit-learn is not installed, or the Affine has a bias that no mean stands for (a composition
            through fewer dimensions than come out).

    Example:
        >>> kernel = np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 0.5]])
        >>> pca = to_sklearn(Affine.from_arrays(np.ones(3), kernel))
        >>> pca.whiten, pca.explained_variance_.round(3).tolist()
        (True, [0.04, 4.0])
        >>> pca.transform(np.array([[2.0, 2.0, 5.0]])).round(3).tolist()
        [[7.0, 2.0]]
    """
    PCA = _import("sklearn.decomposition", "scikit-learn").PCA
    mean, kernel, bias = _float64(affine)
    if bias is not None:
        shift = np.linalg.lstsq(kernel.T, bias, rcond=None)[0]
        if np.abs(shift @ kernel - bias).max() > 1e-6 * max(1.0, np.abs(bias).max()):
            raise InputError(
                f"this Affine ({affine.method}) adds a bias that no mean stands for, and PCA has only a mean; "
                "give PCA its parts, or use to_faiss"
            )
        mean = mean - shift
    lengths = np.linalg.norm(kernel, axis=0)
    unit = kernel / np.where(lengths > 0, lengths, 1.0)
    cosines = unit.T @ unit
    orthogonal = bool(np.abs(cosines - np.diag(np.diag(cosines))).max() < 1e-4)
    whiten = orthogonal and not np.allclose(lengths, 1.0, atol=1e-4)
    pca = PCA(n_components=affine.dim, whiten=whiten)
    pca.mean_, pca.components_ = mean, (unit if whiten else kernel).T
    pca.n_components_, pca.n_features_in_ = affine.dim, affine.input_dim
    if whiten:
        # A column of zeros gives a component of zeros: whatever it is divided by, the coordinate is 0.
        pca.explained_variance_ = np.where(lengths > 0, lengths, np.inf) ** -2.0
    if affine.count is not None:
        pca.n_samples_ = int(affine.count)
    if orthogonal and len(affine.fits) == 1 and affine.rank is not None:
        fit = affine.fits[0]
        kept, rest = np.split(np.asarray(fit.spectrum, np.float64), [affine.dim])
        if not whiten:
            pca.explained_variance_ = kept
        pca.explained_variance_ratio_ = np.asarray(fit.explained_variance_ratio, np.float64)
        pca.noise_variance_ = rest.mean() if len(rest) else 0.0
    return pca


def from_sklearn(pca: Any) -> Affine:
    """The Affine that equals a fitted PCA's or IncrementalPCA's `transform`, whitened or not.

    A whitened component whose variance is at most 1e-6 of the largest gives 0, with a warning: scikit-learn
    divides float rounding by its root there.

    Raises:
        InputError: another estimator, or one that is not fitted.

    Example:
        >>> from sklearn.decomposition import PCA
        >>> pca = PCA(2, whiten=True).fit(np.random.default_rng(0).normal(size=(50, 4)))
        >>> from_sklearn(pca).kernel.shape
        (4, 2)
    """
    sklearn = _import("sklearn.decomposition", "scikit-learn")
    if not isinstance(pca, (sklearn.PCA, sklearn.IncrementalPCA)) or not hasattr(pca, "components_"):
        raise InputError(
            f"got {pca!r}; expected a fitted sklearn.decomposition.PCA or IncrementalPCA: call its fit first"
        )
    kernel = np.asarray(pca.components_, np.float64).T
    if pca.whiten:
        variances = np.asarray(pca.explained_variance_, np.float64)
        kept = variances > RTOL * variances.max()
        if noise := int(np.sum(~kept & kernel.any(axis=0))):
            warnings.warn(
                f"{noise} of {len(kept)} whitened components have a variance of at most {RTOL:g} of the largest, "
                "which is rounding; they give 0. Fit the PCA on fewer components, or use jaxvec.whitening",
                stacklevel=2,
            )
        kernel = np.where(kept, kernel / np.sqrt(np.where(kept, variances, 1.0)), 0.0)
    return Affine.from_arrays(np.asarray(pca.mean_), kernel)


def to_faiss(affine: Affine) -> Any:
    """The same map as a trained `faiss.LinearTransform`, say for an `IndexPreTransform`.

    FAISS computes A x + b in float32, so that its rounding error is relative to A x, not to what is left after
    the mean has gone.

    Args:
        affine: float32 mean [d] and kernel [d, dim]; FAISS stores A = kernelᵀ [dim, d] and b [dim], float32.

    Raises:
        InputError: FAISS is not installed.

    Example:
        >>> halve = to_faiss(Affine.from_arrays(np.array([1.0, 2.0]), np.array([[0.5], [0.0]])))
        >>> halve.apply(np.array([[3.0, 9.0]], np.float32)).tolist()
        [[1.0]]
    """
    faiss = _import("faiss", "faiss-cpu")
    mean, kernel, bias = _float64(affine)
    shift = (0.0 if bias is None else bias) - mean @ kernel
    transform = faiss.LinearTransform(affine.input_dim, affine.dim, True)
    faiss.copy_array_to_vector(kernel.T.astype(np.float32).ravel(), transform.A)
    faiss.copy_array_to_vector(shift.astype(np.float32), transform.b)
    transform.is_trained = True
    transform.set_is_orthonormal()
    return transform


def from_faiss(transform: Any) -> Affine:
    """The Affine that equals a trained `faiss.LinearTransform`: PCAMatrix, OPQMatrix, a random rotation, …

    Raises:
        InputError: another kind of transform, or one that is not trained.

    Example:
        >>> import faiss
        >>> pca = faiss.PCAMatrix(4, 2)
        >>> pca.train(np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32))
        >>> from_faiss(pca).kernel.shape
        (4, 2)
    """
    faiss = _import("faiss", "faiss-cpu")
    if isinstance(transform, faiss.VectorTransform):
        transform = faiss.downcast_VectorTransform(transform)
    if not isinstance(transform, faiss.LinearTransform) or not transform.is_trained:
        raise InputError(
            f"got {type(transform).__name__}; expected a trained faiss.LinearTransform, such as PCAMatrix: "
            "call its train first"
        )
    kernel = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in).T
    bias = faiss.vector_to_array(transform.b) if transform.have_bias else None
    return Affine.from_arrays(np.zeros(transform.d_in, np.float32), kernel, bias)


def _float64(affine: Affine) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    arrays = {name: array.astype(np.float64) for name, array in affine.to_arrays().items()}
    return arrays["mean"], arrays["kernel"], arrays.get("bias")


def _import(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this needs {package}, which is not installed: pip install {package}") from error
