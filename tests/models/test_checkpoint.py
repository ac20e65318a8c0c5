"""Whatever file, names, layout or precision the weights come in, the same params; whatever does not fit is listed."""

import json
import struct
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file, save_file

from jaxvec.errors import InputError
from jaxvec.models.checkpoint import cast_params, fingerprint, load_checkpoint
from jaxvec.models.config import MODEL_TYPES
from jaxvec.models.tf_checkpoint import _crc32c

torch = pytest.importorskip("torch", reason="torch, which writes the reference files, is not installed")

PREFIX = {"xlm-roberta": "roberta"}  # elsewhere the model_type itself


def assert_same(params, expected):
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(expected), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def without_pooler(params):
    return {name: value for name, value in params.items() if name != "pooler"}


@pytest.fixture
def saved(tmp_path, build):
    """A function (kind, **settings) → folder, params, arrays under the names of a bare PyTorch checkpoint."""

    def save(kind: str, **settings):
        folder = tmp_path / "saved"
        build(kind, **settings).save_pretrained(folder)
        return folder, load_checkpoint(folder)[1], load_file(folder / "model.safetensors")

    return save


def rewrite(folder: Path, arrays: dict[str, np.ndarray]):
    (folder / "model.safetensors").unlink()  # a new file: the old one may still be mapped
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_every_leaf_comes_from_its_own_tensor(saved, kind):
    """As many values in the params as in the file, and each tensor's values in exactly one place."""
    _, params, arrays = saved(kind)
    digests = sorted(np.sort(leaf, axis=None).tobytes() for leaf in jax.tree.leaves(params))
    kept = [array for name, array in arrays.items() if not name.endswith("position_ids")]
    assert digests == sorted(np.sort(array, axis=None).tobytes() for array in kept)


@pytest.mark.parametrize(
    ("kind", "head"),
    [(kind, head) for kind in MODEL_TYPES for head in ("MaskedLM", "SequenceClassification")]
    + [("bert", "PreTraining"), ("albert", "PreTraining"), ("electra", "PreTraining"), ("bert", "QuestionAnswering")],
)  # fmt: skip
def test_training_heads_are_ignored_and_prefixed_names_read(tmp_path, build, kind, head):
    model = build(kind, f"AutoModelFor{head}")
    model.save_pretrained(tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "base")
    names = load_file(tmp_path / "whole" / "model.safetensors").keys()
    assert any(name.startswith(PREFIX.get(kind, kind) + ".") for name in names)
    assert any(not name.startswith(PREFIX.get(kind, kind) + ".") for name in names)
    assert_same(load_checkpoint(tmp_path / "whole")[1], load_checkpoint(tmp_path / "base")[1])


