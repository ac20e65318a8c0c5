"""Hidden states → one float32 vector a sentence: which layers, and how their tokens are summed up."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxvec.errors import InputError, is_whole

POOLINGS = ("cls", "mean", "max", "pooler", "sif")
_NAMED_LAYERS = {"last": (-1,), "last_two": (-2, -1), "first_last": (1, -1), "embedding_last": (0, -1)}


def resolve_layers(layers: str | int | Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Hidden-state numbers from 0 (embedding output) to `num_layers`, whatever way they were asked for.

    `first_last` is the first transformer block and the last: what BERT-flow's released code computes under the
    name "avg-last-2" and Su et al. (2021) call first-last-avg. `embedding_last` is what some later ports use.

    >>> resolve_layers("first_last", 12), resolve_layers((1, -2), 12)
    ((1, 12), (1, 11))
    """
    if isinstance(layers, str):
        if layers not in _NAMED_LAYERS:
            raise InputError(
                f"layers is {layers!r}; expected {', '.join(_NAMED_LAYERS)} or a tuple of numbers"
            )
        layers = _NAMED_LAYERS[layers]
    asked = tuple(layers) if isinstance(layers, (tuple, list, range, np.ndarray)) else (layers,)
    known = all(is_whole(n, -num_layers - 1) and n <= num_layers for n in asked)
    if not asked or not known:
        raise InputError(
            f"layers is {asked}; this model's hidden states are 0 (embedding) to {num_layers}, or −1 to {-num_layers - 1}"
        )
    return tuple(int(n) % (num_layers + 1) for n in asked)


def average_layers(states: Sequence[Float[Array, "r l d"]]) -> Float[Array, "r l d"]:
    """The float32 average of several hidden states."""
    return sum(state.astype(jnp.float32) for state in states) / len(states)


def pool(
    states: Float[Array, "r l d"],
    sentence_ids: Int[Array, "r l"],
    slots: int,
    pooling: str,
    weights: Float[Array, "r l"] | None = None,
) -> Float[Array, "r s d"]:
    """One vector for each sentence; an empty slot gives a zero vector and finite gradients.

    [CLS] and [SEP] count as tokens, as in the released code of BERT-flow, BERT-whitening and SimCSE (which
    multiply by the attention mask); padding never does.

    Args:
        states: float32 [rows, length, hidden].
        sentence_ids: int [rows, length]; 1 … slots, 0 = padding.
        slots: sentences a row can hold.
        pooling: "mean", "max", "cls" (the first token; also what "pooler" starts from) or "sif".
        weights: [rows, length] token weights, for "sif" only: Σ w x / number of tokens (Arora et al. 2017).
    """
    numbers = jnp.arange(1, slots + 1, dtype=sentence_ids.dtype)
    member = sentence_ids[:, None, :] == numbers[None, :, None]
    if pooling == "max":
        highest = jnp.max(jnp.where(member[..., None], states[:, None], -jnp.inf), axis=2, initial=-jnp.inf)
        return jnp.where(member.any(-1)[..., None], highest, 0.0)
    share = member.astype(jnp.float32)
    if pooling in ("cls", "pooler"):
        share = share * (jnp.cumsum(member, axis=-1) == 1)
    else:
        share = share / jnp.maximum(share.sum(-1, keepdims=True), 1.0)
        if pooling == "sif":
            share = share * weights[:, None, :]
    return jnp.einsum("rsl,rld->rsd", share, states, precision=jax.lax.Precision.HIGHEST)


def normalize(vectors: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Unit length; a zero vector stays zero, with a zero gradient."""
    square = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jnp.where(square > 0, jax.lax.rsqrt(jnp.where(square > 0, square, 1.0)), 0.0)
