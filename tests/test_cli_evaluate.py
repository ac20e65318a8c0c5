"""`jaxvec eval sts`: several models, layers and calibrations at a time; tables, files, and bad input."""

import csv
import io
import json
import sys

import numpy as np
import pytest

from jaxvec import SentenceEncoder, cli
from jaxvec.evaluation.encoding import make_choice
from jaxvec.evaluation.evaluate import Method, evaluate
from jaxvec.evaluation.readers import read_task


@pytest.fixture
def run(monkeypatch, capsys):
    """run("--task", …) → (exit code, stdout, stderr) of `jaxvec eval sts`."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["jaxvec", "eval", "sts", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def file(tmp_path, texts):
    rng = np.random.default_rng(0)
    rows = [f"{a}\t{b}\t{rng.integers(0, 6)}" for a, b in zip(texts[:50], texts[50:100], strict=True)]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(["one\ttwo\tgold", *rows]) + "\n")
    return path


def test_one_call_scores_everything_asked_for(run, file, bert_folder, tmp_path):
    out = {kind: tmp_path / f"scores.{kind}" for kind in ("json", "csv", "md")}
    code, stdout, stderr = run(
        *(bert_folder, bert_folder, "--task", file, "--columns", "one,two,gold", "--pooling", "mean,cls"),
        *(
            "--layers",
            "1,3",
            "--layers",
            "last",
            "--calibrate",
            "whitening:4, standardize",
            "--resamples",
            50,
        ),
        *("--json", out["json"], "--csv", out["csv"], "--markdown", out["md"]),
    )
    assert code == 0
    report = json.loads(out["json"].read_text())
    assert len(report["scores"]) == 2 * 2 * 2 * 3
    methods = {(s["pooling"], tuple(s["layers"]), s["calibration"]) for s in report["scores"]}
    assert ("cls", (1, 3), "whitening:4") in methods
    assert report["provenance"]["models"][0]["fingerprint"]
    task = read_task(str(file), columns="one,two,gold")
    encoder = SentenceEncoder.load(bert_folder)
    (expected,) = evaluate(encoder, [task], [Method(make_choice(encoder, "mean", (1, 3)))])
    assert report["scores"][0]["figures"]["all"] == pytest.approx(expected.figures["all"], abs=2e-4)
    records = list(csv.DictReader(io.StringIO(out["csv"].read_text())))
    assert [float(r["all"]) for r in records] == [s["figures"]["all"] for s in report["scores"]]
    assert stdout.count("\n") == 26
    assert stdout in out["md"].read_text()
    assert "95 % interval" in stderr


def test_json_alone_on_stdout(run, file, bert_folder):
    code, stdout, _ = run(
        bert_folder, "--task", file, "--columns", "one,two,gold", "--json", "-", "--resamples", 0
    )
    assert code == 0
    (score,) = json.loads(stdout)["scores"]
    assert (score["task"], score["calibration"], score["intervals"]) == ("pairs.tsv", "raw", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "stsb"), "stsb: say where it is: --data FOLDER"),
        (("--task", "stsb", "--data", "nowhere"), "--data nowhere: no such folder"),
        (("--task", "sets"), "not one of stsb, sts12"),
        (("--task", "FILE"), "no column named 'sentence1'. Found: 'one', 'two', 'gold'"),
        (("--task", "FILE", "--columns", "one,two,two"), "line 2: the score is"),
        (("--task", "FILE", "--columns", "one,two,gold", "--calibrate", "bleach"), "--calibrate bleach"),
        (
            ("--task", "FILE", "--columns", "one,two,gold", "--calibrate", "pca", "--fit", "train"),
            "no train split",
        ),
        (("--task", "FILE", "--columns", "one,two,gold", "--layers", "1,9"), "hidden states are 0"),
        (("--task", "FILE", "--columns", "one,two,gold", "--resamples", "-1"), "expected 0 or more"),
        (
            ("--task", "FILE", "--columns", "one,two,gold", "--json", "no/such/folder.json"),
            "there is no folder",
        ),
    ],
)
def test_bad_input_ends_with_exit_code_2_and_one_line(arguments, message, run, file, bert_folder):
    code, stdout, stderr = run(bert_folder, *(file if a == "FILE" else a for a in arguments))
    assert (code, stdout) == (2, "")
    (error,) = [line for line in stderr.splitlines() if "error:" in line]
    assert message in error


def test_the_same_in_two_spellings_is_measured_once(run, file, bert_folder, texts, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(texts[:60]))
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = run(
        *(bert_folder, "--task", f"{file},pairs.tsv", "--columns", "one,two,gold", "--resamples", 0),
        *("--calibrate", "whitening:08,whitening:8", "--fit", f"{corpus},./corpus.txt", "--json", "-"),
    )
    assert code == 0
    assert [score["calibration"] for score in json.loads(stdout)["scores"]] == ["raw", "whitening:8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json", "-", "--csv", "-"), "--csv - is that of --json too"),
        (("--json", "out", "--markdown", "./out"), "--markdown ./out is that of --json too"),
        (("--csv", "pairs.tsv"), "--csv pairs.tsv is the --task file too"),
        (("--csv", "few.txt", "--calibrate", "pca", "--fit", "few.txt"), "few.txt is the --fit file too"),
        (("--calibrate", "pca", "--fit", "few.txt"), "it holds 1 sentence(s)"),
        (("--calibrate", "flow:nope"), "no preset 'nope'"),
        (("no/such/model",), "no/such/model"),
        (("SHALLOW", "--layers", "3"), "hidden states are 0"),
    ],
)
def test_nothing_is_encoded_before_everything_is_checked(
    arguments, message, run, file, bert_folder, write_bert, tmp_path, monkeypatch
):
    from jaxvec.evaluation import evaluate as module

    monkeypatch.setattr(module, "EncodedTexts", lambda *_: pytest.fail("encoded before the checks"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("one line\n")
    shallow = write_bert(tmp_path / "shallow", blocks=2)
    arguments = [shallow if argument == "SHALLOW" else argument for argument in arguments]
    code, stdout, stderr = run(bert_folder, *arguments, "--task", file, "--columns", "one,two,gold")
    assert (code, stdout) == (2, "")
    (error,) = [line for line in stderr.splitlines() if "error:" in line]
    assert message in error


def test_standard_input_is_fitted_on_for_every_model_and_task(
    run, file, bert_folder, texts, tmp_path, monkeypatch
):
    other = tmp_path / "other.tsv"
    other.write_text(file.read_text())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts[:60]).encode())))
    code, stdout, _ = run(
        *(bert_folder, bert_folder, "--task", f"{file},{other}", "--columns", "one,two,gold"),
        *("--calibrate", "whitening:8", "--fit", "-", "--json", "-", "--resamples", 0),
    )
    assert code == 0
    fitted = [score["fitted_on"] for score in json.loads(stdout)["scores"] if score["fitted_on"]]
    assert fitted == [{"parts": ["-"], "sentences": 60}] * 4


def test_a_closed_standard_output(run, file, bert_folder, tmp_path, monkeypatch):
    arguments = bert_folder, "--task", file, "--columns", "one,two,gold", "--resamples", 0
    monkeypatch.setattr(sys, "stdout", None)
    code, _, stderr = run(*arguments)
    assert code == 2
    assert "standard output is closed; open it, or name a file" in stderr
    code, _, stderr = run(*arguments, "--csv", tmp_path / "out.csv")
    assert code == 0
    assert (tmp_path / "out.csv").is_file()
