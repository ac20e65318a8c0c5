"""`jaxvec encode`: sentences to files of vectors, of any size; a killed run goes on when its command is given again."""

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

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
    Normalize,
    Pooling,
    Restart,
    corpus_options,
    load_encoder,
    print_result,
    progress,
    say,
)
from jaxvec.errors import InputError

_ENDING = re.compile(r"(\.(txt|tsv|csv|jsonl|parquet))?(\.gz)?$", re.IGNORECASE)


def encode(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT...",
            help="Text file, one sentence a line; a .tsv/.csv/.jsonl/.parquet with --column; - for stdin. "
            "Several files make a folder with a folder for each.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="vectors.npy, or .parquet with the text beside them; without ending, a folder of parts.",
        ),
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
    form: Annotated[
        str | None, typer.Option("--format", help="npy or parquet, for the parts of a folder.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="I/N: this process takes every N-th chunk or file, from the I-th (0 …) on."),
    ] = None,
    restart: Restart = False,
    distributed: Distributed = False,
    as_json: Json = False,
) -> None:
    """Encode sentences into a .npy file (float32, row i is line i), a .parquet file or a folder of parts."""
    mine = _parse_part(part or "0/1")
    if distributed and part is not None:
        raise InputError("--distributed shares the work out by itself; leave --part out")
    if distributed:
        from jaxvec.parallel import initialize, share

        initialize()
        mine = share()
    from jaxvec.resume import encode_to
    from jaxvec.shards import MANIFEST
    from jaxvec.sinks import make_folder, open_sink
    from jaxvec.textfiles import read_sentences

    jobs = _jobs(texts, output, mine)
    # Refuses what cannot be read or written before any work is done.
    first = [read_sentences(text, column, errors) for text, _, _ in jobs[:1]]
    for text, _, _ in jobs[1:]:
        read_sentences(text, column, errors)
    if len(texts) == 1 or output.exists():
        for _, out, _ in jobs:
            open_sink(out, 1, form)
    encoder = load_encoder(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    if len(texts) > 1:
        make_folder(output)
    start, rows, before, complete = time.perf_counter(), 0, 0, True
    with progress() as tick:
        for text, out, chunks in jobs:
            sentences = first.pop() if first else read_sentences(text, column, errors)
            done = encode_to(
                out,
                encoder,
                sentences,
                normalize=normalize,
                batch_tokens=batch_tokens,
                form=form,
                share=chunks,
                restart=restart,
                options=corpus_options(text, column, errors),
                tick=tick,
            )
            rows, before, complete = rows + done.rows, before + done.before, complete and done.complete
    if distributed:
        from jaxvec.parallel import meet

        meet("encoded")
        complete = True
    elif len(texts) > 1:
        complete = all((out / MANIFEST).exists() for out in _outputs(texts, output))
    if before:
        say(f"{before} of the sentences had been encoded by an earlier run")
    print_result(
        as_json,
        f"{output}: {rows} × {encoder.dim} float32" + ("" if complete else "; other parts are still missing"),
        {
            "output": str(output),
            "sentences": rows,
            "dim": encoder.dim,
            "complete": complete,
            "resumed": before,
            "seconds": round(time.perf_counter() - start, 3),
            **encoder.describe(),
        },
    )


def _jobs(texts: list[str], output: Path, share: tuple[int, int]) -> list[tuple[str, Path, tuple[int, int]]]:
    """(text, output, share of its chunks): one text is shared out by chunks, several are by files."""
    for text in texts:
        with suppress(OSError):  # one of them is not there
            if output.samefile(text):
                raise InputError(f"{output} is the text itself, which would be lost; give another output")
    if len(texts) == 1:
        return [(texts[0], output, share)]
    outputs = _outputs(texts, output)
    return [(texts[at], outputs[at], (0, 1)) for at in range(share[0], len(texts), share[1])]


def _outputs(texts: list[str], output: Path) -> list[Path]:
    """A folder for each of several texts, named as it is, without its ending; dots become dashes."""
    if "-" in texts:
        raise InputError(
            "several texts need names that differ, and standard input has none; encode it by itself"
        )
    if output.is_file() or output.suffix.lower() in (".npy", ".parquet"):
        raise InputError(f"{output}: several texts make a folder of folders; give the name of a new one")
    names: dict[str, str] = {}
    for text in texts:
        name = _ENDING.sub("", Path(text).name).strip(".").replace(".", "-")
        if not name or name in names:
            raise InputError(
                f"{text}: its folder would be {name!r}{f', as that of {names[name]}' if name else ''}; several texts "
                "need names that differ: rename it"
            )
        names[name] = text
    return [output / name for name in names]


def _parse_part(part: str) -> tuple[int, int]:
    index, slash, count = part.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal() or int(index) >= int(count):
        raise InputError(f"--part is {part!r}; expected I/N with I from 0 to N − 1, such as 0/4")
    return int(index), int(count)
