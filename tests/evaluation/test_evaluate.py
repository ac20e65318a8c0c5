"""Scores equal what encode, fit and scipy give one by one; every sentence is encoded once; settings fit what they say."""

import json
import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from jaxvec import InputError, Moments, SentenceEncoder, remove_components, standardize, whitening
from jaxvec.evaluation import evaluate as module
from jaxvec.evaluation.corrections import Sample, parse_correction
from jaxvec.evaluation.encoding import EncodedTexts, make_choice
from jaxvec.evaluation.evaluate import Method, evaluate, evaluate_plan
from jaxvec.evaluation.report import as_csv, averages, markdown, rows
from jaxvec.evaluation.settings import fitting_text, read_nli
from jaxvec.evaluation.tasks import Pairs, Task


@pytest.fixture(scope="module")
def encoder(bert_folder):
    return SentenceEncoder.load(bert_folder)


def _pairs(texts, seed, binary=False):
    rng = np.random.default_rng(seed)
    order = rng.integers(0, len(texts), (2, 70))  # with repetitions
    scores = rng.integers(0, 2 if binary else 6, 70).astype(float)
    return Pairs([texts[i] for i in order[0]], [texts[i] for i in order[1]], scores)


@pytest.fixture(scope="module")
def tasks(texts):
    year = Task("year", "test", {"one": _pairs(texts, 0), "two": _pairs(texts[:50], 1)})
    split = Task(
        "split",
        "test",
        {"test": _pairs(texts, 2, True)},
        {"train": _pairs(texts, 3), "dev": _pairs(texts, 4)},
    )
    return [year, split]


def _by_hand(bert_folder, pooling, layers, solve, fit, task):
    """Spearman and Pearson the plain way."""
    plain = SentenceEncoder.load(bert_folder, pooling=pooling, layers=layers)
    vectors = plain.encode(task.sentences, normalize=False)
    if solve is not None:
        vectors = np.asarray(solve(Moments.of(plain.encode(fit, normalize=False)))(vectors))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = (unit[: len(task)] * unit[len(task) :]).sum(1)
    return spearmanr(similarities, task.scores)[0], pearsonr(similarities, task.scores)[0]


@pytest.mark.parametrize(
    ("pooling", "layers", "name", "solve", "fit"),
    [
        ("mean", (1, 3), "raw", None, "self"),
        ("cls", "last", "whitening:8", lambda m: whitening(m, 8), "self"),
        ("max", 2, "standardize", standardize, "target"),
        ("pooler", "last", "remove_components:2", lambda m: remove_components(m, 2), "train"),
    ],
)
def test_a_score_is_what_the_steps_give_one_by_one(
    pooling, layers, name, solve, fit, bert_folder, encoder, tasks
):
    task = tasks[1]
    method = Method(make_choice(encoder, pooling, layers), parse_correction(name), fit)
    (score,) = evaluate(encoder, [task], [method])
    text = fitting_text(task, fit, None).sentences
    expected = _by_hand(bert_folder, pooling, layers, solve, text, task)
    assert (score.figures["all"], score.figures["pearson"]) == pytest.approx(expected, abs=2e-4)
    assert score.fitted_on == (None if solve is None else (fitting_text(task, fit, None).parts, len(text)))
    assert {"auc", "accuracy"} < set(score.figures)


def test_many_methods_together_equal_each_alone_and_encode_each_text_once(encoder, tasks, monkeypatch):
    choices = [make_choice(encoder, "mean", 1), make_choice(encoder, "cls", "last_two")]
    corrections = [
        parse_correction(name) for name in ("raw", "whitening:5", "standardize+remove-components:1")
    ]
    methods = [Method(choice, correction, "target") for choice in choices for correction in corrections]
    encoded = []
    monkeypatch.setattr(module, "EncodedTexts", lambda *a: encoded.append(EncodedTexts(*a)) or encoded[-1])
    together = list(evaluate(encoder, tasks, methods))
    assert len(encoded) == 1
    texts = {text for task in tasks for text in fitting_text(task, "target", None).sentences}
    assert len(encoded[0]) == len(texts)
    for score in together[1::5]:
        task = next(task for task in tasks if task.name == score.task)
        (alone,) = evaluate(encoder, [task], [score.method])
        assert alone.figures == pytest.approx(score.figures, abs=2e-4)
    assert [score.task for score in together] == ["year"] * 6 + ["split"] * 6


