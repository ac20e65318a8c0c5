"""`jaxvec fit`: a calibration fitted on a corpus, saved as a folder."""

import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jaxvec.cli import flow as flows
from jaxvec.cli.options import (
    BatchTokens,
    Column,
    Distributed,
    Dtype,
    Errors,
    Json,
    Layers,
    MaxLength,
    Model,
    Pooling,
    Restart,
    Text,
    corpus_options,
    load_encoder,
    print_result,
    progress,
)
from jaxvec.errors import InputError


class Method(StrEnum):
    """What `jaxvec fit` can fit."""

    whitening = "whitening"
    standardize = "standardize"
    remove_components = "remove-components"
    pca = "pca"
    flow = "flow"


def fit(
    method: Annotated[Method, typer.Argument(help="Which correction.")],
    text: Text,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; new, or empty.")],
    dim: Annotated[
        int | None, typer.Option(help="whitening, pca: keep this many leading directions.")
    ] = None,
    shrinkage: Annotated[
        str | None,
        typer.Option(help="whitening: pull the covariance towards c·I: ledoit-wolf, oas, or 0 to 1."),
    ] = None,
    power: Annotated[float | None, typer.Option(help="whitening: 1 whitens, less whitens in part.")] = None,
    zca: Annotated[bool | None, typer.Option("--zca", help="whitening: rotate back afterwards.")] = None,
    rtol: Annotated[
        float | None, typer.Option(help="whitening: cut directions up to this share of the largest variance.")
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="remove-components: how many directions to remove.")
    ] = None,
    center: Annotated[
        bool | None, typer.Option("--center/--no-center", help="remove-components: subtract the mean too.")
    ] = None,
    preset: flows.Preset = None,
    levels: flows.Levels = None,
    depth: flows.Depth = None,
    epochs: flows.Epochs = None,
    batch_size: flows.BatchSize = None,
    learning_rate: flows.LearningRate = None,
    seed: flows.Seed = None,
    checkpoint: flows.Checkpoint = None,
    model: Model = "all-MiniLM-L6-v2",
    pooling: Pooling = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    column: Column = None,
    errors: Errors = "strict",
    restart: Restart = False,
    distributed: Distributed = False,
    as_json: Json = False,
) -> None:
    """Fit a correction on a corpus and save it as a folder, which every command takes as a model."""
    if method is Method.flow and (distributed or restart):
        raise InputError(
            "a flow is trained by one process and goes on from its --checkpoint: leave out --distributed and --restart"
        )
    if distributed:
        from jaxvec.parallel import initialize

        initialize()
    from jaxvec.calibration import affine
    from jaxvec.calibration.folder import META
    from jaxvec.calibration.shrinkage import check_shrinkage
    from jaxvec.parallel import merge_moments, share
    from jaxvec.snapshot import forget_moments, moments_to_go_on_with, save_and_forget
    from jaxvec.textfiles import read_sentences
    from jaxvec.vectorfiles import atomic_folder

    with suppress(TypeError, ValueError):
        shrinkage = float(shrinkage)
    trained_by = {
        "preset": preset,
        "levels": levels,
        "depth": depth,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "checkpoint": checkpoint,
    }
    solvers = {
        Method.whitening: (affine.whitening, ("dim", "shrinkage", "power", "zca", "rtol")),
        Method.standardize: (affine.standardize, ()),
        Method.remove_components: (affine.remove_components, ("k", "center")),
        Method.pca: (affine.pca, ("dim",)),
        Method.flow: (None, tuple(trained_by)),
    }
    solve, accepted = solvers[method]
    asked = {
        "dim": dim,
        "shrinkage": shrinkage,
        "power": power,
        "zca": zca,
        "rtol": rtol,
        "k": k,
        "center": center,
        **trained_by,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if method is Method.remove_components:
        asked.setdefault("k", 1)
    if foreign := [name for name in asked if name not in accepted]:
        raise InputError(
            f"{method} takes no option {', '.join(foreign)}; it takes {', '.join(accepted) or 'none'}"
        )

    if "shrinkage" in asked:
        check_shrinkage(asked["shrinkage"])
    if method is Method.flow:
        load = {
            "model": model,
            "pooling": pooling,
            "layers": layers,
            "dtype": dtype,
            "max_length": max_length,
        }
        return flows.fit_flow(text, output, asked, load, column, errors, batch_tokens, as_json)
    sentences = read_sentences(text, column, errors)
    if (output / META).exists():
        forget_moments(output)  # a kill may have come just after the output had got its name
    atomic_folder(output)  # refuses a path that cannot be written before any work is done
    weights = None
    if pooling == "sif":
        from jaxvec.sif import sif_weights

        if text == "-":
            raise InputError(
                "pooling 'sif' reads the corpus twice, first to count tokens; give a file instead of -"
            )
        weights = sif_weights(read_sentences(text, column, errors), model=model)
    encoder = load_encoder(
        model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length, token_weights=weights
    )
    affine.check_options(encoder.dim, **asked)
    with progress() as tick:
        moments = moments_to_go_on_with(
            output,
            encoder,
            sentences,
            batch_tokens=batch_tokens,
            share=share(),
            restart=restart,
            options=corpus_options(text, column, errors),
            tick=tick,
        )
    moments = merge_moments(moments)
    if not moments.count:
        raise InputError(f"{text}: it holds no sentences; a calibration is fitted on 2 or more")
    calibrated = encoder.with_calibration(
        solve(moments, **asked), {"corpus": os.fsencode(text).decode(errors="replace")}
    )
    if share()[0] == 0:
        save_and_forget(output, calibrated.save)
    figures = calibrated.provenance["calibration"]
    print_result(
        as_json,
        f"{output}: {method} of {figures['count']:.0f} sentences, {encoder.dim} → {calibrated.dim} dimensions, "
        f"rank {figures['rank']}, cut: {figures['cut_reason'] or 'nothing'}",
        {"output": str(output), **encoder.describe(), **figures},
    )
