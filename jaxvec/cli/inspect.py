"""`jaxvec inspect`: how isotropic a corpus's vectors are, and which layers and calibration would suit them."""

from pathlib import Path
from typing import Annotated

import typer

from jaxvec.cli.options import (
    Column,
    Dtype,
    Errors,
    Json,
    Layers,
    MaxLength,
    Pooling,
    Text,
    load_encoder,
    print_result,
    progress,
    say,
)


def inspect(
    model: Annotated[
        str, typer.Argument(help="Folder (fitted or plain), Hugging Face id, or the bundled default.")
    ],
    text: Text,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure these too: whitening:256, standardize, flow …; + joins, repeat for several."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw spectrum, cosines and maps into a .png, .pdf or .svg.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Sentences that are measured, evenly chosen.")] = 4_000,
    pooling: Pooling = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    column: Column = None,
    errors: Errors = "strict",
    as_json: Json = False,
) -> None:
    """Isotropy, spectrum and word frequency of a corpus's vectors; layers and calibration chosen without labels."""
    from jaxvec.evaluation.inspection import inspect_corpus
    from jaxvec.textfiles import read_sentences

    sentences = read_sentences(text, column, errors)
    if plot is not None:
        from jaxvec.evaluation.figures import check_figure

        check_figure(plot)  # before any work is done
    encoder = load_encoder(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    with progress() as tick:
        found = inspect_corpus(encoder, sentences, calibrate or (), sample, tick)
    if plot is not None:
        from jaxvec.evaluation.inspection_figure import draw_inspection

        draw_inspection(found, plot)
        say(f"{plot}: drawn")
    print_result(as_json, found.text(), {**encoder.describe(), **found.figures()})
