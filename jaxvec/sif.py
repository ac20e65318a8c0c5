"""Smooth inverse frequency: how much each token of a sentence counts (Arora, Liang & Ma 2017)."""

import os
from collections.abc import Iterable
from itertools import islice

import numpy as np
from jaxtyping import Float

from jaxvec.calibration.folder import is_calibration, read_calibration
from jaxvec.errors import InputError
from jaxvec.interchange.sentence_transformers import read_modules
from jaxvec.loading import load_tokenizer
from jaxvec.models.config import read_config
from jaxvec.models.sources import BUNDLED, find_model
from jaxvec.pipeline import CHUNK, refuse_single_text


def sif_weights(
    corpus: Iterable[str], a: float = 1e-3, model: str | os.PathLike[str] = BUNDLED
) -> Float[np.ndarray, " vocab"]:
    """The weight a / (a + p(w)) of every token w, with p(w) its share of the corpus's tokens (eq. 3 of the paper).

    For `SentenceEncoder.load(model, pooling="sif", token_weights=…)`, followed by
    `remove_components(moments, 1, center=False)`, which is the paper's whole recipe.

    Args:
        corpus: sentences; read once, in constant memory.
        a: the paper's parameter, 1e-3 to 1e-4; the larger, the less frequency matters.
        model: whose tokenizer to use; it must be the encoder's own.

    Returns:
        float32 [vocabulary]; a token that does not occur has weight 1.

    Raises:
        InputError: an empty corpus, or `a` not positive.

    References: S. Arora, Y. Liang, T. Ma, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", ICLR 2017.

    >>> weights = sif_weights(["the cat and the dog", "the end"])
    >>> weights.shape, bool(weights.min() < 0.01)
    ((30522,), True)
    """
    refuse_single_text(corpus, "corpus")
    if not isinstance(a, float | int | np.floating) or not 0 < a < float("inf"):
        raise InputError(f"a is {a!r}; expected a positive number, such as 1e-3")
    folder = find_model(model)
    if is_calibration(folder):
        folder = find_model(read_calibration(folder)[1]["model"])
    modules = read_modules(folder)
    config = read_config(modules.encoder)
    tokenizer = load_tokenizer(modules, config)
    counts, texts, row = np.zeros(config.vocab_size, np.int64), iter(corpus), 0
    while chunk := list(islice(texts, CHUNK)):
        counts += np.bincount(tokenizer(chunk, row).values, minlength=config.vocab_size)
        row += len(chunk)
    if not row:
        raise InputError("corpus is empty; token frequencies need at least one sentence")
    return (a / (a + counts / counts.sum())).astype(np.float32)
