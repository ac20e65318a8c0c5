"""Scores that were computed independently of jaxvec, entry by entry: expected | measured.

    python -m experiments.reference_scores CASES/expected_scores.json --data DATA \\
        --model all-mpnet-base-v2=FOLDER --model chinese_roberta_l2=FOLDER

The file maps model → "task|pooling:layers" → calibration → figures, computed with transformers on torch in float32 and
with NumPy in float64. Every entry is measured in one encoding pass a model; the exit status is 1 if one is further off
than 0.0005 (raw) or 0.0015 (calibrated). Models that are not given are loaded by their name. In float32 on two idle
CPU cores: all-MiniLM-L6-v2 2 minutes, all-mpnet-base-v2 4, chinese_roberta_l2 2.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.setup import Model
from jaxvec.cli.options import load_encoder, parse_layers, run_script, say
from jaxvec.errors import InputError
from jaxvec.evaluation.corrections import parse_correction
from jaxvec.evaluation.encoding import make_choice
from jaxvec.evaluation.evaluate import Method, Score, evaluate_plan
from jaxvec.evaluation.readers import read_task
from jaxvec.models.sources import find_model
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results" / "reference_scores.json"
FIGURES = ("all", "mean", "wmean", "pearson")
TOLERANCE = {"raw": 0.0005}  # others:
CALIBRATED = 0.0015


def compare(expected: dict[str, Any], encoder: Any, data: Path) -> list[dict[str, Any]]:
    """Every figure of one model: what was expected and what is measured."""
    entries: dict[str, dict[Method, dict[str, float]]] = {}
    for key, calibrations in expected.items():
        task, _, choice = key.partition("|")
        pooling, _, layers = choice.partition(":")
        for name, figures in calibrations.items():
            method = Method(make_choice(encoder, pooling, parse_layers(layers)), _correction(name))
            entries.setdefault(task, {})[method] = figures
    plan = [(read_task(task, data), list(methods)) for task, methods in entries.items()]
    return [
        row
        for score in evaluate_plan(encoder, plan)
        for row in _rows(score, entries[score.task][score.method])
    ]


_CORRECTIONS: dict[str, Any] = {}


def _correction(name: str) -> Any:
    return _CORRECTIONS.setdefault(name, parse_correction(name))


def _rows(score: Score, expected: dict[str, float]) -> list[dict[str, Any]]:
    name = score.method.correction.name
    return [
        {
            "task": score.task,
            **score.method.describe(),
            "figure": figure,
            "expected": expected[figure],
            "measured": round(score.figures[figure], 6),
            "within": abs(score.figures[figure] - expected[figure]) <= TOLERANCE.get(name, CALIBRATED),
        }
        for figure in FIGURES
        if figure in expected
    ]


def check(
    cases: Annotated[Path, typer.Argument(help="expected_scores.json")],
    data: Annotated[Path, typer.Option(help="Root folder of the data sets.")],
    model: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER")] = None,
) -> None:
    folders = {each.name: each.folder for each in (Model.parse(text, "float32") for text in model or ())}
    known = _expected(cases)
    if foreign := folders.keys() - known.keys():
        raise InputError(
            f"--model: no expected scores of {', '.join(map(repr, foreign))}; there are {', '.join(known)}"
        )
    for name in known:
        find_model(folders.get(name, name))
    record, failures = {}, 0
    for name, expected in known.items():
        start = time.perf_counter()
        encoder = load_encoder(folders.get(name, name), max_length=512)
        rows = compare(expected, encoder, data)
        off = {
            kind: max(abs(r["measured"] - r["expected"]) for r in part)
            for kind, part in _by_kind(rows).items()
        }
        failures += sum(not row["within"] for row in rows)
        record[name] = {
            "figures": len(rows),
            "furthest_off": off,
            "outside": [r for r in rows if not r["within"]],
        }
        say(f"{name}: {len(rows)} figures in {time.perf_counter() - start:.0f} s, furthest off {off}")
    RESULTS.parent.mkdir(exist_ok=True)
    atomic_write_bytes(RESULTS, (json.dumps(record, indent=1) + "\n").encode())
    print(json.dumps(record))
    raise typer.Exit(int(failures > 0))


def _expected(cases: Path) -> dict[str, Any]:
    try:
        found = json.loads(cases.read_text("utf-8"))
        return {name: value for name, value in found.items() if not name.startswith("_")}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{cases}: {error}; expected the JSON file of scores by model") from error


def main() -> None:
    typer.run(check)


def _by_kind(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    kinds = {"raw": [row for row in rows if row["calibration"] == "raw"]}
    return kinds | {"calibrated": [row for row in rows if row["calibration"] != "raw"]}


if __name__ == "__main__":
    run_script(main)
