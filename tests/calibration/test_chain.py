"""Any calibration goes into an encoder, its folder and its function; affine neighbours fold into one."""

import json

import jax
import numpy as np
import pytest

from jaxvec import Affine, InputError
from jaxvec.calibration.calibration import Calibration, device_arrays, rebuild
from jaxvec.calibration.chain import Chain, compose


def random_affine(d, dim, seed=0):
    rng = np.random.default_rng(seed)
    return Affine.from_arrays(rng.normal(size=d), rng.normal(size=(d, dim)))


@pytest.fixture
def chain():
    return Chain((random_affine(5, 4), random_affine(4, 3, seed=1)))


def test_a_chain_is_its_parts_one_after_another(chain):
    x = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    np.testing.assert_array_equal(chain(x), chain.parts[1](chain.parts[0](x)))
    assert (chain.input_dim, chain.dim) == (5, 3)
    assert isinstance(chain, Calibration)


def test_a_chain_is_rebuilt_from_plain_values_concrete_and_traced(chain):
    x = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    spec = json.loads(json.dumps(chain.spec()))
    np.testing.assert_array_equal(rebuild(spec, chain.to_arrays())(x), chain(x))
    traced = jax.jit(lambda arrays, x: rebuild(spec, arrays)(x))(device_arrays(chain), x)
    np.testing.assert_allclose(traced, chain(x), rtol=1e-5, atol=1e-5)


def test_affine_neighbours_fold_even_across_a_chain(chain):
    assert isinstance(compose(*chain.parts), Affine)
    longer = compose(chain, random_affine(3, 2, seed=3))
    assert isinstance(longer, Affine)
    x = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    np.testing.assert_allclose(longer(x), random_affine(3, 2, seed=3)(chain(x)), rtol=1e-4, atol=1e-4)


def test_widths_that_do_not_meet_are_refused(chain):
    with pytest.raises(InputError, match="3 coordinates cannot go before one from 5"):
        compose(chain, chain)


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="kind 'spline'"):
        rebuild({"kind": "spline"}, {})
