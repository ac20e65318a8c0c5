"""Retrieval with whitened vectors: what smaller vectors find, what they cost, and how fast exact search is.

Command: JAXVEC_DATA=… JAXVEC_MODELS=… python experiments/retrieval.py    (needs faiss-cpu; writes results/retrieval.{json,md})
Takes:   about 5 minutes on 2 CPU cores, and 4 GB.
Should show: the best whitened width finds at least what raw vectors find; 1,000 queries × 1,000,000 × 256 in at most
         1.2 × the time of FAISS flat, in at most 500 MB above the data; 256 of 768 dimensions in half the time.

Su et al. 2021 claim that whitening to 256 of 768 dimensions retrieves faster and no worse. Their table has the Quora
pairs; here it is STS-B's (score ≥ 4: all-MiniLM-L6-v2, hidden states 1 and 4 averaged) and LCQMC's (label 1: a Chinese
RoBERTa of two blocks, first and last averaged). Documents are all different second sentences of all splits, whitening
is fitted on them; a query is each first sentence that has a partner, its partners are what should be found. Recall@k is the
share of a query's partners among the first k, averaged; MRR@10 takes the first partner. Times are medians of 3 runs
with 1,000 queries at once (7 where there are a million rows, memory-mapped as a searchable folder has them), the libraries
in turns, with their own default threads; HNSW has 32 links and efSearch 64.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import jax
import numpy as np

from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments
from jaxvec.encoder import SentenceEncoder
from jaxvec.evaluation.readers import read_task
from jaxvec.search.corpus import Corpus
from jaxvec.search.storage import STORAGE, unit_rows

DATA = {"stsb": ("all-MiniLM-L6-v2", (1, 4), 4.0), "lcqmc": ("chinese_roberta_l2", "first_last", 1.0)}
WIDTHS = (64, 128, 256, None)
BIG, DIM, QUERIES, ROUNDS = 1_000_000, 256, 1_000, 3
RESULTS = Path(__file__).parent / "results"


def pairs(name: str, least: float) -> tuple[list[str], list[str], list[np.ndarray]]:
    """Queries, documents, and the documents that each query should find."""
    task = read_task(name, os.environ["JAXVEC_DATA"])
    documents: dict[str, int] = {}
    partners: dict[str, set[int]] = {}
    for part in (*task.subsets.values(), *task.others.values()):
        for first, second, score in zip(part.first, part.second, part.scores, strict=True):
            number = documents.setdefault(second, len(documents))
            if score >= least:
                partners.setdefault(first, set()).add(number)
    return list(partners), list(documents), [np.array(sorted(found)) for found in partners.values()]


def quality(ranked: np.ndarray, partners: list[np.ndarray]) -> dict[str, float]:
    """Recall@1, recall@10 and MRR@10 of the first ten documents for each query."""
    hits = [np.isin(row, right) for row, right in zip(ranked, partners, strict=True)]
    sizes = [len(right) for right in partners]
    return {
        "recall@1": float(np.mean([hit[:1].sum() / n for hit, n in zip(hits, sizes, strict=True)])),
        "recall@10": float(np.mean([hit.sum() / n for hit, n in zip(hits, sizes, strict=True)])),
        "mrr@10": float(np.mean([1 / (1 + hit.argmax()) if hit.any() else 0.0 for hit in hits])),
    }


def in_turns(rounds: int = ROUNDS, **runs: Callable[[], Any]) -> dict[str, list[float]]:
    """Seconds of each run, `rounds` times, one after the other; after one run that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def table_rows(name: str) -> list[dict[str, Any]]:
    model, layers, least = DATA[name]
    local = Path(os.environ["JAXVEC_MODELS"], model)
    encoder = SentenceEncoder.load(local if local.is_dir() else model, layers=layers, dtype="auto")
    asked, documents, partners = pairs(name, least)
    queries, vectors = encoder.encode(asked, normalize=False), encoder.encode(documents, normalize=False)
    moments = Moments.of(vectors)
    rows = width_rows(unit_rows(queries), unit_rows(vectors), partners)
    facts = [{"data": name, "vectors": "raw"} | row for row in rows]
    for width in WIDTHS:
        whitened = whitening(moments, dim=width)
        rows = width_rows(*(unit_rows(np.asarray(whitened(part))) for part in (queries, vectors)), partners)
        facts += [{"data": name, "vectors": "whitened"} | row for row in rows]
    return facts


