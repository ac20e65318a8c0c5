"""Runs published tables: what is measured stands beside what was published, is saved as it comes, and resumes."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.setup import Model, Setup
from experiments.table import Row, Table
from jaxvec.cli.options import say
from jaxvec.errors import InputError
from jaxvec.evaluation.evaluate import Method, Score, evaluate_plan
from jaxvec.evaluation.tasks import Task
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results"


class Run:
    """One table's results so far: cells by row and column, loaded from and saved to its file."""

    def __init__(self, name: str, table: Table, setup: Setup):
        self.name, self.table, self.setup = name, table, setup
        self.path = RESULTS / f"{name}.json"
        kept = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {"rows": {}}
        self.rows: dict[str, dict[str, Any]] = {}
        for row in table.rows:
            settings = self._settings(row)
            old = kept["rows"].get(row.label, {})
            # Whatever was measured under other settings is measured again.
            cells = old.get("cells", {}) if old.get("settings") == settings else {}
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
        return [column for column in self.table.columns if "measured" not in cells.get(column, {})]

    def put(self, row: Row, column: str, cell: Mapping[str, Any]) -> None:
        """Keeps a cell: {"measured": …, "interval": …} or {"reason": …}."""
        self.rows[row.label]["cells"][column] = dict(cell)

    def save(self) -> None:
        """Writes the table's file."""
        record = {
            "title": self.table.title,
            "source": self.table.source,
            "columns": list(self.table.columns),
            "provenance": self.setup.describe(),
            "rows": {
                row.label: {"published": dict(row.published), "note": row.note, **self.rows[row.label]}
                for row in self.table.rows
            },
        }
        RESULTS.mkdir(exist_ok=True)
        atomic_write_bytes(self.path, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())


def run_tables(tables: Mapping[str, Table], setup: Setup) -> list[Run]:
    """Measures what is missing in the tables, task by task; everything is saved as it comes."""
    runs = [Run(name, table, setup) for name, table in tables.items()]
    models = {(row.model, run.table.max_length) for run in runs for row in run.table.rows if row.model}
    for name, max_length in sorted(models):
        own = [run for run in runs if run.table.max_length == max_length]
        _share(runs)
        try:
            setup.model(name).encoder(max_length)
        except InputError as error:
            for run, row in _rows(own, name):
                _refuse(run, row, run.missing(row), str(error).split(";")[0])
        else:
            start = time.perf_counter()
            _run_scores([run for run in own if run.table.measure is None], setup.model(name), setup)
            _run_measures([run for run in own if run.table.measure is not None], setup.model(name), setup)
            say(f"{name}: {time.perf_counter() - start:.0f} s")
        for run in own:
            run.save()
    return runs


def _share(runs: list[Run]) -> None:
    """Rows of equal settings have equal figures: one stand-in may stand for two models, and tables share rows."""
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for share in (False, True):
        for run in runs:
            for row in run.table.rows:
                settings, cells = run.rows[row.label]["settings"], run.rows[row.label]["cells"]
                if settings is None or "stand_in" not in settings or run.table.measure is not None:
                    continue
                same = json.dumps({key: value for key, value in settings.items() if key != "model"})
                for column in run.missing(row) if share else cells:
                    if share and (same, column) in known:
                        run.put(row, column, known[same, column])
                    elif not share and "measured" in cells[column]:
                        known[same, column] = cells[column]


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
        for score in evaluate_plan(encoder, plan, data=setup.data, resamples=setup.resamples) if plan else ():
            for run, row, column, method in wanted[score.task]:
                if method == score.method:
                    run.put(row, column, _cell(score, row.figure or run.table.figure, column))
                    run.save()


def _fit_is_shared(method: Method) -> bool:
    """Whether a method is fitted on a corpus that no task brings along: its tasks are then scored in one pass, so that
    it is encoded once. All else is scored task by task, so that a run which is stopped has something to go on from.
    """
    return bool(method.correction.steps) and method.fit not in ("self", "target", "train")


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
            except InputError as error:
                _refuse(run, row, columns, str(error))
                continue
            for column, value in found.items():
                run.put(row, column, {"measured": round(value, 3) if math.isfinite(value) else None})
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
