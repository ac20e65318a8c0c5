"""The command line: what it writes, what it prints where, and how it ends on bad input."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxvec import SentenceEncoder, cli


@pytest.fixture
def run(monkeypatch, capsys):
    """run("encode", …) → (exit code, stdout, stderr)."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["jaxvec", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("the man plays\n\nit rains\u2028it rains\r\nthe dog\n" * 20, newline="")
    return path


def test_encode_writes_one_row_a_line(run, corpus, tmp_path, bert_folder):
    out = tmp_path / "v.npy"
    code, stdout, stderr = run("encode", corpus, "-o", out, "--model", bert_folder, "--json")
    vectors = np.load(out, mmap_mode="r")
    lines = ["the man plays", "", "it rains\u2028it rains", "the dog"] * 20
    assert code == 0
    assert np.abs(vectors - SentenceEncoder.load(bert_folder).encode(lines)).max() < 1e-5
    report = json.loads(stdout)
    assert (report["sentences"], report["dim"]) == vectors.shape
    assert "jaxvec:" in stderr


def test_encode_options_reach_the_encoder(run, corpus, tmp_path, bert_folder):
    out = tmp_path / "v.npy"
    options = ("--pooling", "max", "--layers", "0,2", "--normalize", "--max-length", 5, "--batch-tokens", 128)
    assert run("encode", corpus, "-o", out, "--model", bert_folder, *options)[0] == 0
    encoder = SentenceEncoder.load(bert_folder, pooling="max", layers=(0, 2), max_length=5)
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        expected = encoder.encode(
            ["the man plays", "", "it rains\u2028it rains", "the dog"] * 20, normalize=True
        )
    assert np.abs(np.load(out) - expected).max() < 1e-5


