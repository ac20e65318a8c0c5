"""apply(params, batch) is a pure function: it keeps its values and gradients inside any JAX transformation."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvec.calibration.affine_map import Affine
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.packing import PackedBatch

POOLINGS = ("cls", "mean", "max", "pooler", "sif")
SETTINGS = [*((pooling, True) for pooling in POOLINGS), ("mean", False), ("max", False)]
QUICK = {"xla_backend_optimization_level": 0}  # for programs that take longer to compile than to run
SENTENCES = ["the man plays guitar", "", "it rains.", "a dog", "a b c d e f g h i j k l m n o p q r s t u v"]


@pytest.fixture(scope="module")
def load(bert_folder):
    """load(pooling, layers=1, calibrated=False) → encoder; one a setting, so that programs compile once.

    One block already mixes tokens, and compiles in a third of the time.
    """

    @functools.cache
    def make(pooling: str = "mean", layers: str | int | tuple[int, ...] = 1, calibrated: bool = False):
        rng = np.random.default_rng(0)
        weights = rng.uniform(0.1, 1, 78).astype(np.float32) if pooling == "sif" else None
        encoder = SentenceEncoder.load(bert_folder, pooling=pooling, layers=layers, token_weights=weights)
        if calibrated:
            affine = Affine.from_arrays(rng.normal(size=32), rng.normal(size=(32, 8)))
            encoder = encoder.with_calibration(affine)
        return encoder

    return make


def one_batch(encoder, rows: int = 4) -> tuple[PackedBatch, np.ndarray]:
    """All the sentences in one batch with rows of pure padding and empty slots; and their slots in order."""
    packing = encoder.pack(SENTENCES)
    [batch], [index] = packing.batches, packing.indices
    batch = jax.tree.map(lambda array: np.pad(array, ((0, rows - len(array)), (0, 0))), batch)
    place = [int(np.flatnonzero(index == sentence)[0]) for sentence in range(len(SENTENCES))]
    return batch, np.array(place)


@functools.cache
def jitted(apply):
    return jax.jit(apply, compiler_options=QUICK)


@functools.cache
def differentiated(apply):
    def loss(params, batch):
        vectors = apply(params, batch)
        return jnp.sum(vectors**2 * jnp.arange(1.0, vectors.shape[1] + 1)) / vectors.size

    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)


@pytest.mark.parametrize(("pooling", "normalize"), SETTINGS)
def test_function_equals_encode_and_empty_slots_are_zero(load, pooling, normalize):
    encoder = load(pooling)
    apply, params = encoder.function(normalize=normalize)
    batch, place = one_batch(encoder)
    vectors = np.asarray(jitted(apply)(params, batch))
    assert vectors.dtype == np.float32
    assert vectors.shape == (batch.token_ids.shape[0] * batch.slots, encoder.dim)
    np.testing.assert_allclose(vectors[place], encoder.encode(SENTENCES, normalize=normalize), atol=1e-5)
    empty = np.delete(vectors, place, axis=0)
    assert len(empty) > 4
    assert not empty.any()
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(vectors[place], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("pooling", "normalize"), SETTINGS)
def test_gradient_with_respect_to_params_is_finite(load, pooling, normalize):
    """With empty slots and rows of pure padding; for each pooling it reaches the first block."""
    apply, params = load(pooling).function(normalize=normalize)
    batch, _ = one_batch(load(pooling))
    value, gradient = differentiated(apply)(params, batch)
    assert np.isfinite(value)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert jnp.abs(gradient["encoder"]["blocks"][0]["attention"]["query"]["kernel"]).max() > 0
    if pooling == "sif":
        assert jnp.abs(gradient["token_weights"]).max() > 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_batch_of_pure_padding_has_no_gradient_and_zero_vectors(load, pooling):
    apply, params = load(pooling).function(normalize=True)
    batch = jax.tree.map(np.zeros_like, one_batch(load(pooling))[0])
    value, gradient = differentiated(apply)(params, batch)
    assert value == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_gradient_equals_a_finite_difference(load):
    apply, params = load("mean").function()
    batch, _ = one_batch(load("mean"))
    both = differentiated(apply)
    _, gradient = both(params, batch)
    rng = np.random.default_rng(0)
    params = jax.tree.map(np.asarray, params)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params)
    slope = sum(np.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    step = np.float32(1e-3)
    ahead, behind = (
        both(jax.tree.map(lambda leaf, d, s=size: leaf + s * d, params, direction), batch)[0]
        for size in (step, -step)
    )
    np.testing.assert_allclose((ahead - behind) / (2 * step), slope, rtol=2e-2)


def test_vmap_over_stacked_batches_equals_one_by_one(load):
    apply, params = load("mean").function()
    batch, _ = one_batch(load("mean"))
    rolled = jax.tree.map(lambda array: np.roll(array, 1, axis=0), batch)
    stacked = jax.tree.map(lambda *arrays: np.stack(arrays), batch, rolled)
    together = jitted(jax.vmap(apply, in_axes=(None, 0)))(params, stacked)
    single = jitted(apply)
    for vectors, alone in zip(together, (batch, rolled), strict=True):
        np.testing.assert_allclose(vectors, single(params, alone), atol=1e-5)


def test_vmap_over_params_gives_an_ensemble(load):
    apply, params = load("mean").function()
    batch, _ = one_batch(load("mean"))
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf * 1.01]), params)
    vectors = jitted(jax.vmap(apply, in_axes=(0, None)))(two, batch)
    np.testing.assert_allclose(vectors[0], jitted(apply)(params, batch), atol=1e-5)
    assert jnp.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_apply_runs_inside_a_larger_program(load):
    """As a term in a user's own jitted step, over dense batches made inside it, under checkpoint and scan."""
    apply, params = load("mean").function()
    ids = np.random.default_rng(0).integers(5, 78, (3, 2, 9))
    mask = (np.arange(9) < np.array([9, 4])[:, None]).astype(int)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def step(params, head, ids):
        def loss(params, head):
            def one(total, ids):
                batch = PackedBatch.dense(ids, jnp.asarray(mask))
                return total + jnp.sum(jnp.tanh(jax.checkpoint(apply)(params, batch) @ head)), None

            return jax.lax.scan(one, 0.0, ids)[0]

        return jax.value_and_grad(loss, argnums=(0, 1))(params, head)

    head = jnp.ones((32, 1)) / 32
    value, (gradient, of_head) = step(params, head, ids)
    single = jitted(apply)
    expected = sum(jnp.tanh(single(params, PackedBatch.dense(i, mask)) @ head).sum() for i in ids)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((gradient, of_head)))


