"""Host time of one call of the jitted function: what Python and JAX cost before the device starts.

    python experiments/dispatch_cost.py

A random BERT of 6 blocks × 32 (101 parameter arrays, so few flops that the call itself is what takes time) and a batch of
2 rows of 32 tokens on the device. A call returns as soon as its work is queued; the median over 2,000 calls is reported,
with the queue emptied after every tenth, untimed. Goal: at most 200 µs.

Found on two cores of an AMD EPYC that other programs kept busy: 61 to 99 µs with JAX 0.10, 86 to 97 µs with JAX 0.12.
Some 10 s.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxvec.forward import make_apply
from jaxvec.models.bert import Encoder
from jaxvec.models.config import parse_config
from jaxvec.packing import PackedBatch

CALLS, QUEUED = 2_000, 10

config = parse_config(
    {
        "model_type": "bert",
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
)
shapes = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Encoder(config))))
random = np.random.default_rng(0)
params = {
    "encoder": jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.1, leaf.shape), leaf.dtype), shapes)
}
ids = random.integers(0, 100, (2, 32))
batch = jax.device_put(PackedBatch.dense(ids, np.ones_like(ids)))
call = jax.jit(make_apply(config, "mean", (config.num_layers,), jnp.float32))
call(params, batch).block_until_ready()

took, results = [], []
for _ in range(CALLS // QUEUED):
    for _ in range(QUEUED):
        started = time.perf_counter()
        results.append(call(params, batch))
        took.append((time.perf_counter() - started) * 1e6)
    jax.block_until_ready(results)
    results.clear()
deciles = statistics.quantiles(took, n=10)
device = jax.devices()[0].device_kind
print(
    f"{statistics.median(took):.0f} µs a call (tenth percentile {deciles[0]:.0f}, ninetieth {deciles[-1]:.0f}), "
    f"{len(jax.tree.leaves(params))} parameter arrays, JAX {jax.__version__}, {device}"
)