def test_intervals_hold_the_figure_and_gains_are_paired(encoder, tasks):
    choice = make_choice(encoder)
    methods = [Method(choice), Method(choice, parse_correction("whitening"))]
    year_raw, year_white, split_raw, _ = evaluate(encoder, tasks, methods, resamples=300)
    for score in (year_raw, year_white):
        assert set(score.intervals) == {"all", "mean", "wmean"}
        assert all(low < score.figures[name] < high for name, (low, high) in score.intervals.items())
    gain, low, high = year_white.gains["wmean"]
    assert gain == pytest.approx(year_white.figures["wmean"] - year_raw.figures["wmean"], abs=1e-12)
    assert low < gain < high
    assert year_raw.gains == {}
    assert split_raw.intervals["auc"][0] < split_raw.figures["auc"] < split_raw.intervals["auc"][1]


def test_a_calibration_that_several_tasks_share_is_fitted_once(encoder, tasks, tmp_path, texts, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(texts[:99]) + "\n")
    fits = []
    monkeypatch.setattr(module, "Sample", lambda vectors: fits.append(len(vectors)) or Sample(vectors))
    method = Method(make_choice(encoder), parse_correction("whitening:4"), str(corpus))
    scores = list(evaluate(encoder, tasks, [method]))
    assert fits == [99]
    assert [score.fitted_on for score in scores] == [((str(corpus),), 99)] * 2
    plan = [(task, [method]) for task in tasks]
    assert [s.figures for s in evaluate_plan(encoder, plan)] == [s.figures for s in scores]


def test_undefined_figures_stay_undefined(encoder, texts):
    constant = Task("constant", "test", {"test": Pairs(texts[:9], texts[9:18], np.ones(9))})
    one = Task("one", "test", {"test": Pairs(texts[:1], texts[1:2], np.array([3.0]))})
    for score in evaluate(encoder, [constant, one], resamples=20):
        assert all(math.isnan(score.figures[name]) for name in ("all", "mean", "wmean", "pearson"))
        assert score.as_json()["figures"]["all"] is None
        assert score.as_json()["intervals"]["all"] == [None, None]
        assert rows([("m", score)])[1][0][7] == "–"


def test_an_encoder_with_a_calibration_is_scored_with_it(encoder, tasks, bert_folder):
    correction = parse_correction("whitening:6")
    task = tasks[1]
    vectors = encoder.encode(task.sentences, normalize=False)
    calibrated = encoder.with_calibration(correction.fit(Sample(vectors)))
    (ours,) = evaluate(calibrated, [task])
    (expected,) = evaluate(encoder, [task], [Method(make_choice(encoder), correction)])
    assert ours.dim == 6
    assert ours.figures == pytest.approx(expected.figures, abs=2e-4)
    with pytest.raises(InputError, match="its calibration was fitted with mean of layers"):
        make_choice(calibrated, layers=1)


def test_choices_that_an_encoder_cannot_give(encoder, write_bert, tmp_path):
    for arguments, message in (
        ({"pooling": "median"}, "pooling is 'median'"),
        ({"pooling": "sif"}, "needs token weights"),
        ({"layers": 9}, "hidden states are 0"),
    ):
        with pytest.raises(InputError, match=message):
            make_choice(encoder, **arguments)
    plain = SentenceEncoder.load(write_bert(tmp_path / "plain", pooler=False))
    with pytest.raises(InputError, match="needs the pooler's weights"):
        make_choice(plain, "pooler")


def test_settings_that_cannot_be_had(tasks, tmp_path):
    with pytest.raises(InputError, match="year has no train split"):
        fitting_text(tasks[0], "train", None)
    with pytest.raises(InputError, match=r"no NLI text under .*looked for SNLI/s1\.\*"):
        read_nli(tmp_path)
    with pytest.raises(
        InputError, match=r"--fit: .*no such file; expected self, target, train, nli or a text file"
    ):
        fitting_text(tasks[0], str(tmp_path / "nowhere.txt"), None)
    with pytest.raises(InputError, match="not a table"):
        fitting_text(tasks[0], "corpus.tsv", None)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match=r"empty\.txt: it holds 0 sentence\(s\); expected 2 or more"):
        fitting_text(tasks[0], str(tmp_path / "empty.txt"), None)


