"""Raw text → NumPy vectors a second: jaxvec beside what a user would pick instead, on the same machine in one run.

    python -m experiments.throughput [--models minilm mpnet bert-base] [--rounds 5] [--share 1.0]

needs torch, sentence-transformers, onnx, onnxruntime and openvino (CPU), or torch with CUDA (`--gpu`: jaxvec bfloat16 beside
sentence-transformers with SDPA in bfloat16). JAXVEC_DATA names the folder with STSB; the mpnet model is looked for in
JAXVEC_MODELS. Takes an hour on 2 cores, with `--share 0.1` some ten minutes; writes results/throughput_{cpu,gpu}.{json,md}.

Every system lives in a process of its own, which does nothing while the others are measured. After a first pass over the
whole corpus, not counted, all of them encode it in turns; medians of the rounds are reported. Same texts, same weights,
mean pooling, at most 512 tokens. A system that takes four times as long as jaxvec float32 for a sample, as torch's bfloat16
does on a CPU without instructions for it, is measured on that sample only. Finished cases of the same share and
rounds in the JSON file are kept, so that an interrupted run goes on; --again measures them anew. Goals: jaxvec bfloat16 ≥ 1.1 × the fastest peer and float32 ≥ 1.2 ×
sentence-transformers' default on short text; no peer ahead on longer text; useful tokens ≥ 0.97 (short), 0.95 (others);
at most 4 compiled shapes a corpus; ≥ 35 % of the measured bfloat16 matmul peak on the BERT-base shape.
"""

import argparse
import json
import multiprocessing
import os
import platform
import pydoc_data.topics
import resource
import statistics
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peers import SYSTEMS
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results"
NOTES = RESULTS / "throughput_notes.md"  # what explains the figures; ends every page
PACKAGES = ("jaxvec", "jax", "torch", "sentence-transformers", "onnxruntime", "openvino", "numpy")
LONG = 510  # tokens, without the two special ones
UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
SAMPLE, TOO_SLOW, SAME = 64, 4, 0.999
GPU_SYSTEMS = ("jaxvec bfloat16", "sentence-transformers bfloat16")


def corpora(share: float) -> dict[str, list[str]]:
    """STS-B's distinct sentences, the language reference's paragraphs, and its text in pieces of nearly 512 tokens."""
    from tokenizers import Tokenizer

    from jaxvec.models.sources import find_model

    short: dict[str, None] = {}
    for split in ("train", "dev", "test"):
        for line in (
            (Path(os.environ["JAXVEC_DATA"]) / f"STSB/sts-{split}.csv").read_text("utf-8").split("\n")
        ):
            short.update(dict.fromkeys(line.split("\t")[5:7]))
    text = "\n\n".join(pydoc_data.topics.topics.values())
    medium = [" ".join(part.split()) for part in text.split("\n\n") if len(part.split()) > 4]
    tokenizer = Tokenizer.from_file(str(find_model("all-MiniLM-L6-v2") / "tokenizer.json"))
    tokenizer.no_padding()
    words = text.split()
    encodings = tokenizer.encode_batch_fast(words, add_special_tokens=False)
    long, piece, left = [], [], LONG
    for word, encoding in zip(words, encodings, strict=True):
        if len(encoding) > left:
            long.append(" ".join(piece))
            piece, left = [], LONG
        piece.append(word)
        left -= len(encoding)
    return {
        name: texts[:: max(1, round(1 / share))]
        for name, texts in (("short", list(short)), ("medium", medium), ("long", long))
    }


def folders(asked: list[str], scratch: Path) -> dict[str, Path]:
    """The model folders; bert-base is that shape with random weights and all-MiniLM-L6-v2's tokenizer."""
    from jaxvec.models.sources import find_model

    found = {"minilm": find_model("all-MiniLM-L6-v2")}
    if "mpnet" in asked:
        found["mpnet"] = Path(os.environ["JAXVEC_MODELS"]) / "all-mpnet-base-v2"
    if "bert-base" in asked:
        import shutil

        import torch
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        found["bert-base"] = scratch / "bert-base"
        BertModel(BertConfig()).save_pretrained(found["bert-base"])
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            shutil.copy(found["minilm"] / name, found["bert-base"] / name)
    return {name: found[name] for name in asked}


def work(pipe: Any, system: str, folder: Path, scratch: Path) -> None:
    """A system's process: answers (texts, wanted) with (seconds, vectors or None, peak memory, compilations)."""
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    compiled: list[float] = []
    if system.startswith("jaxvec"):
        import jax

        jax.monitoring.register_event_duration_secs_listener(
            lambda name, seconds, **_: (
                compiled.append(seconds) if name.endswith("backend_compile_duration") else None
            )
        )
    encode = SYSTEMS[system](folder, scratch)
    while (asked := pipe.recv()) is not None:
        texts, wanted = asked
        started = time.perf_counter()
        vectors = encode(texts)
        seconds = time.perf_counter() - started
        pipe.send((seconds, vectors if wanted else None, peak_mb(), list(compiled)))
        compiled.clear()


