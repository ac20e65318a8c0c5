"""Weight files on disk, of whichever kind the folder holds, as NumPy arrays under the file's own names."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxvec.errors import InputError
from jaxvec.models.mapped_file import array_at, is_shape, map_file
from jaxvec.models.tf_checkpoint import read_tf_checkpoint
from jaxvec.models.torch_pickle import read_torch

# The dtype strings of a safetensors header, https://github.com/huggingface/safetensors#format
DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


@dataclass(frozen=True)
class Tensors:
    """The arrays of one set of weights, and whose names they bear.

    Attributes:
        format: "torch" (`.safetensors`, `.bin`), "flax" (`.msgpack`) or "tf" (`.ckpt`).
        path: the file read; for sharded weights the index, for TensorFlow the `.index` file.
        arrays: name → array, in the file's own dtype and layout, most of them read-only views of the file.
    """

    format: str
    path: Path
    arrays: dict[str, np.ndarray]


def read_tensors(folder: Path) -> Tensors:
    """Read the weights of a model folder.

    The first of these that is there is read: `model.safetensors`, `model.safetensors.index.json` (shards),
    `pytorch_model.bin`, `pytorch_model.bin.index.json` (shards), `flax_model.msgpack` (transformers 4; names
    joined by "."), `bert_model.ckpt.index` or the only other `*.ckpt*.index` (TensorFlow 1, without the
    optimizer's variables). torch and TensorFlow are not needed, and nothing in a file is run.

    Files are mapped rather than read wherever the format allows it: memory is used when an array is.

    Args:
        folder: the model folder.

    Returns:
        The arrays and the naming they follow.

    Raises:
        InputError: no weights in the folder; a file is damaged, cut short, a Git-LFS pointer, or holds
            something other than numeric arrays.

    Example:
        >>> import tempfile
        >>> from safetensors.numpy import save_file
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_file({"pooler.dense.bias": np.arange(3, dtype=np.float32)}, folder / "model.safetensors")
        >>> tensors = read_tensors(folder)
        >>> tensors.format, tensors.arrays["pooler.dense.bias"]
        ('torch', array([0., 1., 2.], dtype=float32))
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected the folder of a model, with its weights in it")
    kinds: list[tuple[str, str, Callable[[Path], dict[str, np.ndarray]]]] = [
        ("model.safetensors", "torch", read_safetensors),
        ("model.safetensors.index.json", "torch", lambda path: _read_shards(path, read_safetensors)),
        ("pytorch_model.bin", "torch", read_torch),
        ("pytorch_model.bin.index.json", "torch", lambda path: _read_shards(path, read_torch)),
        ("flax_model.msgpack", "flax", read_flax),
        ("bert_model.ckpt.index", "tf", read_tf_checkpoint),
    ]
    for name, format, read in kinds:
        if (folder / name).is_file():
            return Tensors(format, folder / name, read(folder / name))
    checkpoints = sorted(folder.glob("*.ckpt*.index"))
    if len(checkpoints) > 1:
        names = ", ".join(path.name for path in checkpoints)
        raise InputError(
            f"{folder} holds several TensorFlow checkpoints ({names}); leave the one to load in it"
        )
    if checkpoints:
        return Tensors("tf", checkpoints[0], read_tf_checkpoint(checkpoints[0]))
    held = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(held[:20]) + (f" and {len(held) - 20} more" if len(held) > 20 else "")
    raise InputError(
        f"{folder} holds no weights: looked for {', '.join(name for name, _, _ in kinds)} and *.ckpt*.index; "
        f"the folder holds {shown or 'nothing'}"
    )


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Map one safetensors file; the arrays are read-only views of it, bfloat16 through `ml_dtypes`.

    Args:
        path: the file.

    Returns:
        name → array.

    Raises:
        InputError: the header is damaged, a dtype is unknown, or the tensors do not fill the file exactly.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> _ = path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
        >>> read_safetensors(path)
        Traceback (most recent call last):
            ...
        jaxvec.errors.InputError: ...model.safetensors is a Git-LFS pointer, not the weights; run `git lfs pull`
    """
    mapped = map_file(path)
    start = 8 + int.from_bytes(mapped[:8], "little")
    if start > len(mapped):
        raise InputError(
            f"{path}: the header should end at byte {start} but the file has {len(mapped)}; "
            "it is cut short or no safetensors file: download it again"
        )
    header = _json_object(mapped[8:start], path)
    header.pop("__metadata__", None)
    arrays, spans = {}, []
    for name, entry in header.items():
        what = f"{path}: tensor {name!r}"
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise InputError(
                f"{what}: the header gives {entry!r}, expected its dtype, shape and data_offsets"
            )
        dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            raise InputError(f"{what} has dtype {entry['dtype']!r}; expected one of {', '.join(DTYPES)}")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not is_shape(shape) or not is_shape(offsets) or len(offsets) != 2:
            raise InputError(f"{what}: shape {shape!r} and data_offsets {offsets!r} are not counts")
        if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
            raise InputError(f"{what}: {dtype} {shape} does not fill its bytes {offsets[0]} to {offsets[1]}")
        spans.append((offsets[0], offsets[1], name))
        arrays[name] = array_at(mapped, start + offsets[0], shape, dtype, what)
    end = 0
    for first, last, name in sorted(spans):
        if first != end:
            raise InputError(
                f"{path}: tensor {name!r} starts at byte {first}, expected {end}: overlap or gap"
            )
        end = last
    if start + end != len(mapped):
        raise InputError(f"{path}: the tensors end at byte {start + end}, the file at {len(mapped)}")
    return arrays


def read_flax(path: Path) -> dict[str, np.ndarray]:
    """Read the `flax_model.msgpack` that transformers 4 wrote; nested names are joined by ".".

    Args:
        path: the file.

    Returns:
        name → array, named and laid out as Flax does ("kernel" [in, out], "scale", "embedding").

    Raises:
        InputError: the file is damaged, or a leaf is not a numeric array.

    Example:
        >>> import tempfile
        >>> from flax.serialization import msgpack_serialize
        >>> path = Path(tempfile.mkdtemp()) / "flax_model.msgpack"
        >>> _ = path.write_bytes(msgpack_serialize({"pooler": {"dense": {"kernel": np.ones((2, 2), "float32")}}}))
        >>> list(read_flax(path))
        ['pooler.dense.kernel']
    """
    from flax.serialization import msgpack_restore

    try:
        tree = msgpack_restore(map_file(path))
    except InputError:
        raise
    except Exception as error:  # flax states no errors; a damaged file can surface as any
        raise InputError(f"{path} is damaged or no Flax msgpack file ({error}); download it again") from error
    arrays = {}
    pending = [((), tree)]
    while pending:
        names, node = pending.pop()
        key = ".".join(names)
        if isinstance(node, dict):
            if not all(isinstance(name, str) for name in node):
                raise InputError(f"{path}: a key under {key!r} is not a string")
            pending.extend(((*names, name), child) for name, child in reversed(node.items()))
        elif not isinstance(node, np.ndarray | np.generic) or node.dtype not in DTYPES.values():
            raise InputError(f"{path}: {key!r} holds {type(node).__name__}, expected a numeric array")
        elif key in arrays:
            raise InputError(f"{path}: two arrays are named {key!r}")
        else:
            arrays[key] = np.asarray(node)
    return arrays


def _read_shards(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The tensors of every shard that the index names, in the index's order."""
    weight_map = _json_object(map_file(index)[:], index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InputError(f"{index}: expected a weight_map from tensor names to shard files")
    held = {path.name for path in index.parent.iterdir()}
    shards = {}
    for shard in dict.fromkeys(weight_map.values()):
        # Compared with the listing, so that no name leads out of the folder.
        if shard not in held:
            raise InputError(f"{index} names the shard {shard!r}, which is not in the folder; download it")
        shards[shard] = read(index.parent / shard)
        unlisted = [key for key in shards[shard] if weight_map.get(key) != shard]
        if unlisted:
            raise InputError(f"{index} does not place {unlisted[0]!r} in {shard}, but the shard holds it")
    for key, shard in weight_map.items():
        if key not in shards[shard]:
            raise InputError(f"{index} places {key!r} in {shard}, but the shard lacks it")
    return {key: shards[shard][key] for key, shard in weight_map.items()}


def _json_object(text: bytes, path: Path) -> dict:
    """Parse a JSON object; a key given twice is an error, not the last one's win."""

    def unique(pairs: list) -> dict:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key is given twice")
        return dict(pairs)

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: the JSON is damaged ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: the JSON holds a {type(value).__name__}, expected an object")
    return value
