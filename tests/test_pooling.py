"""Pooling equals a plain NumPy reference, on packed and dense rows, and differentiates without NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxvec.errors import InputError
from jaxvec.packing import PackedBatch
from jaxvec.pooling import average_layers, normalize, pool, resolve_layers

PLAIN = ("cls", "mean", "max", "sif")


def reference(states, sentence_ids, slots, pooling, weights) -> np.ndarray:
    """Sentence by sentence, token by token, in float64."""
    rows, _, width = states.shape
    pooled = np.zeros((rows, slots, width))
    for row in range(rows):
        for slot in range(slots):
            columns = [c for c, number in enumerate(sentence_ids[row]) if number == slot + 1]
            if not columns:
                continue
            tokens = states[row, columns].astype(np.float64)
            if pooling == "cls":
                pooled[row, slot] = tokens[0]
            elif pooling == "max":
                pooled[row, slot] = tokens.max(0)
            elif pooling == "mean":
                pooled[row, slot] = tokens.sum(0) / len(columns)
            else:
                pooled[row, slot] = weights[row, columns].astype(np.float64) @ tokens / len(columns)
    return pooled


# Packed: contiguous sentences and padding. Dense: slot 1 alone, padded on either side, with holes, or empty.
PACKED = np.array(
    [
        [1, 1, 1, 2, 2, 3, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [0] * 8,
        [1, 2, 3, 3, 3, 3, 3, 3],
        [1, 1, 0, 0, 0, 0, 0, 0],
    ],
    np.int32,
)
DENSE = np.array(
    [[1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 1, 0], [0] * 8, [1] * 8], np.int32
)


@pytest.mark.parametrize("pooling", PLAIN)
@pytest.mark.parametrize(("sentence_ids", "slots"), [(PACKED, 4), (DENSE, 1)], ids=["packed", "dense"])
def test_pooling_equals_the_reference(pooling, sentence_ids, slots):
    rng = np.random.default_rng(0)
    # Mostly negative, so that a zero from the padding would win a maximum.
    states = rng.normal(-3, 1, (*sentence_ids.shape, 6)).astype(np.float32)
    weights = rng.uniform(0.1, 1, sentence_ids.shape).astype(np.float32)
    pooled = pool(
        jnp.asarray(states),
        jnp.asarray(sentence_ids),
        slots,
        pooling,
        jnp.asarray(weights) if pooling == "sif" else None,
    )
    assert pooled.dtype == jnp.float32
    expected = reference(states, sentence_ids, slots, pooling, weights)
    np.testing.assert_allclose(pooled, expected, rtol=1e-6, atol=1e-6)
    empty = ~(sentence_ids[:, None] == np.arange(1, slots + 1)[:, None]).any(-1)
    assert empty.any()
    assert not np.asarray(pooled)[empty].any()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from(PLAIN))
def test_padding_and_neighbours_never_count(seed, pooling):
    """What stands outside a sentence changes nothing, however large."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(*PACKED.shape, 5)).astype(np.float32)
    weights = jnp.asarray(rng.uniform(0.1, 1, PACKED.shape), jnp.float32) if pooling == "sif" else None
    row, slot = 0, int(rng.integers(3))
    other = states.copy()
    other[row, PACKED[row] != slot + 1] = rng.normal(0, 1e6, ((PACKED[row] != slot + 1).sum(), 5))
    a, b = (
        pool(jnp.asarray(s), jnp.asarray(PACKED), 4, pooling, weights)[row, slot] for s in (states, other)
    )
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pooling", PLAIN)
@pytest.mark.parametrize(("sentence_ids", "slots"), [(PACKED, 4), (DENSE, 1)], ids=["packed", "dense"])
def test_gradient_is_finite_and_reaches_no_padding(pooling, sentence_ids, slots):
    states = jax.random.normal(jax.random.key(0), (*sentence_ids.shape, 4))
    weights = jnp.ones(sentence_ids.shape, jnp.float32) if pooling == "sif" else None

    def loss(x):
        return jnp.sum(normalize(pool(x, jnp.asarray(sentence_ids), slots, pooling, weights)) ** 3)

    gradient = np.asarray(jax.grad(loss)(states))
    assert np.isfinite(gradient).all()
    assert not gradient[sentence_ids == 0].any()
    assert gradient[sentence_ids > 0].any()


def test_one_packed_row_pools_as_its_sentences_would_alone():
    states = jax.random.normal(jax.random.key(1), (1, 8, 4))
    together = pool(states, jnp.asarray(PACKED[:1]), 4, "mean")
    for slot, columns in enumerate((slice(0, 3), slice(3, 5), slice(5, 6))):
        alone = PackedBatch.dense(
            np.ones((1, columns.stop - columns.start), int), np.ones((1, columns.stop - columns.start), int)
        )
        np.testing.assert_allclose(
            pool(states[:, columns], jnp.asarray(alone.sentence_ids), 1, "mean")[0, 0],
            together[0, slot],
            rtol=1e-6,
        )


@given(st.integers(1, 24), st.data())
def test_layer_numbers_count_from_either_end(num_layers, data):
    number = data.draw(st.integers(0, num_layers))
    assert resolve_layers(number, num_layers) == (number,)
    assert resolve_layers(number - num_layers - 1, num_layers) == (number,)
    assert resolve_layers((number, -1), num_layers) == (number, num_layers)


@pytest.mark.parametrize(
    ("name", "of_twelve", "of_one"),
    [
        ("last", (12,), (1,)),
        ("last_two", (11, 12), (0, 1)),
        ("first_last", (1, 12), (1, 1)),
        ("embedding_last", (0, 12), (0, 1)),
    ],
)
def test_named_layers(name, of_twelve, of_one):
    """With one block the first block is the last, and the last two are the embedding and that block."""
    assert resolve_layers(name, 12) == of_twelve
    assert resolve_layers(name, 1) == of_one


@pytest.mark.parametrize(
    "layers",
    ["first-last", "", (), (1, 13), 13, -14, (0, -14), True, (1, True), [1.0], 2.5, None, {1, 2}, ("last",)],
)
def test_other_layers_are_refused(layers):
    unchecked = getattr(resolve_layers, "__wrapped__", resolve_layers)
    with pytest.raises(InputError, match="layers is"):
        unchecked(layers, 12)


def test_integers_of_numpy_are_layers():
    unchecked = getattr(resolve_layers, "__wrapped__", resolve_layers)
    numbers = unchecked(np.array([1, -1]), 12)
    assert numbers == unchecked((np.int64(1), np.int32(-1)), 12) == (1, 12)
    assert all(type(number) is int for number in numbers)


def test_layers_average_in_float32():
    one, two = jnp.full((1, 2, 3), 1.0, jnp.bfloat16), jnp.full((1, 2, 3), 1 + 2**-7, jnp.bfloat16)
    average = average_layers([one, two])
    assert average.dtype == jnp.float32
    np.testing.assert_array_equal(average, np.float32(1 + 2**-8))  # bfloat16 has no such number
    np.testing.assert_array_equal(average_layers([one]), np.float32(1))


def test_normalize_leaves_zero_at_zero():
    vectors = jnp.array([[3.0, 4.0], [0.0, 0.0], [1e-3, 0.0]])
    np.testing.assert_allclose(normalize(vectors), [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(normalize(x) * jnp.arange(6.0).reshape(3, 2)))(vectors)
    assert jnp.isfinite(gradient).all()
    assert not gradient[1].any()