def width_rows(q: np.ndarray, x: np.ndarray, partners: list[np.ndarray]) -> list[dict[str, Any]]:
    """What unit vectors of one width find and cost, in every storage and beside FAISS."""
    dim = x.shape[1]
    flat, hnsw = faiss.IndexFlatIP(dim), faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
    flat.add(x)
    hnsw.hnsw.efSearch = 64
    hnsw.add(x)
    stored = {dtype: Corpus.of(x, dtype=dtype) for dtype in STORAGE}
    some = q[:QUERIES]
    runs = {dtype: partial(corpus.top_k, some, 10) for dtype, corpus in stored.items()}
    seconds = in_turns(**runs, flat=partial(flat.search, some, 10), hnsw=partial(hnsw.search, some, 10))
    ms = {run: 1000 * median(times) / len(some) for run, times in seconds.items()}
    found = {dtype: corpus.top_k(q, 10)[1] for dtype, corpus in stored.items()}
    shared = {
        "dim": dim,
        "documents": len(x),
        "queries": len(q),
        "faiss_flat_ms": ms["flat"],
        "faiss_hnsw_ms": ms["hnsw"],
        "faiss_hnsw_recall@10": quality(hnsw.search(q, 10)[1], partners)["recall@10"],
    }
    return [
        {
            **shared,
            "dtype": dtype,
            "megabytes": stored[dtype].codes.nbytes / 1e6,
            **quality(found[dtype], partners),
            "agreement@10": agreement(found[dtype], found["float32"]),
            "ms": ms[dtype],
        }
        for dtype in STORAGE
    ]


def agreement(found: np.ndarray, expected: np.ndarray) -> float:
    """Share of the expected numbers that were found."""
    same = [len(np.intersect1d(a, b)) for a, b in zip(found, expected, strict=True)]
    return float(np.mean(same) / expected.shape[1])


def random_rows(rows: int, dim: int, seed: int) -> np.ndarray:
    rng, x = np.random.default_rng(seed), np.empty((rows, dim), np.float32)
    for start in range(0, rows, 50_000):
        rng.standard_normal(out=x[start : start + 50_000], dtype=np.float32)
    return x


def peak() -> int:
    # Not getrusage: its ru_maxrss is inherited from the process that started this one.
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def extra_memory() -> int:
    """Growth of the peak by one search, after one over a small corpus; in this process, which must be fresh."""
    x, q = random_rows(BIG, DIM, 0), random_rows(QUERIES, DIM, 1)
    Corpus.of(x[:1000], metric="dot").top_k(q, 10)
    before = peak()
    Corpus.of(x, metric="dot").top_k(q, 10)
    return peak() - before


def big_search() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # As a searchable folder has them.
        np.save(f"{folder}/vectors.npy", random_rows(BIG, DIM, 0))
        return _big_search(np.load(f"{folder}/vectors.npy", mmap_mode="r"))