def old_names(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """LayerNorm's names before transformers 1.0, and the buffers of 2020."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in arrays.items()
    }
    buffers = {
        "embeddings.position_ids": np.arange(48)[None],
        "embeddings.token_type_ids": np.zeros((1, 48), int),
    }
    return {f"bert.{name}": array for name, array in (renamed | buffers).items()} | {
        "cls.predictions.bias": np.zeros(60, np.float32),
        "cls.seq_relationship.weight": np.zeros((2, 24), np.float32),
    }


def test_gamma_and_beta_are_read_and_buffers_ignored(saved):
    folder, params, arrays = saved("bert")
    rewrite(folder, old_names(arrays))
    assert_same(load_checkpoint(folder)[1], params)


def test_a_missing_pooler_is_allowed_and_half_a_pooler_is_not(saved):
    folder, params, arrays = saved("bert")
    weight, bias = (arrays.pop(f"pooler.dense.{leaf}") for leaf in ("weight", "bias"))
    rewrite(folder, arrays)
    config, bare = load_checkpoint(folder)
    assert not config.has_pooler
    assert_same(bare, without_pooler(params))
    for half, lacking in (({"pooler.dense.weight": weight}, "bias"), ({"pooler.dense.bias": bias}, "weight")):
        rewrite(folder, arrays | half)
        with pytest.raises(InputError, match=rf"missing: pooler\.dense\.{lacking}"):
            load_checkpoint(folder)


@pytest.mark.parametrize("kind", ["bert", "albert", "mpnet"])
@pytest.mark.parametrize("layout", ["shards", "zip", "legacy", "bin shards"])
def test_every_pytorch_layout_gives_the_same_params(tmp_path, saved, kind, layout):
    folder, params, arrays = saved(kind)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    state = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    if layout == "shards":
        from transformers import AutoModel

        AutoModel.from_pretrained(folder).save_pretrained(other, max_shard_size="8KB")
        assert len(list(other.glob("model-*.safetensors"))) > 1
    elif layout == "bin shards":
        shards = {name: f"pytorch_model-{i % 2 + 1:05d}-of-00002.bin" for i, name in enumerate(state)}
        for shard in set(shards.values()):
            torch.save({name: state[name] for name in state if shards[name] == shard}, other / shard)
        (other / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    else:
        torch.save(state, other / "pytorch_model.bin", _use_new_zipfile_serialization=layout == "zip")
    assert_same(load_checkpoint(other)[1], params)
    assert fingerprint(load_checkpoint(other)[1]) == fingerprint(params)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_precisions_become_float32(saved, dtype):
    folder, params, arrays = saved("bert")
    rewrite(folder, {name: array.astype(dtype) for name, array in arrays.items()})
    rounded = jax.tree.map(lambda array: array.astype(dtype).astype(np.float32), params)
    assert_same(load_checkpoint(folder)[1], rounded)


def flax_tree(arrays: dict[str, np.ndarray]) -> dict:
    """As transformers 4 wrote it: kernels [in, out], LayerNorm's weight as scale, tables as embedding."""
    flat = {}
    for name, array in arrays.items():
        stem, leaf = name.rsplit(".", 1)
        if leaf == "weight":
            table, norm = stem.endswith("_embeddings"), "norm" in stem.lower()
            leaf = "embedding" if table else "scale" if norm else "kernel"
        flat[f"{stem}.{leaf}"] = array.T if leaf == "kernel" else array
    return unflatten_dict(flat, sep=".")


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "albert"])
@pytest.mark.parametrize("headed", [False, True])
def test_flax_checkpoints_give_the_same_params(saved, kind, headed):
    folder, params, arrays = saved(kind, **({"num_hidden_groups": 2} if kind == "albert" else {}))
    tree = flax_tree(arrays)
    if headed:
        tree = {
            kind: tree,
            "lm_head" if kind == "roberta" else "cls": {"bias": np.zeros(60, np.float32)},
        }
    (folder / "model.safetensors").unlink()
    (folder / "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
    assert_same(load_checkpoint(folder)[1], params)


def google_names(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The variables of google-research/bert's checkpoints, heads and Adam's slots included."""
    variables = {}
    for name, array in arrays.items():
        stem, leaf = name.replace("layer.", "layer_").replace(".", "/").rsplit("/", 1)
        if stem.endswith("_embeddings"):
            variables[f"bert/{stem}"] = array
        elif stem.endswith("LayerNorm"):
            variables[f"bert/{stem}/{'gamma' if leaf == 'weight' else 'beta'}"] = array
        elif leaf == "weight":
            variables[f"bert/{stem}/kernel"] = np.ascontiguousarray(array.T)
        else:
            variables[f"bert/{stem}/bias"] = array
    slots = {
        f"{name}/{slot}": np.full_like(array, 9) for name, array in variables.items() for slot in ("adam_m", "adam_v")
    }  # fmt: skip
    heads = {
        "cls/predictions/output_bias": np.zeros(60, np.float32),
        "cls/predictions/transform/dense/kernel": np.zeros((24, 24), np.float32),
        "cls/predictions/transform/LayerNorm/gamma": np.zeros(24, np.float32),
        "cls/seq_relationship/output_weights": np.zeros((2, 24), np.float32),
        "cls/seq_relationship/output_bias": np.zeros(2, np.float32),
        "global_step": np.array(7, np.int64),
    }
    return variables | slots | heads


def write_tf_checkpoint(folder: Path, variables: dict[str, np.ndarray]):
    """The two files of a tensor bundle with one data block: LevelDB's table of BundleEntryProto, and the bytes.

    TensorFlow lists the variables of such an index; it lacks the checksums of the data, which are not read here.
    """

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    def field(number: int, value: int | bytes) -> bytes:
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def block(entries: dict[bytes, bytes]) -> bytes:
        body = b"".join(varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in entries.items())
        body += struct.pack("<II", 0, 1)  # one restart point, at 0
        crc = _crc32c(body + b"\0")
        return body + b"\0" + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    data, entries = b"", {b"": field(1, 1) + field(3, field(1, 1))}
    for name, array in sorted(variables.items()):
        dims = b"".join(field(2, field(1, size)) for size in array.shape)
        kind = {"float32": 1, "int64": 9}[array.dtype.name]
        entry = field(1, kind) + field(2, dims) + field(4, len(data)) + field(5, array.nbytes)
        entries[name.encode()] = entry
        data += array.tobytes()
    table = block(entries)
    meta = block({})
    first, second = (varint(0) + varint(len(table) - 5), varint(len(table)) + varint(len(meta) - 5))
    index = block({max(entries): first})
    footer = second + varint(len(table) + len(meta)) + varint(len(index) - 5)
    whole = table + meta + index + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    (folder / "bert_model.ckpt.index").write_bytes(whole)
    (folder / "bert_model.ckpt.data-00000-of-00001").write_bytes(data)


def test_the_release_of_google_gives_the_same_params(tmp_path, saved):
    folder, params, arrays = saved("bert", num_hidden_layers=11)
    release = tmp_path / "uncased_L-11_H-24_A-3"
    release.mkdir()
    (release / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    settings = json.loads((folder / "config.json").read_text())
    kept = (
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
    )
    kept += ("num_hidden_layers", "type_vocab_size", "vocab_size")
    (release / "bert_config.json").write_text(json.dumps({key: settings[key] for key in kept}))
    write_tf_checkpoint(release, google_names(arrays))
    config, loaded = load_checkpoint(release)
    assert config == load_checkpoint(folder)[0]
    assert_same(loaded, params)


def test_one_error_lists_everything_that_does_not_fit(saved):
    folder, _, arrays = saved("bert")
    missing = ["encoder.layer.1.output.dense.weight", "embeddings.LayerNorm.bias"]
    for name in missing:
        del arrays[name]
    unexpected = [
        "encoder.layer.2.output.dense.weight",
        "encoder.layer.0.attention.self.queries.bias",
        "clsx.bias",
    ]
    arrays |= dict.fromkeys(unexpected, np.zeros(3, np.float32))
    arrays["pooler.dense.weight"] = np.zeros((24, 23), np.float32)
    arrays["encoder.layer.0.intermediate.dense.bias"] = np.zeros(40, np.int32)
    broken = ["encoder.layer.0.output.LayerNorm.weight", "embeddings.word_embeddings.weight"]
    for name, value in zip(broken, (np.nan, -np.inf), strict=True):
        arrays[name] = arrays[name].copy()
        arrays[name].flat[-1] = value
    rewrite(folder, arrays)
    with pytest.raises(InputError) as error:
        load_checkpoint(folder)
    message = str(error.value)
    assert str(folder / "model.safetensors") in message
    parts = dict(part.split(": ", 1) for part in message.split("encoder. ", 1)[1].split(". "))
    assert all(name in parts["missing"] for name in missing)
    assert all(name in parts["unexpected"] for name in unexpected)
    assert all(name in parts["with NaN or infinite values"] for name in broken)
    shapes = parts["wrong shape or type"]
    assert "pooler.dense.weight is (24, 23), the config says (24, 24)" in shapes
    assert "encoder.layer.0.intermediate.dense.bias is int32, expected floating point" in shapes
    assert [len(parts[key].split("; ")) for key in parts] == [2, 3, 2, 2]


def test_weights_of_another_family_do_not_fit(saved):
    folder, _, _ = saved("bert")
    settings = json.loads((folder / "config.json").read_text()) | {"model_type": "mpnet"}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        InputError, match=r"'mpnet'.*missing: .*attn\.k\.weight.*unexpected: .*self\.key\.weight"
    ):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "flax_model.msgpack"])
def test_a_git_lfs_pointer_is_named(saved, name):
    folder, _, _ = saved("bert")
    (folder / "model.safetensors").unlink()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n")
    with pytest.raises(InputError, match=f"{name} is a Git-LFS pointer"):
        load_checkpoint(folder)


def test_fingerprints_tell_weights_apart_and_nothing_else(saved):
    folder, params, arrays = saved("bert")
    mark = fingerprint(params)
    rewrite(folder, {name: array.astype(np.float64) for name, array in reversed(arrays.items())})
    assert fingerprint(load_checkpoint(folder)[1]) == mark
    arrays["pooler.dense.bias"] = arrays["pooler.dense.bias"] + np.float32(1e-6)
    rewrite(folder, arrays)
    assert fingerprint(load_checkpoint(folder)[1]) != mark


def test_casting_keeps_tables_biases_and_norms_in_float32(saved):
    folder, params, _ = saved("albert")
    cast = cast_params(load_checkpoint(folder)[1], jax.numpy.bfloat16)
    assert fingerprint(cast) == fingerprint(params)
    kinds = {path[-1].key: leaf.dtype for path, leaf in jax.tree.leaves_with_path(cast)}
    assert kinds.pop("kernel") == jax.numpy.bfloat16
    assert set(kinds) == {"token", "position", "token_type", "scale", "bias"}
    assert set(map(str, kinds.values())) == {"float32"}
    assert_same(jax.tree.map(np.asarray, cast_params(load_checkpoint(folder)[1], np.float32)), params)
    cast_params(params, np.float32)
    assert params == {}  # so that a large model is not in memory twice