@pytest.mark.parametrize("calibrated", [False, True])
def test_params_hold_uncommitted_floating_arrays_alone(load, calibrated):
    _, params = load("mean", calibrated=calibrated).function()
    leaves = jax.tree.leaves(params)
    assert len(leaves) > 50
    for leaf in map(jnp.asarray, leaves):
        assert jnp.issubdtype(leaf.dtype, jnp.floating)
        assert not leaf.committed


def test_a_calibrated_function_equals_encode(load):
    encoder = load("mean", calibrated=True)
    apply, params = encoder.function()
    batch, place = one_batch(encoder)
    vectors = np.asarray(jitted(apply)(params, batch))
    np.testing.assert_allclose(vectors[place], encoder.encode(SENTENCES), atol=1e-5)
    assert not np.delete(vectors, place, axis=0).any()


@pytest.mark.parametrize("layers", ["first_last", (2, 3, 0)])
def test_several_layers_are_averaged_before_pooling(load, layers):
    numbers = load("mean", layers).layers
    batch, _ = one_batch(load("mean"))
    functions = (load("mean", (number,)).function() for number in numbers)
    of_layers = [np.asarray(jitted(apply)(params, batch)) for apply, params in functions]
    apply, params = load("mean", layers).function()
    np.testing.assert_allclose(jitted(apply)(params, batch), np.mean(of_layers, axis=0), atol=1e-5)


def test_a_second_call_of_a_shape_compiles_nothing(load, compiled):
    """Whatever the numbers in it, and whether the batch comes from the host or lies on the device."""
    apply, params = load("mean").function()
    run = jitted(apply)
    batch, _ = one_batch(load("mean"))
    first = run(params, batch)
    before = len(compiled)
    run(params, jax.tree.map(lambda array: np.roll(array, 1, axis=0), batch))
    np.testing.assert_array_equal(run(params, jax.device_put(batch)), first)
    assert compiled[before:] == []
    run(params, jax.tree.map(lambda array: array[:3], batch))
    assert len(compiled) == before + 1


