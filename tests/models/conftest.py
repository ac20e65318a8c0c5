"""Tiny random encoders of every family, as transformers builds them, and their hidden states in both libraries."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxvec.models.bert import Encoder


def _build(kind: str, head: str = "AutoModel", seed: int = 0, **settings):
    """A transformers model in which every parameter is random: padding rows, LayerNorm and biases too."""
    torch = pytest.importorskip("torch")
    import transformers

    sizes = {
        "vocab_size": 60,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 48,
    }
    if kind == "distilbert":
        names = ("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings")
        sizes = dict(zip(names, sizes.values(), strict=True))
    if kind in ("albert", "electra"):
        sizes["embedding_size"] = 16
    config = transformers.AutoConfig.for_model(kind, **sizes | settings)
    torch.set_num_threads(1)  # more only wait for each other in models of this size
    torch.manual_seed(seed)
    model = getattr(transformers, head).from_config(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0, 0.3)
    return model


@pytest.fixture
def build():
    return _build


@functools.lru_cache(maxsize=1)
def _double(model):
    return copy.deepcopy(model).double()


@pytest.fixture
def torch_states():
    """Hidden states [layers + 1, rows, length, d] and pooler output [rows, d] of torch, in float32 or float64."""

    def run(model, ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None = None, double: bool = False):
        torch = pytest.importorskip("torch")
        kept = {"input_ids": ids, "attention_mask": mask}
        if types is not None:
            kept["token_type_ids"] = types
        inputs = {name: torch.from_numpy(np.asarray(value, np.int64)) for name, value in kept.items()}
        with torch.no_grad():
            output = (_double(model) if double else model)(**inputs, output_hidden_states=True)
        pooler = getattr(output, "pooler_output", None)
        states = np.stack([state.numpy() for state in output.hidden_states])
        return states, None if pooler is None else pooler.numpy()

    return run


@functools.cache
def _compiled(config, dtype):
    graph, abstract = nnx.split(nnx.eval_shape(lambda: Encoder(config)))

    def states(params, *ids):
        state = nnx.clone(abstract)
        nnx.replace_by_pure_dict(state, params)
        found = nnx.merge(graph, state)(*ids, layers=tuple(range(config.num_layers + 1)), dtype=dtype)
        return jnp.stack([s.astype(jnp.float32) for s in found])

    # A tiny encoder takes longer to compile than to run.
    return jax.jit(
        states, compiler_options={"xla_backend_optimization_level": 0} if config.hidden_size < 99 else {}
    )


@pytest.fixture
def our_states():
    """Every hidden state of a batch, float32 [layers + 1, rows, length, d]."""

    def run(config, params, batch, dtype=jnp.float32) -> np.ndarray:
        rows, length = batch.token_ids.shape
        # More padding, so that dense and packed batches share one compiled shape.
        margin = ((0, -rows % 16), (0, -length % 64))
        ids = (batch.token_ids, batch.sentence_ids, batch.positions, batch.token_type_ids)
        states = _compiled(config, dtype)(params, *(jnp.pad(jnp.asarray(i), margin) for i in ids))
        return np.asarray(states)[:, :rows, :length]

    return run
