"""BERT-flow, Table 6: how far similarities follow edit distance, and how far people's scores, on STS-B dev.

    python -m experiments bert_flow_table6 --data DATA

Spearman × 100 over the 1,500 validation pairs; edit distance is Levenshtein's in the model's tokens, which
brings the gold scores closest to their published figure (−24.2, in characters −20.2; published −24.6). Two minutes on
two CPU cores with a base stand-in.

B. Li et al., EMNLP 2020, arXiv:2011.05864. BERT's similarity is that of first and last block, the flow is fitted on
all splits; the paper states neither the layers nor the unit of the distance.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from experiments.setup import Setup
from experiments.table import Row, Table, figures
from jaxvec.encoder import SentenceEncoder
from jaxvec.evaluation.corrections import Sample
from jaxvec.evaluation.edit_distance import token_edit_distance
from jaxvec.evaluation.encoding import Choice, EncodedTexts
from jaxvec.evaluation.metrics import cosine, spearman
from jaxvec.evaluation.settings import fitting_text

COLUMNS = ("edit distance", "gold")


def measure(setup: Setup, row: Row) -> Mapping[str, float]:
    """Spearman of the row's similarity with edit distance and with the scores."""
    task = setup.task("stsb").scoring("dev")
    encoder = setup.model(row.model).encoder(TABLE.max_length)
    distances = token_edit_distance(encoder.tokenizer, task.scored.first, task.scored.second)
    if row.label == "gold":
        similarities = task.scores
    else:
        method = setup.method(row, TABLE.max_length)
        fit = fitting_text(task, "target", None).sentences
        encoded = _encoded(encoder, tuple(fit), method.choice)
        vectors = encoded.vectors(method.choice, task.sentences)
        if method.correction.steps:
            calibration = method.correction.fit(Sample(encoded.vectors(method.choice, fit)))
            vectors = np.asarray(calibration(vectors))
        similarities = cosine(*np.split(vectors, 2))
    return {
        "edit distance": 100 * spearman(similarities, distances),
        "gold": 100 * spearman(similarities, task.scores),
    }


@lru_cache(maxsize=1)
def _encoded(encoder: SentenceEncoder, sentences: tuple[str, ...], choice: Choice) -> EncodedTexts:
    """Once for all rows of a model."""
    return EncodedTexts(encoder, list(sentences), [choice])


def _texts(setup: Setup) -> Iterable[str]:
    task = setup.task("stsb").scoring("dev")
    return [*fitting_text(task, "target", None).sentences, *map(str, task.scores)]


def _row(label: str, cells: str, calibrate: str = "raw") -> Row:
    published = figures(COLUMNS, cells)
    return Row(
        label=label, published=published, model="bert-base-uncased", layers="first_last", calibrate=calibrate
    )


TABLE = Table(
    title="BERT-flow, Table 6: similarity against edit distance and gold, STS-B dev",
    source="Li et al. 2020, arXiv:2011.05864",
    columns=COLUMNS,
    measure=measure,
    reads=_texts,
    rows=(
        _row("gold", "-24.61 100.00"),
        _row("BERT-induced", "-50.49 59.30"),
        _row("flow-induced", "-28.01 74.09", "flow:bert_flow"),
    ),
)
