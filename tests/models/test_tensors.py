"""The weights of a folder, whichever file holds them: what was saved is what is read, and damage is named."""

import json
import os
import random
import struct
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxvec.errors import InputError
from jaxvec.models.tensors import read_flax, read_safetensors, read_tensors

torch = pytest.importorskip("torch")

DTYPES = ["f8", "f4", "f2", ml_dtypes.bfloat16, "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]


def arrays_of_every_dtype() -> dict[str, np.ndarray]:
    values = np.array([[0, 1, -2.5], [3, 100, 0.125]])
    arrays = {f"layer.{i}.weight": np.abs(values).astype(dtype) for i, dtype in enumerate(DTYPES)}
    return arrays | {"scalar": np.array(1.5, "f4"), "empty": np.zeros((0, 3), "f4"), "odd": np.ones(3, "i1")}


def assert_same(arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]):
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        assert arrays[name].dtype == value.dtype, name
        assert arrays[name].flags.aligned, name
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)


def save_torch(arrays: dict[str, np.ndarray], path: Path):
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


def save_flax(arrays: dict[str, np.ndarray], path: Path):
    path.write_bytes(msgpack_serialize(unflatten_dict(arrays, sep=".")))


def test_safetensors_reads_every_dtype_back(tmp_path):
    save_file(arrays_of_every_dtype(), tmp_path / "model.safetensors", {"format": "pt"})
    tensors = read_tensors(tmp_path)
    assert (tensors.format, tensors.path) == ("torch", tmp_path / "model.safetensors")
    assert_same(tensors.arrays, arrays_of_every_dtype())
    assert not tensors.arrays["layer.0.weight"].flags.owndata  # a view of the file


