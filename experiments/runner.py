"""Runs published tables: what is measured stands beside what was published, is saved as it comes, and resumes."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.results_page import read_results
from experiments.setup import Model, Setup
from experiments.table import Row, Table
from jaxvec.cli.options import say
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.evaluation.corrections import RAW
from jaxvec.evaluation.evaluate import Method, Score, evaluate_plan
from jaxvec.evaluation.settings import OF_THE_TASK
from jaxvec.evaluation.tasks import Task
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results"


class Run:
    """One table's results so far: cells by row and column, loaded from and saved to its file."""

    def __init__(self, name: str, table: Table, setup: Setup):
        self.name, self.table, self.setup = name, table, setup
        self.path = RESULTS / f"{name}.json"
        kept = read_results(self.path) if self.path.exists() else {"rows": {}, "title": table.title}
        if kept["title"] != table.title:
            raise InputError(
                f"{self.path} holds the results of {kept['title']!r}, not of {table.title!r}; restore it from version "
                "control, or move it away to measure the table anew"
            )
        self.provenance = kept.get("provenance") or setup.describe()
        self.rows: dict[str, dict[str, Any]] = {}
        self.stale: set[tuple[str, str]] = set()
        for row in table.rows:
            settings = self._settings(row)
            old = kept["rows"].get(row.label) or {"settings": settings, "cells": {}}
            cells: dict[str, dict[str, Any]] = {}
            for column, cell in old["cells"].items() if settings else ():
                own = cell.get("settings", old["settings"])
                if own == settings:
                    cells[column] = {key: value for key, value in cell.items() if key != "settings"}
                elif "measured" in cell:  # to be measured again, and kept until it is
                    cells[column] = {**cell, "settings": own}
                    self.stale.add((row.label, column))
            self.rows[row.label] = {"settings": settings, "cells": cells}

    def _settings(self, row: Row) -> dict[str, Any] | None:
        if row.model is None:
            return None
        plain = {"pooling": row.pooling, "layers": row.layers, "calibrate": row.calibrate, "fit": row.fit}
        plain |= {"figure": row.figure or self.table.figure, "max_length": self.table.max_length}
        plain |= {"resamples": self.setup.resamples}
        return json.loads(json.dumps(plain | self.setup.model(row.model).describe()))

    def missing(self, row: Row) -> list[str]:
        """Columns that this row can have and has not been measured in."""
        if row.model is None:
            return []
        cells = self.rows[row.label]["cells"]
        return [
            column
            for column in self.table.columns
            if "measured" not in cells.get(column, {}) or (row.label, column) in self.stale
        ]

    def compare(self, row: Row, encoder: SentenceEncoder) -> None:
        """Marks what was measured with another encoder or on other data than there are now, to be measured again.

        Where the data cannot be read, or the result does not say what they were, there is nothing to compare.
        """
        for column, cell in self.rows[row.label]["cells"].items():
            if "measured" in cell and not self.is_made_from(cell, row, column, encoder):
                self.stale.add((row.label, column))

    def is_made_from(self, cell: Mapping[str, Any], row: Row, column: str, encoder: SentenceEncoder) -> bool:
        """Whether nothing says that the cell is of another encoder or other data."""
        try:
            now = self.made_from(row, column, encoder)
        except InputError:
            return True
        before = cell.get("made_from", {})
        if any(before.get(part, value) != value for part, value in now.items()):
            return False
        if self.table.measure is not None:
            return True
        task, fitted_on = _task(self, column, self.setup), None
        if "fitted_on" in cell:
            text = self.setup.fit_text(task, row.fit)
            fitted_on = {"parts": list(text.parts), "sentences": len(text.sentences)}
        return (cell.get("task", column), cell.get("fitted_on")) == (task.name, fitted_on)

    def made_from(self, row: Row, column: str, encoder: SentenceEncoder) -> dict[str, str]:
        """Digests of the encoder and of the data behind a cell."""
        if self.table.measure is not None:
            data = self.setup.read_digest(self.table)
        else:
            fit = None if row.calibrate == RAW else row.fit
            data = self.setup.task_digest(_task(self, column, self.setup), fit)
        return {"encoder": encoder.fingerprint[:16], "data": data}

    def put(self, row: Row, column: str, cell: Mapping[str, Any]) -> None:
        """Keeps a cell: {"measured": …, "interval": …} or {"reason": …}; no reason takes a measured cell's place."""
        cells = self.rows[row.label]["cells"]
        if "measured" in cell:
            self.stale.discard((row.label, column))
            self.provenance = self.setup.describe()
        elif "measured" in cells.get(column, {}):
            return
        cells[column] = dict(cell)

    def save(self) -> None:
        """Writes the table's file."""
        record = {
            "title": self.table.title,
            "source": self.table.source,
            "columns": list(self.table.columns),
            "provenance": self.provenance,
            "rows": {
                row.label: {
                    "published": dict(row.published),
                    "note": row.note,
                    **_as_measured(self.rows[row.label]),
                }
                for row in self.table.rows
            },
        }
        RESULTS.mkdir(exist_ok=True)
        atomic_write_bytes(self.path, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())


def _as_measured(row: dict[str, Any]) -> dict[str, Any]:
    """A row of which nothing was measured under its present settings, as it was measured before."""
    before = [cell.get("settings") for cell in row["cells"].values() if "measured" in cell]
    if not before or before[0] is None or any(settings != before[0] for settings in before):
        return row
    cells = {
        column: {key: value for key, value in cell.items() if key != "settings"}
        for column, cell in row["cells"].items()
    }
    return {"settings": before[0], "cells": cells}