def processor() -> str:
    """What the CPU is, and which of its instructions decide how fast float32 and bfloat16 products are."""
    file = Path("/proc/cpuinfo")
    if not file.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in file.read_text().splitlines()]
    about = {name.strip(): value.strip() for name, _, value in lines}
    found = [unit for unit in UNITS if unit in about.get("flags", "").split()]
    return f"{about.get('model name', platform.machine())} ({', '.join(found)})"


def peak_mb() -> float:
    """Of this process; its `getrusage` starts from what the process that started it held."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def token_figures(folder: Path, texts: list[str]) -> dict[str, float]:
    """Real tokens, what jaxvec computes for them, and the model's floating-point operations for the real ones."""
    from jaxvec import SentenceEncoder

    encoder = SentenceEncoder.load(folder, pooling="mean", max_length=512)
    packing = encoder.pack(texts)
    lengths = encoder.tokenizer(texts).lengths.astype(float)
    config = encoder.config
    dense = (
        2
        * config.num_layers
        * (4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size)
    )
    flops = dense * lengths.sum() + 4 * config.num_layers * config.hidden_size * (lengths**2).sum()
    shapes = {(batch.token_ids.shape, batch.slots) for batch in packing.batches}
    return {
        "tokens": int(lengths.sum()),
        "useful": packing.tokens / packing.computed,
        "shapes": len(shapes),
        "flops": float(flops),
    }


def matmul_peak() -> dict[str, float]:
    """GFLOP/s of a large product, on all cores: the best of torch's and XLA's, float32 and bfloat16.

    bfloat16's is at least float32's: where the CPU has no instructions for it, its operands can be widened.
    """
    import jax
    import jax.numpy as jnp
    import torch

    found: dict[str, float] = {}
    on_cpu = jax.default_backend() == "cpu"
    size, repeats = (2048, 5) if on_cpu else (4096, 20)
    for dtype in ("float32", "bfloat16"):
        x = jnp.ones((size, size), dtype)
        y = torch.ones(size, size, dtype=getattr(torch, dtype))
        product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
        runs = [lambda rows, x=x, f=product: f(x[:rows], x).block_until_ready()]
        runs += [lambda rows, y=y: y[:rows] @ y] if on_cpu else []
        rates = [0.0]
        for run in runs:
            for rows in [32] * 2 + [size] * (1 + repeats):  # the first of each compiles or warms up
                started = time.perf_counter()
                run(rows)
                rates.append(2 * rows * size**2 / (time.perf_counter() - started) / 1e9)
                if rates[-1] < max(rates) / 100:
                    break
        found[dtype] = max(rates)
    found["bfloat16"] = max(found.values())
    return found