def test_unaligned_safetensors_read_aligned(tmp_path):
    """The format lets a header end anywhere; XLA takes aligned arrays only."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (1 - len(header) % 4)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + np.array([1, 2], "<f4").tobytes())
    assert_same(read_safetensors(path), {"w": np.array([1, 2], "f4")})


def test_flax_reads_every_dtype_back(tmp_path, monkeypatch):
    save_flax(arrays_of_every_dtype(), tmp_path / "flax_model.msgpack")
    tensors = read_tensors(tmp_path)
    assert (tensors.format, tensors.path) == ("flax", tmp_path / "flax_model.msgpack")
    assert_same(tensors.arrays, arrays_of_every_dtype())
    # Flax cuts arrays of more than 2³⁰ bytes into chunks.
    monkeypatch.setattr("flax.serialization.MAX_CHUNK_SIZE", 16)
    save_flax(arrays_of_every_dtype(), tmp_path / "chunked.msgpack")
    assert_same(read_flax(tmp_path / "chunked.msgpack"), arrays_of_every_dtype())


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": None}}, "'a.b' holds NoneType"),
        ({"a": [1.0]}, "'a' holds list"),
        ({"a": 1 + 2j}, "'a' holds complex"),
        ({"a": np.ones(2, np.complex64)}, "'a' holds ndarray"),
        ({"a": {3: np.ones(2)}}, "a key under 'a' is not a string"),
        ({"a": {"b": np.ones(2)}, "a.b": np.ones(2)}, "two arrays are named 'a.b'"),
        ([np.ones(2)], "'' holds list"),
    ],
)
def test_flax_leaves_are_arrays(tmp_path, tree, message):
    (tmp_path / "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
    with pytest.raises(InputError, match=message):
        read_tensors(tmp_path)


def test_formats_are_looked_for_in_order(tmp_path):
    arrays = {"w": np.ones((2, 2), "f4"), "b": np.zeros(2, "f4")}
    save_flax(arrays, tmp_path / "flax_model.msgpack")
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"never opened")
    found = [read_tensors(tmp_path)]
    for stem, save in [("pytorch_model{}.bin", save_torch), ("model{}.safetensors", save_file)]:
        save({"w": arrays["w"]}, tmp_path / stem.format("-00001-of-00002"))
        save({"b": arrays["b"]}, tmp_path / stem.format("-00002-of-00002"))
        shards = {"w": stem.format("-00001-of-00002"), "b": stem.format("-00002-of-00002")}
        (tmp_path / f"{stem.format('')}.index.json").write_text(json.dumps({"weight_map": shards}))
        found.append(read_tensors(tmp_path))
        save(arrays, tmp_path / stem.format(""))
        found.append(read_tensors(tmp_path))
    assert [tensors.path.name for tensors in found] == [
        "flax_model.msgpack",
        "pytorch_model.bin.index.json",
        "pytorch_model.bin",
        "model.safetensors.index.json",
        "model.safetensors",
    ]
    for tensors in found:
        assert_same(tensors.arrays, arrays)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"w": "a.safetensors", "b": "b.safetensors"}}, "names the shard 'b.safetensors', which is not"),
        ({"weight_map": {"w": "a.safetensors", "b": "a.safetensors"}}, "places 'b' in a.safetensors, but the shard lacks"),
        ({"weight_map": {"w": "../a.safetensors"}}, r"names the shard '\.\./a\.safetensors'"),
        ({"weight_map": {"w": "a\0.safetensors" * 99}}, "which is not in the folder"),
        ({"weight_map": {"w": 1}}, "expected a weight_map"),
        ({"weight_map": ["w"]}, "expected a weight_map"),
        ({}, "expected a weight_map"),
        ([], "holds a list, expected an object"),
        ("{", "holds a str, expected an object"),
    ],
)  # fmt: skip
def test_an_index_that_disagrees_with_its_shards_is_named(tmp_path, index, message):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": np.ones(2)}, folder / "a.safetensors")
    save_file({"w": np.ones(2)}, tmp_path / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=rf"model\.safetensors\.index\.json.*{message}"):
        read_tensors(folder)


def test_a_tensor_that_the_index_does_not_list_is_named(tmp_path):
    save_file({"w": np.ones(2), "extra": np.ones(2)}, tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    with pytest.raises(InputError, match=r"does not place 'extra' in a\.safetensors"):
        read_tensors(tmp_path)


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    with pytest.raises(
        InputError, match=r"looked for model\.safetensors, .*\*\.ckpt\*\.index; .* holds nothing"
    ):
        read_tensors(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tf_model.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"the folder holds config\.json, tf_model\.h5$"):
        read_tensors(tmp_path)
    for missing in (tmp_path / "absent", tmp_path / "config.json"):
        with pytest.raises(InputError, match=f"{missing.name} is not a folder"):
            read_tensors(missing)


NAMES = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "flax_model.msgpack",
    "bert_model.ckpt.index",
]


@pytest.mark.parametrize("name", NAMES)
def test_empty_files_pointers_and_rubbish_are_refused_by_name(tmp_path, name):
    rng = np.random.default_rng(0)
    contents = [
        (b"", r"is empty \(0 bytes\)"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "is a Git-LFS pointer",
        ),
        (b"<!doctype html><html><body>Entry not found</body></html>", ""),
        (b"\0" * 64, ""),
        (rng.bytes(3000), ""),
    ]
    for content, message in contents:
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}.*{message}"):
            read_tensors(tmp_path)


def entry(**changes) -> dict:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


SECOND = {"v": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (entry(dtype="F33"), "'w' has dtype 'F33'; expected one of F64, F32"),
        (entry(dtype=["F32"]), "'w' has dtype"),
        (entry(shape=[3]), "'w': float32 .3. does not fill its bytes 0 to 8"),
        (entry(shape=[-2]), "not counts"),
        (entry(shape=[True, 2]), "not counts"),
        (entry(shape="2"), "not counts"),
        (entry(data_offsets=[0]), "not counts"),
        (entry(data_offsets=[8, 0]), "does not fill"),
        (entry(data_offsets=[0, 8.0]), "not counts"),
        (entry(shape=[1] * 99 + [2]), "'w'.*does not fit"),
        (entry(shape=[0, 2**70], data_offsets=[0, 0]), "'w'.*does not fit"),
        (entry(data_offsets=[8, 16]), "'w'.*does not fit"),
        (entry(data_offsets=[2**63, 2**63 + 8]), "'w'.*does not fit"),
        (entry(shape=[1], data_offsets=[0, 4]), "tensors end at byte .*, the file at"),
        (entry() | SECOND, "'v'.*does not fit"),
        (entry(shape=[1], data_offsets=[4, 8]), "'w' starts at byte 4, expected 0"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "'w': the header gives"),
        ({"w": None}, "'w': the header gives None"),
        ([], "holds a list"),
        ('{"w"', "JSON is damaged"),
        ('{"w": {}, "w": {}}', "a key is given twice"),
        ("[" * 100_000, "JSON is damaged"),
        ('{"w": ' + "9" * 5000 + "}", "JSON is damaged"),
        ("\xff", "JSON is damaged"),
    ],
)
def test_a_damaged_safetensors_header_is_named(tmp_path, header, message):
    text = header.encode("latin-1") if isinstance(header, str) else json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(InputError, match=rf"model\.safetensors.*{message}"):
        read_tensors(tmp_path)


def test_overlapping_safetensors_are_refused(tmp_path):
    text = json.dumps(entry() | SECOND).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(12))
    with pytest.raises(InputError, match="'v' starts at byte 4, expected 8"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("name", "save"), [("model.safetensors", save_file), ("flax_model.msgpack", save_flax)]
)
def test_damage_is_an_input_error_or_harmless(tmp_path, name, save):
    """Every cut is refused; every changed byte is refused, or changes values, names or shapes only."""
    path = tmp_path / name
    save({"layer.0.kernel": np.ones((2, 3), "f4"), "layer.0.bias": np.zeros(3, ml_dtypes.bfloat16)}, path)
    whole = path.read_bytes()
    rng = random.Random(0)
    for cut in range(len(whole)):
        path.unlink()
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=name):
            read_tensors(tmp_path)
    read = 0
    for at in [*range(len(whole))] * 4:
        path.unlink()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :])
        with suppress(InputError):
            for array in read_tensors(tmp_path).arrays.values():
                array.sum(dtype=np.float64)
            read += 1
    assert 0 < read < 4 * len(whole)


def test_a_real_encoder_reads_as_safetensors_reads_it(tmp_path):
    if "JAXVEC_MODELS" not in os.environ:
        pytest.skip("JAXVEC_MODELS, the folder of the encoders, is not set")
    folders = sorted(path.parent for path in Path(os.environ["JAXVEC_MODELS"]).glob("*/model.safetensors"))
    assert folders
    for folder in folders:
        arrays = read_tensors(folder).arrays
        with safe_open(folder / "model.safetensors", "np") as file:
            assert arrays.keys() == set(file.keys())
            for name in file.keys():  # noqa: SIM118 (a file object, not a dict)
                np.testing.assert_array_equal(arrays[name], file.get_tensor(name))
