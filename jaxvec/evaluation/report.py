"""Scores as tables: for a terminal, as Markdown, CSV and JSON."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from jaxvec.evaluation.evaluate import Score
from jaxvec.evaluation.tasks import PUBLISHED

_NAMES = {
    "all": "all",
    "mean": "mean",
    "wmean": "wmean",
    "pearson": "Pearson",
    "auc": "AUC",
    "accuracy": "accuracy",
}
LEGEND = (
    "Spearman × 100 of the cosine. all: one correlation over all pairs; mean, wmean: plain and size-weighted mean over "
    "subsets. In brackets: 95 % interval of the paired bootstrap. gain: all, less that of the raw vectors. –: undefined."
)


def rows(scores: Sequence[tuple[str, Score]]) -> tuple[list[str], list[list[str]]]:
    """Column names and cells, one row for each (model, score); figures × 100."""
    several = any(len(score.subsets) > 1 for _, score in scores)
    shown = [
        name
        for name in _NAMES
        if any(name in score.figures for _, score in scores) and (several or name not in ("mean", "wmean"))
    ]
    gains = any(score.gains for _, score in scores)
    names = ["model", "pooling", "layers", "calibration", "fit", "task", "pairs"]
    names += [_NAMES[name] for name in shown] + (["gain"] if gains else [])
    table = []
    for model, score in scores:
        described = score.method.describe()
        title = PUBLISHED[score.task].title if score.task in PUBLISHED else score.task
        cells = [
            model,
            described["pooling"],
            ",".join(map(str, described["layers"])),
            described["calibration"],
            described["fit"] or "–",
            title if score.split == "test" else f"{title} {score.split}",
            str(score.pairs),
        ]
        cells += [_with_interval(score.figures.get(name), score.intervals.get(name)) for name in shown]
        if gains:
            gain = score.gains.get("all")
            cells.append(_with_interval(gain and gain[0], gain and gain[1:], sign=True))
        table.append(cells)
    return names, table


def averages(scores: Sequence[tuple[str, Score]]) -> tuple[list[str], list[list[str]]]:
    """The mean over the tasks, each weighing the same, for each (model, method); × 100."""
    groups: dict[tuple[str, Any], list[Score]] = {}
    for model, score in scores:
        groups.setdefault((model, score.method), []).append(score)
    names = ["model", "pooling", "layers", "calibration", "fit", "tasks", "all", "mean", "wmean"]
    table = []
    for (model, method), each in groups.items():
        described = method.describe()
        figures = [
            sum(score.figures[name] for score in each) / len(each) for name in ("all", "mean", "wmean")
        ]
        table.append(
            [
                model,
                described["pooling"],
                ",".join(map(str, described["layers"])),
                described["calibration"],
                described["fit"] or "–",
                str(len(each)),
                *map(hundredfold, figures),
            ]
        )
    return names, table


def markdown(names: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(markdown(["task", "all"], [["STS-B", "82.03"]]))
    | task | all |
    |---|---|
    | STS-B | 82.03 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (names, *table)]
    return "\n".join([lines[0], "|" + "---|" * len(names), *lines[1:]])


def as_csv(scores: Sequence[tuple[str, Score]]) -> str:
    """CSV with a header: figures at full precision, intervals in columns of their own, empty where undefined."""
    records = []
    for model, score in scores:
        plain = score.as_json()
        record = {"model": model, **{n: plain[n] for n in ("task", "split", "pairs", "pooling")}}
        record["layers"] = " ".join(map(str, plain["layers"]))
        record |= {n: plain[n] for n in ("calibration", "fit", "dim")} | plain["figures"]
        for name, (low, high) in plain["intervals"].items():
            record |= {f"{name}_low": low, f"{name}_high": high}
        for name, (gain, low, high) in plain["gains_over_raw"].items():
            record |= {f"{name}_gain": gain, f"{name}_gain_low": low, f"{name}_gain_high": high}
        records.append(record)
    columns = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def hundredfold(figure: float | None, sign: bool = False) -> str:
    """A figure × 100 with two decimals, or a dash where it is undefined.

    >>> hundredfold(0.82034), hundredfold(float("nan")), hundredfold(0.001, sign=True)
    ('82.03', '–', '+0.10')
    """
    if figure is None or not math.isfinite(figure):
        return "–"
    return f"{100 * figure:{'+' if sign else ''}.2f}"


def _with_interval(figure: float | None, bounds: Sequence[float] | None, sign: bool = False) -> str:
    text = hundredfold(figure, sign)
    if not bounds or text == "–":
        return text
    return f"{text} [{', '.join(hundredfold(bound, sign) for bound in bounds)}]"
