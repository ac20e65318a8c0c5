"""The same map in scikit-learn, FAISS and jaxvec: one transform, whichever library computes it."""

import numpy as np
import pytest

from jaxvec.calibration.affine import pca, remove_components, standardize, whitening
from jaxvec.calibration.affine_map import Affine
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError
from jaxvec.interchange.affine_arrays import from_faiss, from_sklearn, to_faiss, to_sklearn

DRAW = np.random.default_rng(3)
ROTATION = np.linalg.qr(DRAW.normal(size=(24, 24)))[0]
# Unlike directions and a mean away from zero, as sentence vectors have.
VECTORS = (DRAW.normal(size=(400, 24)) * np.geomspace(1, 0.1, 24) @ ROTATION + 1).astype(np.float32)
MAPS = {
    "whitening": lambda m: whitening(m),
    "whitening to 7": lambda m: whitening(m, dim=7),
    "half whitening": lambda m: whitening(m, power=0.5),
    "ZCA": lambda m: whitening(m, zca=True),
    "pca": lambda m: pca(m, dim=5),
    "standardize": lambda m: standardize(m),
    "remove components": lambda m: remove_components(m, 2),
    "composition": lambda m: whitening(m, dim=9).then(Affine.from_arrays(np.ones(9), np.eye(9)[:, :4])),
}


@pytest.fixture(params=MAPS)
def affine(request):
    return MAPS[request.param](Moments.of(VECTORS))


