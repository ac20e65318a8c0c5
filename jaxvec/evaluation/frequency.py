"""Word embeddings by word frequency: how far a table's rare words lie from the origin and from each other."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.pipeline import CHUNK, refuse_single_text

BANDS = (0, 100, 500, 5_000, 10_000)  # ranks, as in the paper
NEIGHBOURS = (3, 5, 7)
_ROWS = 512  # words compared with all others at a time
HIGHEST = jax.lax.Precision.HIGHEST


@dataclass(frozen=True)
class FrequencyBand:
    """The words of some ranks, the most frequent first. Means over no word, or of too few neighbours, are NaN.

    Attributes:
        start, stop: ranks, from 0; `stop` is not in.
        words: how many there are, fewer than stop − start where the corpus has no more.
        mean_norm: mean ℓ2 norm of their embeddings.
        neighbour_distance: for each k, mean ℓ2 distance to the k nearest of all the bands' words.
        neighbour_dot: for each k, mean of the k largest dot products with another of them.
    """

    start: int
    stop: int
    words: int
    mean_norm: float
    neighbour_distance: dict[int, float]
    neighbour_dot: dict[int, float]

    def figures(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)


def token_counts(encoder: SentenceEncoder, corpus: Iterable[str]) -> Int[np.ndarray, " vocab"]:
    """How often every token of the encoder's vocabulary occurs in a corpus, int64 [vocabulary].

    The special tokens that come with every sentence are not counted. The corpus is read once, in constant memory.

    Example:
        >>> encoder = SentenceEncoder.load()
        >>> int(token_counts(encoder, ["the cat and the dog", "the end"]).max())
        3
    """
    refuse_single_text(corpus, "corpus")
    counts, texts, row = np.zeros(encoder.config.vocab_size, np.int64), iter(corpus), 0
    while chunk := list(islice(texts, CHUNK)):
        counts += np.bincount(encoder.tokenizer(chunk, row).values, minlength=len(counts))
        row += len(chunk)
    if row:
        counts[encoder.tokenizer([""]).values] = 0
    return counts


def word_embeddings(encoder: SentenceEncoder) -> Float[np.ndarray, "vocab d"]:
    """The encoder's table of token embeddings, float32 [vocabulary, d], before any LayerNorm."""
    return np.asarray(encoder.params["encoder"]["embeddings"]["token"], np.float32)


def frequency_bands(
    embeddings: Float[Array | np.ndarray, "vocab d"],
    counts: Int[Array | np.ndarray, " vocab"],
    bands: Sequence[int] = BANDS,
    neighbours: Sequence[int] = NEIGHBOURS,
) -> list[FrequencyBand]:
    """Norms and neighbour distances of word embeddings, by the rank of the words in a corpus.

    In a raw BERT frequent words lie near the origin and close together, rare ones far out and sparsely: similarity
    then reads frequency. Give `whitening(Moments.of(embeddings))(embeddings)` to see what a calibration makes of it.

    Args:
        embeddings: [vocabulary, d]; neighbours are sought among the words within the bands, on the device.
        counts: occurrences of every word, such as `token_counts(encoder, corpus)`; words that do not occur are
            left out, ties keep the vocabulary's order.
        bands: the ranks where bands begin, and where the last one ends.
        neighbours: the numbers k of neighbours.

    Raises:
        InputError: no word occurs, or arguments that do not fit each other.

    Reference: B. Li et al., "On the Sentence Embeddings from Pre-trained Language Models", EMNLP 2020,
    arXiv:2011.05864, Table 1.

    Example:
        >>> table = np.array([[1, 0], [1, 1], [4, 0], [0, 9]], np.float32)
        >>> frequent, rare = frequency_bands(table, np.array([9, 5, 2, 1]), bands=(0, 2, 4), neighbours=(1,))
        >>> frequent.neighbour_distance[1], round(rare.neighbour_distance[1], 2), rare.mean_norm
        (1.0, 5.53, 6.5)
    """
    counts, table = np.asarray(counts), np.asarray(embeddings, np.float32)
    if counts.shape != (len(table),):
        raise InputError(f"counts has shape {counts.shape}; expected one for each of {len(table)} embeddings")
    if list(bands) != sorted(set(bands)) or len(bands) < 2 or bands[0] < 0 or min(neighbours, default=0) < 1:
        raise InputError(
            f"bands is {tuple(bands)} and neighbours {tuple(neighbours)}; expected ascending ranks from 0 on, two or "
            "more, and numbers of neighbours of 1 or more"
        )
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0][bands[0] : bands[-1]]
    if not len(order):
        raise InputError("no word of the vocabulary occurs in the corpus within these ranks; give more text")
    words = table[order]
    norms = np.linalg.norm(words, axis=1)
    most = min(max(neighbours), len(words) - 1)
    distances, dots = _nearest(words, most) if most else np.full((2, len(words), 0), np.nan)
    ranks = np.arange(bands[0], bands[0] + len(words))
    found = []
    for start, stop in pairwise(bands):
        inside = (ranks >= start) & (ranks < stop)
        found.append(
            FrequencyBand(
                start,
                stop,
                int(inside.sum()),
                _mean(norms[inside]),
                {k: _mean(distances[inside, :k] if k <= most else ()) for k in neighbours},
                {k: _mean(dots[inside, :k] if k <= most else ()) for k in neighbours},
            )
        )
    return found


def _mean(values: Any) -> float:
    return float(np.mean(values, dtype=np.float64)) if np.size(values) else float("nan")


def _nearest(words: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances to the nearest other words, ascending, and the largest dot products, descending; [words, most]."""
    distances, dots = (np.empty((len(words), most), np.float32) for _ in range(2))
    columns = jnp.asarray(words)
    for start in range(0, len(words), _ROWS):
        own = np.minimum(
            np.arange(start, start + _ROWS), len(words) - 1
        )  # the last block repeats its last row
        near, large = _block_nearest(columns, own, most)
        stop = min(start + _ROWS, len(words))
        distances[start:stop], dots[start:stop] = near[: stop - start], large[: stop - start]
    return distances, dots


def _block_neighbours(words: Array, own: Array, most: int) -> tuple[Array, Array]:
    rows = words[own]
    dots = jnp.matmul(rows, words.T, precision=HIGHEST)
    itself = own[:, None] == jnp.arange(len(words))[None, :]
    norms = jnp.sum(words * words, axis=1)
    squares = norms[own][:, None] + norms[None, :] - 2 * dots
    near = jax.lax.top_k(jnp.where(itself, -jnp.inf, -squares), most)[1]
    # The differences themselves: the squares above cancel for words that nearly coincide.
    distances = jnp.linalg.norm(rows[:, None, :] - words[near], axis=-1)
    return distances, jax.lax.top_k(jnp.where(itself, -jnp.inf, dots), most)[0]


_block_nearest = jax.jit(_block_neighbours, static_argnums=2)
