"""k-means and near-duplicates: equal to what a plain loop over everything gives."""

import numpy as np
import pytest

from jaxvec import InputError
from jaxvec.search import cluster, dedupe
from jaxvec.search.cluster import k_means
from jaxvec.search.dedupe import near_duplicates


@pytest.fixture
def blobs():
    """Four groups of 301 vectors, far apart, shuffled; and which group each is of."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(4), 301))
    centres = 10 * rng.standard_normal((4, 8))
    return (centres[group] + rng.standard_normal((1204, 8))).astype(np.float32), group


def test_groups_that_are_apart_are_found(blobs, monkeypatch):
    monkeypatch.setattr(cluster, "BLOCK", 256)
    vectors, group = blobs
    clusters = k_means(vectors, 4)
    assert len(set(zip(clusters.labels.tolist(), group.tolist(), strict=True))) == 4
    assert clusters.sizes.tolist() == [301] * 4


def test_the_result_is_a_fixed_point(monkeypatch):
    monkeypatch.setattr(cluster, "BLOCK", 300)
    vectors = np.random.default_rng(1).standard_normal((1000, 5)).astype(np.float32)
    clusters = k_means(vectors, 12, passes=200, tolerance=0.0)
    distances = np.square(vectors[:, None] - clusters.centres).sum(-1)
    assert np.array_equal(clusters.labels, distances.argmin(axis=1))
    assert np.abs(clusters.distances - distances.min(axis=1)).max() < 1e-5
    means = np.array([vectors[clusters.labels == label].mean(axis=0) for label in range(12)])
    assert np.abs(clusters.centres - means).max() < 1e-5
    assert (np.diff(clusters.sizes) <= 0).all()
    closest = clusters.nearest(3, 2)
    assert clusters.labels[closest].tolist() == [3, 3]
    assert clusters.distances[closest[0]] == clusters.distances[clusters.labels == 3].min()


def test_blocks_do_not_change_the_clusters(blobs, monkeypatch):
    whole = k_means(blobs[0], 7, seed=3)
    monkeypatch.setattr(cluster, "BLOCK", 100)
    parts = k_means(blobs[0], 7, seed=3)
    assert np.array_equal(whole.labels, parts.labels)


def test_fewer_different_vectors_than_clusters():
    clusters = k_means(np.repeat(np.eye(2, dtype=np.float32), 5, axis=0), 4)
    assert clusters.distances.max() == 0
    assert k_means(np.ones((3, 2), np.float32), 3).sizes.sum() == 3


@pytest.mark.parametrize("k", [0, -1, 11, True])
def test_numbers_of_clusters_that_cannot_be(k):
    with pytest.raises(InputError, match=f"k is {k}; expected a number of clusters from 1 to 10"):
        k_means(np.ones((10, 2), np.float32), k)


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.ones((0, 2)), {}, "there are no vectors to group"),
        (np.ones(2), {}, r"vectors have shape \(2,\); expected \[n, dim\]"),
        (np.ones((9, 2)), {"seed": -1}, "seed is -1; expected a whole number, 0 or more"),
        (np.ones((9, 2)), {"passes": 0}, "passes is 0; expected a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_grouped(vectors, options, message):
    with pytest.raises(InputError, match=message):
        k_means(vectors, 1, **options)


def test_vectors_that_are_not_finite_are_refused():
    bad = np.ones((10, 2), np.float32)
    bad[3] = np.nan
    with pytest.raises(InputError, match="not finite"):
        k_means(bad, 2)
    with pytest.raises(InputError, match="not finite"):
        list(near_duplicates(bad))


@pytest.mark.parametrize("n", [0, 1, 2, 65, 700])
@pytest.mark.parametrize("threshold", [1e-7, 0.5, 0.9, 1.0])
def test_pairs_are_those_of_the_whole_matrix(n, threshold, monkeypatch):
    monkeypatch.setattr(dedupe, "BLOCK", 128)
    monkeypatch.setattr(dedupe, "QUERIES", 64)
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((n, 6)).astype(np.float32)
    vectors[n // 2 :] = 3 * vectors[: n - n // 2] + 0.01 * rng.integers(0, 2, (n - n // 2, 1))
    vectors[:1] = 0
    unit = vectors / np.maximum(np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True), 1e-30)
    cosines = unit @ unit.T
    i, j = np.nonzero(np.triu((cosines >= threshold - 1e-6) & (cosines > 0), 1))
    pairs = list(near_duplicates(vectors, threshold))
    assert [pair[:2] for pair in pairs] == list(zip(i.tolist(), j.tolist(), strict=True))
    assert np.abs([pair[2] for pair in pairs] - cosines[i, j]).max(initial=0) < 1e-5


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.01, float("nan")])
def test_thresholds_that_are_no_cosine(threshold):
    with pytest.raises(InputError, match="expected a cosine above 0, at most 1"):
        near_duplicates(np.ones((2, 2), np.float32), threshold)