def assert_equal_transforms(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


def exactly(affine, vectors):
    arrays = {name: array.astype(np.float64) for name, array in affine.to_arrays().items()}
    return (vectors.astype(np.float64) - arrays["mean"]) @ arrays["kernel"] + arrays.get("bias", 0)


def test_sklearn_transforms_equally_and_comes_back(affine):
    pytest.importorskip("sklearn")
    fitted = to_sklearn(affine)
    assert_equal_transforms(fitted.transform(VECTORS), exactly(affine, VECTORS))
    assert_equal_transforms(from_sklearn(fitted)(VECTORS), exactly(affine, VECTORS))
    assert list(fitted.get_feature_names_out()) == [f"pca{i}" for i in range(affine.dim)]


@pytest.mark.parametrize("name", ["whitening", "half whitening", "standardize"])
def test_sklearn_inverts_what_is_orthogonal(name):
    pytest.importorskip("sklearn")
    fitted = to_sklearn(MAPS[name](Moments.of(VECTORS)))
    assert fitted.whiten
    assert_equal_transforms(fitted.inverse_transform(fitted.transform(VECTORS)), VECTORS)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("kind", ["PCA", "IncrementalPCA"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_pca_fitted_by_sklearn_becomes_an_affine_and_a_pca_again(whiten, kind, dtype):
    decomposition = pytest.importorskip("sklearn.decomposition")
    fitted = getattr(decomposition, kind)(6, whiten=whiten).fit(VECTORS.astype(dtype))
    expected = fitted.transform(VECTORS.astype(np.float64))
    assert_equal_transforms(from_sklearn(fitted)(VECTORS), expected)
    again = to_sklearn(from_sklearn(fitted))
    assert again.whiten == whiten
    assert_equal_transforms(again.transform(VECTORS), expected)
    if whiten:
        np.testing.assert_allclose(again.explained_variance_, fitted.explained_variance_, rtol=1e-5)


def test_our_pca_and_whitening_are_sklearns_up_to_the_signs():
    decomposition = pytest.importorskip("sklearn.decomposition")
    for ours, whiten in (
        (whitening(Moments.of(VECTORS), dim=6), True),
        (pca(Moments.of(VECTORS), dim=6), False),
    ):
        theirs = decomposition.PCA(6, whiten=whiten).fit(VECTORS.astype(np.float64))
        mine = to_sklearn(ours)
        assert mine.whiten == whiten
        for name in ("explained_variance_", "explained_variance_ratio_", "noise_variance_", "n_samples_"):
            np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-4)
        np.testing.assert_allclose(mine.get_covariance(), theirs.get_covariance(), atol=1e-4)
        np.testing.assert_allclose(
            np.abs(np.sum(mine.components_ * theirs.components_, axis=1)), 1, rtol=1e-4
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whitened_rounding_of_a_pca_of_too_few_directions_is_cut(dtype):
    decomposition = pytest.importorskip("sklearn.decomposition")
    flat = (VECTORS[:, :6].astype(np.float64) @ ROTATION[:6]).astype(dtype)
    fitted = decomposition.PCA(9, whiten=True, svd_solver="full").fit(flat)
    with pytest.warns(UserWarning, match="3 of 9 whitened components"):
        affine = from_sklearn(fitted)
    assert affine.dim == 9
    expected = fitted.transform(flat)
    assert_equal_transforms(affine(flat)[:, :6], expected[:, :6])
    assert not np.asarray(affine(flat))[:, 6:].any()
    assert_equal_transforms(to_sklearn(affine).transform(flat)[:, :6], expected[:, :6])


def test_a_coordinate_that_was_cut_stays_zero_in_sklearn():
    pytest.importorskip("sklearn")
    cut = Affine.from_arrays(np.ones(3), np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    assert (to_sklearn(cut).transform(VECTORS[:5, :3])[:, 1] == 0).all()
    assert_equal_transforms(from_sklearn(to_sklearn(cut))(VECTORS[:, :3]), exactly(cut, VECTORS[:, :3]))


def test_a_bias_without_a_mean_is_refused_by_sklearn_and_kept_by_faiss():
    squeeze = Affine.from_arrays(
        np.zeros(3), np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), np.array([1.0, 2.0])
    )
    pytest.importorskip("sklearn")
    with pytest.raises(InputError, match="bias"):
        to_sklearn(squeeze)
    pytest.importorskip("faiss")
    assert_equal_transforms(to_faiss(squeeze).apply(VECTORS[:, :3].copy()), exactly(squeeze, VECTORS[:, :3]))


def test_an_estimator_that_is_no_fitted_pca_is_named():
    decomposition = pytest.importorskip("sklearn.decomposition")
    for wrong in (decomposition.PCA(2), decomposition.FastICA(2, random_state=0).fit(VECTORS), "pca"):
        with pytest.raises(InputError, match="expected a fitted"):
            from_sklearn(wrong)


def test_faiss_transforms_equally_and_comes_back(affine):
    pytest.importorskip("faiss")
    transform = to_faiss(affine)
    assert_equal_transforms(transform.apply(VECTORS), exactly(affine, VECTORS))
    assert_equal_transforms(from_faiss(transform)(VECTORS), exactly(affine, VECTORS))


def test_a_transform_trained_by_faiss_becomes_an_affine():
    faiss = pytest.importorskip("faiss")
    for transform in (
        faiss.PCAMatrix(24, 6),
        faiss.PCAMatrix(24, 6, -0.5),
        faiss.RandomRotationMatrix(24, 8),
    ):
        transform.train(VECTORS)
        assert_equal_transforms(from_faiss(transform)(VECTORS), transform.apply(VECTORS))


def test_a_faiss_index_searches_calibrated_vectors():
    faiss = pytest.importorskip("faiss")
    white = whitening(Moments.of(VECTORS), dim=8)
    index = faiss.IndexPreTransform(to_faiss(white), faiss.IndexFlatL2(8))
    index.add(VECTORS)
    direct = faiss.IndexFlatL2(8)
    direct.add(np.asarray(white(VECTORS)))
    assert (index.search(VECTORS[:9], 5)[1] == direct.search(np.asarray(white(VECTORS[:9])), 5)[1]).all()
    assert_equal_transforms(from_faiss(index.chain.at(0))(VECTORS), np.asarray(white(VECTORS)))


def test_a_transform_that_is_not_linear_or_not_trained_is_named():
    faiss = pytest.importorskip("faiss")
    for wrong in (faiss.PCAMatrix(4, 2), faiss.NormalizationTransform(4), 3):
        with pytest.raises(InputError, match="expected a trained"):
            from_faiss(wrong)
