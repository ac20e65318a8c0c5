"""A SentenceEncoder → a folder that sentence-transformers loads and that gives the same vectors there."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxvec.calibration.affine_map import Affine
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.interchange.sentence_transformers import read_modules
from jaxvec.loading import model_fingerprint
from jaxvec.models.checkpoint import Params, load_checkpoint, source_name
from jaxvec.models.config import EncoderConfig
from jaxvec.vectorfiles import atomic_folder

_POOLING_KEYS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
_ARCHITECTURES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "electra": "ElectraModel",
    "mpnet": "MPNetModel",
    "distilbert": "DistilBertModel",
    "albert": "AlbertModel",
}
_CARD = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- feature-extraction
- sentence-similarity
- jaxvec
---

# Sentence vectors of width {dim}

Written by jaxvec. The weights are those of the model named below, in float32{kept}.

```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("this folder").encode(["A sentence."])
```

or, with the same vectors, in JAX:

```python
import jaxvec

vectors = jaxvec.SentenceEncoder.load("this folder").encode(["A sentence."])
```

## Where it comes from
{computed}
```json
{provenance}
```
"""
_BFLOAT16 = """
The encoder was used, and its calibration fitted, with products in bfloat16. Both programs above compute in float32, so
that they agree with each other, and differ from those vectors by bfloat16's rounding: by about 0.004 of their length.
`jaxvec.SentenceEncoder.load("this folder", dtype="bfloat16")` rounds as before.
"""


def export_sentence_transformers(
    encoder: SentenceEncoder, folder: str | os.PathLike[str], normalize: bool | None = None
) -> None:
    """Writes a sentence-transformers folder: Transformer, Pooling, Dense (the calibration) and Normalize.

    sentence-transformers' Transformer gives its last layer, so an encoder that uses a lower one is cut after
    it; an average of several, or the embedding layer, becomes a WeightedLayerPooling module. The Dense module
    has no activation and computes x K + (bias − mean K), the second term rounded once from float64. Weights are
    float32, and so is what sentence-transformers computes: the vectors of a bfloat16 encoder differ by its rounding
    (about 4e-3), as the folder's README says.

    Args:
        encoder: with or without an affine calibration; pooling "cls", "mean" or "max".
        folder: must not exist, or be empty; it appears whole or not at all.
        normalize: as for `encoder.encode`: whether a Normalize module comes last.

    Raises:
        InputError: a pooling or calibration that these modules cannot express, layers inside an ALBERT group,
            model files that have changed since they were loaded, or a folder that cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "exported"
        >>> encoder = SentenceEncoder.load()
        >>> export_sentence_transformers(encoder, folder)
        >>> again = SentenceEncoder.load(folder)
        >>> bool(np.allclose(again.encode(["It rains."]), encoder.encode(["It rains."]), atol=1e-6))
        True
    """
    _refuse_inexpressible(encoder)
    source = read_modules(encoder.folder).encoder
    config, params = load_checkpoint(source)
    if model_fingerprint(params, encoder.tokenizer) != encoder.fingerprint:
        raise InputError(f"{source}: its weights have changed since the encoder was loaded; load it again")
    depth = _depth(config, encoder.layers)
    normalizes = encoder.normalizes if normalize is None else normalize
    listing = [_entry(0, "Transformer", "")]
    with atomic_folder(os.fspath(folder)) as new:
        _write_settings(new, source, encoder, depth)
        _write_tensors(new, _named_tensors(config, params, depth))
        for number, (kind, settings, tensors) in enumerate(_modules(encoder, depth, normalizes), start=1):
            place = new / f"{number}_{kind}"
            place.mkdir()
            _write_json(place / "config.json", settings)
            if tensors:
                _write_tensors(place, tensors)
            listing.append(_entry(number, kind, place.name))
        _write_json(new / "modules.json", listing)
        (new / "README.md").write_text(_card(encoder, depth), "utf-8")


def _refuse_inexpressible(encoder: SentenceEncoder) -> None:
    if encoder.pooling not in _POOLING_KEYS:
        raise InputError(
            f"pooling {encoder.pooling!r} cannot be exported: the modules of sentence-transformers express "
            f"{', '.join(_POOLING_KEYS)}. export_stablehlo takes every pooling"
        )
    if not isinstance(encoder.calibration, Affine | None):
        raise InputError(
            f"a calibration of type {type(encoder.calibration).__name__} cannot be exported: a Dense module "
            "expresses an affine map. export_stablehlo takes every calibration"
        )


