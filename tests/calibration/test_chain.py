"""Any calibration goes into an encoder, its folder and its function; affine neighbours fold into one."""

import json

import jax
import numpy as np
import pytest

from jaxvec import Affine, InputError, Moments, SentenceEncoder, whitening
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


def test_a_folder_of_the_first_format_still_loads(bert_folder, texts, tmp_path):
    encoder = SentenceEncoder.load(bert_folder)
    calibrated = encoder.with_calibration(whitening(Moments.of(encoder.encode(texts)), dim=8))
    folder = tmp_path / "whitened"
    calibrated.save(folder)
    meta = json.loads((folder / "jaxvec.json").read_text())
    assert meta.pop("calibration")["kind"] == "affine"
    _rewrite(folder, meta | {"format_version": 1})
    np.testing.assert_array_equal(
        SentenceEncoder.load(folder).encode(texts[:9]), calibrated.encode(texts[:9])
    )
    _rewrite(folder, meta | {"format_version": 3})
    with pytest.raises(InputError, match="format version 3; this jaxvec reads 1 to 2"):
        SentenceEncoder.load(folder)


def _rewrite(folder, meta):
    import hashlib

    (folder / "jaxvec.json").write_text(json.dumps(meta))
    names = ("calibration.safetensors", "jaxvec.json")
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(sums))
