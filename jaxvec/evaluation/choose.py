"""Layers, calibration and dimension for a corpus, chosen without labels from how sentences find their own halves."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from jaxvec.calibration.affine import RTOL
from jaxvec.calibration.fit_checks import is_constant
from jaxvec.calibration.moments import Moments
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.evaluation.corrections import RAW, Sample, parse_correction
from jaxvec.evaluation.encoding import Choice, EncodedTexts, make_choice
from jaxvec.evaluation.isotropy import mean_cosine, spectrum
from jaxvec.evaluation.pairwise import unit_rows

NARROW_CONE = 0.25  # mean cosine from which on vectors are calibrated at all
CLEARLY = 1.1  # times the score of embedding and last; less is within what another sample would change
HALVED = 800  # sentences that are cut in halves; each is sought among all the others
FEWEST = 50
# Of n vectors, k of whose directions vary alike, the least variance found is (1 − √(k/n))² of the true one (Marchenko and
# Pastur, 1967): at n = 4k a quarter. With fewer, whitening stretches what the sample happens to lack, until at n ≤ k all
# of its vectors are equally far apart.
VECTORS_A_WIDTH = 4
_WORD = re.compile(r"\S+")

Vectors = Float[Array | np.ndarray, "n d"]


@dataclass(frozen=True)
class Recommendation:
    """What `choose` found.

    Attributes:
        layers: hidden-state numbers to average.
        calibration: as `--calibrate` takes it, such as "whitening:128"; "raw" is none.
        dim: width of the vectors.
        mean_cosine: of raw vectors at these layers; below `NARROW_CONE` they stay raw.
        layer_scores: for each candidate "1,6" the mean reciprocal rank of the other half.
        calibration_scores: for each candidate calibration at the chosen layers, the same times √kurtosis.
    """

    layers: tuple[int, ...]
    calibration: str
    dim: int
    mean_cosine: float
    layer_scores: dict[str, float]
    calibration_scores: dict[str, float]

    def figures(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"layers": list(self.layers)}

    def options(self) -> str:
        """The recommendation as options of `jaxvec fit` and `jaxvec eval`."""
        layers = "--layers " + ",".join(map(str, self.layers))
        return layers if self.calibration == RAW else f"{layers} --calibrate {self.calibration}"


def candidate_layers(num_layers: int) -> list[tuple[int, ...]]:
    """Every hidden state by itself, first and last, the last two, and embedding and last.

    >>> candidate_layers(3)
    [(0,), (1,), (2,), (3,), (1, 3), (2, 3), (0, 3)]
    """
    combined = [(1, num_layers), (num_layers - 1, num_layers), (0, num_layers)]
    return list(
        dict.fromkeys([*((n,) for n in range(num_layers + 1)), *(c for c in combined if c[0] < c[1])])
    )


def candidate_calibrations(rank: int, count: int | None = None) -> list[str]:
    """Raw, standardised, 1, 3 or 5 components removed, and whitened to several widths up to the rank.

    Args:
        rank: directions in which the vectors vary.
        count: vectors to fit on; whitening is left out at widths above a quarter of it. None leaves nothing out.

    >>> candidate_calibrations(200)[-3:], candidate_calibrations(200, 700)[-2:]
    (['whitening', 'whitening:128', 'whitening:64'], ['whitening:128', 'whitening:64'])
    """
    removed = [f"remove-components:{k}" for k in (1, 3, 5) if k < rank]
    widths = [rank, *(k for k in (512, 256, 128, 64) if k < rank)]
    supported = [k for k in widths if count is None or k * VECTORS_A_WIDTH <= count]
    whitened = ["whitening" if k == rank else f"whitening:{k}" for k in supported]
    return [RAW, "standardize", *removed, *whitened]


def halves(sentence: str) -> tuple[str, str, str, str] | None:
    """The first and the second half of a sentence, then its odd and its even words; None below 4 words.

    A text without white space, such as Chinese, is cut between characters.

    >>> halves("a man plays the guitar")
    ('a man', 'plays the guitar', 'a plays guitar', 'man the')
    >>> halves("他在弹吉他")
    ('他在', '弹吉他', '他弹他', '在吉')
    """
    units, joint = _WORD.findall(sentence), " "
    if len(units) == 1:
        units, joint = list(units[0]), ""
    if len(units) < 4:
        return None
    middle = len(units) // 2
    parts = units[:middle], units[middle:], units[::2], units[1::2]
    return tuple(joint.join(part) for part in parts)


def choose(
    encoder: SentenceEncoder,
    sentences: Sequence[str],
    layers: Sequence[tuple[int, ...]] | None = None,
    tick: Callable[[int], Any] = lambda count: None,
) -> Recommendation:
    """Layers, calibration and dimension for a corpus, without labels.

    1. Layers: a vector that holds the meaning of half a sentence is near that of the other half, which shares
       hardly a word with it. Candidates are compared by how well first and second halves, standardised, find
       each other among those of all other sentences (mean reciprocal rank). Embedding and last, which are seldom
       far from the best, are taken unless another candidate scores `CLEARLY` higher.
    2. Where raw vectors of these layers have a mean cosine below `NARROW_CONE`, they stay raw: without a cone
       there is nothing to open, and calibrations cost more than they give.
    3. Else, of the calibrations that so many vectors can support (whitening needs 4 of them a dimension), the one is
       taken for which the product of two figures is highest: how well odd and even words
       find each other, and the root of the kurtosis of all pairs' cosines, which is large where most pairs are
       clearly unrelated and a few stand out.

    How often this helps, and how far it stays behind a choice made with labels, is measured in
    `experiments/choosing_without_labels.py`.

    Args:
        encoder: a calibration it has is left out.
        sentences: a sample of the corpus; a few thousand are enough. Each distinct one counts once.
        layers: candidates; None is `candidate_layers`.
        tick: called with the number of texts after every batch.

    Raises:
        InputError: fewer than 50 distinct sentences of 4 words (without white space: characters) or more.

    Example:
        >>> from jaxvec.demo import demo_sentences
        >>> found = choose(SentenceEncoder.load(), demo_sentences()[:80], layers=[(0,), (6,)])
        >>> found.layers, found.calibration
        ((6,), 'raw')
    """
    base = encoder.with_layers(encoder.layers)
    candidates = candidate_layers(base.config.num_layers) if layers is None else layers
    choices = [make_choice(base, layers=numbers) for numbers in candidates]
    texts = CorpusTexts.of(sentences)
    encoded = EncodedTexts(base, texts.every, choices, tick)
    return choose_encoded(encoded, choices, texts)


@dataclass(frozen=True, eq=False)
class CorpusTexts:
    """The distinct sentences of a corpus, and the halves of some of them.

    Attributes:
        sentences: each once, in their order.
        parts: first halves, second halves, odd words, even words, [4][m].
    """

    sentences: list[str]
    parts: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, sentences: Sequence[str]) -> "CorpusTexts":
        """Cuts an even choice of at most `HALVED` sentences; errors as for `choose`."""
        distinct = list(dict.fromkeys(sentences))
        cut = [parts for parts in map(halves, distinct) if parts is not None]
        if len(cut) < FEWEST:
            raise InputError(
                f"the corpus has {len(cut)} different sentences of 4 words or more; choosing without labels needs "
                f"{FEWEST}, and is better with some thousand"
            )
        step = max(1, len(cut) / HALVED)
        chosen = [cut[int(i * step)] for i in range(min(HALVED, len(cut)))]
        return cls(distinct, tuple(zip(*chosen, strict=True)))

    @property
    def every(self) -> list[str]:
        """All that is to be encoded."""
        return [*self.sentences, *(text for part in self.parts for text in part)]


def choose_encoded(encoded: EncodedTexts, choices: Sequence[Choice], texts: CorpusTexts) -> Recommendation:
    """`choose` on vectors that are there already: of `texts.every`, under each of the choices."""

    def reciprocal_rank(choice: Choice, calibration: Any, pair: slice) -> float:
        first, second = (_centred(calibration, encoded.vectors(choice, part)) for part in texts.parts[pair])
        return mutual_rank(first, second)

    contiguous, alternating = slice(0, 2), slice(2, 4)
    layer_scores = {}
    for choice in choices:
        sample = Sample(encoded.vectors(choice, texts.sentences))
        if is_constant(sample.moments):  # [CLS] before the first block; equal vectors find nothing
            layer_scores[choice] = 1 / len(texts.parts[0])
            continue
        standardized = parse_correction("standardize").fit(sample)
        layer_scores[choice] = reciprocal_rank(choice, standardized, contiguous)
    best = max(layer_scores, key=layer_scores.__getitem__)
    usual = (best[0], (0, max(numbers[-1] for _, numbers in choices)))
    if usual in layer_scores and layer_scores[best] < CLEARLY * layer_scores[usual]:
        best = usual
    vectors = encoded.vectors(best, texts.sentences)
    cone = mean_cosine(Moments.of(unit_rows(vectors)))
    sample = Sample(vectors)
    step = max(1, len(vectors) // HALVED)
    scores, dims = {}, {}
    variances = spectrum(sample.moments)
    rank = int((variances > RTOL * variances[0]).sum())
    for name in candidate_calibrations(rank, len(vectors)) if cone >= NARROW_CONE else [RAW]:
        fitted = parse_correction(name).fit(sample)
        few = vectors[::step] if fitted is None else np.asarray(fitted(vectors[::step]))
        scores[name] = reciprocal_rank(best, fitted, alternating) * cosine_kurtosis(few) ** 0.5
        dims[name] = few.shape[1]
    calibration = max(scores, key=scores.__getitem__)
    return Recommendation(
        layers=best[1],
        calibration=calibration,
        dim=dims[calibration],
        mean_cosine=cone,
        layer_scores={",".join(map(str, numbers)): score for (_, numbers), score in layer_scores.items()},
        calibration_scores=scores,
    )


def mutual_rank(first: Vectors, second: Vectors) -> float:
    """Mean reciprocal rank of row i of `second` by cosine with row i of `first`, and the other way round.

    >>> round(mutual_rank(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)), 6)
    1.0
    """
    cosines = unit_rows(first) @ unit_rows(second).T
    own = np.diag(cosines)
    # Ties count as if the own half came last: equal vectors find nothing.
    ranks = (cosines >= own[:, None]).sum(1), (cosines >= own[None, :]).sum(0)
    return float(np.mean([1 / rank for rank in ranks]))


def cosine_kurtosis(vectors: Vectors) -> float:
    """Fourth standardised moment of the cosines of all pairs of rows: 3 if they are spread as a normal is.

    >>> x = np.random.default_rng(0).normal(size=(400, 50)).astype(np.float32)
    >>> round(cosine_kurtosis(x))
    3
    """
    unit = unit_rows(vectors)
    cosines = (unit @ unit.T)[np.triu_indices(len(unit), 1)].astype(np.float64)
    deviations = cosines - cosines.mean()
    variance = np.mean(deviations**2)
    return float(np.mean(deviations**4) / variance**2) if variance > 0 else 0.0


def _centred(calibration: Any, vectors: np.ndarray) -> np.ndarray:
    """Halves have a mean of their own, a beginning another than an end; without this a calibration shows that."""
    calibrated = vectors if calibration is None else np.asarray(calibration(vectors))
    return calibrated - calibrated.mean(axis=0)
