"""TensorFlow 1 checkpoints, read without TensorFlow: the variables that TensorFlow wrote."""

import base64
import random
import zlib
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxvec.errors import InputError
from jaxvec.models.tensors import read_tensors
from jaxvec.models.tf_checkpoint import _crc32c, _varints, read_tf_checkpoint

# The two files that tf.compat.v1.train.Saver of TensorFlow 2.21.0 wrote for the variables below, deflated.
INDEX = (
    "eNpjYGDjYJRi4mBkkBdOSi0q0U/NTUpNScnMSy/WL88vSolH8DkYhTiEmDhYgJhZw8C07LIwH5uWaF5yfkpqkX5OYmVqUbyBfmJJ"
    "SWpeSWZ+nn5xak6afmFpalGlfnZqUV5qDlQ/EwgrGGgImO7MD79hwC6qn5iSmBufiyLtAJRWNj+924xRtAxFIgAqISwraki0ZQlQ"
    "TSKyosS7sACo6ZzVpnkismLE29TACNRl/sv1CFCXEdG6JoB03dp28hJQlzHRuhaAdDWX604A6jIhWtcGkC5NC0U9oC5TonUdAOm6"
    "8OPLD6AuM6J1XQDp4l794zlQlznRuh6AdNmfZvMD6rIgWtcHkK6ibBlroC5L4uOLCahrWfcnCQYDMUjyR0nPJEQhyKDEfWVPhUmK"
    "QpAutj1HrwuTFIUgXd+Pf3kkTFIUgnSpuOvMEyYpCkG6JpxyviVMUhSCdB32nK0nTFIUgnTV7qx6JUxSFDIDdT2pmGfDyCJUlJiZ"
    "x8EnxAKJEmYNFtPAntg0BjahlPzSpJxUoA6QFKPCFGYNDtPGb517GViFUnMLSiqBJrIJMYBKNoU5zKY3XjUtYuDmS8/JT0rMiS8u"
    "SS3g4BRiAMoAde2+Pl+QgUUoIzEnjUMYatMSkE2T9Y19GVjEMvNKijmYwe5jBJu3glmDx7SzoD+IgY2vODkxJ7EIKMGgsAWkh/1G"
    "KS8DEHAwMzAwgRiSgckgioERRBz4tHADAyNzCUMfN1zs4McXdyZzcyzg5mcgCMJ/N3SrlLrfBgBlb4yN"
)
DATA = (
    "eNqV0LENwkAUA1BHFLSMcCPQhQJxPxswQkZIQ4t+mTIlRYqMwAh/FArm4GJFojhTYenJkksDWy6AUxAykMioJ6eJFnpm/MTzf1JX"
    "OwoTV9GLQbgYxSQeAlYz4WIRIV4CXe1QiWwx3zCe3+19/734hGhYn1LKbhuSrX3YSMI="
)


def variables() -> dict[str, np.ndarray]:
    query = "bert/encoder/layer_{}/attention/self/query/kernel"
    return {
        "bert/embeddings/word_embeddings": np.arange(12, dtype="f4").reshape(4, 3) / 8,
        **{query.format(i): np.full((2, 2), i, "f4") for i in range(20)},
        "half": np.array([0.5, -2], "f2"),
        "brain": np.array([1.5, -3], ml_dtypes.bfloat16),
        "double": np.array([1e300]),
        "ints": np.array([[1, -2, 3]], "i4"),
        "empty": np.zeros((0, 3), "f4"),
        "scalar": np.array(2.5, "f4"),
    }


def assert_same(arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]):
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        assert arrays[name].dtype == value.dtype, name
        assert arrays[name].flags.aligned, name
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)


def write(folder: Path, stem: str = "bert_model.ckpt") -> Path:
    (folder / f"{stem}.data-00000-of-00001").write_bytes(zlib.decompress(base64.b64decode(DATA)))
    (folder / f"{stem}.index").write_bytes(zlib.decompress(base64.b64decode(INDEX)))
    return folder / f"{stem}.index"


@pytest.mark.parametrize("stem", ["bert_model.ckpt", "chinese.ckpt", "model.ckpt-12500"])
def test_what_tensorflow_wrote_reads_back(tmp_path, stem):
    """Every dtype, without global_step and the adam_m and adam_v that are in the files too."""
    path = write(tmp_path, stem)
    tensors = read_tensors(tmp_path)
    assert (tensors.format, tensors.path) == ("tf", path)
    assert_same(tensors.arrays, variables())


