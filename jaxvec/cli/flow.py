"""`jaxvec fit flow`: a flow trained on a corpus, saved as a folder."""

import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from jaxvec.cli.options import load_encoder, print_result, progress
from jaxvec.errors import InputError

Preset = Annotated[
    str | None, typer.Option(help="flow: glow (default), or bert_flow, the released configuration.")
]
Levels = Annotated[int | None, typer.Option(help="flow: levels; half of the coordinates leaves at each.")]
Depth = Annotated[int | None, typer.Option(help="flow: steps of a level.")]
Epochs = Annotated[int | None, typer.Option(help="flow: passes over the corpus, at most.")]
BatchSize = Annotated[int | None, typer.Option(help="flow: sentences of a training step.")]
LearningRate = Annotated[float | None, typer.Option(help="flow: peak learning rate.")]
Seed = Annotated[int | None, typer.Option(help="flow: of weights, shuffling and noise.")]
Checkpoint = Annotated[
    Path | None, typer.Option(help="flow: folder that keeps the training; the same command goes on from it.")
]


def fit_flow(
    text: str,
    output: Path,
    options: dict[str, Any],
    load: dict[str, Any],
    column: str | None,
    errors: str,
    batch_tokens: int | None,
    as_json: bool,
) -> None:
    """Encodes the corpus, trains a flow on its vectors and saves encoder and flow.

    Args:
        text: the corpus, as `read_sentences` takes it.
        output: folder to write; new, or empty.
        options: of `Flow.fit`.
        load: arguments of `SentenceEncoder.load`, with its name as "model".
        column: of a table.
        errors: "strict" or "replace".
        batch_tokens: tokens encoded at a time.
        as_json: whether the result is printed as JSON.
    """
    import sys

    from jaxvec.calibration.flow import Flow
    from jaxvec.calibration.flow.checkpoints import check_place
    from jaxvec.calibration.flow.fitting import checked_seeds
    from jaxvec.calibration.flow.recipe import configure
    from jaxvec.textfiles import read_sentences
    from jaxvec.vectorfiles import atomic_folder

    shape = {name: value for name, value in options.items() if name not in ("preset", "seed", "checkpoint")}
    # Bad options and places that cannot be written are refused before any work is done.
    configure(options.get("preset", "glow"), shape)
    checked_seeds([options.get("seed", 0)])
    if (checkpoint := options.get("checkpoint")) is not None:
        check_place(checkpoint)
        if output.resolve() == checkpoint.resolve():
            raise InputError(
                f"{checkpoint} is to hold both the model and the checkpoints; name another folder"
            )
    sentences = read_sentences(text, column, errors)
    atomic_folder(output)
    encoder = load_encoder(**load)
    with progress() as tick:
        stream = encoder.stream(sentences, normalize=False, batch_tokens=batch_tokens, tick=tick)
        parts = [vectors for _, vectors in stream]
    if not parts:
        raise InputError(f"{text}: it holds no sentences; a flow is fitted on a batch of them or more")
    flow = Flow.fit(np.concatenate(parts), show_progress=bool(sys.stderr and sys.stderr.isatty()), **options)
    calibrated = encoder.with_calibration(flow, {"corpus": os.fsencode(text).decode(errors="replace")})
    calibrated.save(output)
    figures = flow.figures()
    first = figures["start_training_bits_per_dimension"]
    last = figures["rounds"][-1]["training_bits_per_dimension"]
    print_result(
        as_json,
        f"{output}: flow of {figures['count']} sentences, {flow.dim} dimensions, {figures['steps']} steps, "
        f"training {first:.4f} → {last:.4f} bits per dimension",
        {"output": str(output), **encoder.describe(), **figures},
    )
