"""`jaxvec warmup`: compiles a model's programs into the persistent cache, so that later processes start at once."""

import time
from pathlib import Path
from typing import Annotated

import typer

from jaxvec.cli.options import (
    BatchTokens,
    Dtype,
    Json,
    Layers,
    MaxLength,
    Normalize,
    Pooling,
    load_encoder,
    print_result,
)
from jaxvec.errors import InputError


def warmup(
    model: Annotated[
        str, typer.Argument(help="Folder (fitted or plain), Hugging Face id, or the bundled default.")
    ],
    pooling: Pooling = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    normalize: Normalize = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    as_json: Json = False,
) -> None:
    """Fill the compilation cache with the programs that encode needs; the options are those of encode."""
    import jax

    cache = jax.config.jax_compilation_cache_dir
    if not cache:
        raise InputError(
            "there is no cache to fill: jaxvec --compile-cache FOLDER warmup …, or set JAX_COMPILATION_CACHE_DIR"
        )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    encoder = load_encoder(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    start = time.perf_counter()
    shapes = encoder.warm_up(normalize=normalize, batch_tokens=batch_tokens)
    seconds = time.perf_counter() - start
    if not Path(cache).is_dir() or not any(Path(cache).iterdir()):
        raise InputError(
            f"{cache}: nothing was kept there; is it a folder that can be written, and JAX_ENABLE_COMPILATION_CACHE on?"
        )
    print_result(
        as_json,
        f"{cache}: {len(shapes)} programs of {encoder.name}, {seconds:.0f} s",
        {
            "cache": str(cache),
            "shapes": [list(shape) for shape in shapes],
            "seconds": round(seconds, 3),
            **encoder.describe(),
        },
    )
