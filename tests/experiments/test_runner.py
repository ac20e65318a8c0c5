"""Published tables: what is published stays, what can be run is measured, a stopped run goes on, stand-ins are named."""

import importlib
import json
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
