"""`jaxvec index`, `add`, `remove`: documents into a folder that can be searched, and out of it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from jaxvec.cli.options import (
    BatchTokens,
    Column,
    Errors,
    Json,
    Layers,
    MaxLength,
    Pooling,
    Restart,
    Text,
    corpus_options,
    load_encoder,
    print_result,
    progress,
)
from jaxvec.errors import InputError

Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder written by `jaxvec index`.")]


def index(
    model: Annotated[
        str,
        typer.Argument(help="Folder (fitted or plain), Hugging Face id, or the bundled all-MiniLM-L6-v2."),
    ],
    text: Text,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; new, or empty.")],
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Fit on these documents: whitening:256, pca:128, standardize, remove-components:3, …; default: as the folder is."
        ),
    ] = None,
    dim: Annotated[
        int | None, typer.Option(help="With --calibrate whitening or pca: keep this many leading directions.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="What a search reads: float32, bfloat16 or int8 (scored again in float32).")
    ] = "float32",
    metric: Annotated[str, typer.Option(help="cosine, or dot for the inner product.")] = "cosine",
    compute: Annotated[str, typer.Option(help="Encode in float32, bfloat16, or auto.")] = "float32",
    pooling: Pooling = None,
    layers: Layers = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    column: Column = None,
    errors: Errors = "strict",
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Encode documents into a folder that can be searched; a killed run goes on when its command is given again."""
    from jaxvec.evaluation.corrections import Sample, parse_correction
    from jaxvec.search.corpus import METRICS
    from jaxvec.search.index import Index
    from jaxvec.search.storage import STORAGE, check_choice
    from jaxvec.textfiles import read_sentences
    from jaxvec.vectorfiles import atomic_folder

    if dim is not None:
        if calibrate not in ("whitening", "pca"):
            raise InputError("--dim keeps leading directions: give it with --calibrate whitening or pca")
        calibrate = f"{calibrate}:{dim}"
    correction = parse_correction(calibrate or "raw")
    # Refuses what cannot be read or written before any work is done.
    check_choice("--dtype", dtype, STORAGE)
    check_choice("--metric", metric, METRICS)
    sentences = read_sentences(text, column, errors)
    atomic_folder(output)
    encoder = load_encoder(model, pooling=pooling, layers=layers, dtype=compute, max_length=max_length)
    correction.check_width(encoder.dim)
    start = time.perf_counter()
    with progress() as tick:
        made = Index.build(
            output,
            encoder,
            sentences,
            calibrate=(lambda vectors: correction.fit(Sample(vectors))) if correction.steps else None,
            metric=metric,
            dtype=dtype,
            batch_tokens=batch_tokens,
            restart=restart,
            options=corpus_options(text, column, errors),
            tick=tick,
        )
    size = made.corpus.codes.dtype.itemsize * len(made) * made.dim
    print_result(
        as_json,
        f"{output}: {len(made):,} documents × {made.dim} {dtype}, {size / 1e6:,.1f} MB of vectors",
        {
            "output": str(output),
            "documents": len(made),
            "dim": made.dim,
            "dtype": dtype,
            "metric": metric,
            "bytes": size,
            "calibration": correction.name,
            "seconds": round(time.perf_counter() - start, 3),
            **{name: value for name, value in encoder.describe().items() if name != "dtype"},
        },
    )


def add(
    folder: Folder,
    text: Text,
    batch_tokens: BatchTokens = None,
    column: Column = None,
    errors: Errors = "strict",
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Add documents to an index; those that are in it are not encoded again."""
    from jaxvec.search.index import Index
    from jaxvec.textfiles import read_sentences

    sentences = read_sentences(text, column, errors)
    opened = Index.open(folder)
    first = len(opened.valid)
    with progress() as tick:
        options = corpus_options(text, column, errors)
        made = opened.add(sentences, batch_tokens=batch_tokens, restart=restart, options=options, tick=tick)
    added = len(made.valid) - first
    print_result(
        as_json,
        f"{folder}: {added:,} documents added, numbers {first} to {first + added - 1}; {len(made):,} in all",
        {"output": str(folder), "added": added, "first": first, "documents": len(made)},
    )


def remove(
    folder: Folder,
    numbers: Annotated[
        list[int], typer.Argument(metavar="NUMBER...", help="Documents, as search names them.")
    ],
    as_json: Json = False,
) -> None:
    """Take documents out of an index; the others keep their numbers."""
    from jaxvec.search.index import Index

    opened = Index.open(folder)
    made = opened.remove(numbers)
    removed = len(opened) - len(made)
    print_result(
        as_json,
        f"{folder}: {removed:,} removed, {len(made):,} documents left",
        {"output": str(folder), "removed": removed, "documents": len(made)},
    )
