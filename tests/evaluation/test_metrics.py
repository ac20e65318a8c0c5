"""Metrics equal scipy's and scikit-learn's; what is undefined is NaN."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from jaxvec.errors import InputError
from jaxvec.evaluation.metrics import aggregate, best_accuracy, cosine, pearson, ranks, roc_auc, spearman


@pytest.fixture(params=range(12))
def tied(request):
    """Two related samples full of ties, of several sizes and scales."""
    rng = np.random.default_rng(request.param)
    n = int(rng.integers(3, 400))
    x = rng.integers(0, 7, n) * 10.0 ** rng.integers(-3, 4)
    return x, np.round(x / np.abs(x).max() + rng.normal(size=n), 1)


def test_correlations_equal_scipy(tied):
    x, y = tied
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-12)
    np.testing.assert_array_equal(ranks(y), stats.rankdata(y))


def test_spearman_knows_only_the_order(tied):
    x, y = tied
    assert spearman(np.exp(x / x.max()), -(y**3)) == pytest.approx(-spearman(x, y), abs=1e-12)


def test_auc_and_accuracy_equal_their_definitions(tied):
    _, similarities = tied
    labels = np.random.default_rng(1).integers(0, 2, len(similarities))
    labels[:2] = 0, 1
    assert roc_auc(similarities, labels) == pytest.approx(roc_auc_score(labels, similarities), abs=1e-12)
    thresholds = [*similarities, np.inf]
    accuracies = [np.mean((similarities >= t) == labels) for t in thresholds]
    accuracy, threshold = best_accuracy(similarities, labels)
    assert accuracy == pytest.approx(max(accuracies), abs=1e-15)
    assert np.mean((similarities >= threshold) == labels) == pytest.approx(accuracy, abs=1e-15)


def test_all_mean_and_wmean_weigh_subsets_as_they_say(tied):
    x, y = tied
    parts = [len(x) // 3, len(x) - len(x) // 3]
    figures = aggregate(x, y, parts)
    each = [spearman(x[: parts[0]], y[: parts[0]]), spearman(x[parts[0] :], y[parts[0] :])]
    assert figures["all"] == spearman(x, y)
    np.testing.assert_allclose(figures["mean"], np.mean(each), atol=1e-15)
    np.testing.assert_allclose(figures["wmean"], np.average(each, weights=parts), atol=1e-15)
    one = aggregate(x, y, [len(x)])
    np.testing.assert_equal(list(one.values()), [spearman(x, y)] * 3)


@pytest.mark.parametrize("measure", [spearman, pearson])
def test_undefined_correlations_are_nan(measure):
    some = np.arange(4.0)
    for x, y in ((some, np.ones(4)), (np.ones(4), some), (some[:1], some[:1]), (some[:0], some[:0])):
        assert math.isnan(measure(x, y))
    assert math.isnan(measure(np.array([1, np.nan, 2, 3]), some))
    assert math.isnan(measure(np.array([1, np.inf, 2, 3]), some))


def test_a_constant_subset_leaves_means_undefined_but_not_all():
    figures = aggregate(np.arange(5.0), np.array([1.0, 1, 2, 3, 4]), [2, 3])
    assert figures["all"] > 0.9
    assert math.isnan(figures["mean"])
    assert math.isnan(figures["wmean"])


def test_one_label_only_leaves_auc_undefined():
    assert math.isnan(roc_auc(np.arange(3.0), np.ones(3)))
    assert math.isnan(best_accuracy(np.ones(0), np.ones(0))[0])


def test_cosine_is_zero_safe_and_ignores_lengths():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50, 8)).astype(np.float32)
    a[3] = 0
    found = cosine(a, b)
    assert found[3] == 0
    np.testing.assert_allclose(found, cosine(a * 1e-12, b * 1e12), atol=1e-6)
    with np.errstate(invalid="ignore"):
        expected = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(np.delete(found, 3), np.delete(expected, 3), atol=1e-6)


def test_pairs_of_equal_vectors_tie():
    a = np.random.default_rng(0).normal(size=(500, 384)).astype(np.float32)
    assert (cosine(a, a) == 1).all()
    assert (cosine(a, -a) == -1).all()


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="3 values cannot be compared with 2"):
        spearman(np.ones(3), np.ones(2))
    with pytest.raises(InputError, match="other values than 0 and 1"):
        roc_auc(np.arange(3.0), np.arange(3))
    with pytest.raises(InputError, match="subsets hold 4 pairs together; expected 3"):
        aggregate(np.arange(3.0), np.arange(3.0), [2, 2])
