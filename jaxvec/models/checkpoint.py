"""Weights on disk → params: every needed leaf is filled, every other key is named."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxvec.errors import InputError
from jaxvec.models.bert import Encoder
from jaxvec.models.config import EncoderConfig, read_config
from jaxvec.models.tensors import read_tensors

Params = dict[Any, Any]

# Our module → its name in a PyTorch checkpoint of the family, below the family's prefix.
_STEM = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings.projection": "embeddings_project",
    "relative_bias": "encoder.relative_attention_bias",
    "pooler": "pooler.dense",
}
_STEM_ALBERT = {**_STEM, "embeddings.projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"}
_BLOCK = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}
_BLOCK_DISTILBERT = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "output_norm": "output_layer_norm",
}
_BLOCK_ALBERT = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "up": "ffn",
    "down": "ffn_output",
    "output_norm": "full_layer_layer_norm",
}
_BLOCK_MPNET = {
    **_BLOCK,
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
_LAYER = "encoder.layer.{}"
# family: (prefix of its base model, stem names, block names, where block number {} lives)
_FAMILIES = {
    "bert": ("bert.", _STEM, _BLOCK, _LAYER),
    "roberta": ("roberta.", _STEM, _BLOCK, _LAYER),
    "xlm-roberta": ("roberta.", _STEM, _BLOCK, _LAYER),
    "electra": ("electra.", _STEM, _BLOCK, _LAYER),
    "mpnet": ("mpnet.", _STEM, _BLOCK_MPNET, _LAYER),
    "distilbert": ("distilbert.", _STEM, _BLOCK_DISTILBERT, "transformer.layer.{}"),
    "albert": ("albert.", _STEM_ALBERT, _BLOCK_ALBERT, "encoder.albert_layer_groups.{}.albert_layers.{}"),
}
# Training heads and buffers that a checkpoint may carry and sentence vectors never need.
_IGNORED = re.compile(
    r"^(cls|lm_head|classifier|pre_classifier|qa_outputs|predictions|sop_classifier|sequence_summary"
    r"|generator_predictions|generator_lm_head|discriminator_predictions"
    r"|vocab_transform|vocab_layer_norm|vocab_projector|output_weights|output_bias)(\.|$)"
    r"|(^|\.)(position_ids|token_type_ids)$"
)


def load_checkpoint(folder: Path) -> tuple[EncoderConfig, Params]:
    """The configuration and float32 parameters of the encoder in `folder`.

    The parameters are a nested dict of NumPy arrays laid out like `Encoder`; kernels are [in, out].

    Raises:
        InputError: unreadable files, or one message with every missing, unexpected, mis-shaped and non-finite
            tensor.
    """
    config = read_config(folder)
    tensors = read_tensors(folder)
    arrays = _torch_names(tensors.arrays, tensors.format)
    prefix = _FAMILIES[config.model_type][0]
    if any(name.startswith(prefix) for name in arrays):
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    pooler = _FAMILIES[config.model_type][1]["pooler"]
    config = replace(config, has_pooler=f"{pooler}.weight" in arrays or f"{pooler}.bias" in arrays)
    return config, _fill_params(config, arrays, str(tensors.path))


def _torch_names(arrays: dict[str, np.ndarray], origin: str) -> dict[str, np.ndarray]:
    """The same tensors under the names, and in the [out, in] layout, that PyTorch checkpoints use."""
    renamed = {}
    for name, array in arrays.items():
        if origin == "tf":
            name = re.sub(r"layer_(\d+)", r"layer.\1", name.replace("/", "."))
            name += ".weight" if name.endswith("_embeddings") else ""
        stem, _, leaf = name.rpartition(".")
        if leaf == "kernel":
            array = array.T
        leaf = {
            "gamma": "weight",
            "beta": "bias",
            "kernel": "weight",
            "scale": "weight",
            "embedding": "weight",
        }.get(leaf, leaf)
        renamed[f"{stem}.{leaf}" if stem else leaf] = array
    return renamed


def source_name(config: EncoderConfig, path: tuple[Any, ...]) -> str:
    """The PyTorch name of our leaf, say ("blocks", 0, "up", "kernel") → "encoder.layer.0.intermediate.dense.weight"."""
    _, stem, block, place = _FAMILIES[config.model_type]
    *module, leaf = path
    if module and module[0] == "blocks":
        number = divmod(module[1], config.blocks_per_group) if config.model_type == "albert" else (module[1],)
        base = f"{place.format(*number)}.{block['.'.join(module[2:])]}"
    else:
        name = ".".join(map(str, path))
        base = stem[name] if name in stem else stem[".".join(map(str, module))]
    return f"{base}.bias" if leaf == "bias" else f"{base}.weight"


def _fill_params(config: EncoderConfig, arrays: dict[str, np.ndarray], source: str) -> Params:
    wanted = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Encoder(config))))
    missing, misshaped, broken, used = [], [], [], set()

    def fill(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray | None:
        keys = tuple(entry.key for entry in path)
        name = source_name(config, keys)
        if name not in arrays:
            missing.append(f"{name} {leaf.shape}")
            return None
        used.add(name)
        array = arrays[name].T if keys[-1] == "kernel" else arrays[name]
        if array.shape != leaf.shape:
            misshaped.append(
                f"{name} is {arrays[name].shape}, the config says {_stored_shape(keys, leaf.shape)}"
            )
        elif not jnp.issubdtype(array.dtype, jnp.floating):
            misshaped.append(f"{name} is {array.dtype}, expected floating point")
        else:
            with np.errstate(over="ignore"):  # what float32 cannot hold is reported below
                array = np.ascontiguousarray(array, dtype=np.float32)
            if not np.isfinite(array).all():
                broken.append(name)
        return array

    params = jax.tree.map_with_path(fill, wanted)
    unexpected = sorted(name for name in arrays.keys() - used if not _IGNORED.search(name))
    problems = [
        f"{label}: {'; '.join(names)}"
        for label, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("wrong shape or type", misshaped),
            ("with NaN or infinite values", broken),
        )
        if names
    ]
    if problems:
        raise InputError(
            f"{source}: the tensors do not fit a {config.model_type!r} encoder. " + ". ".join(problems)
        )
    return params


def _stored_shape(path: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1] if path[-1] == "kernel" else shape


def fingerprint(params: Params) -> str:
    """A digest of the values: equal weights have equal fingerprints, whatever file or dtype they came from.

    Kernels count as rounded to bfloat16, so that encoders that compute in float32 and in bfloat16 agree.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path, leaf in jax.tree.leaves_with_path(params):
        digest.update(jax.tree_util.keystr(path).encode())
        dtype = jnp.bfloat16 if path[-1].key == "kernel" else jnp.float32
        digest.update(np.ascontiguousarray(leaf, dtype).view(np.uint8))
    return digest.hexdigest()


def cast_params(params: Params, dtype: Any) -> Params:
    """Kernels in the compute dtype; tables, biases and LayerNorm stay float32, as they are used in float32.

    Empties `params`, so that never more than one leaf is held twice. Returns uncommitted device arrays in the
    same nested dict.
    """
    cast = {}
    for key in list(params):
        leaf = params.pop(key)
        if isinstance(leaf, dict):
            cast[key] = cast_params(leaf, dtype)
        else:
            cast[key] = jnp.asarray(leaf, dtype if key == "kernel" else jnp.float32)
    return cast
