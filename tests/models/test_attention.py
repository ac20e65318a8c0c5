"""Whatever kernel computes attention, the vectors are the same; each is refused where it does not exist."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvec import InputError, SentenceEncoder
from jaxvec.models.attention import make_attend


@pytest.fixture
def inputs():
    random = np.random.default_rng(0)
    query, key, value = jnp.asarray(random.normal(size=(3, 2, 2, 128, 64)), jnp.float32)
    sentence_ids = np.repeat([[1, 2, 3, 0], [1, 1, 2, 2]], 32, axis=1).astype(np.int32)
    return sentence_ids, (query / 8, key, value)


@pytest.fixture(params=[False, True], ids=["plain", "with position bias"])
def position_bias(request):
    shape = (1, 2, 128, 128) if request.param else (1, 1, 1, 1)
    return jnp.asarray(np.random.default_rng(1).normal(size=shape) * request.param, jnp.float32)


def test_xla_is_softmax_over_the_own_sentence(inputs, position_bias):
    sentence_ids, (query, key, value) = inputs
    found = make_attend("xla", jnp.asarray(sentence_ids), position_bias, jnp.float32)(query, key, value)
    scores = np.einsum("rnlh,rnmh->rnlm", *np.float64([query, key])) + position_bias
    same = sentence_ids[:, None, :, None] == sentence_ids[:, None, None, :]
    weights = np.where(same, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, np.einsum("rnlm,rnmh->rnlh", weights, value), atol=1e-5)


def test_cudnn_gets_what_xla_computes(inputs, position_bias, monkeypatch):
    sentence_ids, tensors = inputs
    own, asked = jax.nn.dot_product_attention, []

    def without_gpu(*arguments, implementation, **options):
        asked.append(implementation)
        return own(*arguments, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", without_gpu)
    found, expected = (
        make_attend(kernel, jnp.asarray(sentence_ids), position_bias, jnp.float32)(*tensors)
        for kernel in ("cudnn", "xla")
    )
    assert asked == ["cudnn"]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_flash_attention_computes_what_xla_does(inputs, position_bias):
    from jax.experimental.pallas import tpu

    sentence_ids, tensors = inputs
    with tpu.force_tpu_interpret_mode():
        found = make_attend("flash", jnp.asarray(sentence_ids), position_bias, jnp.float32)(*tensors)
    expected = make_attend("xla", jnp.asarray(sentence_ids), position_bias, jnp.float32)(*tensors)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_flash_attention_lowers_for_a_tpu(inputs, position_bias):
    sentence_ids, tensors = inputs

    def attend(ids, query, key, value):
        return make_attend("flash", ids, position_bias, jnp.bfloat16)(query, key, value)

    tensors = [x.astype(jnp.bfloat16) for x in tensors]
    exported = jax.export.export(jax.jit(attend), platforms=["tpu"])(sentence_ids, *tensors)
    assert "tpu_custom_call" in exported.mlir_module()


def test_a_kernel_of_another_machine_is_refused(bert_folder):
    with pytest.raises(InputError, match=r"'flash'; on this machine \(cpu\) there are auto, xla"):
        SentenceEncoder.load(bert_folder, attention="flash")
    assert SentenceEncoder.load(bert_folder, attention="xla").attention == "xla"