def test_bert_model_goes_before_other_checkpoints_and_two_others_are_refused(tmp_path):
    write(tmp_path, "model.ckpt-1")
    write(tmp_path, "model.ckpt-2")
    with pytest.raises(InputError, match=r"model\.ckpt-1\.index, model\.ckpt-2\.index"):
        read_tensors(tmp_path)
    path = write(tmp_path)
    assert read_tensors(tmp_path).path == path


@pytest.mark.filterwarnings("ignore")
def test_what_an_installed_tensorflow_writes_reads_back(tmp_path):
    """An index of many blocks, and the kinds of entry that are refused."""
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed; the files above stand for it")

    def save(values: dict, slices: list[str] | None = None) -> Path:
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / "bert_model.ckpt"),
            tensor_names=list(values),
            shape_and_slices=slices or [""] * len(values),
            tensors=[tf.constant(value) for value in values.values()],
        )
        return tmp_path / "bert_model.ckpt.index"

    many = {f"{'scope/' * (i % 50)}variable_{i}": np.array([i, -i], "i8") for i in range(15_000)}
    path = save(many)
    assert path.stat().st_size > 2 * 262_144  # TensorFlow's block size
    arrays = read_tf_checkpoint(path)
    reader = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt"))
    assert arrays.keys() == set(reader.get_variable_to_shape_map())
    assert all(np.array_equal(arrays[name], value) for name, value in many.items())
    del arrays
    save(variables())
    assert_same(read_tf_checkpoint(path), variables())
    with pytest.raises(InputError, match=r"variable 'words' has TensorFlow dtype 7"):
        read_tf_checkpoint(save({"words": np.array(["a"])}))
    with pytest.raises(InputError, match=r"variable 'w' is saved in slices"):
        read_tf_checkpoint(save({"w": np.ones((2, 3), "f4")}, ["4 3 0,2:-"]))


def test_a_missing_or_short_data_file_is_named(tmp_path):
    path = write(tmp_path)
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    content = data.read_bytes()
    data.unlink()
    data.write_bytes(content[:-20])
    with pytest.raises(InputError, match=r"variable '.*does not fit in the file"):
        read_tf_checkpoint(path)
    data.write_bytes(b"")
    with pytest.raises(InputError, match="00001 is empty"):
        read_tf_checkpoint(path)
    data.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError, match="00001 is a Git-LFS pointer"):
        read_tf_checkpoint(path)
    data.unlink()
    with pytest.raises(InputError, match=r"lies in bert_model\.ckpt\.data-00000-of-00001, which is not"):
        read_tf_checkpoint(path)


def test_every_damage_to_the_index_is_an_input_error(tmp_path):
    """Cut anywhere, and every byte changed once: only the footer's padding and the unused metaindex matter not."""
    path = write(tmp_path)
    whole = path.read_bytes()
    rng = random.Random(0)
    for cut in range(0, len(whole), 16):
        path.unlink()
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            read_tf_checkpoint(path)
    harmless = 0
    for at in [*range(0, len(whole) - 100, 8), *range(len(whole) - 100, len(whole))]:
        path.unlink()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :])
        with suppress(InputError):
            assert_same(read_tf_checkpoint(path), variables())
            harmless += 1
    assert 0 < harmless < 60


def test_damage_under_right_checksums_is_an_input_error_or_harmless(tmp_path):
    """The checksums catch accidents; a forged index that has them right raises nothing else either."""
    path = write(tmp_path)
    whole = path.read_bytes()
    metaindex, _, index, size = _varints(whole[-48:], 4)[0]
    rng = random.Random(1)
    read = 0
    for first, last in [(0, metaindex - 5)] * 300 + [(index, index + size)] * 50:
        forged = bytearray(whole)
        for at in rng.choices(range(first, last), k=2):
            forged[at] ^= rng.randrange(1, 256)
        crc = _crc32c(bytes(forged[first : last + 1]))
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        forged[last + 1 : last + 5] = masked.to_bytes(4, "little")
        path.unlink()
        path.write_bytes(forged)
        with suppress(InputError):
            for array in read_tf_checkpoint(path).values():
                array.sum(dtype=np.float64)
            read += 1
    assert 0 < read < 350
