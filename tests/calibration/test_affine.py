"""Affine maps and their constructors: equality with float64 NumPy recipes, and behaviour at the edges."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvec.calibration.affine import Affine, pca, remove_components, standardize, whitening
from jaxvec.calibration.moments import Moments
from jaxvec.calibration.shrinkage import shrinkage_intensity
from jaxvec.errors import InputError

SOLVERS = ("float64", "eigh", "svd")


def sample(n=2000, d=12, condition=100.0, seed=0):
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    scaled = rng.normal(size=(n, d)) * np.sqrt(np.geomspace(1, 1 / condition, d))
    return (scaled @ rotation.T + rng.normal(size=d)).astype(np.float32)


@functools.cache
def layer_norm_output(n=4000, d=48, seed=0):
    """Vectors as one layer of an encoder gives them: Σ (y − β)/γ = 0, so their rank is d − 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * np.geomspace(1, 0.03, d)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    return (x * (1 + 0.3 * rng.normal(size=d)) + rng.normal(size=d)).astype(np.float32)


def deviation_from_identity(z):
    return np.abs(np.cov(np.asarray(z, np.float64).T) - np.eye(z.shape[1])).max()


def recipe(x, dim=None, rtol=1e-6):
    """Whitening in float64 NumPy: np.cov, SVD, eigenvalues below rtol of the largest cut."""
    x = x.astype(np.float64)
    u, s, _ = np.linalg.svd(np.cov(x.T))
    keep = s > rtol * s[0]
    return ((x - x.mean(0)) @ (u[:, keep] / np.sqrt(s[keep])))[:, :dim]


def assert_same_up_to_sign(got, want, tolerance):
    got = np.asarray(got) * np.sign((np.asarray(got) * want).sum(0))
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dim", [None, 5])
def test_whitening_equals_the_recipe_with_every_solver(solver, dim):
    x = sample()
    assert_same_up_to_sign(whitening(Moments.of(x), dim, solver)(x), recipe(x, dim), 2e-3)
    assert deviation_from_identity(whitening(Moments.of(x), dim, solver)(x)) < 2e-5


