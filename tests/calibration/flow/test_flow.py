"""A flow as density and as calibration: training, ensembles, checkpoints, bad input."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvec import Affine, Flow, InputError, Moments, PackedBatch, SentenceEncoder, whitening
from jaxvec.calibration.calibration import Calibration, device_arrays, rebuild
from jaxvec.calibration.chain import Chain
from jaxvec.calibration.flow import FlowEnsemble, training
from jaxvec.calibration.flow.recipe import configure
from jaxvec.calibration.flow.start import Spectrum, starting_arrays
from jaxvec.interchange.sentence_transformers_export import export_sentence_transformers
from jaxvec.interchange.stablehlo import export_stablehlo

TINY = {"levels": 1, "depth": 1, "hidden": 8, "epochs": 3, "batch_size": 32}


def cloud(n=600, d=5, seed=0):
    """Vectors with covariance of condition number 100 and a bent second coordinate."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.geomspace(1, 0.1, d)
    x[:, 1] += x[:, 0] ** 2
    return (x @ np.linalg.qr(rng.normal(size=(d, d)))[0] + 3).astype(np.float32)


@pytest.fixture(scope="module")
def vectors():
    return cloud()


@pytest.fixture(scope="module")
def flow(vectors):
    return Flow.fit(vectors, **TINY)


@pytest.mark.parametrize("permutation", ["lu", "dense"])
def test_the_start_is_the_whitening_of_the_noisy_vectors(vectors, permutation):
    config, recipe = configure("glow", {"levels": 1, "depth": 1, "permutation": permutation})
    spectrum = Spectrum.of(vectors, None)
    trained, fixed = jax.jit(starting_arrays, static_argnums=(0, 1))(
        config, recipe, spectrum.arrays(), vectors, np.asarray(0, np.int32)
    )
    start = Flow(trained | fixed, config, 5)
    covariance = np.cov(vectors.T) + spectrum.noise * np.eye(5)
    latent = np.asarray(start(vectors))
    unit = latent / np.linalg.norm(latent, axis=1, keepdims=True)
    np.testing.assert_allclose(unit @ unit.T, spectrum.cosines(vectors), atol=1e-4)
    np.testing.assert_allclose(np.cov(latent.T), np.diag(np.diag(np.cov(latent.T))), atol=1e-3)
    expected = -0.5 * (
        np.linalg.slogdet(2 * np.pi * covariance)[1]
        + np.trace(np.linalg.solve(covariance, np.cov(vectors.T)))
    )
    assert float(start.log_likelihood(vectors).mean()) == pytest.approx(expected, abs=0.02)


def test_training_raises_the_likelihood_and_the_record_says_so(vectors):
    options = TINY | {"epochs": 60, "learning_rate": 1e-2, "patience": 60, "drift": 1.0, "noise": 0.0}
    flow = Flow.fit(vectors, **options)
    rounds = flow.record["rounds"]
    first, last = (rounds[i]["held_out_bits_per_dimension"] for i in (0, -1))
    assert last < first - 0.1
    assert flow.record["best_held_out_bits_per_dimension"] == min(
        flow.record["start_held_out_bits_per_dimension"], *(r["held_out_bits_per_dimension"] for r in rounds)
    )
    assert flow.bits_per_dimension(vectors).mean() == pytest.approx(last, abs=0.2)