def _big_search(x: np.ndarray) -> dict[str, Any]:
    q = random_rows(QUERIES, DIM, 1)
    flat = faiss.IndexFlatIP(DIM)
    flat.add(x)
    corpus = Corpus.of(x, metric="dot")
    seconds = in_turns(7, jaxvec=lambda: corpus.top_k(q, 10), faiss=lambda: flat.search(q, 10))
    same = float(np.mean(corpus.top_k(q, 10)[1] == flat.search(q, 10)[1]))
    memory = subprocess.run(
        [sys.executable, __file__, "--memory"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return {
        "rows": BIG,
        "dim": DIM,
        "queries": QUERIES,
        "seconds": seconds,
        "ratio": median(a / b for a, b in zip(seconds["jaxvec"], seconds["faiss"], strict=True)),
        "same_numbers": same,
        "extra_bytes": int(memory.stdout),
    }


def narrow_search() -> dict[str, Any]:
    """The same rows and queries at 768 dimensions and at their first 256."""
    x, q = random_rows(BIG // 10, 768, 2), random_rows(QUERIES, 768, 3)
    wide = Corpus.of(x, metric="dot")
    narrow, less = Corpus.of(np.ascontiguousarray(x[:, :256]), metric="dot"), np.ascontiguousarray(q[:, :256])
    seconds = in_turns(wide=lambda: wide.top_k(q, 10), narrow=lambda: narrow.top_k(less, 10))
    ratio = median(a / b for a, b in zip(seconds["narrow"], seconds["wide"], strict=True))
    return {"rows": len(x), "seconds": seconds, "ratio": ratio}


def main() -> None:
    began, load = time.perf_counter(), os.getloadavg()[0]
    result = {
        "table": [row for name in DATA for row in table_rows(name)],
        "big": big_search(),
        "narrow": narrow_search(),
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}, load average {load:.1f} at the start",
        "versions": {"python": platform.python_version(), "jax": jax.__version__, "faiss": faiss.__version__},
        "threads": faiss.omp_get_max_threads(),
        "seconds": time.perf_counter() - began,
    }
    RESULTS.mkdir(exist_ok=True)
    for name, text in (("json", json.dumps(result, indent=1) + "\n"), ("md", report(result))):
        unfinished = RESULTS / f"retrieval.{name}.partial"
        unfinished.write_text(text)
        unfinished.replace(RESULTS / f"retrieval.{name}")
    print(report(result))


def report(result: dict[str, Any]) -> str:
    big, narrow = result["big"], result["narrow"]
    lines = [
        "# Retrieval with whitened vectors",
        "",
        f"`experiments/retrieval.py`, {result['hardware']}, JAX {result['versions']['jax']}, "
        f"FAISS {result['versions']['faiss']} with {result['threads']} threads; {result['seconds']:.0f} s in all.",
    ]
    for name, (model, layers, _) in DATA.items():
        rows = [row for row in result["table"] if row["data"] == name]
        raw = rows[0]["recall@10"]
        best = max(
            row["recall@10"] for row in rows if row["vectors"] == "whitened" and row["dtype"] == "float32"
        )
        lines += [
            "",
            f"## {name}: {model}, layers {layers}",
            "",
            f"{rows[0]['queries']:,} queries, {rows[0]['documents']:,} documents. Recall@10 of raw vectors {raw:.4f}, "
            f"of the best whitened width {best:.4f}. ms are a query, 1,000 at once.",
            "",
            "| vectors | dim | stored | MB | recall@1 | recall@10 | MRR@10 | top 10 as float32 | ms | FAISS flat ms | HNSW ms | HNSW recall@10 |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            others = ("faiss_flat_ms", "faiss_hnsw_ms", "faiss_hnsw_recall@10")
            beside = [f"{row[key]:.4f}" if row["dtype"] == "float32" else "" for key in others]
            lines.append(
                f"| {row['vectors']} | {row['dim']} | {row['dtype']} | {row['megabytes']:.1f} | {row['recall@1']:.4f} | "
                f"{row['recall@10']:.4f} | {row['mrr@10']:.4f} | {row['agreement@10']:.4f} | {row['ms']:.4f} | "
                + " | ".join(beside)
                + " |"
            )
    shown = {name: ", ".join(f"{s:.2f}" for s in times) for name, times in big["seconds"].items()}
    widths = {name: ", ".join(f"{s:.2f}" for s in times) for name, times in narrow["seconds"].items()}
    lines += [
        "",
        "## Exact search in a million vectors",
        "",
        f"{big['queries']:,} queries × {big['rows']:,} × {big['dim']} float32, k = 10, in turns: jaxvec {shown['jaxvec']} s, "
        f"FAISS flat {shown['faiss']} s, ratio {big['ratio']:.2f} (median); {big['same_numbers']:.2%} of the numbers are the "
        f"same. Peak memory above the data: {big['extra_bytes'] / 1e6:.0f} MB.",
        "",
        f"{QUERIES:,} queries × {narrow['rows']:,}: 768 dimensions {widths['wide']} s, 256 of them {widths['narrow']} s, "
        f"ratio {narrow['ratio']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--memory"]:
        print(extra_memory())
    else:
        main()