def test_the_papers_jitted_recipe_is_whitening():
    @jax.jit
    def su_et_al(x):
        u, s, _ = jnp.linalg.svd(jnp.cov(x.T))
        return (x - x.mean(0)) @ u @ jnp.diag(1 / jnp.sqrt(s))

    x = sample()
    for solver in SOLVERS:
        assert_same_up_to_sign(su_et_al(x), np.asarray(whitening(Moments.of(x), solver=solver)(x)), 5e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_layer_norm_output_loses_its_missing_direction_and_no_other(solver):
    x = layer_norm_output()
    whiten = whitening(Moments.of(x), solver=solver)
    assert (whiten.rank, whiten.cut, whiten.dim) == (47, 1, 47)
    assert "1 of 48 directions: variance at most 1e-06" in whiten.figures()["cut_reason"]
    a, b = np.asarray(whiten(x), np.float64), recipe(x)
    cosines = [(z @ z.T)[:200, :200] / np.linalg.norm(z[:200], axis=1) for z in (a[:200], b[:200])]
    np.testing.assert_allclose(*cosines, atol=2e-2)
    assert deviation_from_identity(a) < 1e-3


@pytest.mark.parametrize("solver", ["eigh", "svd"])
def test_one_program_fits_and_applies(solver):
    x = layer_norm_output()
    fit = jax.jit(lambda x: whitening(Moments.of(x), solver=solver))
    whiten = fit(x)
    assert whiten.kernel.shape == (48, 48)
    assert not np.asarray(whiten.kernel)[:, 47:].any()
    assert whiten.rank == 47
    assert int(jax.jit(lambda x: whitening(Moments.of(x), solver=solver).rank)(x)) == 47
    outside = whitening(Moments.of(x), solver=solver)
    np.testing.assert_allclose(whiten(x)[:, :10], outside(x)[:, :10], atol=5e-3)
    np.testing.assert_allclose(
        jax.jit(lambda x: whitening(Moments.of(x), dim=10)(x))(x), outside(x)[:, :10], atol=5e-3
    )


@pytest.mark.parametrize("fit", [whitening, pca, standardize, functools.partial(remove_components, k=2)])
def test_every_constructor_is_the_same_while_tracing(fit):
    x = sample()
    np.testing.assert_allclose(jax.jit(lambda x: fit(Moments.of(x))(x))(x), fit(Moments.of(x))(x), atol=5e-4)


def test_a_refit_does_not_compile_again():
    applied = jax.jit(lambda whiten, x: whiten(x))
    for seed in range(3):
        applied(whitening(Moments.of(sample(seed=seed))), sample())
    assert applied._cache_size() == 1


def test_no_gradient_flows_through_a_fit():
    x = jnp.asarray(sample(100, 4))
    whiten = whitening(Moments.of(np.asarray(x)))
    through = jax.grad(lambda x: jnp.sum(whitening(Moments.of(x))(x) ** 2))(x)
    fixed = jax.grad(lambda x: jnp.sum(whiten(x) ** 2))(x)
    np.testing.assert_allclose(through, fixed, rtol=1e-2, atol=1e-3)
    degenerate = jax.jit(jax.grad(lambda x: jnp.sum(whitening(Moments.of(x))(x))))(jnp.ones((5, 3)))
    assert np.isfinite(degenerate).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_sign_of_every_column_is_fixed(solver):
    kernel = np.asarray(whitening(Moments.of(sample()), solver=solver).kernel)
    assert (kernel[np.abs(kernel).argmax(0), np.arange(kernel.shape[1])] > 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_zca_is_the_symmetric_root(solver):
    x = sample()
    values, vectors = np.linalg.eigh(np.cov(x.T.astype(np.float64)))
    kernel = np.asarray(whitening(Moments.of(x), zca=True, solver=solver).kernel)
    np.testing.assert_allclose(kernel, vectors / np.sqrt(values) @ vectors.T, atol=1e-3)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_partial_whitening_leaves_the_variances_to_the_power_left(power):
    x = sample()
    partial = whitening(Moments.of(x), power=power)
    np.testing.assert_allclose(
        np.var(partial(x), axis=0, ddof=1), partial.fits[0].spectrum ** (1 - power), rtol=1e-4
    )


@pytest.mark.parametrize("estimator", ["ledoit-wolf", "oas"])
@pytest.mark.parametrize("n", [6, 20, 400])
def test_shrinkage_equals_scikit_learn(estimator, n):
    covariance = pytest.importorskip("sklearn.covariance")
    reference = {"ledoit-wolf": covariance.ledoit_wolf, "oas": covariance.oas}[estimator]
    x = sample(n, seed=n)
    matrix, alpha = reference(x.astype(np.float64))
    chunked = Moments.of(x[: n // 2]).merge(Moments.of(x[n // 2 :]))
    for moments in (Moments.of(x), chunked):
        assert shrinkage_intensity(moments, estimator) == pytest.approx(alpha, rel=2e-5)
    assert jax.jit(lambda x: shrinkage_intensity(Moments.of(x), estimator))(x) == pytest.approx(
        alpha, rel=1e-4
    )
    whiten = whitening(Moments.of(x), shrinkage=estimator)
    assert whiten.dim == 12
    kernel = np.asarray(whiten.kernel, np.float64)
    np.testing.assert_allclose(kernel.T @ matrix @ kernel * n / (n - 1), np.eye(12), atol=1e-4)


def test_standardize_divides_by_the_deviation_but_not_constants():
    x = sample()
    x[:, 3] = 0.1
    fitted = standardize(Moments.of(x))
    deviation = x.std(0, ddof=1, dtype=np.float64)
    expected = (x - x.mean(0, dtype=np.float64)) / np.where(np.arange(12) == 3, 1, deviation)
    np.testing.assert_allclose(fitted(x), expected, atol=2e-5)
    assert (fitted.rank, fitted.cut) == (11, 1)


def test_standardize_sees_coordinates_whose_variance_float32_cannot_hold():
    # As all-MiniLM-L6-v2 has them: its last LayerNorm scales three coordinates by 1e-32 and 1e-9.
    x = sample()
    scales = np.where(np.arange(12) == 5, 1e-32, np.where(np.arange(12) == 7, 1e-9, 1)).astype(np.float32)
    expected = standardize(Moments.of(x))(x)
    small = x * scales
    streamed = Moments.empty(12)
    for part in np.split(small, [3, 500, 501]):
        streamed = streamed.update(part)
    summed = jax.vmap(lambda part: Moments.of(part).psum("i"), axis_name="i")(small.reshape(4, 500, 12))
    one = jax.tree.map(lambda leaf: leaf[0], summed)
    traced = jax.jit(lambda x: standardize(Moments.of(x)))(small)
    for fitted in (standardize(Moments.of(small)), standardize(streamed), standardize(one), traced):
        assert fitted.rank == 12
        np.testing.assert_allclose(fitted(small), expected, atol=2e-5)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_remove_components_takes_off_leading_right_singular_vectors(k):
    x = sample()
    y = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    leading = np.linalg.svd(y, full_matrices=False)[2][:k]
    np.testing.assert_allclose(remove_components(Moments.of(x), k)(x), y - y @ leading.T @ leading, atol=2e-5)


def test_remove_components_without_centring_is_the_common_component_of_sif():
    x = sample()
    leading = np.linalg.svd(x.astype(np.float64), full_matrices=False)[2][:1]
    removed = remove_components(Moments.of(x), 1, center=False)
    np.testing.assert_allclose(removed(x), x - x @ leading.T @ leading, atol=2e-5)
    assert not np.asarray(removed.mean).any()


def test_pca_projects_on_the_leading_directions():
    x = sample()
    projected = np.asarray(pca(Moments.of(x), 4)(x), np.float64)
    variances = np.linalg.eigvalsh(np.cov(x.T.astype(np.float64)))[::-1]
    np.testing.assert_allclose(np.cov(projected.T), np.diag(variances[:4]), atol=1e-6)
    ratio = pca(Moments.of(x), 4).explained_variance_ratio
    np.testing.assert_allclose(ratio, variances[:4] / variances.sum(), rtol=1e-4)


def test_two_maps_in_a_row_are_one_map():
    x = sample()
    first = remove_components(Moments.of(x), 3)  # singular, so no mean alone can stand for the pair
    second = Affine.from_arrays(np.arange(12.0), np.random.default_rng(0).normal(size=(12, 4)))
    third = whitening(Moments.of(second(first(x))))
    for composed in (first.then(second).then(third), first.then(second.then(third))):
        np.testing.assert_allclose(composed(x), third(second(first(x))), atol=2e-4)
    traced = jax.jit(lambda a, b: a.then(b))(first, second)
    np.testing.assert_allclose(traced(x), second(first(x)), atol=1e-4)
    again = Affine.from_arrays(**first.then(second).to_arrays())
    np.testing.assert_array_equal(again(x), first.then(second)(x))
    with pytest.raises(InputError, match="4 coordinates cannot go before one from 12"):
        second.then(first)


def test_any_leading_axes_and_float16():
    x = sample()
    whiten = whitening(Moments.of(x))
    np.testing.assert_array_equal(whiten(x[:6].reshape(2, 3, 12)).reshape(6, 12), whiten(x[:6]))
    assert whiten(x[0].astype(np.float16)).dtype == jnp.float32
    with pytest.raises(InputError, match="takes"):
        whiten(x[:, :5])


def test_duplicates_and_more_directions_asked_for_than_there_are():
    x = sample(6)
    whiten_once = whitening(Moments.of(x), dim=4)
    with pytest.warns(UserWarning, match="5 directions only"):
        whiten = whitening(Moments.of(np.repeat(x, 3, axis=0)), dim=9)
    assert (whiten.dim, whiten.rank, whiten_once.dim) == (5, 5, 4)
    assert deviation_from_identity(whiten(np.repeat(x, 3, axis=0))) < 1e-4


@pytest.mark.parametrize(("n", "rank"), [(2, 1), (12, 11)])
def test_few_vectors(n, rank):
    x = sample(n)
    whiten = whitening(Moments.of(x))
    assert (whiten.rank, whiten.dim) == (rank, rank)
    assert deviation_from_identity(np.asarray(whiten(x)).reshape(n, -1)) < 1e-3 if n > 2 else True
    assert np.isfinite(whiten(sample(100, seed=1))).all()


def test_held_out_vectors_stay_bounded_with_fewer_vectors_than_coordinates():
    x = sample(3000, 768, condition=1e5)
    moments = Moments.of(x[:300])
    for solver in SOLVERS:
        whiten = whitening(moments, solver=solver)
        held_out = np.asarray(whiten(x[300:]))
        assert whiten.rank == 299
        assert np.isfinite(held_out).all()
        assert np.abs(held_out).max() < 100


def test_too_few_or_equal_vectors_are_a_clear_error():
    one, same = Moments.of(np.ones((1, 3), np.float32)), Moments.of(np.full((5, 3), 0.1, np.float32))
    for fit in (whitening, standardize, pca, functools.partial(remove_components, k=1)):
        with pytest.raises(InputError, match="2 or more vectors"):
            fit(one)
    for fit in (whitening, pca, functools.partial(remove_components, k=1)):
        with pytest.raises(InputError, match="equal"):
            fit(same)
    traced = jax.jit(lambda x: whitening(Moments.of(x))(x))(np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(traced, np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim is 0"),
        ({"dim": 13}, "expected 1 … 12"),
        ({"rtol": -1.0}, "rtol is -1.0"),
        ({"rtol": 1.0}, "rtol is 1.0"),
        ({"power": 1.5}, "power is 1.5"),
        ({"shrinkage": 2.0}, "shrinkage is 2.0"),
        ({"shrinkage": "lw"}, "shrinkage is 'lw'"),
        ({"solver": "qr"}, "solver is 'qr'"),
        ({"zca": True, "dim": 3}, "zca keeps all coordinates"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(InputError, match=message):
        whitening(Moments.of(sample()), **arguments)


def test_other_arguments_out_of_range():
    moments = Moments.of(sample())
    for k in (0, 12):
        with pytest.raises(InputError, match=f"k is {k}"):
            remove_components(moments, k)
    with pytest.raises(InputError, match="2 directions only"):
        remove_components(Moments.of(sample(3)), 3)
    with pytest.raises(InputError, match="runs on the host"):
        jax.jit(lambda x: whitening(Moments.of(x), solver="float64")(x))(sample())
    with pytest.raises(InputError, match="expected \\[d\\]"):
        Affine.from_arrays(np.zeros(3), np.zeros((4, 2)))
    with pytest.raises(InputError, match="not finite"):
        Affine.from_arrays(np.zeros(2), np.full((2, 2), np.nan))


def test_fitting_warns_of_nothing_unasked():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whitening(Moments.of(layer_norm_output())).cut == 1