def test_each_seed_stops_where_its_similarity_drifts(vectors):
    options = TINY | {"epochs": 60, "learning_rate": 1e-2, "patience": 60, "noise": 0.0}
    records = Flow.fit_many(vectors, range(3), **options, drift=0.005).records
    stopped = [len(record["rounds"]) for record in records]
    assert min(stopped) < max(stopped) < 60
    for record, rounds in zip(records, stopped, strict=True):
        drifts = [r["drift"] for r in record["rounds"]]
        assert drifts[-1] > 0.005 >= max(drifts[:-1])
        assert record["steps"] == rounds * (540 // 32)
        held = [r["held_out_bits_per_dimension"] for r in record["rounds"]]
        start = record["start_held_out_bits_per_dimension"]
        assert record["best_held_out_bits_per_dimension"] == min(start, *held[:-1])


def test_latent_inverse_density_and_samples_agree(flow, vectors):
    latent = flow(vectors)
    np.testing.assert_allclose(flow.inverse(latent), vectors, atol=1e-4)
    jacobian = jax.jacobian(lambda x: flow(x))(jnp.asarray(vectors[0]))
    normal = -0.5 * (latent[0] @ latent[0] + 5 * np.log(2 * np.pi))
    expected = normal + np.linalg.slogdet(np.asarray(jacobian, np.float64))[1]
    assert float(flow.log_likelihood(vectors[0])) == pytest.approx(float(expected), rel=1e-4)
    samples = flow.sample(jax.random.key(0), 4000)
    np.testing.assert_allclose(samples.mean(0), vectors.mean(0), atol=0.2)


def test_a_flow_is_a_pytree_and_a_calibration(flow, vectors):
    assert isinstance(flow, Calibration)
    np.testing.assert_allclose(jax.jit(lambda f, x: f(x))(flow, vectors), flow(vectors), atol=1e-5)
    spec = json.loads(json.dumps(flow.spec()))
    again = rebuild(spec, flow.to_arrays())
    assert again.record == flow.record
    np.testing.assert_array_equal(again(vectors), flow(vectors))
    traced = jax.jit(lambda arrays, x: rebuild(spec, arrays)(x))(device_arrays(flow), vectors)
    np.testing.assert_allclose(traced, flow(vectors), atol=1e-5)


def test_one_compile_trains_many_and_each_is_as_if_alone(vectors, compiled):
    before = compiled.count("jit(_train_round)")
    flows = Flow.fit_many(vectors, seeds=range(8), **TINY)
    assert compiled.count("jit(_train_round)") == before + 1
    assert len(flows) == 8
    assert flows(vectors).shape == (8, *vectors.shape)
    for seed in (0, 5):
        alone = Flow.fit(vectors, seed=seed, **TINY)
        for mine, theirs in zip(alone.record["rounds"], flows[seed].record["rounds"], strict=True):
            assert mine["training_bits_per_dimension"] == pytest.approx(
                theirs["training_bits_per_dimension"], abs=1e-3
            )
        gap = alone.log_likelihood(vectors).mean() - flows[seed].log_likelihood(vectors).mean()
        assert abs(gap) < 0.01 * vectors.shape[1]
    mean, deviation = flows.spread(lambda one: one.log_likelihood(vectors).mean())
    assert np.isfinite(mean)
    assert 0 < deviation < 1


def test_a_flow_is_bound_to_no_mesh(flow, vectors):
    assert not any(array.committed for array in flow.arrays.values())
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(vectors, jax.P("x"))
        np.testing.assert_allclose(flow(rows), flow(vectors), atol=1e-5)
        fitted = Flow.fit(rows, **TINY)
    np.testing.assert_array_equal(fitted(vectors), flow(vectors))


def test_an_interrupted_training_goes_on_bit_for_bit(vectors, tmp_path, monkeypatch):
    from jaxvec.calibration.flow import fitting

    whole = Flow.fit(vectors, **TINY)
    save = fitting.Checkpoints.save

    def interrupt(self, states, history):
        save(self, states, history)
        if len(history) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.Checkpoints, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY)
    resumed = Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY)
    assert resumed.record == whole.record
    for name, array in whole.to_arrays().items():
        np.testing.assert_array_equal(resumed.to_arrays()[name], array)

    with pytest.raises(InputError, match=r"another training .its seeds differ"):
        Flow.fit(vectors, seed=1, checkpoint=tmp_path / "training", **TINY)
    for file in (tmp_path / "training" / "3").rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"3: this checkpoint cannot be read .* go on from the one before"):
        Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY)


