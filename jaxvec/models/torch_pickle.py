"""Files of `torch.save` read as NumPy arrays without torch, and without running anything they hold."""

import mmap
import struct
import zipfile
from pathlib import Path

import numpy as np

from jaxvec.errors import InputError
from jaxvec.models.mapped_file import map_file
from jaxvec.models.restricted_pickle import Tensor, interpret

# First object of a file of torch < 1.6, and the protocol that follows it.
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read the state dict in a file of `torch.save`, of the zip layout (torch ≥ 1.6) or the one before it.

    The pickle in the file is interpreted here, not by `pickle`: strings, numbers and containers, and of
    globals only the storages and rebuild functions of tensors and `OrderedDict`. No other name resolves,
    no object of the file is called, and every tensor must lie within its storage.

    Args:
        path: the file. It holds a state dict, or a dict that has one under "state_dict" or "model".

    Returns:
        name → array. Read-only views of the file where its alignment allows; tied weights share memory.

    Raises:
        InputError: the file is damaged, cut short, older than torch 0.1.10, names a global that is not
            allowed (which is named), or holds no state dict.

    Example:
        >>> import pickle, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "pytorch_model.bin"
        >>> with zipfile.ZipFile(path, "w") as archive:
        ...     archive.writestr("model/data.pkl", pickle.dumps({"weight": eval}, protocol=2))
        >>> read_torch(path)
        Traceback (most recent call last):
            ...
        jaxvec.errors.InputError: ...pytorch_model.bin refers to __builtin__.eval; only tensors and dicts are ...
    """
    mapped = map_file(path)
    if mapped[257:262] == b"ustar":
        raise InputError(f"{path} has the tar layout of torch < 0.1.10; save it again with a newer torch")
    try:
        read = _read_zip if mapped[:4] == b"PK\x03\x04" else _read_legacy
        top, spans, big_endian = read(path, mapped)
    except InputError:
        raise
    except (
        # What a damaged pickle, zip directory or storage raises, here and in pickletools and zipfile.
        *(ValueError, LookupError, TypeError, OverflowError, OSError, EOFError),
        *(struct.error, zipfile.BadZipFile, NotImplementedError),
    ) as error:
        raise InputError(
            f"{path} is damaged, or no file of torch.save ({error!r}); download it again"
        ) from error

    state = top
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise InputError(f"{path} holds a {type(state).__name__}; expected a state dict, name → tensor")
    storages: dict[tuple[str, np.dtype], np.ndarray] = {}
    arrays = {}
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(
                f"{path}: {name!r} holds a {type(value).__name__}; expected a state dict, name → tensor, "
                'or one under "state_dict" or "model"'
            )
        arrays[name] = _array(f"{path}: tensor {name!r}", value, mapped, spans, big_endian, storages)
    return arrays


def _read_zip(path: Path, mapped: mmap.mmap) -> tuple[object, dict[str, tuple[int, int]], bool]:
    """The pickled object, the byte span of every storage, and the byte order, of a zip file."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    root = next((name[: -len("data.pkl")] for name in entries if name.endswith("/data.pkl")), None)
    if root is None:
        raise InputError(f"{path} is a zip archive without a data.pkl; expected a file of torch.save")

    def span(name: str) -> tuple[int, int]:
        entry = entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise InputError(
                f"{path}: {name} is compressed or encrypted; torch.save does neither: save it again"
            )
        at = entry.header_offset
        # The local header's name and extra field (torch's padding) differ in length from the directory's.
        magic, name_length, extra_length = struct.unpack("<4s22xHH", mapped[at : at + 30])
        first = at + 30 + name_length + extra_length
        if magic != b"PK\x03\x04" or first + entry.file_size > len(mapped):
            raise InputError(f"{path}: {name} does not lie within the file; download it again")
        return first, first + entry.file_size

    def read(name: str) -> memoryview:
        first, last = span(root + name)
        return memoryview(mapped)[first:last]

    top, _ = interpret(bytes(read("data.pkl")), path)
    prefix = root + "data/"
    spans = {name.removeprefix(prefix): span(name) for name in entries if name.startswith(prefix)}
    return top, spans, root + "byteorder" in entries and bytes(read("byteorder")) == b"big"


def _read_legacy(path: Path, mapped: mmap.mmap) -> tuple[object, dict[str, tuple[int, int]], bool]:
    """The same of a file of torch < 1.6: five pickles, then the storages, always little-endian."""
    if mapped[:1] != b"\x80" or interpret(mapped, path)[0] != _LEGACY_MAGIC:
        raise InputError(
            f"{path} is no file of torch.save; expected a zip archive or torch's own first number"
        )
    if interpret(mapped, path)[0] != _LEGACY_PROTOCOL:
        raise InputError(
            f"{path}: expected protocol {_LEGACY_PROTOCOL} of torch.save; save it with a newer torch"
        )
    interpret(mapped, path)
    top, storages = interpret(mapped, path)
    keys, _ = interpret(mapped, path)
    spans = {}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InputError(f"{path}: the list of storages is damaged; download the file again")
    for key in keys:
        dtype, numel = storages[key].dtype, storages[key].numel
        at = mapped.tell() + 8
        count = struct.unpack("<q", mapped.read(8))[0]
        last = at + count * dtype.itemsize
        if count != numel or last > len(mapped):
            raise InputError(
                f"{path}: storage {key} should hold {numel} {dtype}; the file is cut short or damaged"
            )
        spans[key] = (at, last)
        mapped.seek(last)
    return top, spans, False


def _array(
    what: str,
    tensor: Tensor,
    mapped: mmap.mmap,
    spans: dict[str, tuple[int, int]],
    big_endian: bool,
    storages: dict[tuple[str, np.dtype], np.ndarray],
) -> np.ndarray:
    """The tensor as a NumPy view of its storage, which tensors that share it get from `storages`."""
    storage, dtype = tensor.storage, tensor.storage.dtype
    first, last = spans.get(storage.key, (0, 0))
    room = min(storage.start + storage.numel, (last - first) // dtype.itemsize)
    offset = storage.start + tensor.offset
    try:
        if 0 in tensor.shape:
            return np.zeros(tensor.shape, dtype)
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
        if offset + reach >= room:
            raise InputError(
                f"{what}: shape {tensor.shape} with strides {tensor.strides} from element {offset} on reaches "
                f"outside its storage of {room} elements; the file is cut short or damaged"
            )
        key = (storage.key, dtype)
        if key not in storages:
            flat = np.frombuffer(mapped, np.uint8, (last - first) // dtype.itemsize * dtype.itemsize, first)
            if big_endian:
                flat = flat.view(f"u{dtype.itemsize}").byteswap().view(np.uint8)
            elif first % dtype.itemsize:
                flat = flat.copy()  # the old layout aligns nothing, and XLA reads aligned arrays only
            storages[key] = flat
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        return np.ndarray(tensor.shape, dtype, storages[key], offset * dtype.itemsize, strides)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}: NumPy cannot hold shape {tensor.shape} ({error})") from error
