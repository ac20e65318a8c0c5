"""Spearman of cosine on real data equals the scores computed independently with torch and float64 NumPy."""

import json
import os
from pathlib import Path

import pytest

from jaxvec import SentenceEncoder
from jaxvec.cli.options import parse_layers
from jaxvec.evaluation.corrections import parse_correction
from jaxvec.evaluation.encoding import make_choice
from jaxvec.evaluation.evaluate import Method, evaluate
from jaxvec.evaluation.readers import read_task

DATA, CASES, MODELS = (os.environ.get(name) for name in ("JAXVEC_DATA", "JAXVEC_CASES", "JAXVEC_MODELS"))
needs_data = pytest.mark.skipif(not (DATA and CASES), reason="JAXVEC_DATA and JAXVEC_CASES are not set")
needs_models = pytest.mark.skipif(not MODELS, reason="JAXVEC_MODELS is not set")


def check(model: str, name: str, task: str, choices: list[str] | None = None) -> None:
    """Every figure of the model on the task, in one encoding pass; `experiments.reference_scores` checks all tasks."""
    cases = json.loads((Path(CASES) / "expected_scores.json").read_text())[name]
    encoder = SentenceEncoder.load(model, max_length=512)
    expected = {}
    for key, calibrations in cases.items():
        of, choice = key.split("|")
        pooling, layers = choice.split(":")
        if of == task and (choices is None or choice in choices):
            for calibration, figures in calibrations.items():
                method = Method(
                    make_choice(encoder, pooling, parse_layers(layers)), parse_correction(calibration)
                )
                expected[method] = figures
    assert len(expected) % 8 == 0
    assert expected
    for score in evaluate(encoder, [read_task(task, DATA)], list(expected)):
        tolerance = 0.0015 if score.method.correction.steps else 0.0005
        found = {figure: score.figures[figure] for figure in ("all", "mean", "wmean", "pearson")}
        assert found == pytest.approx(expected[score.method], abs=tolerance), score.method.describe()


@needs_data
def test_minilm():
    check("all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "stsb")


@needs_data
@needs_models
def test_chinese_roberta():
    check(f"{MODELS}/chinese_roberta_l2", "chinese_roberta_l2", "stsb-zh")


@needs_data
@needs_models
def test_mpnet():
    check(f"{MODELS}/all-mpnet-base-v2", "all-mpnet-base-v2", "stsb", ["mean:(1,6)"])
