"""`jaxvec inspect`: the report agrees with the measures it is made of, and bad input is one line and exit code 2."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxvec import InputError, Moments, SentenceEncoder, whitening
from jaxvec.cli import app
from jaxvec.evaluation.figures import (
    draw_against,
    draw_dimensions,
    new_figure,
    pca_map,
    save_figure,
    tsne_map,
)
from jaxvec.evaluation.inspection import Reservoir, inspect_corpus
from jaxvec.evaluation.isotropy import measure_isotropy

pytest.importorskip("matplotlib")


def test_the_report_holds_the_measures_of_the_vectors(bert_folder, texts):
    plain = SentenceEncoder.load(bert_folder)
    distinct = list(dict.fromkeys(texts))
    vectors = plain.encode(distinct, normalize=False)
    fitted = plain.with_calibration(whitening(Moments.of(vectors), dim=8))
    report = inspect_corpus(fitted, iter(texts), ["whitening:8"])
    assert report.corpus == 200
    assert report.sample == len(distinct)
    names = ["layers 3, raw", "layers 3, the folder's calibration", "layers 3, whitening:8"]
    assert [view.name for view in report.views[:3]] == names
    expected = measure_isotropy(vectors)
    calibrated = measure_isotropy(np.asarray(fitted.calibration(vectors)))
    for view, isotropy in zip(report.views, (expected, calibrated, calibrated), strict=False):
        assert view.isotropy.dim == isotropy.dim
        for name in ("mean_cosine", "iso_score", "uniformity"):
            assert getattr(view.isotropy, name) == pytest.approx(getattr(isotropy, name), abs=1e-3), name
    assert set(report.words) == {"raw", "whitened"}
    assert report.recommendation.options() in report.text()
    json.dumps(report.figures(), allow_nan=False)


def test_a_reservoir_is_an_even_sample_and_lets_everything_pass():
    counts = np.zeros(50, int)
    for seed in range(400):
        reservoir = Reservoir(10, seed)
        assert list(reservoir.passing(map(str, range(50)))) == [str(i) for i in range(50)]
        assert reservoir.seen == 50
        assert len(set(reservoir.kept)) == 10
        counts[[int(item) for item in reservoir.kept]] += 1
    assert np.abs(counts - 80).max() < 5 * 8  # binomial(400, 1/5): deviation 8


def test_maps_keep_what_is_near_near():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2, 20)) * 4
    x = np.concatenate([c + rng.normal(size=(40, 20)) for c in centres]).astype(np.float32)
    for points in (pca_map(x), tsne_map(x)):
        assert points.shape == (80, 2)
        first, second = points[:40], points[40:]
        gap = np.linalg.norm(first.mean(0) - second.mean(0))
        assert gap > 2 * max(first.std(), second.std()) / 2
    with pytest.raises(InputError, match="5 vectors"):
        tsne_map(x[:3])


def test_figures_are_written_whole_or_not_at_all(tmp_path):
    figure, axes = new_figure(1, 2)
    draw_against(axes[0, 0], np.linspace(0, 1, 50), np.linspace(0, 5, 50), "gold score")
    draw_dimensions(axes[0, 1], {"a": {2: 0.1, 4: 0.2}, "b": {2: 0.3, 4: 0.1}}, {"a": 0.15})
    for kind in ("png", "svg", "pdf"):
        save_figure(figure, tmp_path / f"figure.{kind}")
        assert (tmp_path / f"figure.{kind}").stat().st_size > 1000
    assert axes[0, 0].get_title().endswith("1.000")
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in axes.flat)
    with pytest.raises(InputError, match="png"):
        save_figure(figure, tmp_path / "figure.bmp")
    assert len(list(tmp_path.iterdir())) == 3


def test_the_command_prints_json_and_draws(bert_folder, texts, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(texts))
    run = CliRunner().invoke(
        app, ["inspect", str(bert_folder), str(corpus), "--json", "--plot", str(tmp_path / "out.png")]
    )
    assert run.exit_code == 0, run.output
    figures = json.loads(run.stdout)
    assert figures["corpus"] == 200
    assert figures["recommendation"]["layers"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "out.bmp"], "png"),
        (["--plot", "nowhere/out.png"], "no folder"),
        (["--plot", "folder.png"], "is a folder"),
        (["--calibrate", "whitening:many"], "many"),
        (["--calibrate", "whitening:33"], "of 32 dimensions it takes 1 to 32"),
        (["--calibrate", "flow:nope"], "expected one of glow, bert_flow"),
        (["--sample", "1"], "sample"),
        ([], "different sentences"),
    ],
)
def test_bad_input_is_named(arguments, message, bert_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the man plays the guitar\n" * 9)
    run = CliRunner().invoke(app, ["inspect", str(bert_folder), str(corpus), *arguments])
    assert isinstance(run.exception, InputError)
    assert message in str(run.exception)