def test_a_folder_of_other_things_is_refused_and_stays(vectors, tmp_path):
    corpus, orbax = tmp_path / "corpus", tmp_path / "orbax"
    corpus.mkdir()
    (corpus / "corpus.txt").write_text("text")
    (orbax / "7" / "default").mkdir(parents=True)
    for folder, name in ((corpus, "corpus.txt"), (orbax, "7")):
        with pytest.raises(
            InputError, match=f"its {name} is no checkpoint of a flow's training; name another"
        ) as refused:
            Flow.fit(vectors, checkpoint=folder, **TINY)
        assert "remove" not in str(refused.value)
    assert (corpus / "corpus.txt").exists()
    assert (orbax / "7" / "default").exists()

    Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY | {"epochs": 1})
    (tmp_path / "training/1/identity/metadata").write_text("[1]")
    with pytest.raises(InputError, match="its 1 is no checkpoint of a flow's training"):
        Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY | {"epochs": 1})


def test_a_place_that_takes_no_checkpoints_is_named(vectors, tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    with pytest.raises(InputError, match=r"a{300}: checkpoints cannot be kept there \(File name too long\)"):
        Flow.fit(vectors, checkpoint=tmp_path / ("a" * 300), **TINY)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(
        InputError, match=r"training: checkpoints cannot be kept there \(No space left on device\)"
    ):
        Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY)
    monkeypatch.setattr(ocp, "CheckpointManager", full)
    with pytest.raises(InputError, match=r"training: checkpoints cannot be kept there"):
        Flow.fit(vectors, checkpoint=tmp_path / "training", **TINY)


def bad(vectors, row=None):
    vectors = vectors.copy()
    if row is not None:
        vectors[row, 0] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda x: x[:20], {}, "20 vectors, 2 of them held out, are fewer than a batch of 32"),
        (lambda x: x[:1], {}, "2 or more vectors, these are 1"),
        (lambda x: x[:2], {"batch_size": 1, "held_out": 0.0}, "2 training vectors .* give 3 or more vectors"),
        (lambda x: bad(x, 17), {}, "row 17 of the vectors is not finite"),
        (lambda x: x[:1].repeat(100, 0), {}, "all 90 vectors are equal"),
        (lambda x: x, {"learning_rate": 1000.0, "schedule": "constant"}, r"diverged at step \d+: .* smaller"),
        (lambda x: x, {"learning_rte": 1.0}, "no option learning_rte; it has levels"),
        (lambda x: x, {"preset": "nice"}, "expected one of glow, bert_flow"),
        (lambda x: x, {"permutation": "reversal"}, "init 'whitening' needs a learned matrix"),
        (lambda x: x, {"init": "data"}, "give drift=1"),
        (lambda x: x, {"batch_size": 0}, "batch_size is 0"),
        (lambda x: x, {"ema": 1.0}, "ema is 1.0"),
        (lambda x: x, {"optimizer": "sgd"}, "adamw, bert_adamw"),
        (lambda x: x, {"seed": -1}, "seeds are"),
        (lambda x: 1e20 * x, {}, "scale the vectors down"),
        (lambda x: 1e-15 * x, {}, "multiply the vectors by a constant"),
        (lambda x: x, {"checkpoint": ""}, "checkpoint is ''; expected the name of a folder"),
    ],
)
def test_bad_input_is_one_clear_error(vectors, make, options, message):
    with pytest.raises(InputError, match=message):
        Flow.fit(make(vectors), **TINY | options)


def test_an_ensemble_is_indexed_by_whole_numbers(flow):
    flows = FlowEnsemble({name: array[None] for name, array in flow.arrays.items()}, flow.config, 5, ({},))
    assert flows[-1].record == {}
    with pytest.raises(IndexError, match="flow 1 of 1"):
        flows[1]
    with pytest.raises(TypeError, match="slice"):
        flows.__getitem__.__wrapped__(flows, slice(0, 1))


def test_samples_are_counted(flow):
    with pytest.raises(InputError, match="count is -1"):
        flow.sample(jax.random.key(0), -1)