def measure(folder: Path, texts: list[str], systems: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """What each system took, under its name; those too slow for the corpus have "sample_seconds" only."""
    context = multiprocessing.get_context("spawn")
    sample = texts[:: max(1, len(texts) // SAMPLE)][:SAMPLE]
    report: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        pipes, processes, reference = {}, [], None
        for system in systems:  # one at a time: some write files that others read
            pipe, other = context.Pipe()
            process = context.Process(target=work, args=(other, system, folder, Path(scratch)), daemon=True)
            process.start()
            other.close()
            processes.append(process)
            compiled: list[float] = []
            for _ in range(2):  # the second without compilations
                pipe.send((sample, False))
                sampled, _, _, newly = pipe.recv()
                compiled += newly
            report[system] = {"sample_sentences": len(sample), "sample_seconds": round(sampled, 3)}
            if sampled > TOO_SLOW * report[systems[0]]["sample_seconds"]:
                pipe.send(None)
                continue
            pipes[system] = pipe
            pipe.send((texts, True))
            took, vectors, _, newly = pipe.recv()
            compiled += newly
            reference = vectors if reference is None else reference
            lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
            cosine = np.einsum("nd,nd->n", vectors, reference) / lengths
            report[system] |= {
                "first_pass": round(took, 3),
                "compilations": len(compiled),
                "compile_seconds": round(sum(compiled), 3),
                "lowest_cosine": round(float(cosine.min()), 5),
            }
        seconds: dict[str, list[float]] = {system: [] for system in pipes}
        order = list(pipes)
        for number in range(rounds):
            for system in order[number % len(order) :] + order[: number % len(order)]:
                pipes[system].send((texts, False))
                took, _, peak, again = pipes[system].recv()
                assert not again, f"{system} compiled again"
                seconds[system].append(took)
                report[system]["peak_mb"] = round(peak)
        for system, pipe in pipes.items():
            rows = [round(value, 3) for value in seconds[system]]
            report[system] |= {"seconds": statistics.median(seconds[system]), "rounds": rows}
            pipe.send(None)
        for process in processes:
            process.join()
    return report


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def page(record: dict[str, Any]) -> str:
    lines = [
        "# Throughput",
        "",
        f"{record['machine']}; {record['versions']}; matmul peak {record['peak']} GFLOP/s.",
        "",
    ]
    for case in record["cases"]:
        figures, systems = case["figures"], case["systems"]
        lines += [
            f"## {case['model']}, {case['corpus']}: {case['sentences']} texts, {figures['tokens']} tokens, "
            f"{figures['useful']:.3f} of the computed ones useful, {figures['shapes']} compiled shapes "
            f"(the whole corpus: {case['whole']['useful']:.3f}, {case['whole']['shapes']}); {case['rounds']} rounds",
            "",
            "| | sentences/s | tokens/s | GFLOP/s | share of bfloat16 peak | peak MB | lowest cosine |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, row in systems.items():
            if "seconds" not in row:
                rate = row["sample_sentences"] / row["sample_seconds"]
                lines.append(f"| {name} | {rate:.1f} (a sample) | | | | | |")
                continue
            rate = figures["flops"] / row["seconds"] / 1e9
            lines.append(
                f"| {name} | {case['sentences'] / row['seconds']:.3g} | {figures['tokens'] / row['seconds']:.0f} "
                f"| {rate:.0f} | {rate / record['peak']['bfloat16']:.2f} | {row['peak_mb']} | {row['lowest_cosine']} |"
            )
        whole = {name: row for name, row in systems.items() if "seconds" in row}
        peers = [(row["seconds"], name) for name, row in whole.items() if not name.startswith("jaxvec")]
        fastest = min(peers)
        same = min((p for p in peers if whole[p[1]]["lowest_cosine"] >= SAME), default=fastest)
        lines += [
            "",
            *(
                f"{name}: {fastest[0] / row['seconds']:.2f} × {fastest[1]}, the fastest peer; {same[0] / row['seconds']:.2f} × "
                f"{same[1]}, the fastest whose vectors are those of jaxvec float32 (cosine ≥ {SAME})."
                for name, row in whole.items()
                if name.startswith("jaxvec")
            ),
            "",
        ]
    return "\n".join([*lines, NOTES.read_text()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["minilm", "mpnet", "bert-base"])
    parser.add_argument("--corpora", nargs="+", default=["short", "medium", "long"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--share", type=float, default=1.0, help="of every corpus; large models get a tenth of it"
    )
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--again", action="store_true", help="measure finished cases anew")
    asked = parser.parse_args()
    systems = list(GPU_SYSTEMS if asked.gpu else SYSTEMS)
    name = "throughput_gpu" if asked.gpu else "throughput_cpu"
    machine = f"{os.cpu_count()} × {processor()}"
    file = RESULTS / f"{name}.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() and not asked.again else {}
    if (record.get("machine"), record.get("versions")) != (machine, versions()):
        peak = {dtype: round(value) for dtype, value in matmul_peak().items()}
        record = {"machine": machine, "versions": versions(), "peak": peak, "cases": []}
    slow = {
        system for case in record["cases"] for system, row in case["systems"].items() if "seconds" not in row
    }
    with tempfile.TemporaryDirectory() as scratch:
        for model, folder in folders(asked.models, Path(scratch)).items():
            share = asked.share if model == "minilm" or asked.gpu else asked.share / 10
            for corpus, texts in corpora(share).items():
                case: dict[str, Any] = {"model": model, "corpus": corpus, "sentences": len(texts)}
                case |= {"share": share, "rounds": asked.rounds}
                done = [other for other in record["cases"] if case.items() <= other.items()]
                if corpus not in asked.corpora or done:
                    continue
                case["figures"] = token_figures(folder, texts)
                case["whole"] = token_figures(folder, corpora(1)[corpus])
                fast = [system for system in systems if system not in slow]
                case["systems"] = measure(folder, texts, fast, asked.rounds)
                slow |= {system for system, row in case["systems"].items() if "seconds" not in row}
                same = (model, corpus)
                record["cases"] = [c for c in record["cases"] if (c["model"], c["corpus"]) != same] + [case]
                atomic_write_bytes(file, json.dumps(record, indent=1).encode() + b"\n")
                atomic_write_bytes(file.with_suffix(".md"), page(record).encode())
                print(page({**record, "cases": [case]}), flush=True)


if __name__ == "__main__":
    main()
