"""experiments/RESULTS.md and the tables on the terminal: published | measured | difference, from the saved results."""

import json
from pathlib import Path
from typing import Any

from jaxvec.errors import InputError
from jaxvec.evaluation.report import markdown
from jaxvec.evaluation.tasks import PUBLISHED
from jaxvec.vectorfiles import atomic_write_bytes

HEAD = """# Published tables and what jaxvec measures

Written by `python -m experiments`; do not edit. A cell is *published | measured | difference*, Spearman × 100 unless
the table says otherwise; in brackets the 95 % interval. **Stand-in** rows were run with another model than the published
one, where that could not be had: they show that the method runs and what it does, not that the published figure is
reproduced, and their difference is one between models. With a network, the command without `--model` runs the published
models; no row that is marked so, and none marked "not run", has been run with its own. Where a data set could not be had
either, the cell says which stands in for it, and the difference is one between data sets as well. The last line of a
table says in what precision its vectors were computed, and at how many tokens texts were cut.

Here are the tables that `python -m experiments` lists; BERT-flow's Table 3 (after tuning on NLI) and Table 8 (seeds) are
not among them.

"""


def write_page(results: Path, page: Path, names: list[str]) -> None:
    """The page of every saved table, in the order of `names`."""
    parts = [HEAD]
    for name in names:
        file = results / f"{name}.json"
        if file.exists():
            parts.append(section(name, read_results(file)))
        else:
            parts.append(f"## {name}\n\nNot run yet: `python -m experiments {name} --data DATA`\n\n")
    atomic_write_bytes(page, "".join(parts).rstrip("\n").encode() + b"\n")


def read_results(path: Path) -> dict[str, Any]:
    """A table's saved results.

    Raises:
        InputError: the file cannot be read, or is not what `python -m experiments` writes.
    """
    try:
        record = json.loads(path.read_text("utf-8"))
        _check_record(record)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(
            f"{path} does not hold the results of a table ({reason}); restore it from version control, or move it away "
            "to measure the table anew"
        ) from error
    return record


def _check_record(record: Any) -> None:
    """Raises KeyError, TypeError or ValueError where the page or a run would stumble."""
    if not isinstance(record["columns"], list) or not isinstance(record["title"] + record["source"], str):
        raise TypeError("title, source or columns")
    for name in ("jaxvec", "jax", "device"):
        record["provenance"][name]
    for label, row in record["rows"].items():
        if not isinstance(row["published"], dict) or not isinstance(row["note"], str):
            raise TypeError(f"row {label!r}")
        if row["settings"] is not None:
            for name in ("model", "dtype", "max_length"):
                row["settings"][name]
        figures = [*row["published"].values(), *(cell.get("measured") for cell in row["cells"].values())]
        if not all(figure is None or isinstance(figure, int | float) for figure in figures):
            raise TypeError(f"a figure of row {label!r}")


def section(name: str, record: dict[str, Any]) -> str:
    """One table with its source, its notes and what was not run."""
    names = ["row", "run with", *(PUBLISHED[c].title if c in PUBLISHED else c for c in record["columns"])]
    table = [
        [label, _run_with(row), *(_cell(row, column) for column in record["columns"])]
        for label, row in record["rows"].items()
    ]
    notes: dict[str, list[str]] = {}
    for label, row in record["rows"].items():
        for note in (*([row["note"]] if row["note"] else []), *_reasons(row)):
            notes.setdefault(note, []).append(label)
    where = record["provenance"]
    foot = f"{_computed(record)}jaxvec {where['jaxvec']}, jax {where['jax']}, {where['device']}."
    lines = [f"## {record['title']}", f"`{name}` · {record['source']}", markdown(names, table)]
    if notes:
        lines.append("\n".join(f"- {note} ({_named(rows, len(table))})" for note, rows in notes.items()))
    return "\n\n".join([*lines, foot]) + "\n\n"


def _computed(record: dict[str, Any]) -> str:
    """Precision and length of everything measured in the table."""
    rows = [
        row for row in record["rows"].values() if any("measured" in cell for cell in row["cells"].values())
    ]
    kinds = dict.fromkeys((row["settings"]["dtype"], row["settings"]["max_length"]) for row in rows)
    return "".join(f"{dtype}, {length} tokens at most; " for dtype, length in kinds)


def _named(labels: list[str], every: int) -> str:
    if len(labels) > 3:
        return f"{len(labels)} of {every} rows"
    return "; ".join(labels)


def _run_with(row: dict[str, Any]) -> str:
    settings = row["settings"]
    if settings is None:
        return "published only"
    if not any("measured" in cell for cell in row["cells"].values()):
        return "not run"
    if "stand_in" not in settings:
        return settings["model"]
    return f"**stand-in** {_stand_in(settings)}"


def _stand_in(settings: dict[str, Any]) -> str:
    blocks = f", first {settings['blocks']} blocks" if settings["blocks"] else ""
    return f"{settings['stand_in']}{blocks}"


def _described(settings: dict[str, Any]) -> str:
    """What a cell was measured with that is not its row's."""
    model = _stand_in(settings) if "stand_in" in settings else settings["model"]
    return f"{model}, {settings['dtype']}, {settings['calibrate']}, {settings['resamples']:,} resamples"


def _cell(row: dict[str, Any], column: str) -> str:
    published, cell = row["published"].get(column), row["cells"].get(column, {})
    left = "–" if published is None else f"{published:.2f}"
    if "measured" not in cell:
        return left
    if cell["measured"] is None:
        return f"{left} · undefined"
    text = f"{left} · {cell['measured']:.2f}"
    if "task" in cell:
        text += f" on {PUBLISHED[cell['task']].title}"
    if cell.get("interval") and cell["interval"][0] is not None:
        text += f" [{cell['interval'][0]:.1f}, {cell['interval'][1]:.1f}]"
    if published is not None:
        text += f" · {cell['measured'] - published:+.2f}"
    return text


def _reasons(row: dict[str, Any]) -> list[str]:
    """Why cells are empty, and what stood in for a task."""
    found: dict[str, list[str]] = {}
    for column, cell in row["cells"].items():
        title = PUBLISHED[column].title if column in PUBLISHED else column
        if "reason" in cell:
            found.setdefault(f"not run: {cell['reason'].partition(': looked')[0]}", []).append(title)
        if "settings" in cell:
            found.setdefault(f"kept from a run with {_described(cell['settings'])}", []).append(title)
        if "task" in cell:
            title_of = PUBLISHED[cell["task"]].title
            stands_in = f"{title_of} in place of it, and the difference compares figures on two data sets"
            found.setdefault(stands_in, []).append(title)
    return [f"{', '.join(columns)}: {reason}" for reason, columns in found.items()]