def test_what_cannot_be_fitted_is_named_or_left_out(encoder, tasks, tmp_path):
    """A corpus of one sentence over and over has no direction to whiten."""
    same = tmp_path / "same.txt"
    same.write_text("it rains\n" * 9)
    choice = make_choice(encoder)
    methods = [
        Method(choice),
        Method(choice, parse_correction("whitening"), str(same)),
        Method(choice, parse_correction("whitening"), "train"),
    ]
    with pytest.raises(
        InputError, match=r"split, --calibrate whitening --fit .*same.txt \(9 sentences\): all 9"
    ):
        list(evaluate(encoder, tasks[1:], methods))
    left_out = []
    scores = list(
        evaluate_plan(
            encoder,
            [(task, methods) for task in tasks],
            refused=lambda task, method, error: left_out.append((task.name, method.fit)),
        )
    )
    assert [(score.task, score.method.fit) for score in scores] == [
        ("year", "self"),
        ("split", "self"),
        ("split", "train"),
    ]
    assert left_out == [("year", "train"), ("year", str(same)), ("split", str(same))]


def test_nli_text_in_its_layouts(tmp_path):
    (tmp_path / "SNLI").mkdir()
    for name, lines in (("s1.dev", "a\nb\n"), ("s2.dev", "c\nd\n"), ("labels.dev", "neutral\nneutral\n")):
        (tmp_path / "SNLI" / name).write_text(lines)
    (tmp_path / "multinli_1.0").mkdir()
    row = json.dumps({"sentence1": "e", "sentence2": "f", "gold_label": "-"})
    (tmp_path / "multinli_1.0/multinli_1.0_train.jsonl").write_text(row + "\n")
    text = read_nli(tmp_path)
    assert text.sentences == ["a", "b", "c", "d", "e", "f"]
    assert text.parts == ("SNLI/s1.dev", "SNLI/s2.dev", "multinli_1.0/multinli_1.0_train.jsonl")


@pytest.mark.parametrize(
    "name", ["bleach", "flow:nope", "whitening:x", "pca:0", "standardize:3", "whitening++pca", ""]
)
def test_calibrations_that_do_not_exist(name):
    with pytest.raises(InputError, match="--calibrate"):
        parse_correction(name)


def test_steps_are_fitted_one_after_another():
    vectors = (np.random.default_rng(0).normal(size=(200, 6)) * [1, 5, 1, 2, 1, 9] + 3).astype(np.float32)
    both = parse_correction("standardize+remove_components:2").fit(Sample(vectors))(vectors)
    first = np.asarray(standardize(Moments.of(vectors))(vectors))
    np.testing.assert_allclose(both, remove_components(Moments.of(first), 2)(first), atol=1e-5)
    assert parse_correction("raw").fit(Sample(vectors)) is None


def test_tables_say_the_same(encoder, tasks):
    methods = [Method(make_choice(encoder)), Method(make_choice(encoder), parse_correction("whitening:4"))]
    scores = [("tiny|model", score) for score in evaluate(encoder, tasks, methods, resamples=20)]
    names, table = rows(scores)
    assert names[:7] == ["model", "pooling", "layers", "calibration", "fit", "task", "pairs"]
    assert names[7:] == ["all", "mean", "wmean", "Pearson", "AUC", "accuracy", "gain"]
    assert table[0][7].startswith(f"{100 * scores[0][1].figures['all']:.2f} [")
    assert table[0][11] == "–"  # no AUC of graded scores
    text = markdown(names, table)
    assert text.count("\n") == 5
    assert "tiny\\|model" in text
    lines = as_csv(scores).splitlines()
    record = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert float(record["all"]) == scores[0][1].figures["all"]
    assert record["auc"] == ""
    _, means = averages(scores)
    expected = 100 * (scores[0][1].figures["all"] + scores[2][1].figures["all"]) / 2
    assert float(means[0][6]) == pytest.approx(expected, abs=0.006)
    json.dumps([score.as_json() for _, score in scores], allow_nan=False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("whitening:9", "--calibrate whitening:9: of 8 dimensions it takes 1 to 8"),
        ("pca:3+whitening:4", "--calibrate whitening:4: of 3 dimensions it takes 1 to 3"),
        ("remove-components:8", "--calibrate remove-components:8: of 8 dimensions it takes 1 to 7"),
        ("whitening:1+remove-components", "of 1 dimensions it takes 1 to 0"),
    ],
)
def test_more_directions_than_there_are_are_refused_before_there_are_vectors(name, said):
    with pytest.raises(InputError, match=said):
        parse_correction(name).check_width(8)


@pytest.mark.parametrize(
    "name", ["raw", "whitening:8", "pca:3+remove-components:2", "standardize", "flow:bert_flow"]
)
def test_a_width_that_fits(name):
    parse_correction(name).check_width(8)
