"""Every bijection and both presets: round trip, log-determinant, vmap, gradient, arrays out and in."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxvec import InputError
from jaxvec.calibration.flow.actnorm import FLOOR, ActNorm
from jaxvec.calibration.flow.arrays import arrays_of, glow_of
from jaxvec.calibration.flow.coupling import AdditiveCoupling, AffineCoupling
from jaxvec.calibration.flow.glow import Glow, GlowConfig
from jaxvec.calibration.flow.levels import Split, Squeeze
from jaxvec.calibration.flow.linear import (
    DenseMatrix,
    LUMatrix,
    Permutation,
    Reversal,
    log_abs_det_and_inverse,
)
from jaxvec.calibration.flow.recipe import PRESETS

KEY = jax.random.key(3)
BIJECTIONS = {
    "actnorm": lambda dim, dtype: ActNorm(dim, 3.0, dtype),
    "lu": lambda dim, dtype: LUMatrix(dim, KEY, dtype),
    "dense": lambda dim, dtype: DenseMatrix(dim, KEY, dtype),
    "reversal": lambda dim, dtype: Reversal(dim, KEY, dtype),
    "permutation": lambda dim, dtype: Permutation(dim, KEY, dtype),
    "additive": lambda dim, dtype: AdditiveCoupling(dim, 8, KEY, 3.0, dtype),
    "affine": lambda dim, dtype: AffineCoupling(dim, 8, KEY, 1.0, dtype),
    "split": lambda dim, dtype: Split(dim, dtype),
    **{
        name: lambda dim, dtype, config=config: Glow(config, (dim,), KEY, dtype)
        for name, (config, _) in PRESETS.items()
    },
}
# Small and odd widths, a real one, and both precisions.
CASES = [(dim, False) for dim in (1, 2, 3, 7, 768)] + [(7, True)]


def trained(make, size=0.1):
    """The module that `make` makes, with every array as training might leave it; nothing is compiled for it."""
    rng = np.random.default_rng(0)
    graph, abstract = nnx.split(nnx.eval_shape(make))
    filled = []
    for path, variable in nnx.to_flat_state(abstract):
        shape, dtype = variable.get_value().shape, variable.get_value().dtype
        array = size / np.sqrt(max(shape[-1], 1)) * rng.normal(size=shape)
        if path[-1] == "order":
            array = rng.permutation(shape[0])
        elif path[-1] in ("rotation", "matrix"):
            array = np.linalg.qr(rng.normal(size=shape))[0] + (path[-1] == "matrix") * array
        filled.append((path, variable.replace(jnp.asarray(array.astype(dtype)))))
    return nnx.merge(graph, nnx.from_flat_state(filled))


def events(dim, dtype, count=3):
    return jnp.asarray(np.random.default_rng(1).normal(size=(count, dim)), dtype)


@pytest.mark.parametrize(("dim", "double"), CASES)
@pytest.mark.parametrize("name", BIJECTIONS)
def test_laws(name, dim, double):
    with jax.enable_x64(double):
        dtype = jnp.float64 if double else jnp.float32
        module = trained(lambda: BIJECTIONS[name](dim, dtype))
        x = events(dim, dtype)
        y, log_det, back, inverse_log_det, jacobian, one = jax.jit(everything_about)(module, x)
        assert y.dtype == log_det.dtype == dtype
        np.testing.assert_allclose(back, x, rtol=0, atol=1e-9 if double else 1e-4)
        scale = max(1.0, float(jnp.abs(log_det).max()))
        np.testing.assert_allclose(inverse_log_det, -log_det, atol=(1e-9 if double else 1e-4) * scale)
        sign, expected = np.linalg.slogdet(np.asarray(jacobian, np.float64))
        assert sign != 0
        assert abs(expected - log_det[0]) <= (1e-8 if double else 1e-4 * max(1, abs(expected)))
        np.testing.assert_allclose(y[1], one[0], atol=1e-12 if double else 2e-5)
        np.testing.assert_allclose(log_det[1], one[1], atol=1e-10 if double else 2e-5 * scale)


def everything_about(module, x):
    y, log_det = jax.vmap(module.transform_and_log_det)(x)
    back, inverse_log_det = jax.vmap(module.inverse_and_log_det)(y)
    jacobian = jax.jacfwd(lambda v: module.transform_and_log_det(v)[0])(x[0])
    return y, log_det, back, inverse_log_det, jacobian, module.transform_and_log_det(x[1])


@pytest.mark.parametrize(
    ("name", "dim"), [(n, 7) for n in BIJECTIONS] + [(n, 1) for n in sorted(BIJECTIONS.keys() - PRESETS)]
)
def test_gradients_are_finite_both_ways(name, dim):
    graph, params, rest = nnx.split(trained(lambda: BIJECTIONS[name](dim, jnp.float32)), nnx.Param, ...)

    def loss(params, x):
        module = nnx.merge(graph, params, rest)
        z, log_det = jax.vmap(module.transform_and_log_det)(x)
        y, inverse_log_det = jax.vmap(module.inverse_and_log_det)(x)
        return jnp.sum(z * z) + jnp.sum(y * y) - jnp.sum(log_det) - jnp.sum(inverse_log_det)

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, events(dim, jnp.float32))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("name", BIJECTIONS)
def test_values_put_into_another_module_give_the_same_and_set_nothing_anew(name):
    one, other = (trained(lambda: BIJECTIONS[name](7, jnp.float32), size) for size in (0.1, 0.2))
    arrays = [jnp.array(leaf) for leaf in jax.tree.leaves(nnx.state(one))]
    nnx.update(other, jax.tree.unflatten(jax.tree.structure(nnx.state(other)), arrays))
    x = 100 * events(7, jnp.float32)
    for mine, its in zip(*(jax.vmap(m.transform_and_log_det)(x) for m in (one, other)), strict=True):
        np.testing.assert_array_equal(mine, its)
    for array, leaf in zip(arrays, jax.tree.leaves(nnx.state(other)), strict=True):
        np.testing.assert_array_equal(array, leaf)


@pytest.mark.parametrize("preset", PRESETS)
def test_arrays_and_back_is_exact(preset):
    config, _ = PRESETS[preset]
    arrays = named_arrays(trained(lambda: Glow(config, (7,), KEY)))
    again = named_arrays(glow_of(config, (7,), {name: np.asarray(array) for name, array in arrays.items()}))
    assert arrays.keys() == again.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


def named_arrays(glow):
    moved, fixed = arrays_of(glow)
    return moved | fixed


def test_arrays_of_another_shape_are_refused():
    arrays = named_arrays(trained(lambda: Glow(GlowConfig(depth=1), (4,), KEY)))
    with pytest.raises(InputError, match="do not fit its configuration"):
        glow_of(GlowConfig(depth=2), (4,), arrays)


def test_actnorm_standardises_the_batch_it_is_given_and_nothing_else():
    layer, batch = ActNorm(3, 3.0), 7 + jnp.array([1.0, 5.0, 20.0]) * events(3, jnp.float32, 200)
    first = layer.transform_and_log_det(batch[0])[0]
    np.testing.assert_array_equal(first, batch[0])  # a call initialises nothing
    out = np.asarray(layer.initialise(batch))
    np.testing.assert_allclose(out.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(0), 1, atol=1e-5)
    shift = np.asarray(layer.shift[...])
    jax.vmap(layer.transform_and_log_det)(100 * batch)
    np.testing.assert_array_equal(layer.shift[...], shift)


def test_actnorm_floors_a_constant_coordinate():
    layer = ActNorm(2)
    batch = jnp.stack([jnp.full(50, 0.1), events(1, jnp.float32, 50)[:, 0]], axis=1)
    out = np.asarray(layer.initialise(batch))
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out[:, 0], 0)
    gap = layer.log_scale[...][0] - layer.log_scale[...][1]
    assert gap == pytest.approx(-np.log(FLOOR), abs=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
def test_actnorm_survives_one_row_and_equal_rows(rows):
    layer = ActNorm(3)
    assert np.isfinite(layer.initialise(jnp.ones((rows, 3)))).all()


@pytest.mark.parametrize("kind", [LUMatrix, DenseMatrix])
def test_a_learned_matrix_starts_at_a_rotation(kind):
    x = events(7, jnp.float32)
    y, log_det = jax.vmap(kind(7, KEY).transform_and_log_det)(x)
    np.testing.assert_allclose(jnp.linalg.norm(y, axis=1), jnp.linalg.norm(x, axis=1), rtol=1e-5)
    np.testing.assert_allclose(log_det, 0, atol=1e-5)


@pytest.mark.parametrize("kind", [AdditiveCoupling, AffineCoupling])
def test_a_coupling_starts_at_the_identity_with_a_bounded_scale(kind):
    layer, x = kind(7, 8, KEY), events(7, jnp.float32)
    np.testing.assert_array_equal(jax.vmap(layer.transform_and_log_det)(x)[0], x)
    layer.conditioner.bias[...] += 1e6
    assert abs(layer.transform_and_log_det(x[0])[1]) <= 2 * 3 + 1e-4


def test_derivatives_of_log_determinant_and_inverse():
    matrix, weights = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 5)), jnp.float32)

    def plain(m):
        return jnp.linalg.slogdet(m)[1] + jnp.sum(weights * jnp.linalg.inv(m))

    def ours(m):
        log_det, inverse = log_abs_det_and_inverse(m)
        return log_det + jnp.sum(weights * inverse)

    np.testing.assert_allclose(jax.grad(ours)(matrix), jax.grad(plain)(matrix), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("learned", [False, True])
def test_the_latent_order_is_the_released_one(learned):
    config = GlowConfig(levels=3, depth=1, permutation="reversal", learned_prior=learned)
    glow = trained(lambda: Glow(config, (8,), KEY), size=0.0)
    z, _ = jax.jit(glow.transform_and_log_det)(jnp.arange(8.0))
    # Every level reverses, and its second half leaves: 7654|3210, then 45|67, then 54.
    np.testing.assert_array_equal(z, [3, 2, 1, 0, 6, 7, 5, 4])


def test_events_with_spatial_shape_are_squeezed():
    shape = (4, 8, 3)
    glow = trained(lambda: Glow(GlowConfig(depth=1, hidden=8), shape, KEY), size=0.05)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)), jnp.float32)
    z, log_det, back, _, jacobian, _ = jax.jit(everything_about)(glow, x)
    assert z.shape == (2, 96)
    np.testing.assert_allclose(back, x, atol=1e-4)
    expected = np.linalg.slogdet(np.asarray(jacobian, np.float64).reshape(96, 96))[1]
    assert log_det[0] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(InputError, match="divisible by 4"):
        Glow(GlowConfig(), (4, 6, 3), KEY)


def test_squeeze_moves_blocks_into_channels_and_back():
    x = jnp.arange(48.0).reshape(4, 4, 3)
    y, log_det = Squeeze().transform_and_log_det(x)
    np.testing.assert_array_equal(y[0, 1], x[:2, 2:4].reshape(-1))
    np.testing.assert_array_equal(Squeeze().inverse_and_log_det(y)[0], x)
    assert log_det == 0


def test_gradients_of_eight_flows_at_once_return(run_python):
    # On JAX 0.10's CPU backend they never did, through several decompositions: run_python has a time limit.
    code = """
import jax, jax.numpy as jnp, json
from jaxvec.calibration.flow.arrays import arrays_of, glow_of
from jaxvec.calibration.flow.glow import Glow, GlowConfig, log_density
jax.config.update("jax_disable_most_optimizations", True)
def finite(permutation):
    config = GlowConfig(levels=1, depth=3, hidden=8, permutation=permutation)
    def gradient(seed, x):
        trained, fixed = arrays_of(Glow(config, (384,), jax.random.key(seed)))
        def loss(p):
            z, log_det = jax.vmap(glow_of(config, (384,), p | fixed).transform_and_log_det)(x)
            return -jnp.mean(jax.vmap(log_density)(z, log_det))
        return jax.grad(loss)(trained)
    gradients = jax.jit(jax.vmap(gradient, (0, None)))(jnp.arange(8), jnp.ones((4, 384)))
    return all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradients))
print(json.dumps([finite("lu"), finite("dense")]))
"""
    assert run_python(code) == [True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "levels is 0"),
        ({"coupling": "spline"}, "additive, affine"),
        ({"depth": True}, "depth"),
        ({"factor": 0.0}, "factor is 0"),
    ],
)
def test_impossible_shapes_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        partial(GlowConfig, **options)()
