"""Embeddings by word frequency and edit distances equal plain loops over the definitions."""

import numpy as np
import pytest

from jaxvec import InputError, SentenceEncoder
from jaxvec.evaluation.edit_distance import edit_distance
from jaxvec.evaluation.frequency import frequency_bands, token_counts, word_embeddings


def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        new = [i + 1]
        for j, y in enumerate(b):
            new.append(min(row[j + 1] + 1, new[j] + 1, row[j] + (x != y)))
        row = new
    return row[-1]


def test_bands_equal_the_definition():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(700, 9)).astype(np.float32)
    counts = rng.permutation(np.r_[np.arange(1, 601), np.zeros(100, int)])
    bands = frequency_bands(table, counts, bands=(0, 50, 560, 650), neighbours=(1, 4))
    words = table[np.argsort(-counts)][:600].astype(np.float64)
    distances = np.linalg.norm(words[:, None] - words[None], axis=-1)
    dots = words @ words.T
    np.fill_diagonal(distances, np.inf)
    np.fill_diagonal(dots, -np.inf)
    distances, dots = np.sort(distances, 1), -np.sort(-dots, 1)
    assert [band.words for band in bands] == [50, 510, 40]
    for band in bands:
        rows = slice(band.start, min(band.stop, 600))
        assert band.mean_norm == pytest.approx(np.linalg.norm(words[rows], axis=1).mean(), rel=1e-5)
        for k in (1, 4):
            assert band.neighbour_distance[k] == pytest.approx(distances[rows, :k].mean(), rel=1e-5)
            assert band.neighbour_dot[k] == pytest.approx(dots[rows, :k].mean(), rel=1e-5)


def test_too_few_words_are_undefined():
    table = np.eye(4, dtype=np.float32)
    first, second = frequency_bands(table, np.array([3, 2, 0, 0]), bands=(0, 5, 9), neighbours=(1, 2))
    assert first.neighbour_distance[1] == pytest.approx(2**0.5)
    assert np.isnan(first.neighbour_distance[2])
    assert second.words == 0
    assert np.isnan(second.mean_norm)
    assert np.isnan(second.neighbour_dot[1])
    (alone,) = frequency_bands(table, np.array([3, 0, 0, 0]), bands=(0, 5), neighbours=(1,))
    assert alone.words == 1
    assert np.isnan(alone.neighbour_distance[1])


def test_counts_are_of_the_text_alone(bert_folder):
    encoder = SentenceEncoder.load(bert_folder)
    counts = token_counts(encoder, (text for text in ["the man plays", "the dog", ""]))
    assert counts.sum() == 5
    assert counts.max() == 2
    assert word_embeddings(encoder).shape == (len(counts), 32)
    assert token_counts(encoder, []).sum() == 0


def test_bad_arguments_are_named():
    table = np.eye(4, dtype=np.float32)
    with pytest.raises(InputError, match="no word"):
        frequency_bands(table, np.zeros(4, int))
    with pytest.raises(InputError, match="ascending"):
        frequency_bands(table, np.ones(4, int), bands=(5, 5))
    with pytest.raises(InputError, match="neighbours"):
        frequency_bands(table, np.ones(4, int), neighbours=(0,))
    with pytest.raises(InputError, match="pairs"):
        edit_distance(["a"], [])


def test_edit_distance_equals_the_recursion():
    rng = np.random.default_rng(1)
    first, second = (
        ["".join(rng.choice(list("abc"), rng.integers(0, 14))) for _ in range(600)] for _ in range(2)
    )
    assert edit_distance(first, second).tolist() == list(map(levenshtein, first, second))
    words = [list(text) for text in first]
    assert (
        edit_distance(words, [list(text) for text in second]).tolist()
        == edit_distance(first, second).tolist()
    )
    assert edit_distance([], []).tolist() == []


def test_edit_distance_is_a_metric():
    rng = np.random.default_rng(2)
    a, b, c = (["".join(rng.choice(list("xy"), rng.integers(0, 9))) for _ in range(200)] for _ in range(3))
    assert not edit_distance(a, a).any()
    assert (edit_distance(a, b) == edit_distance(b, a)).all()
    assert (edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)).all()
