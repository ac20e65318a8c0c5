"""sentence-transformers folders: what modules.json says of pooling, length, lower-casing and what follows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.calibration.affine_map import Affine
from jaxvec.errors import InputError
from jaxvec.models.tensors import read_tensors

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
# One name a family in the folders of the first years; read in this order.
_TRANSFORMER_CONFIGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "WeightedLayerPooling")


@dataclass(frozen=True, kw_only=True)
class FolderModules:
    """What a sentence-transformers folder says beyond the encoder's own files.

    Attributes:
        encoder: the folder with the encoder's files (the Transformer module).
        pooling: "cls", "mean" or "max".
        layers: hidden states that a WeightedLayerPooling module averages, one as often as it counts; None where
            there is no such module: the last.
        max_length: tokens, special ones included; None where the folder does not say.
        lower_case: whether text is lower-cased before it is tokenised.
        normalize: whether a Normalize module comes last.
        dense: folders of Dense modules between pooling and the end, in order.
    """

    encoder: Path
    pooling: str | None = None
    layers: tuple[int, ...] | None = None
    max_length: int | None = None
    lower_case: bool = False
    normalize: bool = False
    dense: tuple[Path, ...] = ()


def read_modules(folder: Path) -> FolderModules:
    """Follows a folder's modules.json; a plain Hugging Face folder gives the defaults.

    Raises:
        InputError: a module that jaxvec does not know (named), modules in an order it cannot follow, or a
            prompt that every text would have to begin with.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return FolderModules(encoder=folder)
    modules = _read_json(path, list)
    if not all(
        isinstance(m, dict) and isinstance(m.get("type"), str) and isinstance(m.get("path", ""), str)
        for m in modules
    ):
        raise InputError(f"{path}: expected a list of modules, each with a type and a path")
    kinds = [m["type"].rsplit(".", 1)[-1] for m in modules]
    for kind, module in zip(kinds, modules, strict=True):
        if kind not in _KINDS:
            raise InputError(
                f"{path}: module {module['type']!r} is not supported; jaxvec reads {', '.join(_KINDS)}"
            )
    averages = kinds[1:2] == ["WeightedLayerPooling"]
    pooled = 2 if averages else 1
    ending = kinds[pooled + 1 : -1] if kinds[-1:] == ["Normalize"] else kinds[pooled + 1 :]
    if kinds[:1] != ["Transformer"] or kinds[pooled : pooled + 1] != ["Pooling"] or set(ending) - {"Dense"}:
        raise InputError(
            f"{path}: modules are {' → '.join(kinds)}; expected Transformer → Pooling [→ Dense …] "
            "[→ Normalize], with no more than a WeightedLayerPooling between the first two"
        )
    _refuse_prompt(folder / "config_sentence_transformers.json")
    places = [folder / m.get("path", "") for m in modules]
    max_length, lower_case = _read_transformer(places[0])
    return FolderModules(
        encoder=places[0],
        pooling=_read_pooling(places[pooled] / "config.json"),
        layers=_read_layers(places[1]) if averages else None,
        max_length=max_length,
        lower_case=lower_case,
        normalize=kinds[-1] == "Normalize",
        dense=tuple(place for place, kind in zip(places, kinds, strict=True) if kind == "Dense"),
    )


def read_dense(folders: Sequence[Path], dim: int) -> Affine | None:
    """The Dense modules of a folder as one Affine; None where there are none.

    Args:
        folders: of the modules, in order.
        dim: width of the pooled vectors.

    Raises:
        InputError: an activation other than Identity, or weights that do not fit.
    """
    whole = None
    for folder in folders:
        settings = _read_json(folder / "config.json")
        activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(
            ".", 1
        )[-1]
        if activation != "Identity":
            raise InputError(
                f"{folder}: a Dense module with activation {activation} is not supported; only Identity is"
            )
        if settings.get("use_residual"):
            raise InputError(f"{folder}: a Dense module with a residual connection is not supported")
        arrays = read_tensors(folder).arrays
        weight, bias = arrays.get("linear.weight"), arrays.get("linear.bias")
        if weight is None or weight.ndim != 2 or weight.shape[1] != dim:
            raise InputError(
                f"{folder}: linear.weight is {getattr(weight, 'shape', None)}; expected [out, {dim}]"
            )
        kernel = weight.astype(np.float32).T
        step = Affine.from_arrays(
            np.zeros(dim, np.float32), kernel, None if bias is None else bias.astype(np.float32)
        )
        whole, dim = step if whole is None else whole.then(step), step.dim
    return whole


def _refuse_prompt(path: Path) -> None:
    settings = _read_json(path) if path.is_file() else {}
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if prompt:
        raise InputError(
            f"{path}: every text should begin with the prompt {prompt!r}, which jaxvec does not add; set "
            "default_prompt_name to null there and write the prompt before the texts yourself"
        )


def _read_transformer(folder: Path) -> tuple[int | None, bool]:
    path = next((folder / name for name in _TRANSFORMER_CONFIGS if (folder / name).is_file()), None)
    settings = _read_json(path) if path else {}
    key, length = "max_seq_length", settings.get("max_seq_length")
    if length is None and (folder / "tokenizer_config.json").is_file():
        # Since version 6 sentence-transformers keeps the limit with the tokenizer.
        path, key = folder / "tokenizer_config.json", "model_max_length"
        length = _read_json(path).get(key)
        if isinstance(length, float) or (isinstance(length, int) and length >= 1 << 30):
            length = None  # how transformers says that there is no limit
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        raise InputError(f"{path}: {key} is {length!r}; expected a positive integer")
    return length, bool(settings.get("do_lower_case", False))


def _read_layers(folder: Path) -> tuple[int, ...]:
    start = _read_json(folder / "config.json").get("layer_start", 4)  # sentence-transformers' default
    weights = read_tensors(folder).arrays.get("layer_weights")
    if weights is None or weights.ndim != 1 or type(start) is not int or start < 0:
        raise InputError(f"{folder}: expected a tensor layer_weights [layers] and an integer layer_start")
    positive = weights[weights > 0].astype(np.float64)
    if not len(positive) or not np.isfinite(weights).all() or positive.max() > 1000 * positive.min():
        counts = np.zeros(0, int)
    else:
        counts = np.round(weights / positive.min()).astype(int)
    if not len(counts) or (weights < 0).any() or not np.allclose(counts * positive.min(), weights, rtol=1e-6):
        raise InputError(
            f"{folder}: layer_weights are {weights.tolist()}; only averages, with weights that are equal or "
            "whole multiples of the smallest, are supported"
        )
    return tuple(start + layer for layer, count in enumerate(counts.tolist()) for _ in range(count))


def _read_pooling(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path}: missing, though modules.json names a Pooling module there")
    settings = _read_json(path)
    mode = settings.get("pooling_mode")
    if mode is None:
        chosen = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on]
    else:
        chosen = mode if isinstance(mode, list) else [mode]
    names = [_MODES.get(key, key) for key in map(str, chosen)]
    if len(names) != 1 or names[0] not in _MODES.values():
        raise InputError(
            f"{path}: pooling {' + '.join(names) or 'none'} is not supported; one of cls, mean, max is"
        )
    return names[0]


def _read_json(path: Path, kind: type = dict) -> Any:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, kind):
        expected = "a JSON object" if kind is dict else "a list of modules"
        raise InputError(f"{path}: expected {expected}, found {type(value).__name__}")
    return value
