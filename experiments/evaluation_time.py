"""How long the whole table takes: 7 STS tasks × 7 choices × raw and 7 calibrations, with and without intervals.

    python -m experiments.evaluation_time --data DATA

all-MiniLM-L6-v2 in bfloat16, 392 scores from one encoding pass. Measured on two CPU cores that others used too:
experiments/results/evaluation_time.json.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import jax
import typer

from jaxvec import SentenceEncoder
from jaxvec.cli.options import run_script, say
from jaxvec.evaluation.corrections import parse_correction
from jaxvec.evaluation.encoding import make_choice
from jaxvec.evaluation.evaluate import Method, evaluate
from jaxvec.evaluation.readers import read_task
from jaxvec.evaluation.tasks import ENGLISH
from jaxvec.vectorfiles import atomic_write_bytes

CHOICES = (
    ("mean", "last"), ("mean", "last_two"), ("mean", "first_last"), ("mean", "embedding_last"),
    ("mean", (1, 4)), ("mean", 4), ("cls", "last"),
)  # fmt: skip
CALIBRATIONS = (
    "raw", "whitening", "whitening:256", "whitening:128", "standardize",
    "remove-components:1", "remove-components:3", "remove-components:5",
)  # fmt: skip
RESULTS = Path(__file__).parent / "results" / "evaluation_time.json"


def main(data: Annotated[Path, typer.Option(help="Root folder of the data sets.")]) -> None:
    tasks = [read_task(name, data) for name in ENGLISH]
    corrections = [parse_correction(name) for name in CALIBRATIONS]
    record = {"device": f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}"}
    for resamples in (0, 10_000):
        encoder = SentenceEncoder.load(dtype="bfloat16")
        methods = [Method(make_choice(encoder, *choice), c) for choice in CHOICES for c in corrections]
        wall, cpu = time.perf_counter(), time.process_time()
        scores = list(evaluate(encoder, tasks, methods, resamples=resamples))
        seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        record[f"{resamples} resamples"] = {n: round(s, 1) for n, s in seconds.items()} | {
            "scores": len(scores)
        }
        say(f"{resamples} resamples: {record[f'{resamples} resamples']}")
    atomic_write_bytes(RESULTS, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    run_script(lambda: typer.run(main))
