"""The pickles inside a file of `torch.save`, interpreted as data: nothing that they name is looked up or called."""

import mmap
import pickletools
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxvec.errors import InputError
from jaxvec.models.mapped_file import is_shape

_STORAGES = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch DoubleStorage": np.dtype("<f8"),
    "torch HalfStorage": np.dtype("<f2"),
    "torch BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch LongStorage": np.dtype("<i8"),
    "torch IntStorage": np.dtype("<i4"),
    "torch ShortStorage": np.dtype("<i2"),
    "torch CharStorage": np.dtype("i1"),
    "torch ByteStorage": np.dtype("u1"),
    "torch BoolStorage": np.dtype("?"),
}
_ORDERED_DICT, _SIZE = "collections OrderedDict", "torch Size"
# _rebuild_tensor, without _v2, is that of torch < 0.4.
_TENSOR = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
_PARAMETER = "torch._utils _rebuild_parameter"
_ALLOWED = (*_STORAGES, _ORDERED_DICT, _SIZE, *_TENSOR, _PARAMETER)

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
}


@dataclass(frozen=True)
class Storage:
    """A flat run of `numel` elements, `start` elements into the file's storage `key`."""

    key: str
    dtype: np.dtype
    numel: int
    start: int = 0


@dataclass(frozen=True)
class Tensor:
    """A strided view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple
    strides: tuple


@dataclass(frozen=True)
class Global:
    """The name, "module attribute", of an allowed global; never the object of that name."""

    name: str


def interpret(stream: bytes | mmap.mmap, path: Path) -> tuple[object, dict[str, Storage]]:
    """Interpret one pickle.

    `pickle.Unpickler` with a restricted `find_class` would still run `__setstate__`, `append` and
    `__setitem__` of what it builds, allocate a memo of any size that the file asks for, and consult
    `copyreg`. Here the opcodes build only `None`, numbers, strings, tuples, lists, dicts, and `Tensor`s.

    Args:
        stream: the pickle, or the mapped file with its position at the pickle; the position moves past it.
        path: the file, for messages.

    Returns:
        The object, and the storages that it refers to by their keys.

    Raises:
        InputError: a global or opcode that a dict of tensors has no use for.
        ValueError, LookupError, TypeError: the pickle is damaged.

    Example:
        >>> import pickle
        >>> interpret(pickle.dumps({"bias": [1.5, None]}), Path("pytorch_model.bin"))
        ({'bias': [1.5, None]}, {})
    """
    stack: list = []
    below: list[list] = []  # the stacks under each open MARK
    memo: dict[int, object] = {}
    storages: dict[str, Storage] = {}

    def since_mark() -> list:
        nonlocal stack
        items, stack = stack, below.pop()
        return items

    for opcode, argument, _ in pickletools.genops(stream):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            pass
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "TUPLE":
            items = since_mark()
            stack.append(tuple(items))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            items = [stack.pop() for _ in range(int(name[-1]))]
            stack.append(tuple(reversed(items)))
        elif name == "LIST":
            items = since_mark()
            stack.append(items)
        elif name == "DICT":
            items = since_mark()
            stack.append(_set_items({}, items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            if type(stack[-1]) is not list:
                raise TypeError(f"{name} to a {type(stack[-1]).__name__}")
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else since_mark()
            _set_items(stack[-1], items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                # Formatting nested tuples that share their parts can take for ever.
                argument = " ".join(
                    part if isinstance(part, str) else type(part).__name__ for part in (module, attribute)
                )
            if argument not in _ALLOWED:
                raise InputError(
                    f"{path} refers to {argument.replace(' ', '.')[:100]}; only tensors and dicts are read, and nothing "
                    "of the file was run: save the model's state_dict(), or safetensors"
                )
            stack.append(Global(argument))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_rebuild(function, arguments))
        elif name == "BUILD":
            # The state of a state dict is its _metadata (module versions), which no array depends on.
            stack.pop()
            if type(stack[-1]) is not dict:
                raise TypeError(f"BUILD of a {type(stack[-1]).__name__}")
        elif name == "BINPERSID":
            storage = _storage(stack.pop(), storages)
            stack.append(storage)
        elif name != "STOP":
            raise InputError(f"{path} uses the pickle opcode {name}, which a dict of tensors has no use for")
    return stack.pop(), storages


def _set_items(target: object, items: list) -> dict:
    """Put alternating keys and values into a dict; tuples are no keys, as their hash can take for ever."""
    if type(target) is not dict or len(items) % 2:
        raise TypeError(f"{len(items)} keys and values set on a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes | int | float | None):
            raise TypeError(f"a dict key is a {type(key).__name__}")
        target[key] = value
    return target


def _rebuild(function: object, arguments: object) -> object:
    """What the allowed function would return, for arguments of the form that torch saves."""
    match function, arguments:
        case Global(name), (Storage() as storage, offset, shape, strides, *_) if name in _TENSOR:
            if is_shape([offset]) and is_shape(shape) and is_shape(strides) and len(shape) == len(strides):
                return Tensor(storage, offset, tuple(shape), tuple(strides))
        case Global(name), (Tensor() as tensor, *_) if name == _PARAMETER:
            return tensor
        case Global(name), (tuple() as sizes,) if name == _SIZE:
            return sizes
        case Global(name), () if name == _ORDERED_DICT:
            return {}
        case Global(name), (list() as pairs,) if name == _ORDERED_DICT:
            return _set_items({}, [item for key, value in pairs for item in (key, value)])
    # Not the arguments: nested tuples that share their parts can have an endless repr.
    raise TypeError(f"arguments that {getattr(function, 'name', type(function).__name__)} does not take")


def _storage(identity: object, storages: dict[str, Storage]) -> Storage:
    """The storage of a persistent id, kept under its key; a view (torch < 0.4) is a part of it."""
    match identity:
        case ("storage", Global(name), str(key), _, int(numel), *view) if name in _STORAGES and numel >= 0:
            whole = Storage(key, _STORAGES[name], numel)
            storages.setdefault(key, whole)
            match view:
                case [] | [None]:
                    return whole
                case [(_, int(start), int(size))] if start >= 0 and 0 <= size <= numel - start:
                    return Storage(key, whole.dtype, size, start)
    raise TypeError("a persistent id that is no storage of torch")
