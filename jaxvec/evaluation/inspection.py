"""What `jaxvec inspect` reports: a corpus's vectors before and after calibration, and what would suit them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.evaluation.choose import CorpusTexts, Recommendation, candidate_layers, choose_encoded
from jaxvec.evaluation.corrections import RAW, Sample, parse_correction
from jaxvec.evaluation.edit_distance import edit_distance
from jaxvec.evaluation.encoding import EncodedTexts, make_choice
from jaxvec.evaluation.frequency import FrequencyBand, frequency_bands, token_counts, word_embeddings
from jaxvec.evaluation.isotropy import Isotropy, measure_isotropy
from jaxvec.evaluation.metrics import spearman
from jaxvec.evaluation.pairwise import alignment, unit_rows

SAMPLE = 4_000
_NEAREST = 1_000  # sentences whose most similar other one is compared with it as a string


@dataclass(frozen=True, eq=False)
class View:
    """The sample's vectors in one form.

    Attributes:
        name: what they are, such as "layers 6, whitening:128".
        isotropy: their measures.
        alignment: of the first and second halves of sentences, at unit length; see `pairwise.alignment`.
        edit_correlation: see `edit_correlation`; far below 0, the cosine reads the string, not the meaning.
        vectors: float32 [n, dim], un-normalised.
    """

    name: str
    isotropy: Isotropy
    alignment: float
    edit_correlation: float
    vectors: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Inspection:
    """Everything about one encoder on one corpus. Made by `inspect_corpus`.

    Attributes:
        corpus: sentences read.
        sample: different sentences measured.
        views: the encoder's own vectors first, then calibrated ones, the recommended ones last.
        recommendation: of layers, calibration and dimension.
        words: the encoder's word embeddings by frequency in the corpus, as they are and whitened.
    """

    corpus: int
    sample: int
    views: tuple[View, ...]
    recommendation: Recommendation
    words: dict[str, list[FrequencyBand]]

    def figures(self) -> dict[str, Any]:
        """Everything but the vectors as plain values, for JSON; what is undefined is null."""
        views = [
            {
                "name": view.name,
                **view.isotropy.figures(),
                "alignment": view.alignment,
                "edit_correlation": view.edit_correlation,
            }
            for view in self.views
        ]
        words = {name: [band.figures() for band in bands] for name, bands in self.words.items()}
        return _plain(
            {
                "corpus": self.corpus,
                "sample": self.sample,
                "views": views,
                "recommendation": self.recommendation.figures(),
                "words": words,
            }
        )

    def text(self) -> str:
        """Everything for a person to read."""
        lines = [f"{self.corpus:,} sentences read, {self.sample:,} different ones measured", ""]
        width = max(len(view.name) for view in self.views)
        heads = (
            "dims",
            "mean cos",
            "IsoScore",
            "eff. rank",
            "partition",
            "uniformity",
            "alignment",
            "edit ρ",
        )
        lines.append(" " * width + "".join(f"{head:>11}" for head in heads))
        for view in self.views:
            measured = view.isotropy
            cells = [
                f"{measured.dim}",
                f"{measured.mean_cosine:.3f}",
                f"{measured.iso_score:.3f}",
                f"{measured.effective_rank:.1f}",
                f"{measured.partition_ratio:.3f}",
                f"{measured.uniformity:.2f}",
                f"{view.alignment:.3f}",
                f"{view.edit_correlation:.3f}",
            ]
            lines.append(f"{view.name:<{width}}" + "".join(f"{cell:>11}" for cell in cells))
        for name, bands in self.words.items():
            lines += ["", f"word embeddings, {name}, by rank in the corpus"]
            lines.append(
                f"{'ranks':<16}{'words':>8}{'norm':>9}" + "".join(f"{f'{k}-NN':>9}" for k in _ks(bands))
            )
            for band in bands:
                means = [band.mean_norm, *band.neighbour_distance.values()]
                ranks = f"[{band.start}, {band.stop})"
                lines.append(f"{ranks:<16}{band.words:>8}" + "".join(f"{mean:>9.2f}" for mean in means))
        found = self.recommendation
        cone = f"raw vectors there have a mean cosine of {found.mean_cosine:.2f}"
        lines += ["", f"without labels: {found.options()}  ({found.dim} dimensions; {cone})"]
        return "\n".join(lines)


def inspect_corpus(
    encoder: SentenceEncoder,
    sentences: Iterable[str],
    calibrations: Sequence[str] = (),
    sample: int = SAMPLE,
    tick: Callable[[int], Any] = lambda count: None,
) -> Inspection:
    """Measures a corpus's vectors before and after calibration, and recommends what would suit it.

    The corpus is read once, in constant memory; words are counted in all of it, everything else is measured on an
    even random sample. Calibrations are fitted on that sample.

    Args:
        encoder: with or without a calibration; the recommendation is made without.
        sentences: the corpus.
        calibrations: names as for `parse_correction`, measured on the encoder's own vectors.
        sample: how many sentences.
        tick: called with the number of texts after every batch.

    Raises:
        InputError: fewer than 50 different sentences of 4 words or more, or a calibration that does not exist or
            asks for more directions than the vectors have.
    """
    corrections = [parse_correction(name) for name in calibrations]
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 2:
        raise InputError(f"sample is {sample!r}; expected a number of sentences, some thousand")
    plain = encoder.with_layers(encoder.layers)
    for correction in corrections:
        correction.check_width(plain.dim)
    reservoir = Reservoir(sample)
    counts = token_counts(encoder, reservoir.passing(sentences))
    texts = CorpusTexts.of(reservoir.kept)
    own = make_choice(plain)
    choices = [make_choice(plain, layers=layers) for layers in candidate_layers(plain.config.num_layers)]
    encoded = EncodedTexts(plain, texts.every, [own, *choices], tick)
    found = choose_encoded(encoded, choices, texts)

    wanted = [(own, RAW, None)]
    if encoder.calibration is not None:
        wanted.append((own, "the folder's calibration", encoder.calibration))
    fitted = Sample(encoded.vectors(own, texts.sentences))
    wanted += [(own, step.name, step.fit(fitted)) for step in corrections]
    best = (own[0], found.layers)
    if (best, found.calibration) not in [(choice, name) for choice, name, _ in wanted]:
        recommended = parse_correction(found.calibration)
        wanted.append(
            (best, found.calibration, recommended.fit(Sample(encoded.vectors(best, texts.sentences))))
        )
    return Inspection(
        corpus=reservoir.seen,
        sample=len(texts.sentences),
        views=tuple(_view(encoded, texts, *entry) for entry in wanted),
        recommendation=found,
        words=_words(word_embeddings(plain), counts),
    )


class Reservoir:
    """An even random sample of a stream of any length.

    Reference: J. Vitter, "Random Sampling with a Reservoir", ACM TOMS 11, 1985, Algorithm R.

    >>> reservoir = Reservoir(3)
    >>> len(list(reservoir.passing(str(i) for i in range(100)))), reservoir.seen, len(reservoir.kept)
    (100, 100, 3)
    """

    def __init__(self, size: int, seed: int = 0):
        self.size, self.seen, self.kept = size, 0, []
        self._random = np.random.default_rng(seed)

    def passing(self, stream: Iterable[str]) -> Iterator[str]:
        """The stream as it is, sampled on the way."""
        for item in stream:
            if self.seen < self.size:
                self.kept.append(item)
            elif (place := int(self._random.integers(self.seen + 1))) < self.size:
                self.kept[place] = item
            self.seen += 1
            yield item


def _view(encoded: EncodedTexts, texts: CorpusTexts, choice: Any, name: str, calibration: Any) -> View:
    def calibrated(of: Sequence[str]) -> np.ndarray:
        vectors = encoded.vectors(choice, of)
        return vectors if calibration is None else np.asarray(calibration(vectors))

    vectors = calibrated(texts.sentences)
    return View(
        name=f"layers {','.join(map(str, choice[1]))}, {name}",
        isotropy=measure_isotropy(vectors),
        alignment=alignment(calibrated(texts.parts[0]), calibrated(texts.parts[1])),
        edit_correlation=edit_correlation(texts.sentences[:_NEAREST], vectors[:_NEAREST]),
        vectors=vectors,
    )


def edit_correlation(sentences: Sequence[str], vectors: Float[np.ndarray, "n d"]) -> float:
    """Spearman of cosine and edit distance, over each sentence and its nearest neighbour among the others.

    The distance is in characters, as a share of the longer sentence.

    Reference: after B. Li et al., EMNLP 2020, arXiv:2011.05864, Table 6, who take pairs that were scored.
    """
    unit = unit_rows(vectors)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    others = [sentences[row] for row in cosines.argmax(axis=1)]
    longer = [max(len(a), len(b), 1) for a, b in zip(sentences, others, strict=True)]
    return spearman(cosines.max(axis=1), edit_distance(sentences, others) / np.array(longer))


def _words(table: np.ndarray, counts: np.ndarray) -> dict[str, list[FrequencyBand]]:
    used = table[counts > 0]
    if len(used) < 2:
        return {}
    return {
        "raw": frequency_bands(table, counts),
        "whitened": frequency_bands(np.asarray(whitening(Moments.of(used))(table)), counts),
    }


def _ks(bands: Sequence[FrequencyBand]) -> list[int]:
    return list(bands[0].neighbour_distance)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
