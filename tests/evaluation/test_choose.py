"""Choosing without labels: halves that share no word, laws of the scores, and the gate that keeps good vectors raw."""

import numpy as np
import pytest

from jaxvec import InputError, Moments, SentenceEncoder, whitening
from jaxvec.evaluation.choose import (
    CLEARLY,
    NARROW_CONE,
    CorpusTexts,
    candidate_calibrations,
    candidate_layers,
    choose,
    choose_encoded,
    cosine_kurtosis,
    halves,
    mutual_rank,
)
from jaxvec.evaluation.corrections import parse_correction
from jaxvec.evaluation.encoding import EncodedTexts


def test_halves_hold_every_word_once():
    sentence = "one two three  four five six seven"
    first, second, odd, even = (part.split() for part in halves(sentence))
    assert first + second == sentence.split()
    assert sorted(odd + even) == sorted(sentence.split())
    assert odd[0] == "one"
    assert even[0] == "two"
    assert halves("only three words") is None
    assert halves("") is None


def test_candidates_are_distinct_and_valid():
    for blocks in (1, 2, 3, 12):
        layers = candidate_layers(blocks)
        assert len(set(layers)) == len(layers)
        assert all(0 <= n <= blocks for numbers in layers for n in numbers)
    for rank in (3, 100, 768):
        names = candidate_calibrations(rank)
        assert names[0] == "raw"
        assert all(parse_correction(name).name == name for name in names)


def test_mutual_rank_is_symmetric_and_between_chance_and_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 16)).astype(np.float32)
    noise = rng.normal(size=(200, 16)).astype(np.float32)
    scores = [mutual_rank(x, x + share * noise) for share in (0, 1, 3, 30)]
    assert scores[0] == 1
    assert scores == sorted(scores, reverse=True)
    assert scores[3] < 0.1
    assert mutual_rank(x, x + noise) == pytest.approx(mutual_rank(x + noise, x))
    assert mutual_rank(np.ones_like(x), np.ones_like(x)) == pytest.approx(1 / 200)


def test_kurtosis_equals_the_definition():
    from scipy.stats import kurtosis

    x = np.random.default_rng(1).standard_t(3, size=(150, 8)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(150, 1)]
    assert cosine_kurtosis(x) == pytest.approx(kurtosis(cosines, fisher=False), rel=1e-4)
    assert cosine_kurtosis(np.ones((5, 3), np.float32)) == 0


def test_the_choice_is_one_of_the_candidates_and_does_not_depend_on_the_run(bert_folder, texts):
    encoder = SentenceEncoder.load(bert_folder)
    found = choose(encoder, texts)
    assert found == choose(encoder, texts)
    assert found.layers in candidate_layers(3)
    best = max(found.layer_scores, key=found.layer_scores.get)
    clearly = found.layer_scores[best] >= CLEARLY * found.layer_scores["0,3"]
    assert ",".join(map(str, found.layers)) == (best if clearly else "0,3")
    assert found.calibration in found.calibration_scores
    raw_only = list(found.calibration_scores) == ["raw"]
    assert raw_only == (found.mean_cosine < NARROW_CONE)
    assert f"--layers {','.join(map(str, found.layers))}" in found.options()


def test_a_calibration_the_encoder_has_does_not_matter(bert_folder, texts):
    encoder = SentenceEncoder.load(bert_folder)
    whitened = encoder.with_calibration(whitening(Moments.of(encoder.encode(texts)), dim=4))
    layers = [(0,), (3,)]
    assert choose(whitened, texts, layers) == choose(encoder, texts, layers)


def test_a_layer_whose_vectors_are_all_equal_is_worth_nothing(bert_folder, texts):
    """Before the first block [CLS] knows nothing of its sentence."""
    found = choose(SentenceEncoder.load(bert_folder, pooling="cls"), texts)
    halved = len(CorpusTexts.of(texts).parts[0])
    assert found.layer_scores["0"] == pytest.approx(1 / halved)
    assert min(found.layer_scores, key=found.layer_scores.get) == "0"
    assert found.layers != (0,)


def test_whitening_is_no_candidate_at_widths_that_so_few_vectors_cannot_support():
    """As many vectors as dimensions, whitened, are all equally far apart: halves find each other, and nothing else does."""

    class Cone(EncodedTexts):
        def __init__(self):
            pass

        def vectors(self, choice, texts):
            seeds = ([len(text), *text.encode()] for text in texts)
            return np.stack([1 + np.random.default_rng(seed).normal(size=256) for seed in seeds]).astype("f4")

    for count, widest in ((255, 0), (260, 64), (700, 128), (1100, 256)):
        texts = CorpusTexts.of([f"this is sentence number {i}" for i in range(count)])
        found = choose_encoded(Cone(), [("mean", (0,))], texts)
        assert found.mean_cosine > NARROW_CONE
        whitened = [name for name in found.calibration_scores if name.startswith("whitening")]
        assert max((int(name.partition(":")[2] or 256) for name in whitened), default=0) == widest
        assert len(found.calibration_scores) == 5 + len(whitened)


def test_at_most_so_many_sentences_are_halved_and_each_once():
    texts = CorpusTexts.of([f"this is sentence number {i}" for i in range(3000)] * 2)
    assert len(texts.sentences) == 3000
    assert [len(part) for part in texts.parts] == [800] * 4
    assert len(set(texts.parts[1])) == 800


def test_a_corpus_too_small_is_refused():
    with pytest.raises(InputError, match="different sentences of 4 words"):
        CorpusTexts.of(["one sentence of five words"] * 100)