def _depth(config: EncoderConfig, layers: tuple[int, ...]) -> int:
    """How many of the encoder's layers the folder holds."""
    if config.model_type == "albert" and config.num_blocks > 1:
        # Which layers share a block depends on how many there are, so none can be left off.
        if config.blocks_per_group > 1 and layers != (config.num_layers,):
            raise InputError(
                f"layers {layers} of an ALBERT with {config.blocks_per_group} blocks a group cannot be exported: "
                f"transformers gives the last block of a group only. layers={config.num_layers} can be"
            )
        return config.num_layers
    return max(1, *layers)


def _write_settings(new: Path, source: Path, encoder: SentenceEncoder, depth: int) -> None:
    """config.json, sentence_bert_config.json and the tokenizer's files."""
    kind = encoder.config.model_type
    path = next(file for name in ("config.json", "bert_config.json") if (file := source / name).is_file())
    raw = json.loads(path.read_text("utf-8")) | {"model_type": kind, "architectures": [_ARCHITECTURES[kind]]}
    if depth < encoder.config.num_layers:
        raw["n_layers" if kind == "distilbert" else "num_hidden_layers"] = depth
    if encoder.layers != (depth,):
        raw["output_hidden_states"] = True
    for key in ("dtype", "torch_dtype"):  # those of the source's file; this one is float32
        raw.pop(key, None)
    _write_json(new / "config.json", raw)
    limits = {"max_seq_length": encoder.max_length, "do_lower_case": encoder.tokenizer.lower_case}
    _write_json(new / "sentence_bert_config.json", limits)
    for pattern in _TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copyfile(file, new / file.name)


def _named_tensors(config: EncoderConfig, params: Params, depth: int) -> dict[str, np.ndarray]:
    tensors = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        keys = tuple(entry.key for entry in path)
        if keys[0] != "blocks" or keys[1] in config.schedule[:depth]:
            tensors[source_name(config, keys)] = leaf.T if keys[-1] == "kernel" else leaf
    return tensors


def _modules(
    encoder: SentenceEncoder, depth: int, normalizes: bool
) -> list[tuple[str, dict[str, Any], dict[str, np.ndarray]]]:
    """(kind, settings, tensors) of every module after the Transformer."""
    modules, layers, affine = [], encoder.layers, encoder.calibration
    width = {"word_embedding_dimension": encoder.config.hidden_size}
    if layers != (depth,):
        first, counts = min(layers), Counter(layers)
        weights = np.array([counts[layer] for layer in range(first, depth + 1)])
        span = {"num_hidden_layers": depth, "layer_start": first}
        modules.append(("WeightedLayerPooling", width | span, {"layer_weights": weights}))
    modes = {f"pooling_mode_{key}": mode == encoder.pooling for mode, key in _POOLING_KEYS.items()}
    modules.append(("Pooling", width | modes, {}))
    if affine is not None:
        arrays = {name: array.astype(np.float64) for name, array in affine.to_arrays().items()}
        bias = arrays.get("bias", 0.0) - arrays["mean"] @ arrays["kernel"]
        linear = {"in_features": affine.input_dim, "out_features": affine.dim, "bias": True}
        settings = linear | {"activation_function": "torch.nn.modules.linear.Identity"}
        modules.append(("Dense", settings, {"linear.weight": arrays["kernel"].T, "linear.bias": bias}))
    if normalizes:
        modules.append(("Normalize", {}, {}))
    return modules


def _entry(number: int, kind: str, path: str) -> dict[str, Any]:
    # Newer releases keep these modules elsewhere, and all of them still read this spelling.
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}
    # transformers asks for the format; save_file would leave the file readable to its owner alone.
    (folder / "model.safetensors").write_bytes(save(arrays, metadata={"format": "pt"}))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _card(encoder: SentenceEncoder, depth: int) -> str:
    layers = encoder.config.num_layers
    origin = encoder.describe() | {"calibration": encoder.provenance}
    return _CARD.format(
        dim=encoder.dim,
        kept=f", of the first {depth} of its {layers} layers" if depth < layers else "",
        computed=_BFLOAT16 if encoder.dtype == "bfloat16" else "",
        provenance=json.dumps(origin, indent=1, ensure_ascii=False),
    )
