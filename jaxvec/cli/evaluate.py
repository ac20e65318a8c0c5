"""`jaxvec eval`: what models, poolings, layers and calibrations are worth on tasks with people's scores."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxvec.cli.options import Dtype, MaxLength, load_encoder, parse_layers, progress, say
from jaxvec.errors import InputError

app = typer.Typer(help="Score models and calibrations on tasks with people's scores.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command(no_args_is_help=True)
def sts(
    models: Annotated[
        list[str], typer.Argument(help="Folders (fitted or plain), Hugging Face ids, or the bundled default.")
    ],
    task: Annotated[
        list[str],
        typer.Option(
            help="stsb, sts12 … sts16, sickr, lcqmc, atec, bq, pawsx-zh, stsb-zh; english, chinese for all of them; "
            "or a file named .tsv, .csv, .jsonl, .parquet. Several: repeat, or commas."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="Root folder (one folder a task, as released) or a task's folder; tfds; or hub."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Of a file: FIRST,SECOND,SCORE by name or number; default sentence1,sentence2,score."
        ),
    ] = None,
    pooling: Annotated[
        list[str] | None, typer.Option(help="cls, mean, max, pooler; several. Default: the folder's own.")
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            help="last, first_last, …, or numbers such as 1,4; repeat for several. Default: the folder's own."
        ),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            help="whitening:256, pca:128, standardize, remove-components:3, flow; + joins, commas or repeating give several."
        ),
    ] = None,
    fit: Annotated[
        list[str] | None,
        typer.Option(help="What is fitted on: self (default), target, train, nli, or a text file; several."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(help="Of the paired bootstrap behind the 95 % intervals; 0 leaves them out.")
    ] = 10_000,
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write scores and provenance; - for stdout.")
    ] = None,
    as_csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write the scores; - for stdout.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write the tables; - for stdout.")
    ] = None,
) -> None:
    """Spearman of cosine on STS tasks; each sentence is encoded once for all poolings, layers and calibrations."""
    from jaxvec.evaluation.corrections import RAW, parse_correction
    from jaxvec.evaluation.encoding import make_choice
    from jaxvec.evaluation.evaluate import Method, evaluate
    from jaxvec.evaluation.readers import read_task
    from jaxvec.evaluation.settings import normal_setting, shared_texts
    from jaxvec.evaluation.tasks import CHINESE, ENGLISH, canonical

    if resamples < 0:
        raise InputError(f"--resamples {resamples}: expected 0 or more")
    named = {"english": ENGLISH, "chinese": CHINESE}
    spelled = [n for name in _separated(task) for n in named.get(name.lower(), (name,))]
    names = list({canonical(name) or os.path.realpath(name): name for name in spelled}.values())
    settings = list({normal_setting(setting): setting for setting in _separated(fit)}.values()) or ["self"]
    inputs = {"--task": [n for n in names if canonical(n) is None], "--fit": settings}
    _check_outputs({"--json": as_json, "--csv": as_csv, "--markdown": as_markdown}, inputs)
    tasks = [read_task(name, data, columns) for name in names]
    corrections = {c.name: c for c in map(parse_correction, [RAW, *_separated(calibrate)])}
    fitted = any(correction.steps for correction in corrections.values())
    shared = shared_texts(tasks, settings, data) if fitted else {}
    start, scores, provenance, planned = time.perf_counter(), [], [], []
    for model in models:  # nothing is encoded before all are known to do what is asked of them
        encoder = load_encoder(model, dtype=dtype, max_length=max_length)
        for correction in corrections.values():
            correction.check_width(encoder.dim)
        choices = dict.fromkeys(
            make_choice(encoder, pool, numbers)
            for pool in _separated(pooling) or [None]
            for numbers in _parsed_layers(layers) or [None]
        )
        methods = [
            Method(choice, correction, setting)
            for choice in choices
            for correction in corrections.values()
            for setting in (settings if correction.steps else ["self"])
        ]
        planned.append((model, encoder, methods))
    while planned:
        model, encoder, methods = planned.pop(0)
        with progress() as tick:
            found = evaluate(
                encoder, tasks, methods, data=data, shared=shared, resamples=resamples, tick=tick
            )
            scores += [(model, score) for score in found]
        provenance.append({**encoder.describe(), "fingerprint": encoder.fingerprint})
    seconds = round(time.perf_counter() - start, 3)
    sources = {each.name: each.source for each in tasks}
    _report(scores, _provenance(provenance, sources, resamples, seconds), as_json, as_csv, as_markdown)


def _check_outputs(outputs: dict[str, str | None], inputs: dict[str, list[str]]) -> None:
    """Refuses, before any work is done, what cannot be written, and what would overwrite another file of the call."""
    from jaxvec.vectorfiles import check_target

    taken = {
        os.path.realpath(file): f"the {option} file"
        for option, files in inputs.items()
        for file in files
        if os.path.isfile(file)
    }
    asked = {option: file for option, file in outputs.items() if file is not None}
    for option, file in asked.items():
        if file != "-":
            check_target(file)
        place = file if file == "-" else os.path.realpath(file)
        if place in taken:
            raise InputError(f"{option} {file} is {taken[place]} too; give every output a place of its own")
        taken[place] = f"that of {option}"
    if sys.stdout is None and (not asked or "-" in asked.values()):
        raise InputError(
            "standard output is closed; open it, or name a file: --json, --csv or --markdown FILE"
        )


def _separated(values: list[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def _parsed_layers(values: list[str] | None) -> list[Any]:
    """Numbers stay together, names may share an option: ["1,4", "last,last_two"] is three choices."""
    found: list[Any] = []
    for value in values or ():
        parsed = parse_layers(value)
        found += [parsed] if isinstance(parsed, tuple) else _separated([value])
    return found


def _provenance(models: list[Any], sources: dict[str, str], resamples: int, seconds: float) -> dict[str, Any]:
    import jax

    from jaxvec import __version__

    return {
        "models": models,
        "data": sources,
        "resamples": resamples,
        "jaxvec": __version__,
        "jax": jax.__version__,
        "device": f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}",
        "seconds": seconds,
    }


def _report(
    scores: list[Any],
    provenance: dict[str, Any],
    as_json: str | None,
    as_csv: str | None,
    as_markdown: str | None,
) -> None:
    from jaxvec.evaluation import report

    tables = [report.rows(scores)]
    if len({score.task for _, score in scores}) > 1:
        tables.append(report.averages(scores))
    outputs = {}
    if as_json is not None:
        plain = {"provenance": provenance, "scores": [{"model": m, **score.as_json()} for m, score in scores]}
        outputs[as_json] = json.dumps(plain, ensure_ascii=False, indent=1) + "\n"
    if as_csv is not None:
        outputs[as_csv] = report.as_csv(scores)
    if as_markdown is not None:
        outputs[as_markdown] = (
            "\n\n".join([report.markdown(*table) for table in tables] + [report.LEGEND]) + "\n"
        )
    for file, text in outputs.items():
        _write(file, text)
    if "-" not in outputs and sys.stdout is not None:
        _print_tables(tables, report)


def _print_tables(tables: list[Any], report: Any) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        for names, rows in tables:
            table = Table(*names)
            for row in rows:
                table.add_row(*(cell.replace("[", "\\[") for cell in row))
            Console().print(table)
    else:
        _write("-", "\n\n".join(report.markdown(*table) for table in tables) + "\n")
    say(report.LEGEND)


def _write(file: str, text: str) -> None:
    from jaxvec.vectorfiles import atomic_write_bytes

    if file != "-":
        atomic_write_bytes(Path(file), text.encode())
        return
    try:
        print(text, end="", flush=True)
    except OSError as error:
        raise InputError(f"the result could not be written to standard output: {error.strerror}") from None
