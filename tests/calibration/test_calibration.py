"""What an encoder accepts as a calibration, it also saves, and loads as it was."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxvec.calibration.affine import remove_components, whitening
from jaxvec.calibration.affine_map import Affine
from jaxvec.calibration.calibration import accepted
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError


@pytest.fixture(scope="module")
def encoder(bert_folder):
    return SentenceEncoder.load(bert_folder)


@pytest.fixture(scope="module")
def moments(encoder, texts):
    return encoder.moments(texts)


def test_a_folder_keeps_what_the_fit_saw(encoder, moments, tmp_path):
    once = encoder.with_calibration(whitening(moments, dim=9, shrinkage="oas"))
    twice = encoder.with_calibration(remove_components(moments, 2)).with_calibration(
        Affine.from_arrays(np.zeros(32), np.eye(32)[:, :5])
    )
    for number, before in enumerate((once, twice)):
        before.save(tmp_path / str(number))
        after = SentenceEncoder.load(tmp_path / str(number))
        assert after.calibration.figures() == before.calibration.figures()
        assert after.calibration.rank == before.calibration.rank > 0
        assert after.calibration.condition_number == before.calibration.condition_number
        np.testing.assert_array_equal(
            after.calibration.explained_variance_ratio, before.calibration.explained_variance_ratio
        )
    meta = json.loads((tmp_path / "0/jaxvec.json").read_text())
    assert meta["provenance"]["calibration"]["options"]["shrinkage"] == "oas"
    assert 0 < meta["provenance"]["calibration"]["intensity"] < 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float64, np.int32])
def test_other_dtypes_become_float32_and_come_back(dtype, encoder, texts, tmp_path):
    kernel = np.arange(64).reshape(32, 2).astype(dtype)
    for array in (kernel, jnp.asarray(kernel)) if dtype is not np.float64 else (kernel,):
        given = Affine(np.zeros(32, array.dtype), array)
        calibrated = encoder.with_calibration(given)
        assert {array.dtype for array in calibrated.calibration.to_arrays().values()} == {np.dtype("float32")}
        folder = tmp_path / type(array).__name__
        calibrated.save(folder)
        expected = calibrated.encode(texts[:3])
        np.testing.assert_array_equal(SentenceEncoder.load(folder).encode(texts[:3]), expected)
    assert ml_dtypes.bfloat16 is not dtype or kernel.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.eye(3), "got ndarray; expected a calibration"),
        (None, "got NoneType"),
        (Affine, "got Affine; expected a calibration"),
        (Affine(np.zeros(3), np.ones(3)), "have shapes"),
        (Affine(np.zeros(2), np.ones((3, 2))), "have shapes"),
        (Affine(np.zeros(3), np.full((3, 3), np.nan)), "kernel holds a value that is not finite"),
        (Affine(np.full(3, np.inf), np.ones((3, 3))), "mean holds a value that is not finite"),
        (Affine(np.zeros((4, 3)), np.ones((4, 3, 3))), "have shapes"),
        (Affine(np.zeros(4), np.ones((4, 3))), "takes vectors of width 4, this encoder gives 3"),
    ],
)
def test_what_is_no_usable_calibration_is_named(wrong, message):
    with pytest.raises(InputError, match=message):
        accepted(wrong, 3)


def test_a_traced_calibration_is_refused():
    with pytest.raises(InputError, match="traced"):
        jax.jit(lambda kernel: accepted(Affine(jnp.zeros(3), kernel), 3).kernel)(jnp.eye(3))