def test_constant_coordinates_are_named_and_survived(vectors):
    x = vectors.copy()
    x[:, 2] = 0.1
    with pytest.warns(UserWarning, match="coordinates 2 are constant over all 600 vectors"):
        flow = Flow.fit(x, **TINY)
    assert np.isfinite(flow(x)).all()
    np.testing.assert_allclose(flow.inverse(flow(x)), x, atol=1e-3)


def test_one_coordinate_is_a_gaussian():
    x = (3 + 2 * np.random.default_rng(0).normal(size=(500, 1))).astype(np.float32)
    flow = Flow.fit(x, **TINY)
    assert float(flow.log_likelihood(x).mean()) == pytest.approx(
        -np.log(2 * np.sqrt(2 * np.pi * np.e)), abs=0.1
    )


def test_fewer_vectors_than_coordinates_are_floored_not_inverted():
    flow = Flow.fit(cloud(n=4), **TINY | {"batch_size": 2, "held_out": 0.0})
    assert flow.record["rank"] == 3
    assert np.isfinite(flow(cloud(n=50, seed=1))).all()


@pytest.fixture(scope="module")
def calibrated(bert_folder, texts, flow):
    """An encoder with whitening to 5 dimensions and then a flow."""
    encoder = SentenceEncoder.load(bert_folder)
    vectors = encoder.encode(texts)
    white = whitening(Moments.of(vectors), dim=5)
    calibrated = encoder.with_calibration(white).with_calibration(flow, {"corpus": "texts"})
    np.testing.assert_allclose(calibrated.encode(texts), flow(white(vectors)), atol=1e-4)
    return calibrated


def test_an_encoder_takes_a_flow_saves_it_and_gives_the_same(calibrated, texts, tmp_path):
    assert [type(part) for part in calibrated.calibration.parts] == [Affine, Flow]
    calibrated.save(tmp_path / "flow")
    again = SentenceEncoder.load(tmp_path / "flow")
    assert isinstance(again.calibration, Chain)
    np.testing.assert_array_equal(again.encode(texts), calibrated.encode(texts))
    assert again.calibration.parts[1].record == calibrated.calibration.parts[1].record


def test_a_flow_goes_into_function_and_stablehlo_and_not_into_sentence_transformers(calibrated, tmp_path):
    apply, params = calibrated.function()
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(params))
    ids = np.array([[2, 5, 6, 7, 3], [2, 9, 3, 0, 0]], np.int32)
    mask = np.minimum(ids, 1)
    expected = jax.jit(apply)(params, PackedBatch.dense(ids, mask))

    export_stablehlo(calibrated, tmp_path / "model.stablehlo", platforms=["cpu"])
    program = jax.export.deserialize(bytearray((tmp_path / "model.stablehlo").read_bytes()))
    np.testing.assert_allclose(program.call(ids, mask), expected, atol=1e-4)
    with pytest.raises(InputError, match=r"type Chain cannot be exported.*stablehlo takes every"):
        export_sentence_transformers(calibrated, tmp_path / "st")


def test_two_devices_with_x64_train_as_one_does_in_float32(run_python):
    code = """
import json, jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
import numpy as np
from jaxvec import Flow
x = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32) ** 3
flow = Flow.fit(x.astype(np.float64), levels=1, depth=1, hidden=8, epochs=3, batch_size=32)
assert {array.dtype for array in flow.arrays.values()} == {np.dtype(np.float32)}
assert flow(x.astype(np.float64)).dtype == np.float32
print(json.dumps([r["training_bits_per_dimension"] for r in flow.record["rounds"]]))
"""
    x = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32) ** 3
    rounds = Flow.fit(x, **TINY).record["rounds"]
    expected = [r["training_bits_per_dimension"] for r in rounds]
    np.testing.assert_allclose(run_python(code), expected, atol=1e-4)


def test_a_compiler_option_that_xla_does_not_know_is_left_out():
    assert not training._is_known({"xla_no_such_option": ""})
