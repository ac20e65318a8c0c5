"""From the launch of Python to the first vectors of 100 sentences: jaxvec with a warm compilation cache, and sentence-transformers.

    python -m experiments.cold_start [--rounds 5]

needs sentence-transformers. Both run the same few lines with all-MiniLM-L6-v2 in turns, each in a new process; medians of
wall-clock and of CPU time are reported. Goal: jaxvec takes no longer. Takes two minutes; writes results/cold_start.json.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
TEXTS = 'texts = [f"A man number {i} is playing a guitar on the stage." for i in range(100)]\n'
SCRIPTS = {
    "jaxvec": "from jaxvec import SentenceEncoder\nvectors = SentenceEncoder.load({folder!r}).encode(texts)",
    "sentence-transformers": "from sentence_transformers import SentenceTransformer\n"
    "vectors = SentenceTransformer({folder!r}).encode(texts)",
}


def run(script: str, cache: str) -> tuple[float, float]:
    """(wall-clock, CPU) seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    options = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    subprocess.run([sys.executable, "-c", script], env=os.environ | options, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def main() -> None:
    from jaxvec.models.sources import find_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    scripts = {
        name: TEXTS + text.format(folder=str(find_model("all-MiniLM-L6-v2")))
        for name, text in SCRIPTS.items()
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in scripts}
    with tempfile.TemporaryDirectory() as cache:
        for script in scripts.values():
            run(script, cache)
        for _ in range(rounds):
            for name, script in scripts.items():
                taken[name].append(run(script, cache))
    record = {
        name: {
            kind: round(statistics.median(seconds), 2)
            for kind, seconds in zip(("wall", "cpu"), zip(*times, strict=True), strict=True)
        }
        for name, times in taken.items()
    }
    (RESULTS / "cold_start.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
