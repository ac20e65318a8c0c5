"""A model's name and what was asked of it → everything a SentenceEncoder holds, checked against each other."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.calibration import rebuild
from jaxvec.calibration.folder import is_calibration, read_calibration, write_calibration
from jaxvec.errors import InputError, is_whole
from jaxvec.interchange.sentence_transformers import FolderModules, read_dense, read_modules
from jaxvec.models.checkpoint import cast_params, fingerprint, load_checkpoint
from jaxvec.models.config import EncoderConfig
from jaxvec.models.sources import find_model
from jaxvec.pipeline import Weights
from jaxvec.pooling import POOLINGS, resolve_layers
from jaxvec.tokens import Tokenizer


def load_model(
    name: str | os.PathLike[str],
    pooling: str | None,
    layers: str | int | Sequence[int] | None,
    dtype: str,
    max_length: int | None,
    token_weights: Any,
) -> dict[str, Any]:
    """The fields of a `SentenceEncoder`; arguments as for its `load`."""
    folder = find_model(name)
    if not isinstance(layers, str | int | None):
        layers = tuple(layers)
    if is_calibration(folder):
        return _load_calibrated(folder, pooling, layers, dtype, max_length, token_weights)
    if dtype not in ("float32", "bfloat16", "auto"):
        raise InputError(f"dtype is {dtype!r}; expected 'float32', 'bfloat16' or 'auto'")
    if pooling is not None and pooling not in POOLINGS:
        raise InputError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
    modules = read_modules(folder)
    config, params = load_checkpoint(modules.encoder)
    chosen = pooling or modules.pooling or "mean"
    own = resolve_layers(modules.layers or "last", config.num_layers)
    numbers = own if layers is None else resolve_layers(layers, config.num_layers)
    if chosen == "pooler" and not config.has_pooler:
        raise InputError(
            f"{folder}: pooling 'pooler' needs the pooler's weights, which this checkpoint lacks"
        )
    tokenizer = load_tokenizer(modules, config, max_length)
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer knows {tokenizer.vocab_size} tokens but the embedding table has "
            f"{config.vocab_size} rows; tokenizer and weights are not of the same model"
        )
    compute = _auto_dtype() if dtype == "auto" else dtype
    return {
        "name": os.fspath(name),
        "source": str(folder.resolve()) if Path(name).expanduser().is_dir() else os.fspath(name),
        "folder": folder.resolve(),
        "config": config,
        "tokenizer": tokenizer,
        "weights": Weights(cast_params(params, jnp.dtype(compute))),
        "token_weights": _check_token_weights(token_weights, chosen, config.vocab_size),
        "pooling": chosen,
        "layers": numbers,
        "dtype": compute,
        "calibration": read_dense(modules.dense, config.hidden_size),
        "normalizes": modules.normalize and chosen == modules.pooling and numbers == own,
    }


def load_tokenizer(modules: FolderModules, config: EncoderConfig, max_length: int | None = None) -> Tokenizer:
    """The model's tokenizer, which keeps as many tokens as asked, else as the folder says and the model allows."""
    limit = config.max_length
    if max_length is not None and not (is_whole(max_length, 1) and max_length <= limit):
        raise InputError(f"max_length is {max_length!r}; this model's position table allows 1 to {limit}")
    return Tokenizer(
        modules.encoder, int(max_length or min(modules.max_length or limit, limit)), modules.lower_case
    )


def save_calibrated(encoder: Any, folder: str | os.PathLike[str]) -> None:
    """Writes what `load_model` finds again in a folder; arguments and errors as for `SentenceEncoder.save`."""
    if encoder.provenance is None:
        raise InputError("this encoder has no calibration to save; its model folder holds everything already")
    arrays = encoder.calibration.to_arrays()
    if encoder.token_weights is not None:
        arrays["token_weights"] = np.asarray(encoder.token_weights)
    meta = {
        **encoder.describe(),
        "model": encoder.source,
        "fingerprint": encoder.fingerprint,
        "calibration": encoder.calibration.spec(),
        "provenance": encoder.provenance,
    }
    write_calibration(Path(folder), arrays, meta)