def test_encode_parquet_keeps_the_text(run, corpus, tmp_path, bert_folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "v.parquet"
    assert run("encode", corpus, "-o", out, "--model", bert_folder)[0] == 0
    table = parquet.read_table(out)
    assert table["text"].to_pylist()[:3] == ["the man plays", "", "it rains\u2028it rains"]
    assert table["vector"].type.list_size == 32


@pytest.mark.parametrize(
    ("method", "options", "dim"),
    [
        ("whitening", ("--dim", 2), 2),
        ("whitening", ("--shrinkage", "oas", "--power", 0.5), 32),
        ("standardize", (), 32),
        ("remove-components", ("-k", 1, "--no-center"), 32),
        ("pca", ("--dim", 2), 2),
    ],
)
def test_fit_writes_a_folder_that_is_a_model(run, corpus, tmp_path, bert_folder, method, options, dim):
    folder, out = tmp_path / "fitted", tmp_path / "v.npy"
    code, stdout, _ = run("fit", method, corpus, "-o", folder, "--model", bert_folder, "--json", *options)
    assert code == 0
    assert json.loads(stdout)["dim"] == dim
    assert run("encode", corpus, "-o", out, "--model", folder)[0] == 0
    assert np.load(out).shape == (80, dim)


def test_fit_equals_fitting_the_encoded_vectors(run, corpus, tmp_path, bert_folder):
    from jaxvec import Moments, whitening

    assert run("fit", "whitening", corpus, "-o", tmp_path / "w", "--model", bert_folder, "--dim", 2)[0] == 0
    lines = ["the man plays", "", "it rains\u2028it rains", "the dog"] * 20
    raw = SentenceEncoder.load(bert_folder).encode(lines)
    expected = np.asarray(whitening(Moments.of(raw), 2)(raw))
    assert np.abs(SentenceEncoder.load(tmp_path / "w").encode(lines) - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("encode", "absent.txt", "-o", "v.npy"), "absent.txt"),
        (("encode", "{corpus}", "-o", "v.txt"), ".npy or .parquet"),
        (("encode", "{corpus}", "-o", "nowhere/v.npy"), "nowhere"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "./absent"), "./absent"),
        (("encode", "{corpus}", "-o", "v.npy", "--column", "text"), "column"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--layers", "9"), "hidden states are 0"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--layers", "lsat"), "last_two"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--pooling", "avg"), "mean"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--dtype", "int8"), "bfloat16"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--max-length", "97"), "1 to 96"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--max-length", "2"), "special tokens"),
        (("encode", "{corpus}", "-o", "v.npy", "--model", "{bert}", "--batch-tokens", "0"), "batch_tokens"),
        (("encode", "{corpus}"), "output"),
        (("fit", "blackening", "{corpus}", "-o", "w"), "whitening"),
        (("fit", "pca", "{corpus}", "-o", "w", "-k", "3"), "takes no option k"),
        (
            ("fit", "whitening", "{corpus}", "-o", "w", "--model", "{bert}", "--shrinkage", "much"),
            "ledoit-wolf",
        ),
        (("fit", "whitening", "{corpus}", "-o", "full", "--model", "{bert}"), "not empty"),
        (("fit", "whitening", "{empty}", "-o", "w", "--model", "{bert}"), "2"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(run, corpus, tmp_path, bert_folder, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    (tmp_path / "empty.txt").write_text("")
    places = {"corpus": corpus, "bert": bert_folder, "empty": tmp_path / "empty.txt"}
    before = sorted(tmp_path.iterdir())
    code, stdout, stderr = run(*(argument.format(**places) for argument in arguments))
    assert code == 2
    assert said in stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert sorted(tmp_path.iterdir()) == before


def test_text_that_is_not_utf8_names_the_line(run, tmp_path, bert_folder):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"the dog\n\xff\n")
    code, _, stderr = run("encode", bad, "-o", tmp_path / "v.npy", "--model", bert_folder)
    assert code == 2
    assert "line 2" in stderr
    assert "--errors replace" in stderr
    assert not (tmp_path / "v.npy").exists()
    code, _, stderr = run(
        "encode", bad, "-o", tmp_path / "v.npy", "--model", bert_folder, "--errors", "replace"
    )
    assert code == 0
    assert len(np.load(tmp_path / "v.npy")) == 2


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_stopped_run_leaves_no_output_but_work_to_go_on_with(tmp_path, bert_folder, how, code):
    source = "import itertools, sys\nfor i in itertools.count(): sys.stdout.write('the man plays\\n')"
    # Behind `nohup … &` an interrupt is ignored from the start, which children inherit.
    start = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('jaxvec.cli', run_name='__main__', alter_sys=True)"
    )
    command = ["-c", start, "encode", "-", "-o", tmp_path / "v.npy", "--model", bert_folder]
    with (
        subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as text,
        subprocess.Popen([sys.executable, *command], stdin=text.stdout, stderr=subprocess.DEVNULL) as process,
    ):
        text.stdout.close()
        end = time.monotonic() + 300
        journal = tmp_path / ".v.npy.unfinished" / "progress-0-of-1.jsonl"
        while not (journal.exists() and journal.read_text().count("\n") > 1) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(how)
        try:
            assert process.wait(120) == code
        finally:
            process.kill()
            text.kill()
    assert [path.name for path in tmp_path.iterdir()] == [".v.npy.unfinished"]


@pytest.mark.parametrize(
    ("form", "name"), [("stablehlo", "m.stablehlo"), ("sentence-transformers", "folder")]
)
def test_export_of_a_fitted_folder(run, corpus, tmp_path, bert_folder, form, name):
    assert run("fit", "whitening", corpus, "-o", tmp_path / "w", "--model", bert_folder, "--dim", 2)[0] == 0
    code, stdout, _ = run("export", tmp_path / "w", "-o", tmp_path / name, "--format", form, "--json")
    assert code == 0
    assert json.loads(stdout)["dim"] == 2
    assert (tmp_path / name).exists()


def test_demo_measures_and_answers(run, monkeypatch):
    from jaxvec import demo

    some = [text for i, text in enumerate(demo.demo_sentences()) if i % 6 == 0 or "decorator" in text]
    monkeypatch.setattr(demo, "demo_sentences", lambda: some)
    code, stdout, _ = run("demo", "What is a decorator?", "--json")
    assert code == 0
    report = json.loads(stdout)
    assert report["sentences"] == len(some)
    assert report["useful_tokens"] > 0.9
    own, raw, whitened = report["searches"]
    assert raw["mean_cosine"] > 0.5 > abs(whitened["mean_cosine"])
    assert "decorator" in own["answers"]["What is a decorator?"][0][1].lower()


def test_help_and_version(run):
    assert all(command in run("--help")[1] for command in ("encode", "fit", "export", "demo"))
    assert run("--version")[1].strip() == __import__("jaxvec").__version__
