"""Moments: one law, equality with NumPy in float64, under every way of cutting the sample."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxvec.calibration.moments import Moments, _add_block
from jaxvec.calibration.twofloat import TwoFloat
from jaxvec.errors import InputError


def sample(n=900, d=7, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 5 * rng.normal(size=d)).astype(np.float32)


def assert_moments_of(moments, x, weights=None, tolerance=3e-6):
    x, w = x.astype(np.float64), np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    mean = w @ x / w.sum()
    y = x - mean
    squares = (y * y).sum(1)
    # Against what each sum adds up, for the third order cancels.
    expected = [
        (moments.count, w.sum(), w.sum()),
        (moments.mean, mean, np.abs(x).max()),
        (moments.m2, y.T @ (y * w[:, None]), w @ squares),
        (moments.cubic.float64(), (w * squares) @ y, w @ squares**1.5),
        (moments.quartic.float64(), w @ squares**2, w @ squares**2),
    ]
    for got, want, scale in expected:
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * (scale + 1e-6))


@pytest.mark.parametrize("n", [1, 2, 127, 900, 4096, 4097, 9000])
def test_equal_numpy_for_any_number_of_rows(n):
    x = sample(n)
    assert_moments_of(Moments.of(x), x)


@pytest.mark.parametrize("n", [900, 9000])
def test_equal_numpy_while_tracing(n):
    x = sample(n)
    assert_moments_of(jax.jit(Moments.of)(x), x)


def test_chunks_order_and_grouping_do_not_matter():
    x = sample(3000)
    parts = [Moments.of(part) for part in np.split(x, [1, 40, 41, 1200, 2999])]
    left = parts[0]
    for part in parts[1:]:
        left = left.merge(part)
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = part.merge(right)
    streamed = Moments.empty(7)
    for part in np.array_split(x[np.argsort(x[:, 0])], 50):
        streamed = streamed.update(part)
    for moments in (left, right, streamed):
        assert_moments_of(moments, x)


def test_empty_is_neutral():
    moments = Moments.of(sample())
    for same in (moments.merge(Moments.empty(7)), Moments.empty(7).merge(moments), moments.update(sample(0))):
        np.testing.assert_array_equal(same.m2, moments.m2)
        np.testing.assert_array_equal(same.mean, moments.mean)


def test_merging_is_more_exact_than_float32_and_than_one_pass_sums():
    # Far means: E[xxᵀ] − μμᵀ in float32 has nothing left, nor has a float32 merge of distant halves.
    x = sample(2000)
    x[1000:] += 1000
    moments = Moments.of(x[:1000]).merge(Moments.of(x[1000:]))
    y = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    # relative to what the entry sums up, 2000 · 500²
    assert np.abs(moments.m2 - y.T @ y).max() < 2e-9 * (y.T @ y).max()


def test_one_compilation_whatever_the_chunk_sizes():
    x, before = sample(10_000, 11), _add_block._cache_size()
    moments = Moments.empty(11)
    for size in (1, 3, 300, 4096, 5000):
        moments = moments.update(x[:size]).update(jnp.asarray(x[:size]))
    assert _add_block._cache_size() == before + 1


def test_update_leaves_its_arguments_usable():
    chunk = jnp.asarray(sample())
    first = Moments.empty(7)
    once, again = first.update(chunk), first.update(chunk)
    np.testing.assert_array_equal(once.m2, again.m2)
    assert first.count == 0
    assert chunk.sum().shape == ()


def test_the_count_is_exact_beyond_2_to_the_24():
    moments = Moments.of(np.ones((1, 7), np.float32), weights=np.array([2.0**24], np.float32))
    assert moments.update(np.ones((1, 7), np.float32)).count == 2**24 + 1
    doubled = moments
    for _ in range(10):
        doubled = doubled.merge(doubled).update(np.zeros((1, 7), np.float32))
    assert doubled.count == 2**34 + 1023


def test_the_count_of_one_block_is_exact_beyond_2_to_the_24():
    x, weights = sample(300), np.full(300, 2**24 - 1)
    weights[7] = 1
    for moments in (Moments.of(x, weights), jax.jit(Moments.of)(x, weights.astype(np.float32))):
        assert moments.count == weights.sum()
    tenths = np.full(300, 0.1, np.float32)
    assert Moments.of(x, tenths).count == pytest.approx(tenths.sum(dtype=np.float64), rel=1e-13)


def test_integer_weights_are_repeated_rows():
    x = sample(200)
    weights = np.random.default_rng(1).integers(0, 4, size=200)
    weighted = Moments.of(x, weights)
    assert_moments_of(weighted, np.repeat(x, weights, axis=0))
    np.testing.assert_allclose(weighted.covariance(), np.cov(x.T, fweights=weights), rtol=2e-6, atol=1e-6)


def test_fractional_weights():
    x, weights = sample(300), np.random.default_rng(2).random(300).astype(np.float32)
    assert_moments_of(Moments.of(x, weights), x, weights)
    assert_moments_of(jax.jit(Moments.of)(x, weights), x, weights)


@pytest.mark.parametrize("ddof", [0, 1])
def test_covariance_divides_by_n_minus_ddof(ddof):
    x = sample(50)
    np.testing.assert_allclose(Moments.of(x).covariance(ddof), np.cov(x.T, ddof=ddof), rtol=1e-5, atol=1e-5)


def test_a_constant_coordinate_has_exactly_no_variance():
    x = sample(9000)
    x[:, 3] = 0.1
    m2 = Moments.of(x).m2
    assert not m2[3].any()
    assert not m2[:, 3].any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_are_those_values_in_float32(dtype):
    x = sample(5000).astype(dtype)
    for vectors in (x, jnp.asarray(x, jnp.float32 if dtype is np.float64 else dtype)):
        assert_moments_of(Moments.of(vectors), x.astype(np.float32))


def test_vmap_psum_equals_merge_where_a_plain_psum_does_not():
    x = sample(800)
    whole = Moments.of(x)

    def per_device(part):
        moments = Moments.of(part)
        return moments.psum("i"), jax.lax.psum(moments, "i")

    exact, plain = jax.vmap(per_device, axis_name="i")(x.reshape(8, 100, 7))
    np.testing.assert_allclose(exact.scatter.high[3], whole.m2, rtol=1e-5, atol=1e-3)
    assert np.abs(plain.scatter.high[3] - whole.m2).max() > 50
    assert np.abs(plain.centre.high[3] - whole.mean).max() > 1


def test_inside_jit_update_and_merge():
    x = sample(5000)

    @jax.jit
    def both(x):
        half = Moments.empty(7).update(x[:2000])
        return half.merge(Moments.of(x[2000:])), half.covariance()

    assert_moments_of(both(x)[0], x)
    np.testing.assert_allclose(both(x)[1], np.cov(x[:2000].T), rtol=1e-5, atol=1e-5)


def test_no_gradient_flows_through_moments():
    gradient = jax.grad(lambda x: Moments.of(x).covariance().sum() + (x**2).sum())(jnp.ones((3, 2)))
    np.testing.assert_array_equal(gradient, 2 * np.ones((3, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 4999])
def test_a_row_that_is_not_finite_is_named(value, row):
    x = sample(5000)
    x[row, 2] = value
    with pytest.raises(InputError, match=f"row {row} "):
        Moments.of(x)
    with pytest.raises(InputError, match=f"row {row} "):
        Moments.empty(7).update(jnp.asarray(x), weights=np.zeros(5000))


def test_values_beyond_float32():
    with pytest.raises(InputError, match="row 1 "):
        Moments.of(np.array([[1.0], [1e300]]))
    with pytest.raises(InputError, match="overflow"):
        Moments.of(np.full((4, 1), 3e38, np.float32) * np.array([[1], [-1], [1], [1]], np.float32))


def test_wrong_arguments_are_refused():
    x = sample(10)
    with pytest.raises(InputError, match="7 columns"):
        Moments.empty(3).update(x)
    with pytest.raises(InputError, match="cannot merge"):
        Moments.empty(3).merge(Moments.of(x))
    with pytest.raises(InputError, match="row 4 is -1"):
        Moments.of(x, np.array([1, 1, 1, 1, -1, 1, 1, 1, 1, 1.0]))
    with pytest.raises(InputError, match="row 2 is 16777217, which float32 cannot hold"):
        Moments.of(x[:3], np.array([1, 2**24, 2**24 + 1]))
    with pytest.raises(InputError, match="more than 1 vectors"):
        Moments.of(x[:1]).covariance()
    with pytest.raises(InputError, match="dim is 0"):
        Moments.empty(0)


def exact(pair):
    return pair.high.astype(np.float64) + pair.low


@pytest.mark.parametrize(
    ("name", "bound"),
    [("__add__", 2**-44), ("__sub__", 2**-44), ("__mul__", 2**-33), ("__truediv__", 2**-30)],
)
def test_two_float_arithmetic_survives_the_compiler(name, bound):
    rng = np.random.default_rng(0)

    def draw():
        values = rng.normal(size=4000) * 10.0 ** rng.integers(-4, 5, size=4000)
        return TwoFloat(high := values.astype(np.float32), (values - high).astype(np.float32))

    a, b = draw(), draw()
    got = jax.jit(lambda a, b: getattr(a, name)(b))(*jax.tree.map(jnp.asarray, (a, b))).float64()
    want = getattr(exact(a), name)(exact(b))
    scale = np.abs(exact(a)) + np.abs(exact(b)) if "d__" in name or "sub" in name else np.abs(want)
    assert (np.abs(got - want) / scale).max() < bound


def test_two_float_psum_is_exact():
    values = np.random.default_rng(0).normal(size=(64, 100)) * 10.0 ** np.arange(64)[:, None] ** 0.3
    high = values.astype(np.float32)
    low = (values - high).astype(np.float32)
    total = jax.vmap(lambda a, b: TwoFloat(a, b).psum("i"), axis_name="i")(high, low).float64()[0]
    exact = (high.astype(np.float64) + low).sum(0)
    assert (np.abs(total - exact) / np.abs(values).max(0)).max() < 2**-42
