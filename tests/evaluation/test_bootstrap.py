"""Resampled figures equal scipy's on the resampled pairs; intervals cover at the stated rate."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxvec.errors import InputError
from jaxvec.evaluation import bootstrap
from jaxvec.evaluation.bootstrap import interval, resample_spearman
from jaxvec.evaluation.metrics import spearman


def _data(n, seed=0):
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, n).astype(float)
    return np.stack([np.round(gold + rng.normal(size=n), 1), gold + rng.normal(size=n)]), gold


def _weights_used(monkeypatch):
    """The weights that each call draws, as it draws them."""
    drawn, draw = [], bootstrap._weights
    monkeypatch.setattr(bootstrap, "_weights", lambda *a: drawn.append(draw(*a)) or drawn[-1])
    return drawn


@pytest.mark.parametrize("n", [5, 31, 32, 300])
def test_a_resample_is_scipys_on_the_pairs_drawn(n, monkeypatch):
    methods, gold = _data(n)
    drawn = _weights_used(monkeypatch)
    samples = resample_spearman(methods, gold, resamples=20)["all"]
    (weights,) = drawn
    assert (weights.sum(0) == n).all()
    for b in range(20):
        pairs = np.repeat(np.arange(n), weights[:, b].astype(int))
        for cell in range(2):
            expected = spearman(methods[cell][pairs], gold[pairs])
            np.testing.assert_allclose(samples[cell, b], expected, atol=2e-6)


def test_subsets_are_resampled_on_their_own_and_weighed(monkeypatch):
    methods, gold = _data(90)
    drawn = _weights_used(monkeypatch)
    samples = resample_spearman(methods, gold, [30, 60], resamples=5)
    first, second = drawn
    for b in range(5):
        one = np.repeat(np.arange(30), first[:, b].astype(int))
        two = np.repeat(np.arange(30, 90), second[:, b].astype(int))
        both = np.concatenate([one, two])
        each = [stats.spearmanr(methods[1][part], gold[part])[0] for part in (one, two)]
        expected = (
            stats.spearmanr(methods[1][both], gold[both])[0],
            np.mean(each),
            np.average(each, weights=[1, 2]),
        )
        found = [samples[name][1, b] for name in ("all", "mean", "wmean")]
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_resamples_do_not_depend_on_the_cells_beside():
    methods, gold = _data(200)
    both = resample_spearman(methods, gold, resamples=50)["all"]
    np.testing.assert_array_equal(both[1:], resample_spearman(methods[1:], gold, resamples=50)["all"])
    assert np.abs(both - resample_spearman(methods, gold, resamples=50, seed=1)["all"]).max() > 1e-3
    with_nan = np.vstack([methods, np.full(200, np.nan)])
    samples = resample_spearman(with_nan, gold, resamples=50)["all"]
    np.testing.assert_array_equal(samples[:2], both)
    assert np.isnan(samples[2]).all()


def test_intervals_cover_at_the_stated_rate():
    """Pairs from a bivariate normal, whose Spearman is 6/π·asin(r/2); 400 samples of 150."""
    rng = np.random.default_rng(3)
    r = 0.6
    truth = 6 / np.pi * np.arcsin(r / 2)
    hits = differences = 0
    for seed in range(400):
        gold = rng.normal(size=150)
        noise = rng.normal(size=(2, 150))
        methods = r * gold + np.sqrt(1 - r * r) * noise
        samples = resample_spearman(methods, gold, resamples=400, seed=seed)["all"]
        low, high = interval(samples[0], 0.9)
        hits += low <= truth <= high
        low, high = interval(samples[0] - samples[1], 0.9)
        differences += low <= 0 <= high
    # Binomial: 400 · 0.9 has a standard deviation of 6; percentile intervals at n = 150 are a little short.
    assert 340 <= hits <= 378
    assert 340 <= differences <= 382


@pytest.mark.parametrize(("n", "share"), [(7, 0.5), (300, 0.3), (300, 0.02)])
def test_auc_of_a_resample_is_scikit_learns_on_its_own_labels(n, share, monkeypatch):
    roc_auc_score = pytest.importorskip("sklearn.metrics").roc_auc_score

    rng = np.random.default_rng(1)
    labels = np.zeros(n)
    labels[: max(1, round(share * n))] = 1
    similarities = np.stack([np.round(labels + rng.normal(size=n), 1), labels + rng.normal(size=n)])
    drawn = _weights_used(monkeypatch)
    found = resample_spearman(similarities, labels, resamples=40)["auc"]
    (weights,) = drawn
    defined = (weights[labels == 1].sum(0) > 0) & (weights[labels == 0].sum(0) > 0)
    np.testing.assert_array_equal(np.isfinite(found), np.stack([defined, defined]))
    for b in np.flatnonzero(defined):
        for cell in range(2):
            expected = roc_auc_score(labels, similarities[cell], sample_weight=weights[:, b])
            assert found[cell, b] == pytest.approx(expected, abs=2e-6)


def test_bounds_of_auc_are_within_0_and_1_for_rare_ones():
    labels = np.zeros(400)
    labels[:4] = 1
    rng = np.random.default_rng(2)
    similarities = np.stack([4 * labels + rng.normal(size=400), labels + np.linspace(0, 0.5, 400)])
    low, high = interval(resample_spearman(similarities, labels, resamples=500)["auc"][0])
    assert 0.9 < low < high <= 1
    assert interval(resample_spearman(similarities, labels, resamples=500)["auc"][1]) == (1.0, 1.0)
    assert "auc" not in resample_spearman(similarities, np.ones(400), resamples=2)


def test_undefined_resamples_are_left_out_and_undefined_figures_stay_so():
    samples = resample_spearman(np.array([[1.0, 2.0]]), np.array([1.0, 2.0]), resamples=64)["all"][0]
    assert set(np.unique(samples[~np.isnan(samples)])) == {1.0}  # the others drew one pair twice
    assert 10 < np.isnan(samples).sum() < 54
    assert interval(samples) == (1.0, 1.0)
    constant = resample_spearman(np.array([[1.0, 2.0, 3.0]]), np.ones(3), resamples=8)["all"][0]
    assert all(map(math.isnan, interval(constant)))


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="subsets hold 3 pairs"):
        resample_spearman(np.ones((1, 2)), np.ones(2), [3])
    with pytest.raises(InputError, match="resamples is 0"):
        resample_spearman(np.ones((1, 2)), np.ones(2), resamples=0)
