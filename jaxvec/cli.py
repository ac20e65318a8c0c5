"""`jaxvec …`: a thin door in front of the library. Results go to stdout, everything else to stderr."""

import io
import json
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxvec.errors import InputError

app = typer.Typer(
    help="Sentence vectors whose cosine means something: BERT encoders and their calibration, in JAX.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Text = Annotated[
    str,
    typer.Argument(
        help="Text file, one sentence a line; a .tsv/.csv/.jsonl/.parquet with --column; - for stdin."
    ),
]
Model = Annotated[str, typer.Option(help="Folder, Hugging Face id, or the bundled default.")]
Pooling = Annotated[
    str | None, typer.Option(help="cls, mean, max or pooler; default: the folder's own, else mean.")
]
Layers = Annotated[
    str, typer.Option(help="last, last_two, first_last, embedding_last, or numbers such as 1,4.")
]
Dtype = Annotated[str, typer.Option(help="Compute in float32, bfloat16, or auto.")]
MaxLength = Annotated[
    int | None, typer.Option(help="Tokens a sentence keeps; default: the model's own limit.")
]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens computed at a time.")]
Column = Annotated[
    str | None, typer.Option(help="Column of a table; a number counts from 1 in a file without header.")
]
Errors = Annotated[
    str, typer.Option(help="strict refuses bytes that are not UTF-8; replace reads them as U+FFFD.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def main() -> None:
    """Runs the command line; bad input ends with exit code 2 and one line on stderr."""
    # As exceptions, signals let half-written files be removed.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup and background jobs ignore some
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
        try:
            app()
        except InputError as error:
            _say(f"error: {error}")
            sys.exit(2)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from jaxvec import __version__

        print(__version__)
        raise typer.Exit


@app.command()
def encode(
    text: Text,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="vectors.npy, or .parquet with the text beside them.")
    ],
    model: Model = "all-MiniLM-L6-v2",
    pooling: Pooling = None,
    layers: Layers = "last",
    dtype: Dtype = "float32",
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="Unit length; default: as the folder says."),
    ] = None,
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
    encoder = _load(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    start, count = time.perf_counter(), 0
    with open_writer(output, encoder.dim) as writer, _progress() as tick:
        for chunk, vectors in encoder.stream(
            sentences, normalize=normalize, batch_tokens=batch_tokens, tick=tick
        ):
            writer.write(vectors, chunk)
            count += len(chunk)
    seconds = time.perf_counter() - start
    _result(
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


class Method(StrEnum):
    """What `jaxvec fit` can fit."""

    whitening = "whitening"
    standardize = "standardize"
    remove_components = "remove-components"
    pca = "pca"


@app.command(no_args_is_help=True)
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
    model: Model = "all-MiniLM-L6-v2",
    pooling: Pooling = None,
    layers: Layers = "last",
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    column: Column = None,
    errors: Errors = "strict",
    as_json: Json = False,
) -> None:
    """Fit a correction on a corpus and save it as a folder, which every command takes as a model."""
    from jaxvec.calibration import affine
    from jaxvec.textfiles import read_sentences
    from jaxvec.vectorfiles import atomic_folder

    with suppress(TypeError, ValueError):
        shrinkage = float(shrinkage)
    solvers = {
        Method.whitening: (affine.whitening, ("dim", "shrinkage", "power", "zca", "rtol")),
        Method.standardize: (affine.standardize, ()),
        Method.remove_components: (affine.remove_components, ("k", "center")),
        Method.pca: (affine.pca, ("dim",)),
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
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if method is Method.remove_components:
        asked.setdefault("k", 1)
    if foreign := [name for name in asked if name not in accepted]:
        raise InputError(
            f"{method} takes no option {', '.join(foreign)}; it takes {', '.join(accepted) or 'none'}"
        )

    sentences = read_sentences(text, column, errors)
    atomic_folder(output)  # refuses a path that cannot be written before any work is done
    encoder = _load(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    with _progress() as tick:
        moments = encoder.moments(sentences, batch_tokens=batch_tokens, tick=tick)
    calibrated = encoder.with_calibration(solve(moments, **asked), {"corpus": text})
    calibrated.save(output)
    figures = calibrated.provenance["calibration"]
    _result(
        as_json,
        f"{output}: {method} of {figures['count']:.0f} sentences, {encoder.dim} → {calibrated.dim} dimensions, "
        f"rank {figures['rank']}, cut: {figures['cut_reason'] or 'nothing'}",
        {"output": str(output), **encoder.describe(), **figures},
    )


class Format(StrEnum):
    """What `jaxvec export` can write."""

    stablehlo = "stablehlo"
    sentence_transformers = "sentence-transformers"


@app.command(no_args_is_help=True)
def export(
    model: Annotated[
        str, typer.Argument(help="Folder (fitted or plain), Hugging Face id, or the bundled default.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file, or for sentence-transformers the folder.")
    ],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.stablehlo,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="Unit length; default: as the folder says."),
    ] = None,
    pooling: Pooling = None,
    layers: Layers = "last",
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    as_json: Json = False,
) -> None:
    """Write encoder, pooling and calibration for others: one StableHLO file, or a sentence-transformers folder."""
    from jaxvec.vectorfiles import atomic_folder

    if form is Format.sentence_transformers:
        from jaxvec.interchange.sentence_transformers_export import export_sentence_transformers as write

        atomic_folder(output)  # refuses a path that cannot be written before any work is done
    else:
        from jaxvec.interchange.stablehlo import export_stablehlo as write
    encoder = _load(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    write(encoder, output, normalize=normalize)
    files = [output] if output.is_file() else [file for file in output.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    _result(
        as_json,
        f"{output}: {form}, {encoder.dim} dimensions, {size / 1e6:.0f} MB",
        {"output": str(output), "format": str(form), "dim": encoder.dim, "bytes": size, **encoder.describe()},
    )


@app.command()
def demo(
    questions: Annotated[
        list[str] | None, typer.Argument(help="Questions to the Python language reference.")
    ] = None,
    model: Model = "all-MiniLM-L6-v2",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Encode the language reference that ships inside Python, and answer questions from it."""
    from jaxvec.demo import run_demo

    encoder = _load(model, dtype=dtype)
    report = run_demo(encoder, questions or None)
    _result(as_json, report.text(), report.figures())


def _load(model: str, **arguments: Any) -> Any:
    from jaxvec.encoder import SentenceEncoder

    if "layers" in arguments:
        arguments["layers"] = _parse_layers(arguments["layers"])
    encoder = SentenceEncoder.load(model, **arguments)
    import jax

    _say(f"{encoder.name} on {jax.default_backend()} ({jax.local_device_count()} device(s)), {encoder.dtype}")
    return encoder


def _parse_layers(text: str) -> str | tuple[int, ...]:
    numbers = text.strip("() ").rstrip(",").split(",")
    try:
        return tuple(int(n) for n in numbers)
    except ValueError:
        return text


@contextmanager
def _progress() -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(unit=" sentences", disable=not (sys.stderr and sys.stderr.isatty())) as bar:
        yield bar.update


def _result(as_json: bool, text: str, figures: dict[str, Any]) -> None:
    try:
        print(json.dumps(figures, ensure_ascii=False) if as_json else text, flush=True)
    except OSError as error:
        raise InputError(f"the result could not be written to standard output: {error.strerror}") from None


def _say(text: str) -> None:
    if sys.stderr is not None:  # where it was closed, print would turn to stdout
        print(f"jaxvec: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