def run_tables(tables: Mapping[str, Table], setup: Setup) -> list[Run]:
    """Measures what is missing in the tables, task by task; everything is saved as it comes."""
    runs = [Run(name, table, setup) for name, table in tables.items()]
    models = {(row.model, run.table.max_length) for run in runs for row in run.table.rows if row.model}
    for name, max_length in sorted(models):
        own = [run for run in runs if run.table.max_length == max_length]
        try:
            encoder = setup.model(name).encoder(max_length)
        except InputError as error:
            for run, row in _rows(own, name):
                _refuse(run, row, run.missing(row), str(error).split(";")[0])
        else:
            start = time.perf_counter()
            for run, row in _rows(own, name):
                run.compare(row, encoder)
            _share(runs, _rows(own, name), encoder)
            _run_scores([run for run in own if run.table.measure is None], setup.model(name), setup)
            _run_measures([run for run in own if run.table.measure is not None], setup.model(name), setup)
            say(f"{name}: {time.perf_counter() - start:.0f} s")
        for run in own:
            run.save()
    return runs


def _share(runs: list[Run], wanted: list[tuple[Run, Row]], encoder: SentenceEncoder) -> None:
    """Rows of equal settings have equal figures: one stand-in may stand for two models, and tables share rows."""
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        for row in run.table.rows:
            if _is_shared(run, row):
                cells = run.rows[row.label]["cells"]
                known |= {(_same(run, row), c): cells[c] for c in cells.keys() - set(run.missing(row))}
    for run, row in wanted:
        for column in run.missing(row) if _is_shared(run, row) else ():
            cell = known.get((_same(run, row), column))
            if cell and run.is_made_from(cell, row, column, encoder):
                run.put(row, column, cell)


def _is_shared(run: Run, row: Row) -> bool:
    return run.table.measure is None and "stand_in" in (run.rows[row.label]["settings"] or {})


def _same(run: Run, row: Row) -> str:
    settings = run.rows[row.label]["settings"]
    return json.dumps({key: value for key, value in settings.items() if key != "model"})


def _run_scores(runs: list[Run], model: Model, setup: Setup) -> None:
    wanted: dict[str, list[tuple[Run, Row, str, Any]]] = {}
    tasks: dict[str, Task] = {}
    for run, row in _rows(runs, model.name):
        for column in run.missing(row):
            try:
                task = _task(run, column, setup)
                method = setup.method(row, run.table.max_length)
            except InputError as error:
                _refuse(run, row, [column], str(error))
                continue
            tasks[task.name] = task
            wanted.setdefault(task.name, []).append((run, row, column, method))
    if not wanted:
        return
    encoder, count = model.encoder(runs[0].table.max_length), sum(map(len, wanted.values()))
    say(f"{model.name}: {count} cells on {', '.join(wanted)}")
    for names, shared in [*(([name], False) for name in wanted), (list(wanted), True)]:
        plan = []
        for name in names:
            methods = dict.fromkeys(cell[3] for cell in wanted[name] if _fit_is_shared(cell[3]) == shared)
            plan += [(tasks[name], list(methods))] if methods else []
        if not plan:
            continue

        def refused(task: Task, method: Method, error: InputError) -> None:
            for run, row, column, wanting in wanted[task.name]:
                if wanting == method:
                    _refuse(run, row, [column], str(error))

        for score in evaluate_plan(
            encoder,
            plan,
            data=setup.data,
            shared=setup.shared,
            resamples=setup.resamples,
            refused=refused,
        ):
            for run, row, column, method in wanted[score.task]:
                if method == score.method:
                    cell = _cell(score, row.figure or run.table.figure, column)
                    run.put(row, column, {**cell, "made_from": run.made_from(row, column, encoder)})
                    run.save()


def _fit_is_shared(method: Method) -> bool:
    """Whether a method is fitted on a corpus that no task brings along: its tasks are then scored in one pass, so that
    it is encoded once. All else is scored task by task, so that a run which is stopped has something to go on from.
    """
    return bool(method.correction.steps) and method.fit not in OF_THE_TASK


def _task(run: Run, column: str, setup: Setup) -> Task:
    try:
        return setup.task(column)
    except InputError:
        if column not in run.table.in_place_of:
            raise
        return setup.task(run.table.in_place_of[column])


def _cell(score: Score, figure: str, column: str) -> dict[str, Any]:
    plain = score.as_json()
    value = plain["figures"].get(figure)
    cell: dict[str, Any] = {"measured": None if value is None else round(100 * value, 3)}
    if figure in plain["intervals"]:
        cell["interval"] = [bound and round(100 * bound, 3) for bound in plain["intervals"][figure]]
    if plain["fitted_on"]:
        cell["fitted_on"] = plain["fitted_on"]
    if score.task != column:
        cell["task"] = score.task
    return cell


def _run_measures(runs: list[Run], model: Model, setup: Setup) -> None:
    for run, row in _rows(runs, model.name):
        if columns := run.missing(row):
            try:
                found = run.table.measure(setup, row)
                made_from = run.made_from(row, "", model.encoder(run.table.max_length))
            except InputError as error:
                _refuse(run, row, columns, str(error))
                continue
            for column, value in found.items():
                measured = round(value, 3) if math.isfinite(value) else None
                run.put(row, column, {"measured": measured, "made_from": made_from})
            run.save()


def _refuse(run: Run, row: Row, columns: Iterable[str], reason: str) -> None:
    # Results are kept and shown: where things lie on one machine is nobody else's concern.
    reason = reason.replace(str(run.setup.data), "DATA")
    for model in run.setup.models.values():
        if model.folder is not None:
            reason = reason.replace(model.folder, Path(model.folder).name)
    for column in columns:
        run.put(row, column, {"reason": reason})


def _rows(runs: Iterable[Run], model: str) -> Iterable[tuple[Run, Row]]:
    return [(run, row) for run in runs for row in run.table.rows if row.model == model]
