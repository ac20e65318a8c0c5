"""What an Affine says of its fit: before and after saving, of compositions, and of fits made side by side."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvec.calibration.affine import pca, remove_components, standardize, whitening
from jaxvec.calibration.affine_map import Affine
from jaxvec.calibration.calibration import rebuild
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError

D = 6
SCALES = np.array([8.0, 4.0, 2.0, 1.0, 0.5, 0.0])
FITS = {
    "whitening": lambda m: whitening(m, dim=3),
    "shrunk": lambda m: whitening(m, shrinkage="ledoit-wolf", power=0.5),
    "zca": lambda m: whitening(m, zca=True, rtol=1e-5),
    "pca": lambda m: pca(m, dim=2, solver="svd", rtol=np.float64(1e-5)),
    "standardize": standardize,
    "remove_components": lambda m: remove_components(m, 2, center=False),
    "composition": lambda m: remove_components(m, 1).then(Affine.from_arrays(np.ones(D), np.eye(D)[:, :4])),
}


def sample(seed=0, n=400):
    return (np.random.default_rng(seed).normal(size=(n, D)) * SCALES + 3).astype(np.float32)


def says(affine):
    ratio = affine.explained_variance_ratio.tolist()
    return affine.figures(), affine.rank, affine.cut, affine.condition_number, affine.count, ratio


@pytest.mark.parametrize("name", FITS)
def test_what_is_saved_says_the_same(name):
    fitted = FITS[name](Moments.of(sample()))
    again = rebuild(json.loads(json.dumps(fitted.spec())), fitted.to_arrays())
    assert says(again) == says(fitted)
    assert str(again) == str(fitted)
    assert jax.tree.structure(again) == jax.tree.structure(fitted)
    np.testing.assert_array_equal(again(sample()), fitted(sample()))


def test_a_count_beyond_float32_is_saved_whole():
    moments = Moments.of(sample(n=3), np.array([2**24, 2**24, 1]))
    fitted = standardize(moments)
    assert fitted.count == 2**25 + 1
    assert rebuild(fitted.spec(), fitted.to_arrays()).count == 2**25 + 1
    half = standardize(Moments.of(sample(n=3), np.array([0.5, 1.0, 1.0])))
    assert rebuild(half.spec(), half.to_arrays()).count == half.count == 2.5


def test_the_options_of_a_fit_are_on_record():
    m = Moments.of(sample())
    assert whitening(m, dim=3, power=0.5).figures()["options"] == {
        "dim": 3,
        "rtol": 1e-6,
        "shrinkage": None,
        "power": 0.5,
        "zca": False,
        "solver": "float64",
    }
    assert pca(m, solver="eigh").figures()["options"] == {"dim": None, "rtol": 1e-6, "solver": "eigh"}
    options = remove_components(m, 2, center=False).figures()["options"]
    assert (options["k"], options["center"]) == (2, False)
    shrunk = whitening(m, shrinkage="oas").figures()
    assert shrunk["options"]["shrinkage"] == "oas"
    assert 0 < shrunk["intensity"] < 0.1
    assert whitening(m, shrinkage=0.25).figures()["intensity"] == 0.25


def test_removed_components_are_not_counted_as_kept():
    x = sample()
    variances = np.sort(np.linalg.eigvalsh(np.cov(x.T.astype(np.float64))))[::-1]
    removed = remove_components(Moments.of(x), 2)
    assert (removed.rank, removed.cut) == (3, 3)
    np.testing.assert_allclose(
        removed.explained_variance_ratio, np.maximum(variances[2:], 0) / variances.sum(), atol=1e-6
    )
    assert removed.condition_number == pytest.approx(variances[2] / variances[4], rel=1e-4)
    figures = removed.figures()
    assert figures["explained_variance"] == pytest.approx(variances[2:].sum() / variances.sum(), rel=1e-5)
    assert "2 of 6 directions: the leading ones, removed; 1 of 6 directions: var" in figures["cut_reason"]
    # What is left has as many directions as the map says.
    assert np.linalg.matrix_rank(np.cov(np.asarray(removed(x)).T), tol=1e-4) == removed.rank


def test_a_composition_says_what_its_last_fit_saw_and_what_each_step_did():
    x = sample()
    first = remove_components(Moments.of(x), 1)
    second = whitening(Moments.of(first(x)), dim=2)
    both = first.then(second)
    assert (both.rank, both.cut, both.count) == (second.rank, second.cut, 400)
    assert both.condition_number == second.condition_number
    figures = both.figures()
    assert (figures["method"], figures["input_dim"], figures["dim"]) == (
        "remove_components then whitening",
        6,
        2,
    )
    assert [step["method"] for step in figures["steps"]] == ["remove_components", "whitening"]
    assert figures["steps"][0]["cut"] == first.cut
    turned = second.then(Affine.from_arrays(np.zeros(2), np.array([[0.0, 1.0], [1.0, 0.0]])))
    assert (turned.method, turned.rank) == ("whitening then affine", second.rank)


def test_a_map_that_was_not_fitted_says_nothing():
    plain = Affine.from_arrays(np.zeros(2), np.eye(2))
    assert plain.rank is plain.cut is plain.count is plain.condition_number is None
    assert plain.explained_variance_ratio is None
    assert plain.figures() == {"method": "affine", "input_dim": 2, "dim": 2}


def test_many_data_sets_are_fitted_side_by_side():
    data = np.stack([sample(seed) for seed in range(3)])
    fit = jax.jit(jax.vmap(lambda x: whitening(Moments.of(x), dim=3)))
    stack = fit(data)
    np.testing.assert_array_equal(stack.rank, [5, 5, 5])
    assert stack.condition_number.shape == (3,)
    assert stack.explained_variance_ratio.shape == (3, 3)
    assert str(stack) == "Affine(whitening: 3 × 6 → 3)"
    apart = [whitening(Moments.of(x), dim=3) for x in data]
    together = jax.vmap(lambda affine, x: affine(x))(stack, data)
    for i, (one, x) in enumerate(zip(apart, data, strict=True)):
        np.testing.assert_allclose(together[i], one(x), atol=2e-4)
        own = jax.tree.map(lambda leaf, i=i: leaf[i], stack)
        assert (own.rank, own.count) == (one.rank, 400)
        np.testing.assert_allclose(own.explained_variance_ratio, one.explained_variance_ratio, rtol=1e-4)


def test_a_stack_is_not_taken_for_one_map():
    data = np.stack([sample(seed) for seed in range(3)])
    moments = jax.vmap(Moments.of)(data)
    np.testing.assert_array_equal(moments.count, [400, 400, 400])
    for fit in (whitening, pca, standardize, lambda m: remove_components(m, 1)):
        with pytest.raises(InputError, match="moments of 3 samples"):
            fit(moments)
    stack = jax.vmap(standardize)(moments)
    for use in (stack.figures, stack.spec, lambda: stack(data[0])):
        with pytest.raises(InputError, match="a stack of 3"):
            use()


def test_short_names():
    x = sample()
    assert repr(Moments.of(x)) == "Moments(count=400, dim=6)"
    assert repr(standardize(Moments.of(x))) == "Affine(standardize: 6 → 6)"
    names = []
    jax.jit(lambda m: names.append(repr(m)) or m.mean)(Moments.of(x))
    assert names == ["Moments(count=traced, dim=6)"]
    for tree in (Moments.of(x), standardize(Moments.of(x))):
        assert repr(jax.tree.map(lambda leaf: "leaf", tree)).startswith(type(tree).__name__)
        assert tree != jax.tree.map(jnp.copy, tree)  # by identity: arrays have no single truth value
