"""Every sentence once through the encoder, for all tasks, poolings and layers at a time."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.forward import Apply, make_choices_apply
from jaxvec.models.config import EncoderConfig
from jaxvec.pipeline import Pipeline, local_rows, replicate
from jaxvec.pooling import POOLINGS, resolve_layers

Choice = tuple[str, tuple[int, ...]]  # pooling, and hidden-state numbers from 0


def make_choice(
    encoder: SentenceEncoder, pooling: str | None = None, layers: str | int | Sequence[int] | None = None
) -> Choice:
    """A pooling and layers that this encoder can give; None is its own.

    Raises:
        InputError: the encoder has no such layer, no pooler, or no token weights for "sif".

    >>> make_choice(SentenceEncoder.load(), layers="first_last")
    ('mean', (1, 6))
    """
    chosen = pooling or encoder.pooling
    if chosen not in POOLINGS:
        raise InputError(f"pooling is {chosen!r}; expected one of {', '.join(POOLINGS)}")
    if chosen == "pooler" and not encoder.config.has_pooler:
        raise InputError(f"{encoder.name}: pooling 'pooler' needs the pooler's weights, which it lacks")
    if chosen == "sif" and encoder.token_weights is None:
        raise InputError(
            f"{encoder.name}: pooling 'sif' needs token weights; fit a folder with --pooling sif and evaluate that"
        )
    numbers = encoder.layers if layers is None else resolve_layers(layers, encoder.config.num_layers)
    if encoder.provenance is not None and (chosen, numbers) != (encoder.pooling, encoder.layers):
        raise InputError(
            f"{encoder.name}: its calibration was fitted with {encoder.pooling} of layers {encoder.layers}; "
            "leave --pooling and --layers out, or evaluate the plain model"
        )
    return chosen, numbers


class EncodedTexts:
    """The vectors of a set of texts under several choices, un-normalised, after one encoding pass.

    Example:
        >>> encoder = SentenceEncoder.load()
        >>> choices = [make_choice(encoder, layers=n) for n in (1, 4)]
        >>> encoded = EncodedTexts(encoder, ["A dog barks.", "It rains.", "A dog barks."], choices)
        >>> len(encoded), encoded.vectors(choices[1], ["It rains.", "It rains."]).shape
        (2, (2, 384))
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        texts: Iterable[str],
        choices: Sequence[Choice],
        tick: Callable[[int], Any] = lambda count: None,
    ):
        """Encodes each distinct text once; `tick` is called with the number of texts after every batch."""
        unique = list(dict.fromkeys(texts))
        choices = list(dict.fromkeys(choices))
        width = encoder.config.hidden_size
        vectors = np.empty((len(unique), len(choices) * width), np.float32)
        row = 0
        for chunk, part in _pipeline(encoder, choices).stream(unique, None, tick, stacklevel=2):
            vectors[row : row + len(chunk)] = part
            row += len(chunk)
        self._row = {text: number for number, text in enumerate(unique)}
        self._vectors = {}
        for number, choice in enumerate(choices):
            own = vectors[:, number * width : (number + 1) * width]
            self._vectors[choice] = (
                own if encoder.calibration is None else np.asarray(encoder.calibration(own))
            )

    def __len__(self) -> int:
        return len(self._row)

    def vectors(self, choice: Choice, texts: Iterable[str]) -> Float[np.ndarray, "n dim"]:
        """float32 [n, dim] in the order of `texts`, which must all be among those that were encoded."""
        return self._vectors[choice][self._rows(texts)]

    def distinct(
        self, choice: Choice, texts: Iterable[str]
    ) -> tuple[Float[np.ndarray, "distinct dim"], Int[np.ndarray, " n"]]:
        """The vectors of the distinct texts, and for every text the row of its vector."""
        rows, place = np.unique(self._rows(texts), return_inverse=True)
        return self._vectors[choice][rows], place

    def _rows(self, texts: Iterable[str]) -> np.ndarray:
        return np.array([self._row[text] for text in texts], np.int64)


def _pipeline(encoder: SentenceEncoder, choices: Sequence[Choice]) -> Pipeline:
    rows = local_rows()
    params = {"encoder": encoder.weights.placed}
    if encoder.token_weights is not None:
        params["token_weights"] = replicate(encoder.token_weights, rows)
    apply = _compiled(encoder.config, tuple(choices), encoder.dtype)
    return Pipeline(encoder.tokenizer, apply, params, rows)


@lru_cache(maxsize=8)
def _compiled(config: EncoderConfig, choices: tuple[Choice, ...], dtype: str) -> Apply:
    return jax.jit(make_choices_apply(config, choices, jnp.dtype(dtype)))
