"""What a calibration refuses to be fitted on, and that scale and rounding change nothing."""

import functools
import warnings

import jax
import numpy as np
import pytest

from jaxvec.calibration.affine import pca, remove_components, standardize, whitening
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError

FITS = {
    "whitening": whitening,
    "shrunk": functools.partial(whitening, shrinkage="oas"),
    "pca": pca,
    "standardize": standardize,
    "remove_components": functools.partial(remove_components, k=1),
}


def sample(n=300, d=8, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3).astype(np.float32)


@pytest.mark.parametrize("scale", [2.0**-33, 2.0**33])
@pytest.mark.parametrize("name", FITS)
def test_scale_changes_nothing(name, scale):
    # About 1e-10 and 1e10, where squares are float32 numbers, and fourth powers hardly.
    x = sample()
    fit = FITS[name]
    base, scaled = np.asarray(fit(Moments.of(x))(x)), np.float32(scale) * x
    got = np.asarray(fit(Moments.of(scaled))(scaled))
    np.testing.assert_allclose(got / np.abs(got).max(), base / np.abs(base).max(), atol=1e-5)


def test_scale_changes_nothing_while_tracing():
    x, fit = sample(), jax.jit(lambda x: whitening(Moments.of(x), shrinkage="oas")(x))
    for scale in (2.0**-33, 2.0**33):
        np.testing.assert_allclose(fit(np.float32(scale) * x), fit(x), atol=1e-3)


@pytest.mark.parametrize("scale", [1e-11, 1e10])
def test_ledoit_wolf_where_fourth_powers_leave_float32_is_refused(scale):
    scaled = np.float32(scale) * sample()
    with pytest.raises(InputError, match="fourth powers"):
        whitening(Moments.of(scaled), shrinkage="ledoit-wolf")
    traced = jax.jit(lambda x: whitening(Moments.of(x), shrinkage="ledoit-wolf"))(scaled)
    if scale > 1:
        assert np.isnan(traced.kernel).all()  # nothing can be raised here, but it shows


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("scale", [1e-14, 1e-20])
def test_vectors_whose_squares_leave_float32_are_refused(name, scale):
    with pytest.raises(InputError, match="multiply the"):
        FITS[name](Moments.of(np.float32(scale) * sample()))


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_corpus_that_varies_by_rounding_only_is_refused(name, noise):
    one = np.random.default_rng(1).normal(size=8)
    x = one * (1 + noise * np.random.default_rng(2).normal(size=(50, 8)))
    with pytest.raises(InputError, match="50 vectors are equal up to float32 rounding"):
        FITS[name](Moments.of(x.astype(np.float32)))


@pytest.mark.parametrize("solver", ["float64", "eigh", "svd"])
def test_directions_that_vary_by_rounding_only_are_cut(solver):
    x = sample()
    x[:, :4] = 1000 * x[:1, :4] * (1 + 1e-7 * np.sign(x[:, :4]))
    x[:, 4:] *= 0.01
    whiten = whitening(Moments.of(x), solver=solver, rtol=0.0)
    assert whiten.rank == 4
    assert np.abs(whiten.kernel).max() < 1e4


@pytest.mark.parametrize("solver", ["float64", "eigh", "svd"])
def test_what_a_constant_coordinate_becomes_later_does_not_leak(solver):
    x = sample(2000, 24)
    x[:, [3, 17]] = 0.1
    held_out = sample(50, 24, seed=1)
    strange = held_out.copy()
    strange[:, [3, 17]] = 1e4
    for options in ({"dim": 20}, {"zca": True}):
        fitted = whitening(Moments.of(x), solver=solver, **options)
        assert np.abs(np.asarray(fitted.kernel)[[3, 17]]).max() < 1e-12
        np.testing.assert_allclose(fitted(strange), fitted(held_out), atol=1e-6)


@pytest.mark.parametrize("name", FITS)
def test_unit_vectors_bring_a_warning_and_others_of_the_same_mean_square_none(name):
    x = sample(2000)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for vectors in (unit, unit.astype(np.float16).astype(np.float32)):
        with pytest.warns(UserWarning, match="every vector has length 1"):
            FITS[name](Moments.of(vectors))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FITS[name](Moments.of(x / np.sqrt(np.mean(np.sum(x**2, axis=1)))))


WRONG = """
import json, numpy as np, jaxvec
said = []
for fit in (jaxvec.whitening, jaxvec.pca, jaxvec.standardize, lambda m: jaxvec.remove_components(m, 1)):
    for wrong in (np.ones((4, 3), np.float32), None):
        try:
            fit(wrong)
        except jaxvec.InputError as error:
            said.append(str(error))
print(json.dumps(said))
"""


def test_vectors_in_the_place_of_moments_are_named(run_python):
    said = run_python(WRONG)
    assert len(said) == 8
    assert all("jaxvec.Moments.of(vectors)" in message for message in said)
