"""What the commands share: their options, and how they load, report and print."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxvec.errors import InputError

Text = Annotated[
    str,
    typer.Argument(
        help="Text file, one sentence a line; a .tsv/.csv/.jsonl/.parquet with --column; - for stdin."
    ),
]
Model = Annotated[str, typer.Option(help="Folder, Hugging Face id, or the bundled default.")]
Pooling = Annotated[
    str | None, typer.Option(help="cls, mean, max, pooler or sif; default: the folder's own, else mean.")
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="last, last_two, first_last, embedding_last, or numbers such as 1,4; default: the folder's own, else last."
    ),
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
Normalize = Annotated[
    bool | None, typer.Option("--normalize/--no-normalize", help="Unit length; default: as the folder says.")
]

Restart = Annotated[
    bool,
    typer.Option(
        "--restart/--resume", help="Throw an unfinished run away; default: go on with it if it is the same."
    ),
]

Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Several processes do this together: each has the same command. Argument-free on TPU VMs, SLURM, Open MPI "
        "and Kubernetes; else set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.",
    ),
]


def corpus_options(text: str, column: str | None, errors: str) -> dict[str, Any]:
    """How a corpus is read: what a run that goes on must have in common with the one that began."""
    size = Path(text).stat().st_size if Path(text).is_file() else None
    return {"column": column, "errors": errors, "corpus_bytes": size}


def load_encoder(model: str, **arguments: Any) -> Any:
    """A loaded `SentenceEncoder`; where it runs is said on stderr."""
    from jaxvec.encoder import SentenceEncoder

    if arguments.get("layers") is not None:
        arguments["layers"] = parse_layers(arguments["layers"])
    if arguments.get("pooling") == "sif" and arguments.get("token_weights") is None:
        raise InputError(
            "pooling 'sif' needs the token frequencies of a corpus: fit a folder with "
            "`jaxvec fit remove-components corpus.txt --pooling sif --no-center -o folder` and give that as the model"
        )
    encoder = SentenceEncoder.load(model, **arguments)
    import jax

    say(f"{encoder.name} on {jax.default_backend()} ({jax.local_device_count()} device(s)), {encoder.dtype}")
    return encoder


def parse_layers(text: str) -> str | tuple[int, ...]:
    """A name of layers as it is; numbers as a tuple."""
    numbers = text.strip("() ").rstrip(",").split(",")
    try:
        return tuple(int(n) for n in numbers)
    except ValueError:
        return text


@contextmanager
def progress() -> Iterator[Any]:
    """A bar on stderr if that is a terminal: yields what is called with every number of sentences done."""
    from tqdm import tqdm

    with tqdm(unit=" sentences", disable=not (sys.stderr and sys.stderr.isatty())) as bar:
        yield bar.update


def print_result(as_json: bool, text: str, figures: dict[str, Any]) -> None:
    """The result on stdout: text for people, or one JSON object."""
    try:
        print(json.dumps(figures, ensure_ascii=False) if as_json else text, flush=True)
    except OSError as error:
        raise InputError(f"the result could not be written to standard output: {error.strerror}") from None


def say(text: str) -> None:
    """Everything but results, on stderr."""
    if sys.stderr is not None:  # where it was closed, print would turn to stdout
        print(f"jaxvec: {text}", file=sys.stderr)


def run_script(main: Callable[[], Any]) -> None:
    """Calls what a script does; bad input is one line on stderr and exit code 2."""
    try:
        main()
    except InputError as error:
        say(f"error: {error}")
        sys.exit(2)
