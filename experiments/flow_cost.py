"""What training a flow costs: a step beside a PyTorch peer's, and eight seeds at once beside eight one after the other.

    python experiments/flow_cost.py [--peer FOLDER] [--steps] [--presets bert_flow glow]

Steps: an epoch of 100 steps of the preset "bert_flow", compiled, with its last look at the watched vectors. The peer
is UKPLab/pytorch-bertflow (commit 14cdc30) in the same configuration: goal 10 × faster. With --peer, a folder with
its tflow_utils.py, its steps are timed here, with one torch thread and with all, of which the faster counts (needs
torch); without, its milliseconds are those that the results hold, or those of another CPU of two cores, one torch
thread. --steps leaves the seeds out. Seeds: `Flow.fit_many` with 8 seeds and eight `Flow.fit`, compiled, in turns,
medians of 3: goal at most 1.1 × on a CPU; and how far apart the trained flows are, and their losses in the first 100
steps: goal 1e-3 bits per dimension. Random vectors of a spectrum that falls like a sentence encoder's. Some 15
minutes on two CPU cores; writes results/flow_cost.json, one entry a JAX version.
"""

import argparse
import json
import os
import platform
import sys
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


def step_ms(dim: int, batch: int) -> float:
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
    try:
        for _ in range(1 + ROUNDS):  # the first compiles
            Flow.fit(x, **options)
    finally:
        fitting.train_round = train_round
    return 1000 * median(seconds[1:]) / 100


def peer_ms(dim: int, batch: int, threads: int) -> float:
    """Milliseconds a step of the peer's Glow with its optimizer, one batch over and over: nothing is gathered."""
    import torch
    from tflow_utils import AdamWeightDecayOptimizer, Glow

    torch.set_num_threads(threads)
    flow = Glow(dim)
    decay, plain = [], []
    for name, parameter in flow.named_parameters():
        (plain if "bias" in name else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = AdamWeightDecayOptimizer(params=groups, lr=1e-3, eps=1e-6)
    x = torch.from_numpy(vectors(batch, dim))
    seconds = []
    for _ in range(10 + 60):  # the first initialise
        start = time.perf_counter()
        optimizer.zero_grad()
        flow(x)[1].backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return 1000 * median(seconds[10:])


def step(dim: int, batch: int, here: bool, before: dict[str, Any]) -> dict[str, Any]:
    """A step of ours and of the peer's, whose milliseconds may be those of an earlier run."""
    threads = sorted({1, os.cpu_count() or 1})
    peer = before.get("peer_ms", {"one thread, another CPU": PEER[dim, batch]})
    if here:
        peer = {f"{n} threads": peer_ms(dim, batch, n) for n in threads}
    ms = step_ms(dim, batch)
    return {"ms": ms, "peer_ms": peer, "times_faster": min(peer.values()) / ms}


def first_losses(run: Any) -> np.ndarray:
    """Bits per dimension of the first 100 steps of every seed that `run` trains."""
    found: list[list[np.ndarray]] = []
    train_round = fitting.train_round

    def kept(*arguments: Any, **settings: Any) -> Any:
        result = train_round(*arguments, **settings)
        number = int(arguments[4])
        if number == 0:
            found.append([])
        found[-1].append(np.asarray(result[1].train))
        return result

    fitting.train_round = kept
    try:
        run()
    finally:
        fitting.train_round = train_round
    return np.concatenate([np.concatenate(rounds, axis=1)[:, :100] for rounds in found])


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
    apart = [
        float(np.abs(one - other).max())
        for one, other in zip(first_losses(at_once), first_losses(in_turn), strict=True)
    ]
    nats = []
    for one, other in zip(together, alone, strict=True):
        nats.append(abs(float((one.log_likelihood(x) - other.log_likelihood(x)).mean())) / dim)
    return {
        "seconds": seconds,
        "ratio": ratio,
        "first_call": first,
        "compiled_train_round": rounds,
        "first_100_losses_apart": apart,
        "nats_per_dimension_apart": max(nats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="folder of UKPLab/pytorch-bertflow's tflow_utils.py")
    parser.add_argument("--steps", action="store_true", help="leave the seeds out")
    parser.add_argument("--presets", nargs="+", default=["bert_flow", "glow"], help="of the seeds")
    options = parser.parse_args()
    if options.peer:
        sys.path.insert(0, options.peer)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    record: dict[str, Any] = results.setdefault(f"jax {jax.__version__}", {})
    record["device"] = f"{os.cpu_count()} cores, {platform.machine()}"

    def keep(part: str, case: str, found: dict[str, Any]) -> None:
        print(case, found, flush=True)
        record.setdefault(part, {})[case] = found
        atomic_write_bytes(RESULTS, json.dumps(results, indent=1).encode() + b"\n")

    for dim, batch in PEER:
        before = record.get("steps", {}).get(f"{dim}, batch {batch}", {})
        keep("steps", f"{dim}, batch {batch}", step(dim, batch, options.peer is not None, before))
    for dim in () if options.steps else (384, 768):
        for preset in options.presets:
            keep("seeds", f"{dim}, {preset}", seeds_at_once(dim, preset))


if __name__ == "__main__":
    main()
