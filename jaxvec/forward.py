"""Everything right of a packed batch as one pure function of (params, batch): one XLA program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxvec.errors import InputError
from jaxvec.models.bert import Encoder
from jaxvec.models.config import EncoderConfig
from jaxvec.packing import PackedBatch
from jaxvec.pooling import average_layers, normalize, pool

Apply = Callable[[dict[str, Any], PackedBatch], Array]
Ids = tuple[Array, Array, Array, Array]  # tokens, sentences, positions, token types


def make_apply(
    config: EncoderConfig,
    pooling: str,
    layers: tuple[int, ...],
    dtype: Any,
    calibrate: Callable[[Any, Array], Array] | None = None,
    normalizes: bool = False,
    attention: str = "xla",
) -> Apply:
    """Builds apply(params, batch) → float32 [rows · slots, dim], row-major; an empty slot is a zero vector.

    Args:
        config: the encoder's shape.
        pooling: one of `pooling.POOLINGS`.
        layers: hidden-state numbers, from 0.
        dtype: compute dtype.
        calibrate: pure function (params["calibration"], vectors) → vectors.
        normalizes: whether vectors leave with unit length.
        attention: the kernel, as for `models.attention.make_attend`.
    """

    def read(encoder: Encoder, params: dict[str, Any], ids: Ids, slots: int, states: list[Array]) -> Array:
        vectors = _pooled(encoder, params, ids, slots, states, pooling)
        if calibrate is not None:
            vectors = calibrate(params["calibration"], vectors)
        if normalizes:
            vectors = normalize(vectors)
        return vectors if calibrate is None else _empty_slots_zero(vectors, ids, slots)

    return _program(config, layers, dtype, read, attention)


def make_choices_apply(
    config: EncoderConfig, choices: Sequence[tuple[str, tuple[int, ...]]], dtype: Any
) -> Apply:
    """Builds apply(params, batch) → float32 [rows · slots, choices · hidden]: several vectors from one pass.

    Args:
        config: the encoder's shape.
        choices: (pooling, hidden-state numbers) of each vector; they leave one after another.
        dtype: compute dtype.
    """
    needed = tuple(sorted({layer for _, layers in choices for layer in layers}))

    def read(encoder: Encoder, params: dict[str, Any], ids: Ids, slots: int, states: list[Array]) -> Array:
        by_layer = dict(zip(needed, states, strict=True))
        vectors = [
            _pooled(encoder, params, ids, slots, [by_layer[layer] for layer in layers], pooling)
            for pooling, layers in choices
        ]
        return jnp.concatenate(vectors, axis=-1)

    return _program(config, needed, dtype, read)


def _program(
    config: EncoderConfig,
    layers: tuple[int, ...],
    dtype: Any,
    read: Callable[..., Array],
    attention: str = "xla",
) -> Apply:
    """The encoder up to `layers`, read out by read(encoder, params, ids, slots, states) → [rows, slots, dim]."""
    graph, abstract = nnx.split(nnx.eval_shape(lambda: Encoder(config)))

    def run(params: dict[str, Any], batch: PackedBatch) -> Array:
        refuse_foreign_ids(batch, config)
        state = nnx.clone(abstract)
        nnx.replace_by_pure_dict(state, params["encoder"])
        encoder = nnx.merge(graph, state)
        ids = tuple(
            jnp.asarray(ids)
            for ids in (batch.token_ids, batch.sentence_ids, batch.positions, batch.token_type_ids)
        )
        states = encoder(*ids, layers=layers, dtype=dtype, attention=attention)
        vectors = read(encoder, params, ids, batch.slots, states)
        return vectors.reshape(-1, vectors.shape[-1])

    def apply(params: dict[str, Any], batch: PackedBatch) -> Array:
        # `jax.make_mesh` makes explicit axes, over which gathers need to be told their sharding: rows stay with rows.
        sharding = jax.typeof(batch.token_ids).sharding
        if sharding.mesh.empty or not sharding.mesh.explicit_axes:
            return run(params, batch)
        rows = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0] if len(sharding.spec) else None))
        with jax.sharding.use_abstract_mesh(sharding.mesh):
            return jax.sharding.auto_axes(run, out_sharding=rows)(params, batch)

    return apply


def _pooled(
    encoder: Encoder, params: dict[str, Any], ids: Ids, slots: int, states: list[Array], pooling: str
) -> Array:
    weights = jnp.asarray(params["token_weights"])[ids[0]] if pooling == "sif" else None
    vectors = pool(average_layers(states), ids[1], slots, pooling, weights)
    if pooling != "pooler":
        return vectors
    return _empty_slots_zero(jnp.tanh(encoder.pooler(vectors)), ids, slots)


def _empty_slots_zero(vectors: Array, ids: Ids, slots: int) -> Array:
    """Takes back what a bias did to empty slots."""
    filled = (ids[1][:, None, :] == jnp.arange(1, slots + 1)[None, :, None]).any(-1)
    return jnp.where(filled[..., None], vectors, 0.0)


def refuse_foreign_ids(batch: PackedBatch, config: EncoderConfig) -> None:
    """Refuses numbers outside the model's tables, which an accelerator would silently clamp.

    Only concrete host arrays are looked at; traced and device arrays pass.
    """
    for name, ids, size in (
        ("token_ids", batch.token_ids, config.vocab_size),
        ("positions", batch.positions, config.max_length),
        ("token_type_ids", batch.token_type_ids, config.token_types or 1 << 30),
        ("sentence_ids", batch.sentence_ids, batch.slots + 1),
    ):
        if isinstance(ids, np.ndarray) and ids.size and (ids.min() < 0 or ids.max() >= size):
            row, column = np.argwhere((ids < 0) | (ids >= size))[0]
            raise InputError(
                f"{name}[{row}, {column}] is {ids[row, column]}; expected 0 to {size - 1} "
                f"(is the tokenizer this model's own, and is the text within {config.max_length} tokens?)"
            )
