"""What fitting whitening costs: time, memory and accuracy, beside the bare product and other programs.

Command: python experiments/whitening_cost.py       (needs scikit-learn; writes results/whitening_cost.{json,md})
Takes:   2 to 4 minutes on 2 idle CPU cores; the recorded run shared them with other work and took 5.
Should show: one pass over 1,000,000 × 768 in at most 1.3 × the time of the bare X.T @ X, in less than 400 MB.

The 1,000,000 rows are generated in chunks of 20,000. Each chunk goes through the bare product and through
`Moments.update`, one after the other and in turns first, and only those calls are timed: both see the same
chunk, and what else the machine does. Memory is the growth of the process's peak after importing and one
warm-up call on 100 rows, chunks included. The others need the matrix, so they get 200,000 rows, each run in a
process of its own, the methods in turns; their memory is counted above the matrix. Accuracy is max|cov − I| of 20,000 vectors of condition number 1e5.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments

DIM, CHUNK, STREAM, MATRIX, ROUNDS = 768, 20_000, 1_000_000, 200_000, 3
RESULTS = Path(__file__).parent / "results"


def chunks(rows: int) -> Iterator[np.ndarray]:
    rng, buffer = np.random.default_rng(0), np.empty((CHUNK, DIM), np.float32)
    for _ in range(rows // CHUNK):
        yield rng.random(out=buffer, dtype=np.float32)


@jax.jit
def bare_step(total: jax.Array, x: jax.Array) -> jax.Array:
    return total + jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST)


def bare(x: np.ndarray) -> None:
    total = jnp.zeros((DIM, DIM))
    for start in range(0, len(x), CHUNK):
        total = bare_step(total, x[start : start + CHUNK])
    total.block_until_ready()


def jaxvec_whitening(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    moments = Moments.empty(DIM)
    for start in range(0, len(x), CHUNK):
        moments = moments.update(x[start : start + CHUNK])
    fitted = whitening(moments)
    return np.asarray(fitted.mean), np.asarray(fitted.kernel)


def sklearn_pca(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.decomposition import PCA

    fitted = PCA(whiten=True, svd_solver="covariance_eigh").fit(x)
    return fitted.mean_, fitted.components_.T / np.sqrt(fitted.explained_variance_)


def sklearn_incremental_pca(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.decomposition import IncrementalPCA

    fitted = IncrementalPCA(whiten=True, batch_size=CHUNK).fit(x)
    return fitted.mean_, fitted.components_.T / np.sqrt(fitted.explained_variance_)


def numpy_cov_svd(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u, s, _ = np.linalg.svd(np.cov(x.T))
    return x.mean(axis=0, dtype=np.float64), u / np.sqrt(s)


METHODS: dict[str, Callable[[np.ndarray], Any]] = {
    "bare X.T @ X (JAX, float32, HIGHEST)": bare,
    "jaxvec.whitening": jaxvec_whitening,
    "scikit-learn PCA(covariance_eigh)": sklearn_pca,
    "scikit-learn IncrementalPCA": sklearn_incremental_pca,
    "np.cov + np.linalg.svd": numpy_cov_svd,
}
SLOW = "scikit-learn IncrementalPCA"  # minutes: run once on a fifth of the rows, and its time multiplied


def stream_times() -> list[tuple[float, float]]:
    """Seconds of the bare product and of `Moments.update` over the stream, for each round."""
    rounds = []
    for _ in range(ROUNDS):
        total, moments, seconds = jnp.zeros((DIM, DIM)), Moments.empty(DIM), [0.0, 0.0]
        for number, x in enumerate(chunks(STREAM)):
            for which in (0, 1) if number % 2 else (1, 0):
                start = time.perf_counter()
                if which == 0:
                    total = bare_step(total, x).block_until_ready()
                else:
                    moments = jax.block_until_ready(moments.update(x))
                seconds[which] += time.perf_counter() - start
        assert moments.count == STREAM
        rounds.append((seconds[0], seconds[1]))
    return rounds


def peak() -> int:
    # Not getrusage: its ru_maxrss is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def cost(name: str) -> tuple[float, int]:
    """Seconds and growth of the peak in bytes, in this process, which must be fresh."""
    small = np.random.default_rng(1).standard_normal((2 * DIM, DIM), dtype=np.float32)
    if name == "stream":
        moments = Moments.empty(DIM)
        jax.block_until_ready(moments.update(small[:100]))
        before, start = peak(), time.perf_counter()
        for x in chunks(STREAM):
            moments = moments.update(x)
        whitening(moments).kernel.block_until_ready()
        return time.perf_counter() - start, peak() - before
    METHODS[name](small)
    share = 5 if name == SLOW else 1
    x = np.empty((MATRIX // share, DIM), np.float32)
    for number, chunk in enumerate(chunks(len(x))):
        x[number * CHUNK : (number + 1) * CHUNK] = chunk
    before, start = peak(), time.perf_counter()
    METHODS[name](x)
    return share * (time.perf_counter() - start), peak() - before


def cost_in_a_process(name: str) -> tuple[float, int]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, "--cost", name]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    seconds, grown = run.stdout.split()
    return float(seconds), int(grown)


def accuracy_data() -> np.ndarray:
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    x = rng.standard_normal((20_000, DIM)) * np.sqrt(np.geomspace(1, 1e-5, DIM)) @ rotation.T
    return (x + 0.3 * rng.normal(size=DIM)).astype(np.float32)


def deviation(mean: np.ndarray, kernel: np.ndarray, x: np.ndarray) -> float:
    product = jnp.matmul(x - mean.astype(np.float32), kernel.astype(np.float32), precision="highest")
    return float(np.abs(np.cov(np.asarray(product, np.float64).T) - np.eye(kernel.shape[1])).max())


def matrix_rows() -> list[dict[str, Any]]:
    costs: dict[str, list[tuple[float, int]]] = {name: [] for name in METHODS}
    for number in range(ROUNDS):
        for name in METHODS:
            if not number or name != SLOW:
                costs[name].append(cost_in_a_process(name))
    few = accuracy_data()
    return [
        {
            "method": name,
            "seconds": [seconds for seconds, _ in costs[name]],
            "extra_bytes": median(grown for _, grown in costs[name]),
            "max_cov_minus_identity": None if method is bare else deviation(*method(few), few),
        }
        for name, method in METHODS.items()
    ]


def main() -> None:
    began, load = time.perf_counter(), os.getloadavg()[0]
    bare_step(jnp.zeros((DIM, DIM)), np.zeros((CHUNK, DIM), np.float32))
    Moments.empty(DIM).update(np.zeros((CHUNK, DIM), np.float32))
    rounds = stream_times()
    stream = {
        "rows": STREAM,
        "dim": DIM,
        "bare_seconds": [b for b, _ in rounds],
        "moments_seconds": [m for _, m in rounds],
        "ratio": median(m / b for b, m in rounds),
        "extra_bytes": cost_in_a_process("stream")[1],
    }
    result = {
        "stream": stream,
        "matrix": {"rows": MATRIX, "dim": DIM, "methods": matrix_rows()},
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}, load average {load:.1f} at the start",
        "versions": {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__},
        "seconds": time.perf_counter() - began,
    }
    RESULTS.mkdir(exist_ok=True)
    for name, text in (("json", json.dumps(result, indent=1) + "\n"), ("md", table(result))):
        partial = RESULTS / f"whitening_cost.{name}.partial"
        partial.write_text(text)
        partial.replace(RESULTS / f"whitening_cost.{name}")
    print(table(result))


def table(result: dict[str, Any]) -> str:
    stream, matrix = result["stream"], result["matrix"]
    base = median(matrix["methods"][0]["seconds"])
    lines = [
        "# What fitting whitening costs",
        "",
        f"`experiments/whitening_cost.py`, {result['hardware']}, JAX {result['versions']['jax']}, "
        f"NumPy {result['versions']['numpy']}; {result['seconds']:.0f} s in all.",
        "",
        f"One pass over {stream['rows']:,} × {stream['dim']} float32 in chunks of {CHUNK:,}, {ROUNDS} rounds, "
        "the two interleaved chunk by chunk:",
        "",
        "| | seconds (median) | × bare | peak memory above import and warm-up |",
        "|---|---|---|---|",
        f"| bare X.T @ X | {median(stream['bare_seconds']):.2f} | 1 | |",
        f"| `Moments.update` | {median(stream['moments_seconds']):.2f} | {stream['ratio']:.2f} | "
        f"{stream['extra_bytes'] / 1e6:.0f} MB |",
        "",
        f"The whole fit on a matrix of {matrix['rows']:,} × {matrix['dim']} float32, methods in turn; max|cov − I| "
        f"on 20,000 × {DIM} of condition number 1e5:",
        "",
        "| | seconds (median) | runs | × bare | extra memory | max abs(cov − I) |",
        "|---|---|---|---|---|---|",
    ]
    for row in matrix["methods"]:
        accuracy, seconds = row["max_cov_minus_identity"], median(row["seconds"])
        lines.append(
            f"| {row['method']} | {seconds:.2f} | {len(row['seconds'])} | {seconds / base:.1f} | "
            f"{row['extra_bytes'] / 1e6:.0f} MB | {'' if accuracy is None else f'{accuracy:.1e}'} |"
        )
    lines += ["", f"{SLOW}: one run on {MATRIX // 5:,} rows, its seconds multiplied by 5."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cost"]:
        print(*cost(sys.argv[2]))
    else:
        main()
