"""Files of torch.save, read without torch: the same arrays as torch's, and nothing in a file ever runs."""

import io
import os
import pickle
import random
import sys
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxvec.errors import InputError
from jaxvec.models.restricted_pickle import interpret
from jaxvec.models.torch_pickle import read_torch

torch = pytest.importorskip("torch")

LAYOUTS = {
    "zip": {},
    "zip, protocol 4": {"pickle_protocol": 4},
    "legacy": {"_use_new_zipfile_serialization": False},
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def numpy_of(tensor) -> np.ndarray:
    """The tensor as NumPy; torch itself does not convert bfloat16."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def assert_reads_back(path: Path, state: dict, layout: str, saved=None) -> dict[str, np.ndarray]:
    torch.save(state if saved is None else saved, path, **LAYOUTS[layout])
    arrays = read_torch(path)
    assert list(arrays) == list(state)
    for name, tensor in state.items():
        expected = numpy_of(tensor)
        assert arrays[name].dtype == expected.dtype, name
        assert arrays[name].flags.aligned, name
        np.testing.assert_array_equal(arrays[name], expected, err_msg=name)
    return arrays


@layouts
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_reads_back(tmp_path, layout, dtype):
    values = torch.tensor([[0.0, 1.0, -2.5], [3.0, 100.0, 0.125]]).to(getattr(torch, dtype))
    # Another storage before it, of an odd number of bytes, so that alignment is no luck.
    state = {"first": torch.tensor([1, 2, 3], dtype=torch.uint8), "weight": values, "last": values[1].clone()}
    assert_reads_back(tmp_path / "pytorch_model.bin", state, layout)


@layouts
def test_every_view_reads_back(tmp_path, layout):
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    state = {
        "base": base,
        "transposed": base.transpose(0, 2),
        "offset": base[1:, 2],
        "stepped": base[::2, ::3, 1::2],
        "expanded": base[0, 0, :1].expand(7, 1),
        "scalar": torch.tensor(4.5),
        "element": base[2, 3, 4],
        "empty": torch.zeros(0, 3),
        "empty view": base[3:],
    }
    assert_reads_back(tmp_path / "pytorch_model.bin", state, layout)


@layouts
def test_tied_weights_share_memory(tmp_path, layout):
    table = torch.randn(6, 4)
    arrays = assert_reads_back(tmp_path / "a.bin", {"in": table, "out": table, "row": table[2]}, layout)
    assert np.shares_memory(arrays["in"], arrays["out"])
    assert np.shares_memory(arrays["in"][2], arrays["row"])


def test_zip_storages_are_views_of_the_file(tmp_path):
    torch.save({"weight": torch.ones(1000)}, tmp_path / "a.bin")
    array = read_torch(tmp_path / "a.bin")["weight"]
    assert not array.flags.owndata
    assert not array.flags.writeable


@layouts
def test_modules_and_parameters_read_back(tmp_path, layout):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    state = module.state_dict()
    assert state._metadata  # the attribute that makes torch write a BUILD
    assert_reads_back(tmp_path / "state.bin", state, layout)
    parameters = dict(module.named_parameters())
    assert_reads_back(tmp_path / "parameters.bin", parameters, layout)
    for key in ("state_dict", "model"):
        saved = {"epoch": 3, key: state, "args": [None, 0.5, {"lr": (1, 2)}]}
        assert_reads_back(tmp_path / f"{key}.bin", state, layout, saved)


class Forged:
    """An object whose pickle calls `function(*arguments)`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class ForgedStorage(tuple):
    """A persistent id, for the pickler below."""


class ForgingPickler(pickle.Pickler):
    def persistent_id(self, obj):
        return tuple(obj) if isinstance(obj, ForgedStorage) else None


def pickled(obj, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    ForgingPickler(out, protocol).dump(obj)
    return out.getvalue()


def zip_file(path: Path, data_pkl: bytes, compression=zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", data_pkl)
        for name, data in entries.items():
            archive.writestr(f"model/{name.replace('_', '/')}", data)
    return path


def legacy_file(path: Path, data_pkl: bytes, **storages: bytes) -> Path:
    head = pickled(0x1950A86A20F9469CFC6C) + pickled(1001) + pickled({"little_endian": True})
    keys = [name.removeprefix("data_") for name in storages]
    body = b"".join((len(data) // 4).to_bytes(8, "little") + data for data in storages.values())
    path.write_bytes(head + data_pkl + pickled(keys) + body)
    return path


files = pytest.mark.parametrize("file", [zip_file, legacy_file])


def storage(numel: int, *view) -> ForgedStorage:
    return ForgedStorage(("storage", torch.FloatStorage, "0", "cpu", numel, *view))


def tensor(source, offset=0, shape=(2, 3), strides=(3, 1)) -> Forged:
    return Forged(torch._utils._rebuild_tensor_v2, source, offset, shape, strides, False, OrderedDict())


SIX = np.arange(6, dtype="<f4")


@files
def test_a_forged_file_reads_like_a_saved_one(tmp_path, file):
    path = file(tmp_path / "a.bin", pickled({"weight": tensor(storage(6, None))}), data_0=SIX.tobytes())
    np.testing.assert_array_equal(read_torch(path)["weight"], SIX.reshape(2, 3))


@files
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("place", ["top", "value", "nested", "argument", "parameter"])
def test_no_call_in_a_file_runs(tmp_path, file, place, protocol):
    target = tmp_path / "ran"
    bomb = Forged(os.mkdir, str(target))
    data = pickled(
        {
            "top": bomb,
            "value": {"weight": bomb},
            "nested": {"state_dict": OrderedDict(weight=[(bomb,)])},
            "argument": {"weight": tensor(bomb)},
            "parameter": {"weight": Forged(torch._utils._rebuild_parameter, bomb, False, OrderedDict())},
        }[place],
        protocol,
    )
    with suppress(Exception):  # the control: an unrestricted reader does run it
        pickle.loads(data)
    assert target.is_dir()
    target.rmdir()
    with pytest.raises(InputError, match=rf"a\.bin refers to {os.mkdir.__module__}\.mkdir; only tensors"):
        read_torch(file(tmp_path / "a.bin", data))
    assert not target.exists()


# Assembled by hand: what no pickler writes.
TRICKS = {
    "getattr": (b"cbuiltins\ngetattr\n.", "builtins.getattr"),
    "__builtin__": (b"c__builtin__\neval\n.", "__builtin__.eval"),
    "nested torch.load": (b"ctorch.storage\n_load_from_bytes\n(C\x01xtR.", "torch.storage._load_from_bytes"),
    "dotted name": (
        b"\x80\x04\x8c\x0ctorch._utils\x8c\x1e_rebuild_tensor_v2.__globals__\x93.",
        "torch._utils._rebuild_tensor_v2.__globals__",
    ),
    "computed name": (b"\x80\x04\x8c\x02os\x94h\x00\x8c\x06system\x93.", "os.system"),
    "name of a list": (b"\x80\x04]\x8c\x06system\x93.", "system"),
    "copyreg": (b"ccopyreg\n_reconstructor\n.", "copyreg._reconstructor"),
    "module": (b"ctorch.nn.modules.linear\nLinear\n.", "torch.nn.modules.linear.Linear"),
    "TorchScript": (b"c__torch__\nBert\n.", "__torch__.Bert"),
    "INST": (b"(S'id'\nios\nsystem\n.", "INST"),
    "OBJ": (b"(ccollections\nOrderedDict\no.", "OBJ"),
    "NEWOBJ": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
    "EXT1": (b"\x80\x02\x82\x01.", "EXT1"),
    "PERSID": (b"Pstorage\n.", "PERSID"),
    "BUILD of a global": (b"ctorch\nSize\n}S'__defaults__'\nNsb.", "BUILD of a Global"),
    "BUILD of a storage": (
        b"(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI6\ntQ}S'numel'\nI9\nsb.",
        "BUILD of a",
    ),
    "append to a global": (b"ccollections\nOrderedDict\nI1\na.", "APPEND to a Global"),
    "item of a global": (b"ccollections\nOrderedDict\nS'a'\nI1\ns.", "set on a Global"),
    "call of a string": (b"S'id'\n)R.", "damaged"),
    "call of a storage type": (b"ctorch\nFloatStorage\n(I1000000000000\ntR.", "damaged"),
    "pairs of globals": (b"ccollections\nOrderedDict\n((ccollections\nOrderedDict\nI1\ntt]R.", "damaged"),
    "unknown memo": (b"h\x07.", "damaged"),
    "huge memo": (b"Nr\xff\xff\xff\x7f0j\xff\xff\xff\x7f.", "holds a NoneType"),
    "huge string": (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "damaged"),
    "huge number": (b"\x8b\xff\xff\xff\x7fabc.", "damaged"),
    "empty stack": (b"0.", "damaged"),
    "no mark": (b"t.", "damaged"),
    "no STOP": (b"N", "damaged"),
    "tuple of tuples as a key": (b"\x80\x02})" + b"2\x86" * 100 + b"Ns.", "a dict key is a tuple"),
    "tuple of tuples as an id": (b"\x80\x02)" + b"2\x86" * 100 + b"Q.", "persistent id"),
    "tuple of tuples as a function": (b"\x80\x02)" + b"2\x86" * 100 + b")R.", "tuple does not take"),
    "deep tuple": (b"\x80\x02)" + b"\x85" * 20_000 + b".", "holds a tuple"),
}


@files
@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_refused(tmp_path, file, trick):
    data, message = TRICKS[trick]
    with pytest.raises(InputError) as caught:
        read_torch(file(tmp_path / "a.bin", data))
    assert message in str(caught.value)


def test_a_dict_that_holds_itself_is_refused(tmp_path):
    with pytest.raises(InputError, match="'state_dict' holds a dict"):
        read_torch(zip_file(tmp_path / "a.bin", b"}q\x00U\x0astate_dicth\x00s."))


def test_interpreting_imports_nothing(tmp_path):
    """An allowed name is a name only: torch's own module is not even looked up."""
    before = set(sys.modules)
    obj, storages = interpret(pickled({"weight": tensor(storage(6))}), Path("a.bin"))
    assert obj["weight"].storage == storages["0"]
    assert set(sys.modules) == before
    with pytest.raises(InputError, match=r"this\.s"):
        interpret(b"cthis\ns\n.", Path("a.bin"))
    assert "this" not in sys.modules


OUTSIDE = {
    "offset": tensor(storage(6), offset=1),
    "shape": tensor(storage(6), shape=(2, 4), strides=(3, 1)),
    "strides": tensor(storage(6), strides=(4, 1)),
    "huge strides": tensor(storage(6), strides=(2**62, 1)),
    "overflowing strides": tensor(storage(6), shape=(5, 3), strides=(2**62, 1)),
    "huge shape": tensor(storage(6), shape=(2**62, 2**62), strides=(0, 0)),
    "huge empty shape": tensor(storage(6), shape=(0, 2**70), strides=(1, 1)),
    "negative offset": tensor(storage(6), offset=-1),
    "negative size": tensor(storage(6), shape=(-2, 3)),
    "negative stride": tensor(storage(6), offset=5, strides=(-3, -1)),
    "rank": tensor(storage(6), strides=(1,)),
    "true": tensor(storage(6), shape=(True, 3)),
    "too many dimensions": tensor(storage(6), shape=(1,) * 100, strides=(1,) * 100),
    "storage longer than its bytes": tensor(storage(7), shape=(7,), strides=(1,)),
    "negative storage": tensor(storage(-1)),
    "view": tensor(storage(6, ("v", 3, 3)), shape=(4,), strides=(1,)),
    "view outside": tensor(storage(6, ("v", 4, 3)), shape=(3,), strides=(1,)),
}


@files
@pytest.mark.parametrize("what", OUTSIDE)
def test_no_tensor_reaches_outside_its_storage(tmp_path, file, what):
    path = file(
        tmp_path / "a.bin", pickled({"weight": OUTSIDE[what]}), data_0=SIX.tobytes(), data_1=bytes(400)
    )
    with pytest.raises(InputError, match=r"a\.bin"):
        read_torch(path)


def test_a_storage_view_of_the_old_layout(tmp_path):
    data = pickled({"weight": tensor(storage(6, ("view", 2, 4)), 1, (3,), (1,))})
    np.testing.assert_array_equal(
        read_torch(legacy_file(tmp_path / "a.bin", data, data_0=SIX.tobytes()))["weight"], SIX[3:]
    )


def test_big_endian_storages_are_swapped(tmp_path):
    data = pickled({"weight": tensor(storage(6))})
    path = zip_file(tmp_path / "a.bin", data, data_0=SIX.astype(">f4").tobytes(), byteorder=b"big")
    np.testing.assert_array_equal(read_torch(path)["weight"], SIX.reshape(2, 3))


def test_other_files_are_refused_in_words(tmp_path):
    path = tmp_path / "a.bin"
    state = pickled({"weight": tensor(storage(6))})
    contents = {
        "empty": b"",
        "Git-LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "no file of torch.save": b"PK is not enough",
        "torch's own first number": pickle.dumps({"weight": 1}),
        "tar layout of torch < 0.1.10": bytes(257) + b"ustar  \0" + bytes(800),
        "protocol 1001": pickled(0x1950A86A20F9469CFC6C) + pickled(1000),
    }
    for message, content in contents.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"a.bin.*{message}"):
            read_torch(path)
    with pytest.raises(InputError, match="compressed"):
        read_torch(zip_file(path, state, zipfile.ZIP_DEFLATED, data_0=SIX.tobytes()))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(InputError, match=r"without a data\.pkl"):
        read_torch(path)
    for saved, message in [
        ([1], "holds a list"),
        ({"epoch": 3}, "'epoch' holds a int"),
        ({3: 4}, "3 holds a int"),
    ]:
        torch.save(saved, path)
        with pytest.raises(InputError, match=message):
            read_torch(path)


@layouts
def test_damage_is_an_input_error_or_harmless(tmp_path, layout):
    """Every cut is refused; every changed byte is refused, or changes values, names or shapes only."""
    module = torch.nn.Linear(3, 2)
    torch.save(module.state_dict(), tmp_path / "whole.bin", **LAYOUTS[layout])
    whole = (tmp_path / "whole.bin").read_bytes()
    rng = random.Random(0)
    path = tmp_path / "a.bin"
    for cut in rng.sample(range(len(whole)), 80):
        path.unlink(missing_ok=True)
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            read_torch(path)
    read = 0
    for at in rng.choices(range(len(whole)), k=300):
        path.unlink(missing_ok=True)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :])
        with suppress(InputError):
            for array in read_torch(path).values():
                array.sum(dtype=np.float64)
            read += 1
    assert 0 < read < 300
