"""`jaxvec fit flow`: what it writes and prints, and how it ends on bad input."""

import json
import sys

import pytest

from jaxvec import Flow, SentenceEncoder, cli


@pytest.fixture
def run(monkeypatch, capsys):
    """run("fit", …) → (exit code, stdout, stderr)."""
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
def corpus(tmp_path, texts):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(texts), "utf-8")
    return path


def test_it_trains_and_saves_a_folder_that_is_a_model(run, corpus, texts, tmp_path, bert_folder):
    small = {"levels": 1, "depth": 1, "epochs": 2, "batch-size": 16, "learning-rate": 0.001, "seed": 3}
    options = [part for name, value in small.items() for part in (f"--{name}", value)]
    folder = tmp_path / "flow"
    code, out, _ = run(
        "fit", "flow", corpus, "-o", folder, "--model", bert_folder, "--layers", 1, *options, "--json"
    )
    assert code == 0
    report = json.loads(out)
    assert (report["count"], report["seed"], report["config"]["depth"], report["layers"]) == (200, 3, 1, [1])
    encoder = SentenceEncoder.load(folder)
    assert isinstance(encoder.calibration, Flow)
    assert encoder.encode(texts[:3]).shape == (3, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "3"], "flow takes no option k; it takes preset, levels"),
        (["--preset", "nice"], "preset is 'nice'; expected one of glow, bert_flow"),
        (["--levels", "0"], "levels is 0"),
        (["--batch-size", "1000"], "fewer than a batch of 1000"),
        (["--seed", "-1"], "seeds are [-1]"),
        (["--checkpoint", "{x}"], "to hold both the model and the checkpoints"),
        (["--checkpoint", "{x}/training"], "make it first"),
        (["--restart"], "leave out --distributed and --restart"),
    ],
)
def test_bad_input_is_one_line(run, corpus, tmp_path, bert_folder, options, message):
    options = [option.format(x=tmp_path / "x") for option in options]
    code, out, err = run("fit", "flow", corpus, "-o", tmp_path / "x", "--model", bert_folder, *options)
    assert code == 2
    assert out == ""
    assert message in err
    assert not (tmp_path / "x").exists()