def model_fingerprint(params: Any, tokenizer: Tokenizer) -> str:
    """A digest of everything that makes a model's vectors what they are, besides pooling and layers."""
    return hashlib.blake2b((fingerprint(params) + tokenizer.digest()).encode(), digest_size=16).hexdigest()


def _load_calibrated(
    folder: Path, pooling: Any, layers: Any, dtype: str, max_length: Any, token_weights: Any
) -> Any:
    arrays, meta = read_calibration(folder)
    beside = folder / "model"
    try:
        fields = load_model(
            beside if beside.is_dir() else meta["model"],
            meta["pooling"],
            tuple(meta["layers"]),
            dtype,
            meta["max_length"] if max_length is None else max_length,
            arrays.pop("token_weights", None),
        )
    except InputError as error:
        raise InputError(
            f"{folder}: cannot load the encoder it was fitted on ({error}). Put that model, or a link to it, at {beside}"
        ) from None
    numbers = fields["layers"] if layers is None else resolve_layers(layers, fields["config"].num_layers)
    for key, asked, fitted in (
        ("pooling", pooling or meta["pooling"], meta["pooling"]),
        ("layers", list(numbers), meta["layers"]),
        ("token_weights", token_weights is not None, False),
    ):
        if asked != fitted:
            raise InputError(
                f"{folder}: its calibration was fitted with its own {key}{f' {fitted}' if fitted else ''}; "
                f"leave {key} out, or fit it again"
            )
    if model_fingerprint(fields["weights"].params, fields["tokenizer"]) != meta["fingerprint"]:
        raise InputError(
            f"{folder}: the weights or the tokenizer of {fields['name']!r} are not those the calibration was "
            f"fitted on; put that model at {beside}, or fit it again"
        )
    return {
        **fields,
        "calibration": rebuild(meta["calibration"], arrays),
        "normalizes": False,
        "provenance": meta["provenance"],
    }


def _check_token_weights(weights: Any, pooling: str, vocab_size: int) -> Any:
    if (weights is None) != (pooling != "sif"):
        raise InputError(
            "pooling 'sif' needs token_weights=jaxvec.sif_weights(corpus, model=…), and no other pooling takes them"
        )
    if weights is None:
        return None
    array = np.asarray(weights)
    if (
        array.shape != (vocab_size,)
        or not np.issubdtype(array.dtype, np.floating)
        or not np.isfinite(array).all()
        or (array < 0).any()
    ):
        raise InputError(
            f"token_weights is {array.dtype} {array.shape}; expected {vocab_size} finite floats ≥ 0, one a token of this model"
        )
    return jnp.asarray(array, jnp.float32)


def multiplies_bfloat16() -> bool:
    """Whether this hardware multiplies bfloat16 faster than float32: accelerators, and some CPUs."""
    if jax.default_backend() != "cpu":
        return True
    try:
        return cpu_multiplies_bfloat16(Path("/proc/cpuinfo").read_text())
    except OSError:
        return False


def cpu_multiplies_bfloat16(cpuinfo: str) -> bool:
    """Whether the CPU that Linux so describes multiplies bfloat16 faster than float32: with AMX, and AMD's with AVX-512.

    The instructions of AVX-512 (avx512_bf16) take half the time of its float32 ones on AMD's CPUs (Zen 4: 205 against 105
    GFLOP/s a core), and twice theirs on Intel's (70 against 139).

    >>> cpu_multiplies_bfloat16("vendor_id: AuthenticAMD\\nflags: avx512f avx512_bf16")
    True
    >>> cpu_multiplies_bfloat16("vendor_id: GenuineIntel\\nflags: avx512f avx512_bf16")
    False
    """
    return "amx_bf16" in cpuinfo or ("avx512_bf16" in cpuinfo and "AuthenticAMD" in cpuinfo)


def _auto_dtype() -> str:
    return "bfloat16" if multiplies_bfloat16() else "float32"
