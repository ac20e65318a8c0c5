"""A StableHLO file gives the encoder's own vectors, in a process that has no jaxvec."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxvec.calibration.affine_map import Affine
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.interchange.stablehlo import export_stablehlo
from jaxvec.models.checkpoint import cast_params
from jaxvec.pipeline import Weights

pytest.importorskip("flatbuffers")

TEXTS = [
    "A man plays a guitar.",
    "It rains.",
    "",
    "Stocks fell sharply after the bank raised its rates again.",
]
# What a reader has: JAX, and nothing of what wrote the file.
READER = """
import sys
for name in ("jaxvec", "flax", "transformers", "tokenizers", "safetensors"):
    sys.modules[name] = None
import numpy as np
from jax import export
program = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
batches = np.load(sys.argv[2])
outputs = {}
for name in sorted({key.split("_")[0] for key in batches}):
    outputs[name] = np.asarray(program.call(batches[name + "_ids"], batches[name + "_mask"]))
np.savez(sys.argv[3], **outputs)
"""


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.load()


def affine(width: int, dim: int) -> Affine:
    draw = np.random.default_rng(0)
    return Affine.from_arrays(
        draw.normal(size=width), draw.normal(size=(width, dim)) / width**0.5, draw.normal(size=dim)
    )


def padded(encoder, texts, width=0, left=False):
    ids = encoder.tokenizer(texts)
    shape = (len(texts), max(width, int(ids.lengths.max())))
    tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row, length in enumerate(ids.lengths):
        place = slice(shape[1] - length, None) if left else slice(length)
        tokens[row, place] = ids.values[ids.offsets[row] : ids.offsets[row + 1]]
        mask[row, place] = 1
    return tokens, mask


def exported(encoder, path, **options):
    export_stablehlo(encoder, path, **options)
    return jax.export.deserialize(bytearray(path.read_bytes()))


def test_a_process_without_jaxvec_computes_the_same_calibrated_vectors(encoder, tmp_path):
    calibrated = encoder.with_calibration(affine(384, 64))
    path, inputs, outputs = tmp_path / "model.stablehlo", tmp_path / "in.npz", tmp_path / "out.npz"
    export_stablehlo(calibrated, path)
    cases = {"one": (TEXTS[:1], 0, False), "all": (TEXTS, 0, False), "left": (TEXTS, 40, True)}
    batches = {}
    for name, case in cases.items():
        batches[name + "_ids"], batches[name + "_mask"] = padded(encoder, *case)
    np.savez(inputs, **batches)
    subprocess.run([sys.executable, "-c", READER, path, inputs, outputs], check=True, cwd=tmp_path)
    for name, vectors in np.load(outputs).items():
        expected = calibrated.encode(cases[name][0])
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=name)


def test_the_file_is_little_more_than_the_weights_in_use(encoder, tmp_path):
    program = exported(encoder, tmp_path / "model.stablehlo")
    used = {name: leaf for name, leaf in encoder.weights.params.items() if name != "pooler"}
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(used))
    assert weights < (tmp_path / "model.stablehlo").stat().st_size < 1.02 * weights
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert [str(aval) for aval in program.in_avals] == ["int32[batch,length]"] * 2


@pytest.fixture(scope="module")
def tiny(encoder):
    """The same tokenizer above one narrow MPNet block: its relative positions depend on the length."""
    from flax import nnx

    from jaxvec.models.bert import Encoder
    from jaxvec.models.config import parse_config

    config = parse_config(
        {
            "model_type": "mpnet",
            "vocab_size": 30522,
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "max_position_embeddings": 514,
        }
    )
    draw = np.random.default_rng(1)
    shapes = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Encoder(config))))
    params = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), shapes)
    fields = vars(encoder) | {"config": config, "weights": Weights(cast_params(params, np.float32))}
    names = SentenceEncoder.__dataclass_fields__
    return SentenceEncoder(**{name: fields[name] for name in names} | {"layers": (1,), "normalizes": False})


def test_lengths_are_symbolic_for_relative_positions_too(tiny, tmp_path):
    program = exported(tiny, tmp_path / "tiny.stablehlo")
    for width in (12, 129, 256):
        vectors = program.call(*padded(tiny, TEXTS, width))
        np.testing.assert_allclose(vectors, tiny.encode(TEXTS), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="shapes") as refusal:
        program.call(*padded(tiny, TEXTS, 257))
    assert "length <= 256" in str(refusal.value.__cause__)


def test_normalize_is_said_outright_or_follows_the_encoder(tiny, tmp_path):
    ids = padded(tiny, TEXTS)
    plain = exported(tiny, tmp_path / "plain").call(*ids)
    unit = exported(tiny, tmp_path / "unit", normalize=True).call(*ids)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_rows_that_have_no_vector_are_told_apart(tiny, tmp_path):
    program = exported(tiny.with_calibration(affine(8, 3)), tmp_path / "tiny")
    tokens, mask = padded(tiny, TEXTS)
    mask[1], tokens[0, 1] = 0, 30522
    tokens[3, mask[3] == 0] = -100  # padding may hold anything
    tokens[2, mask[2] == 0] = -100
    vectors = np.asarray(program.call(tokens, mask))
    assert np.isnan(vectors[0]).all()
    assert (vectors[1] == 0).all()
    expected = tiny.with_calibration(affine(8, 3)).encode(TEXTS)
    np.testing.assert_allclose(vectors[2:], expected[2:], rtol=1e-5, atol=1e-5)


def test_one_platform_can_be_asked_for_and_an_unknown_one_is_named(tiny, tmp_path):
    assert exported(tiny, tmp_path / "cpu", platforms=("cpu",)).platforms == ("cpu",)
    for wrong in (("gpu",), "cpu", ()):
        with pytest.raises(InputError, match="platforms is"):
            export_stablehlo(tiny, tmp_path / "no", platforms=wrong)
    assert not (tmp_path / "no").exists()


def test_a_path_that_cannot_be_written_is_named(tiny, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        export_stablehlo(tiny, tmp_path / "absent" / "model.stablehlo")
