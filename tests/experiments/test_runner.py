"""Published tables: what is published stays, what can be run is measured, a stopped run goes on, stand-ins are named."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import results_page, runner
from experiments.__main__ import TABLES
from experiments.setup import Model, Setup
from experiments.table import Row, Table, figures
from jaxvec import InputError

ROOT = Path(__file__).parents[2]
TINY = Table(
    title="Tiny",
    source="nowhere",
    columns=("stsb-zh", "bq"),
    figure="all",
    rows=(
        Row(label="raw", published=figures(("stsb-zh", "bq"), "10.0 -"), model="tiny-bert"),
        Row(label="white", published={}, model="tiny-bert", layers="first_last", calibrate="whitening:4"),
        Row(label="pooled", published={}, model="tiny-bert", pooling="pooler"),
        Row(label="other", published={"bq": 20.0}, note="not of a family that jaxvec reads"),
        Row(label="away", published={"bq": 30.0}, model="no/such/model"),
    ),
)


@pytest.fixture
def setup(write_bert, tmp_path, texts, monkeypatch):
    """A root folder with a tiny STS-B-zh, and a model of three blocks of which two count."""
    from dataclasses import replace

    from jaxvec.evaluation.tasks import PUBLISHED

    monkeypatch.setitem(PUBLISHED, "stsb-zh", replace(PUBLISHED["stsb-zh"], counts={"test": 40}))
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rng = np.random.default_rng(0)
    lines = [f"{a}\t{b}\t{rng.integers(0, 6)}" for a, b in zip(texts[:40], texts[40:80], strict=True)]
    (tmp_path / "data/STS-B-zh").mkdir(parents=True)
    (tmp_path / "data/STS-B-zh/STS-B.test.data").write_text("\n".join(lines) + "\n")
    folder = write_bert(tmp_path / "tiny", pooler=False)
    models = {
        "tiny-bert": Model.parse(f"tiny-bert={folder}@2", "float32"),
        "no/such/model": Model.parse(f"no/such/model={tmp_path / 'nowhere'}", "float32"),
    }
    return Setup(tmp_path / "data", models, "float32", resamples=20)


def test_what_can_be_run_is_and_the_rest_says_why(setup, tmp_path, monkeypatch):
    (run,) = runner.run_tables({"tiny": TINY}, setup)
    record = json.loads((tmp_path / "results/tiny.json").read_text())
    rows = record["rows"]
    assert -100 <= rows["raw"]["cells"]["stsb-zh"]["measured"] <= 100
    low, high = rows["white"]["cells"]["stsb-zh"]["interval"]
    assert low < rows["white"]["cells"]["stsb-zh"]["measured"] < high
    assert rows["white"]["cells"]["stsb-zh"]["fitted_on"] == {"parts": ["test"], "sentences": 80}
    assert "BQ was not found" in rows["raw"]["cells"]["bq"]["reason"]
    assert "needs the pooler's weights" in rows["pooled"]["cells"]["stsb-zh"]["reason"]
    assert rows["other"] == {
        "published": {"bq": 20.0}, "note": "not of a family that jaxvec reads", "settings": None, "cells": {}
    }  # fmt: skip
    assert "no such folder" in rows["away"]["cells"]["bq"]["reason"]
    assert str(tmp_path) not in json.dumps(record)

    page = tmp_path / "RESULTS.md"
    results_page.write_page(tmp_path / "results", page, ["tiny", "later"])
    text = page.read_text()
    assert "| raw | **stand-in** tiny, first 2 blocks | 10.00 · " in text
    assert "| other | published only | – | 20.00 |" in text
    assert "| away | not run | – | 30.00 |" in text
    assert "Not run yet: `python -m experiments later" in text

    monkeypatch.setattr(runner, "evaluate_plan", lambda *_, **__: pytest.fail("measured again"))
    (again,) = runner.run_tables({"tiny": TINY}, setup)  # everything is there already
    assert again.rows == run.rows
    setup.resamples = 30  # another setting: measured again
    assert runner.Run("tiny", TINY, setup).missing(TINY.rows[0]) == ["stsb-zh", "bq"]


def _cells(tmp_path, row, name="tiny"):
    return json.loads((tmp_path / f"results/{name}.json").read_text())["rows"][row]["cells"]


def _figures(tmp_path):
    rows = json.loads((tmp_path / "results/tiny.json").read_text())["rows"]
    return {label: row["cells"].get("stsb-zh", {}).get("measured") for label, row in rows.items()}


def test_no_reason_takes_a_figures_place(setup, tmp_path):
    from dataclasses import replace

    runner.run_tables({"tiny": TINY}, setup)
    before, figures_before = json.loads((tmp_path / "results/tiny.json").read_text()), _figures(tmp_path)
    models = setup.models
    setup.models = models | {"tiny-bert": replace(models["tiny-bert"], folder="nowhere/other", _encoders={})}
    runner.run_tables({"tiny": TINY}, setup)
    assert _figures(tmp_path) == figures_before
    record = json.loads((tmp_path / "results/tiny.json").read_text())
    assert record["rows"]["raw"]["settings"]["stand_in"] == "tiny"
    setup.models = models
    runner.run_tables({"tiny": TINY}, setup)
    assert json.loads((tmp_path / "results/tiny.json").read_text()) == before


def test_a_figure_of_other_settings_is_kept_and_said_so_until_it_can_be_measured(
    setup, tmp_path, monkeypatch
):
    runner.run_tables({"tiny": TINY}, setup)
    figure = _figures(tmp_path)["white"]
    setup.resamples = 0
    with monkeypatch.context() as patched:
        patched.setattr(
            "jaxvec.evaluation.corrections.Correction.fit",
            lambda *_: (_ for _ in ()).throw(InputError("diverged")),
        )
        runner.run_tables({"tiny": TINY}, setup)
    record = json.loads((tmp_path / "results/tiny.json").read_text())
    assert record["rows"]["white"]["settings"]["resamples"] == 20
    assert record["rows"]["raw"]["settings"]["resamples"] == 0
    assert _figures(tmp_path)["white"] == figure
    runner.run_tables({"tiny": TINY}, setup)
    record = json.loads((tmp_path / "results/tiny.json").read_text())
    assert record["rows"]["white"]["settings"]["resamples"] == 0
    assert _figures(tmp_path)["white"] == figure
    kept = {
        "measured": 1.0,
        "settings": {"model": "m", "dtype": "float32", "calibrate": "raw", "resamples": 9},
    }
    note = "STS-B-zh: kept from a run with m, float32, raw, 9 resamples"
    assert results_page._reasons({"cells": {"stsb-zh": kept}}) == [note]


def test_a_cell_that_fails_leaves_the_others(setup, tmp_path):
    from dataclasses import replace

    rows = [
        replace(TINY.rows[0], label=name, calibrate=calibrate, fit=fit)
        for name, calibrate, fit in (
            ("good", "whitening:4", "self"),
            ("too wide", "whitening:33", "self"),
            ("no text", "whitening:4", "nli"),
            ("no split", "whitening:4", "train"),
        )
    ]
    runner.run_tables({"tiny": replace(TINY, rows=rows, columns=("stsb-zh",))}, setup)
    assert "measured" in _cells(tmp_path, "good")["stsb-zh"]
    for label, reason in (
        ("too wide", "33"),
        ("no text", "no NLI text under DATA/"),
        ("no split", "no train split"),
    ):
        assert reason in _cells(tmp_path, label)["stsb-zh"]["reason"]


def test_figures_of_other_data_or_another_encoder_are_measured_again(setup, tmp_path, write_bert, texts):
    from dataclasses import replace

    fitted = replace(TINY.rows[1], label="corpus", fit=str(tmp_path / "fit.txt"))
    tiny = replace(TINY, rows=(*TINY.rows[:2], fitted), columns=("stsb-zh",))

    def measured_again():
        before = {row.label: _cells(tmp_path, row.label)["stsb-zh"]["made_from"] for row in tiny.rows}
        setup.models["tiny-bert"]._encoders.clear()
        new = Setup(setup.data, setup.models, "float32", resamples=20)
        runner.run_tables({"tiny": tiny}, new)
        return [label for label in before if _cells(tmp_path, label)["stsb-zh"]["made_from"] != before[label]]

    (tmp_path / "fit.txt").write_text("\n".join(texts[:50]))
    runner.run_tables({"tiny": tiny}, setup)
    assert measured_again() == []
    (tmp_path / "fit.txt").write_text("\n".join(texts[50:100]))  # as many, but others
    assert measured_again() == ["corpus"]
    file = tmp_path / "data/STS-B-zh/STS-B.test.data"
    file.write_text(file.read_text().replace("\t0\n", "\t5\n"))
    assert measured_again() == ["raw", "white", "corpus"]
    write_bert(tmp_path / "tiny", pooler=False, seed=1)
    assert measured_again() == ["raw", "white", "corpus"]

    record = json.loads((tmp_path / "results/tiny.json").read_text())
    for row in record["rows"].values():
        del row["cells"]["stsb-zh"]["made_from"]  # nothing to compare
    (tmp_path / "results/tiny.json").write_text(json.dumps(record))
    assert not any(runner.Run("tiny", tiny, setup).missing(row) for row in tiny.rows)
    record["rows"]["corpus"]["cells"]["stsb-zh"]["fitted_on"]["sentences"] = 49
    (tmp_path / "results/tiny.json").write_text(json.dumps(record))
    runner.run_tables({"tiny": tiny}, setup)
    made_from = [_cells(tmp_path, row.label)["stsb-zh"].get("made_from") for row in tiny.rows]
    assert made_from[:2] == [None, None]
    assert made_from[2]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": {}}', "\x00", '{"title": "Tiny", "rows": {"raw": 1}}']
)
def test_a_foreign_results_file_is_refused_before_any_work(text, setup, tmp_path, monkeypatch):
    monkeypatch.setattr(Model, "encoder", lambda *_: pytest.fail("work was done"))
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny.json").write_text(text)
    with pytest.raises(InputError, match=r"tiny\.json .*restore it from version control, or move it away"):
        runner.run_tables({"tiny": TINY}, setup)
    with pytest.raises(InputError, match=r"tiny\.json does not hold the results of a table"):
        results_page.write_page(tmp_path / "results", tmp_path / "page.md", ["tiny"])
    assert (tmp_path / "results/tiny.json").read_text() == text


def test_the_results_of_another_table_are_refused(setup, tmp_path):
    from dataclasses import replace

    runner.run_tables({"tiny": TINY}, setup)
    with pytest.raises(InputError, match="holds the results of 'Tiny', not of 'Large'"):
        runner.Run("tiny", replace(TINY, title="Large"), setup)


def test_a_task_in_anothers_place_is_named_in_the_cell_and_precision_in_the_foot():
    settings = {"model": "m", "dtype": "bfloat16", "max_length": 64, "stand_in": "small", "blocks": None}
    cell = {"measured": 76.5, "interval": [75.0, 78.0], "task": "snli"}
    record = {
        "title": "T",
        "source": "S",
        "columns": ["qnli"],
        "provenance": {"jaxvec": "0", "jax": "1", "device": "2"},
        "rows": {
            "r": {"published": {"qnli": 70.0}, "note": "", "settings": settings, "cells": {"qnli": cell}}
        },
    }
    text = results_page.section("t", record)
    assert "| 70.00 · 76.50 on SNLI [75.0, 78.0] · +6.50 |" in text
    assert "QNLI: SNLI in place of it, and the difference compares figures on two data sets (r)" in text
    assert "bfloat16, 64 tokens at most; jaxvec 0, jax 1, 2." in text


def _write_stsb(folder, texts):
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    for split, start in (("train", 0), ("dev", 20), ("test", 40)):
        pairs = zip(texts[start : start + 40], texts[start + 60 : start + 100], strict=True)
        rows = [f"g\tf\ty\t{i}\t{rng.integers(0, 6)}\t{a}\t{b}" for i, (a, b) in enumerate(pairs)]
        (folder / f"sts-{split}.csv").write_text("\n".join(rows) + "\n")


def test_tables_of_other_things_than_scores(setup, tmp_path, texts, monkeypatch):
    from dataclasses import replace
    from itertools import pairwise

    from scipy.stats import spearmanr

    from jaxvec.evaluation.edit_distance import edit_distance
    from jaxvec.evaluation.tasks import PUBLISHED

    monkeypatch.setitem(PUBLISHED, "stsb", replace(PUBLISHED["stsb"], counts={}))
    _write_stsb(tmp_path / "data/STSB", texts)
    (tmp_path / "data/corpus").mkdir()
    (tmp_path / "data/corpus/some.txt").write_text("\n".join(texts) + "\n")
    setup.models["bert-base-uncased"] = replace(setup.models["tiny-bert"], name="bert-base-uncased")

    six = importlib.import_module("experiments.bert_flow_table6")
    gold, induced, flow = six.TABLE.rows
    dev = setup.task("stsb").scoring("dev").scored
    ids = [setup.models["bert-base-uncased"].encoder(64).tokenizer(part) for part in (dev.first, dev.second)]
    words = [[part.values[a:b].tolist() for a, b in pairwise(part.offsets)] for part in ids]
    expected = spearmanr(dev.scores, edit_distance(*words))[0]
    assert six.measure(setup, gold) == pytest.approx({"gold": 100.0, "edit distance": 100 * expected})
    white = replace(flow, calibrate="whitening:4")
    assert six.measure(setup, induced)["gold"] != six.measure(setup, white)["gold"]

    one = importlib.import_module("experiments.bert_flow_table1")
    lengths = one.measure(setup, one.TABLE.rows[0])
    assert list(lengths) == list(one.COLUMNS)
    assert lengths["[0, 100)"] > 0  # the vocabulary has no more words than that
    assert np.isnan(lengths["[5K, 10K)"])


def test_models_are_given_by_name():
    model = Model.parse("a/b=some/folder@8", "bfloat16")
    assert (model.name, model.folder, model.blocks) == ("a/b", "some/folder", 8)
    assert Model.parse("a/b=some/folder", "float32").blocks is None
    for text in ("folder", "a=", "=folder", "a=folder@x", "a=@3"):
        with pytest.raises(InputError, match="expected NAME=FOLDER"):
            Model.parse(text, "float32")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_whole(name):
    module = importlib.import_module(f"experiments.{name}")
    assert f"python -m experiments {name} --data DATA" in module.__doc__
    table = module.TABLE
    assert len({row.label for row in table.rows}) == len(table.rows)
    for row in table.rows:
        assert set(row.published) <= set(table.columns)
        assert row.model or row.note  # what cannot be run says why
        assert all(-100 <= figure <= 100 for figure in row.published.values())
    assert {column for row in table.rows for column in row.published} <= set(table.columns)


def test_published_figures_need_a_cell_for_every_column():
    assert figures(("a", "b"), "1.5 -") == {"a": 1.5}
    with pytest.raises(ValueError, match="1 figures for 2 columns"):
        figures(("a", "b"), "1.5")


def test_the_command_lists_them_and_refuses_what_it_has_not():
    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "experiments", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )

    listed = call()
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(TABLES)
    refused = call("bert_flow_table9", "--data", ".")
    assert refused.returncode == 2
    assert "no table bert_flow_table9" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtype", "float16"), "--dtype float16: expected float32, bfloat16 or auto"),
        (("--resamples", "-1"), "--resamples -1"),
        (("--model", "foo"), "--model foo: expected NAME=FOLDER"),
        (("--model", "foo=tests"), "no row has this model; there are bert-base-chinese, bert-base-uncased"),
        (("--model", "bert-base-uncased=./nowhere"), "./nowhere"),
    ],
)
def test_bad_arguments_are_refused_before_anything(arguments, message, monkeypatch):
    from experiments import __main__ as command

    monkeypatch.setattr(command, "run_tables", lambda *_: pytest.fail("work was done"))
    options = dict(zip([a.lstrip("-") for a in arguments[::2]], arguments[1::2], strict=True))
    options = {key: [value] if key == "model" else value for key, value in options.items()}
    if "resamples" in options:
        options["resamples"] = int(options["resamples"])
    with pytest.raises(InputError, match=re.escape(message)):
        command.run(names=["lcqmc_table"], data=Path("."), **options)


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("reference_scores", ("nowhere.json", "--data", "."), "nowhere.json"),
        ("reference_scores", ("README.md", "--data", "."), "README.md"),
        ("reference_scores", ("CASES", "--data", ".", "--model", "foo"), "--model foo: expected NAME=FOLDER"),
        ("reference_scores", ("CASES", "--data", ".", "--model", "foo=tests"), "no expected scores of 'foo'"),
        ("choosing_without_labels", (".", "--model", "./nowhere"), "./nowhere"),
        (
            "choosing_without_labels",
            (".", "--model", "all-MiniLM-L6-v2@x"),
            "expected MODEL[@BLOCKS][:TASKS]",
        ),
        ("choosing_without_labels", (".", "--model", "all-MiniLM-L6-v2@9"), "has 6 blocks"),
        ("choosing_without_labels", (".", "--model", "all-MiniLM-L6-v2:sts99"), "sts99"),
        ("choosing_without_labels", ("nowhere", "--model", "all-MiniLM-L6-v2"), "nowhere"),
        ("choosing_without_labels", (".", "--model", "all-MiniLM-L6-v2", "--pairs", "0"), "--pairs 0"),
        ("isotropy_figures", ("nowhere",), "nowhere"),
        ("isotropy_figures", (".", "--layers", "x"), "layers"),
        ("isotropy_figures", (".", "--model", "./nowhere"), "./nowhere"),
    ],
)
def test_a_script_ends_with_exit_code_2_and_one_line(
    script, arguments, message, monkeypatch, capsys, tmp_path
):
    """Figures and results of the checkout stay as they are: nothing gets as far as writing one."""
    from jaxvec.cli.options import run_script

    cases = tmp_path / "cases.json"
    cases.write_text('{"all-MiniLM-L6-v2": {}}')
    monkeypatch.chdir(ROOT)
    module = importlib.import_module(f"experiments.{script}")
    monkeypatch.setattr(sys, "argv", [script, *(str(cases) if a == "CASES" else a for a in arguments)])
    with pytest.raises(SystemExit) as end:
        run_script(module.main)
    assert end.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert message in error
