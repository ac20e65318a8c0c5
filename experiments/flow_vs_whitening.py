"""BERT-flow beside whitening: how much of the flow's gain is linear?

    python experiments/flow_vs_whitening.py DATA --models MODELS --work WORK

Masked means over tokens; everything is fitted on the very sentences that are scored, without their scores (the
papers' target setting), and trained with 5 seeds in one compiled program. Beside raw vectors and whitening stands the
flow's own start without any training: whitening of the covariance with a noise floor of √(d / n) times the geometric
mean of the variances ("floored"). The flows:

    bert_flow    the released configuration: one epoch of additive couplings of width 32 from the data's own scale
    data start   affine couplings and learned 1×1 matrices from the data's own scale, 5 epochs
    glow         the default: the same from the floored whitening, stopped where similarity drifts by 0.01
    glow ×10     the same with 200 epochs instead of 20
    let go       as glow, but trained on where similarity drifts, with patience for all of its 20 epochs at 1e-3

MODELS holds all-mpnet-base-v2 and chinese_roberta_l2; what is missing there is left out. Vectors are kept in WORK, and
finished cells in experiments/results/flow_vs_whitening.json, so that an interrupted run goes on. Some 40 minutes on
two CPU cores. Reference, a PyTorch peer on the same vectors, Spearman × 100 after its best epoch: 70.11 for
all-MiniLM-L6-v2 (1, 3), 68.70 for 2, 69.78 for 4; Chinese on LCQMC 62.92 for (1, 2), 63.76 for 2.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import jaxvec
from jaxvec.calibration.flow.start import Spectrum
from jaxvec.evaluation.metrics import cosine, spearman
from jaxvec.evaluation.readers import read_task
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results/flow_vs_whitening.json"
SEEDS = range(5)
ROWS = (
    ("all-MiniLM-L6-v2", "stsb", (1, 4)),
    ("all-MiniLM-L6-v2", "stsb", (4,)),
    ("all-MiniLM-L6-v2", "stsb", (1, 3)),
    ("all-MiniLM-L6-v2", "stsb", (2,)),
    ("chinese_roberta_l2", "stsb-zh", (1, 2)),
    ("chinese_roberta_l2", "stsb-zh", (2,)),
    ("all-mpnet-base-v2", "stsb", (1, 6)),
    ("all-mpnet-base-v2", "stsb", (6,)),
    ("chinese_roberta_l2", "lcqmc", (1, 2)),
    ("chinese_roberta_l2", "lcqmc", (2,)),
)
FLOWS: dict[str, dict[str, Any]] = {
    "bert_flow": {"preset": "bert_flow"},
    "glow": {},
    "data start": {"init": "data", "drift": 1.0, "epochs": 5},
    "glow ×10": {"epochs": 200},
    "let go": {"drift": 1.0, "learning_rate": 1e-3, "patience": 20},
}
ONLY_MINILM = ("glow ×10", "let go")


def vectors_of(model: str, task: str, layers: tuple[int, ...], options: Any) -> tuple[np.ndarray, np.ndarray]:
    """(vectors of all first, then all second sentences; scores)."""
    pairs = read_task(task, options.data).scored
    place = Path(options.work) / f"{model}.{task}.{'_'.join(map(str, layers))}.npy"
    if not place.exists():
        folder = Path(options.models) / model
        encoder = jaxvec.SentenceEncoder.load(
            folder if folder.is_dir() else model, pooling="mean", layers=layers
        )
        np.save(place, encoder.encode([*pairs.first, *pairs.second], normalize=False))
    return np.load(place), np.asarray(pairs.scores)


def measure(name: str, vectors: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """One cell: Spearman × 100, and of flows also their spread, bits per dimension and seconds."""

    def rho(calibrated: Any) -> float:
        return 100 * spearman(cosine(*np.split(np.asarray(calibrated), 2)), scores)

    if name == "raw":
        return {"spearman": rho(vectors)}
    if name == "whitening":
        return {"spearman": rho(jaxvec.whitening(jaxvec.Moments.of(vectors))(vectors))}
    if name == "floored":
        spectrum = Spectrum.of(vectors, None)
        mean, directions, log_scales = spectrum.arrays()
        return {"spearman": rho((vectors - mean) @ directions.T * np.exp(log_scales))}
    began = time.perf_counter()
    flows = jaxvec.Flow.fit_many(vectors, SEEDS, **FLOWS[name])
    seconds = time.perf_counter() - began
    values = [rho(flow(vectors)) for flow in flows]
    rounds = flows[0].record["rounds"]
    return {
        "spearman": float(np.mean(values)),
        "deviation": float(np.std(values, ddof=1)),
        "bits_per_dimension": flows.spread(lambda flow: flow.bits_per_dimension(vectors).mean())[0],
        "training_start": flows[0].record["start_training_bits_per_dimension"],
        "training_end": rounds[-1]["training_bits_per_dimension"],
        "rounds": len(rounds),
        "seconds": seconds,
    }


def as_table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for every model, layers and task."""
    columns = ("raw", "whitening", "floored", *FLOWS)
    lines = ["| vectors | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row, cells in results.items():
        shown = []
        for column in columns:
            cell = cells.get(column, {})
            spread = f" ± {cell['deviation']:.2f}" if "deviation" in cell else ""
            shown.append(f"{cell['spearman']:.2f}{spread}" if cell else "–")
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--models", default=".")
    parser.add_argument("--work", default=".")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in ("raw", "whitening", "floored", *FLOWS):
        for model, task, layers in ROWS:
            row = f"{model} {layers} {task}"
            bundled = model == "all-MiniLM-L6-v2"
            if name in results.get(row, {}) or (name in ONLY_MINILM and not bundled):
                continue
            if not bundled and not (Path(options.models) / model).is_dir():
                continue
            cell = measure(name, *vectors_of(model, task, layers, options))
            results.setdefault(row, {})[name] = cell
            atomic_write_bytes(RESULTS, json.dumps(results, indent=1).encode() + b"\n")
            print(row, name, cell, flush=True)
    print(as_table(results))


if __name__ == "__main__":
    main()