@pytest.mark.parametrize(
    ("field", "value", "largest"),
    [
        ("token_ids", 78, 77),
        ("token_ids", -1, 77),
        ("positions", 96, 95),
        ("positions", -1, 95),
        ("token_type_ids", 2, 1),
        ("sentence_ids", 9, None),
        ("sentence_ids", -1, None),
    ],
)
def test_numbers_outside_the_tables_are_refused_by_place(load, field, value, largest):
    encoder = load("mean")
    apply, params = encoder.function()
    batch, _ = one_batch(encoder)
    largest = batch.slots if largest is None else largest
    getattr(batch, field)[0, 2] = value
    with pytest.raises(InputError, match=rf"{field}\[0, 2\] is {value}; expected 0 to {largest}"):
        apply(params, batch)


ON_EIGHT_DEVICES = """
import json, sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jaxvec

sentences = json.loads(sys.argv[2])
encoder = jaxvec.SentenceEncoder.load(sys.argv[1], layers=1)
apply, params = encoder.function()
ids = np.random.default_rng(0).integers(5, 78, (16, 24))
mask = (np.arange(24) < np.random.default_rng(1).integers(0, 25, 16)[:, None]).astype(int)
batch = jaxvec.PackedBatch.dense(ids, mask)
one_device = np.asarray(jax.jit(apply)(params, batch))
found = {"devices": jax.device_count()}

def differs(vectors):
    return float(np.abs(np.asarray(vectors).reshape(one_device.shape) - one_device).max())

mesh = Mesh(np.array(jax.devices()), ("rows",))
sharded = jax.shard_map(apply, mesh=mesh, in_specs=(P(), P("rows")), out_specs=P("rows"))
found["shard_map"] = differs(jax.jit(sharded)(params, batch))
rows = jax.tree.map(lambda a: a.reshape(8, 2, -1), batch)
found["pmap"] = differs(jax.pmap(apply, in_axes=(None, 0))(params, rows))
placed = jax.device_put(batch, NamedSharding(mesh, P("rows")))
everywhere = jax.device_put(params, NamedSharding(mesh, P()))
result = jax.jit(apply)(everywhere, placed)
found["jit over sharded rows"] = differs(result)
found["rows a device"] = result.addressable_shards[0].data.shape[0]

def mean_loss(params, batch):
    return jax.lax.pmean(jnp.sum(apply(params, batch) ** 2), "rows")

spread = jax.shard_map(mean_loss, mesh=mesh, in_specs=(P(), P("rows")), out_specs=P())
gradient = jax.jit(jax.grad(spread))(params, batch)
alone = jax.jit(jax.grad(lambda p: jnp.sum(apply(p, batch) ** 2) / 8))(params)
scale = max(float(jnp.abs(a).max()) for a in jax.tree.leaves(alone))
found["gradient through shard_map"] = max(
    float(np.abs(np.asarray(a) - np.asarray(b)).max()) / scale
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(alone))
)
found["vectors"] = encoder.encode(sentences).tolist()
moments = encoder.moments(sentences)
found["mean"], found["covariance"] = moments.mean.tolist(), moments.covariance().tolist()
print(json.dumps(found))
"""


def test_eight_devices_give_what_one_gives(load, run_python, bert_folder, texts):
    found = run_python(
        ON_EIGHT_DEVICES, bert_folder, json.dumps(texts), XLA_FLAGS="--xla_force_host_platform_device_count=8"
    )
    assert found["devices"] == 8
    assert found["rows a device"] == 2
    for way in ("shard_map", "pmap", "jit over sharded rows", "gradient through shard_map"):
        assert found[way] <= 1e-5, way
    alone = load("mean").encode(texts)
    np.testing.assert_allclose(found["vectors"], alone, atol=1e-5)
    np.testing.assert_allclose(found["mean"], alone.mean(0, dtype=np.float64), atol=1e-5)
    np.testing.assert_allclose(found["covariance"], np.cov(np.float64(alone).T), atol=1e-5)


def test_apply_takes_rows_sharded_over_an_explicit_mesh(bert_folder, run_python):
    found = run_python(
        """
import json, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxvec import PackedBatch, SentenceEncoder
encoder = SentenceEncoder.load(sys.argv[1])
apply, params = encoder.function()
ids = np.random.default_rng(0).integers(5, 60, (4, 12))
batch = PackedBatch.dense(ids, np.ones_like(ids))
alone = jax.jit(apply)(params, batch)
mesh = jax.make_mesh((2,), ("data",))
spread = jax.jit(apply)(params, jax.device_put(batch, NamedSharding(mesh, P("data"))))
with jax.set_mesh(mesh):
    inside = encoder.encode(["the dog"])
print(json.dumps([float(abs(np.asarray(spread) - np.asarray(alone)).max()),
                  float(abs(inside - encoder.encode(["the dog"])).max())]))
""",
        bert_folder,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert max(found) <= 1e-5
