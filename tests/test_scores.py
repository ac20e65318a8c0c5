"""Spearman of cosine on real data equals the scores computed independently with torch and float64 NumPy."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from jaxvec import Moments, SentenceEncoder, remove_components, standardize, whitening

DATA, CASES, MODELS = (os.environ.get(name) for name in ("JAXVEC_DATA", "JAXVEC_CASES", "JAXVEC_MODELS"))
needs_data = pytest.mark.skipif(not (DATA and CASES), reason="JAXVEC_DATA and JAXVEC_CASES are not set")
needs_models = pytest.mark.skipif(not MODELS, reason="JAXVEC_MODELS is not set")
FILES = {
    "stsb": ("STSB/sts-test.csv", 5, 6, 4),
    "lcqmc": ("LCQMC/LCQMC.test.data", 0, 1, 2),
    "stsb-zh": ("STS-B-zh/STS-B.test.data", 0, 1, 2),
}
CALIBRATIONS = {
    "whitening": whitening,
    "whitening:256": lambda m: whitening(m, 256),
    "whitening:128": lambda m: whitening(m, 128),
    "standardize": standardize,
    "remove_components:1": lambda m: remove_components(m, 1),
    "remove_components:3": lambda m: remove_components(m, 3),
    "remove_components:5": lambda m: remove_components(m, 5),
}


def read_pairs(task: str) -> tuple[list[str], list[float]]:
    """All first sentences followed by all second ones, and the scores."""
    file, first, second, score = FILES[task]
    rows = [line.split("\t") for line in (Path(DATA) / file).read_bytes().decode().split("\n") if line]
    return [row[first] for row in rows] + [row[second] for row in rows], [float(row[score]) for row in rows]


def spearman(vectors: np.ndarray, scores: list[float]) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.split(unit, 2)
    return spearmanr((first * second).sum(1), scores)[0]


def check(model: str, name: str, task: str, choice: str) -> None:
    expected = json.loads((Path(CASES) / "expected_scores.json").read_text())[name][f"{task}|{choice}"]
    pooling, layers = choice.split(":")
    layers = tuple(int(n) for n in layers.strip("(),").split(",")) if layers.startswith("(") else layers
    sentences, scores = read_pairs(task)
    vectors = SentenceEncoder.load(model, pooling=pooling, layers=layers, max_length=512).encode(
        sentences, normalize=False
    )
    assert spearman(vectors, scores) == pytest.approx(expected["raw"]["all"], abs=0.0005)
    moments = Moments.of(vectors)
    for calibration, fit in CALIBRATIONS.items():
        calibrated = np.asarray(fit(moments)(vectors))
        assert spearman(calibrated, scores) == pytest.approx(expected[calibration]["all"], abs=0.0015), (
            calibration
        )


@needs_data
@pytest.mark.parametrize(
    "choice",
    [
        "mean:last",
        "mean:last_two",
        "mean:first_last",
        "mean:embedding_last",
        "mean:(1,4)",
        "mean:(4,)",
        "cls:last",
    ],
)
def test_minilm(choice):
    check("all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "stsb", choice)


@needs_data
@needs_models
@pytest.mark.parametrize("choice", ["mean:last", "mean:first_last", "mean:embedding_last", "cls:last"])
def test_chinese_roberta(choice):
    check(f"{MODELS}/chinese_roberta_l2", "chinese_roberta_l2", "stsb-zh", choice)


@needs_data
@needs_models
def test_mpnet():
    check(f"{MODELS}/all-mpnet-base-v2", "all-mpnet-base-v2", "stsb", "mean:(1,6)")
