"""What training a flow costs: a step beside a PyTorch peer's, and eight seeds at once beside eight one after the other.

    python experiments/flow_cost.py

Steps: an epoch of 100 steps of the preset "bert_flow", compiled, with its last look at the watched vectors. The
peer's milliseconds a step are UKPLab/pytorch-bertflow's (commit 14cdc30) of the same configuration on another CPU of
two cores, one torch thread: goal 10 × faster. Seeds: `Flow.fit_many` with 8 seeds and eight `Flow.fit`, compiled, in
turns, medians of 3: goal at most 1.1 × on a CPU; and how far the trained flows are apart, which only rounding
makes. Random vectors of a spectrum that falls like a sentence encoder's. Some 15 minutes on two CPU cores; writes
results/flow_cost.json, one entry a JAX version.
"""

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from jaxvec import Flow
from jaxvec.calibration.flow import fitting
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results/flow_cost.json"
PEER = {(384, 32): 33, (384, 64): 37, (384, 512): 75, (768, 32): 41, (768, 64): 51, (768, 512): 179}
SEEDS, ROUNDS = 8, 3


def vectors(rows: int, dim: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    scales = np.geomspace(1, 1e-2, dim)
    return (rng.normal(size=(rows, dim)) * scales @ np.linalg.qr(rng.normal(size=(dim, dim)))[0]).astype("f")


def step(dim: int, batch: int) -> dict[str, float]:
    """Milliseconds a step, the rows of every batch gathered and the losses brought to the host."""
    x = vectors(100 * batch, dim)
    options: dict[str, Any] = {"preset": "bert_flow", "batch_size": batch}
    seconds: list[float] = []
    train_round = fitting.train_round

    def timed(*arguments: Any, **settings: Any) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(train_round(*arguments, **settings))
        seconds.append(time.perf_counter() - start)
        return result

    fitting.train_round = timed
    for _ in range(1 + ROUNDS):  # the first compiles
        Flow.fit(x, **options)
    fitting.train_round = train_round
    ms = 1000 * median(seconds[1:]) / 100
    return {"ms": ms, "peer_ms": PEER[dim, batch], "times_faster": PEER[dim, batch] / ms}


def seeds_at_once(dim: int, preset: str) -> dict[str, Any]:
    """Seconds of eight seeds, at once and one after the other, and how many programs the first call compiled."""
    x = vectors(6_000, dim)
    options: dict[str, Any] = {"preset": preset, "epochs": 2} | ({"drift": 1.0} if preset == "glow" else {})
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **about: (
            compiled.append(about.get("fun_name", "")) if name.endswith("backend_compile_duration") else None
        )
    )

    def at_once() -> Any:
        return Flow.fit_many(x, range(SEEDS), **options)

    def in_turn() -> Any:
        return [Flow.fit(x, seed=seed, **options) for seed in range(SEEDS)]

    start = time.perf_counter()
    together = jax.block_until_ready(at_once())
    first = time.perf_counter() - start
    rounds = sum("train_round" in name for name in compiled)
    alone = jax.block_until_ready(in_turn())
    seconds: dict[str, list[float]] = {"at once": [], "in turn": []}
    for _ in range(ROUNDS):
        for name, run in (("at once", at_once), ("in turn", in_turn)):
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - start)
    ratio = median(a / b for a, b in zip(seconds["at once"], seconds["in turn"], strict=True))
    losses, nats = [], []
    for one, other in zip(together, alone, strict=True):
        a, b = (flow.record["rounds"][0]["training_bits_per_dimension"] for flow in (one, other))
        losses.append(abs(a - b))
        nats.append(abs(float((one.log_likelihood(x) - other.log_likelihood(x)).mean())) / dim)
    return {
        "seconds": seconds,
        "ratio": ratio,
        "first_call": first,
        "compiled_train_round": rounds,
        "first_round_loss_apart": max(losses),
        "nats_per_dimension_apart": max(nats),
    }


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    record: dict[str, Any] = {"device": f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}"}
    results[f"jax {jax.__version__}"] = record

    def keep(part: str, case: str, found: dict[str, Any]) -> None:
        print(case, found, flush=True)
        record.setdefault(part, {})[case] = found
        atomic_write_bytes(RESULTS, json.dumps(results, indent=1).encode() + b"\n")

    for dim, batch in PEER:
        keep("steps", f"{dim}, batch {batch}", step(dim, batch))
    for dim in (384, 768):
        for preset in ("bert_flow", "glow"):
            keep("seeds", f"{dim}, {preset}", seeds_at_once(dim, preset))


if __name__ == "__main__":
    main()
