"""`jaxvec encode`: sentences to a file of vectors."""

import time
from pathlib import Path
from typing import Annotated

import typer

from jaxvec.cli.options import (
    BatchTokens,
    Column,
    Dtype,
    Errors,
    Json,
    Layers,
    MaxLength,
    Model,
    Normalize,
    Pooling,
    Text,
    load_encoder,
    print_result,
    progress,
)


def encode(
    text: Text,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="vectors.npy, or .parquet with the text beside them.")
    ],
    model: Model = "all-MiniLM-L6-v2",
    pooling: Pooling = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    normalize: Normalize = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    column: Column = None,
    errors: Errors = "strict",
    as_json: Json = False,
) -> None:
    """Encode sentences into a .npy file (float32, row i is line i) or a .parquet file."""
    from jaxvec.textfiles import read_sentences
    from jaxvec.vectorfiles import open_writer

    sentences = read_sentences(text, column, errors)
    open_writer(output, 1)  # refuses a path that cannot be written before any work is done
    encoder = load_encoder(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    start, count = time.perf_counter(), 0
    with open_writer(output, encoder.dim) as writer, progress() as tick:
        for chunk, vectors in encoder.stream(
            sentences, normalize=normalize, batch_tokens=batch_tokens, tick=tick
        ):
            writer.write(vectors, chunk)
            count += len(chunk)
    seconds = time.perf_counter() - start
    print_result(
        as_json,
        f"{output}: {count} × {encoder.dim} float32",
        {
            "output": str(output),
            "sentences": count,
            "dim": encoder.dim,
            "seconds": round(seconds, 3),
            **encoder.describe(),
        },
    )
