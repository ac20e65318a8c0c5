"""Does cost grow linearly? Time and peak memory of `jaxvec encode` for 100,000 and 1,000,000 sentences.

    python -m experiments.linear_cost [--small 100000] [--large 1000000] [--rounds 3]

A random BERT of 1 block × 32 stands for the model, so that everything around it, which is what could grow, weighs
most. Sentences are made as they are asked for; vectors go to one .npy file. Every run is a process of its own, small
and large ones in turns, after one of each that fills the compilation cache; medians are compared. Goals: time per
sentence within 20 %, peak memory within 10 %. Takes 3 to 10 minutes on 2 cores; writes results/linear_cost.json.
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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
WORDS = [
    "a",
    "the",
    "dog",
    "man",
    "plays",
    "guitar",
    "it",
    "rains",
    "he",
    "she",
    "no",
    "one",
    "reads",
    "trains",
    "late",
    "again",
    "tomorrow",
    "never",
    "where",
    "who",
]


def sentences(count: int) -> Iterator[str]:
    random = np.random.default_rng(0)
    for _ in range(count // 1000):
        lengths = random.integers(1, 30, 1000)
        words = random.choice(WORDS, lengths.sum())
        for end, length in zip(lengths.cumsum(), lengths, strict=True):
            yield " ".join(words[end - length : end])


def write_model(folder: Path) -> None:
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = special + WORDS
    d, wide = 32, 64
    sizes = {"vocab_size": len(words), "hidden_size": d, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": wide, "max_position_embeddings": 64, "type_vocab_size": 1}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "layer_norm_eps": 1e-12, **sizes}))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(0)
    block = "encoder.layer.0"
    shapes = {
        "embeddings.word_embeddings.weight": (len(words), d),
        "embeddings.position_embeddings.weight": (64, d),
        "embeddings.token_type_embeddings.weight": (1, d),
        **{f"{block}.attention.self.{part}.weight": (d, d) for part in ("query", "key", "value")},
        f"{block}.attention.output.dense.weight": (d, d),
        f"{block}.intermediate.dense.weight": (wide, d),
        f"{block}.output.dense.weight": (d, wide),
    }
    biases = {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items() if block in name}
    for norm in ("embeddings", f"{block}.attention.output", f"{block}.output"):
        biases |= {f"{norm}.LayerNorm.weight": (d,), f"{norm}.LayerNorm.bias": (d,)}
    arrays = {
        name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in (shapes | biases).items()
    }
    save_file(arrays, folder / "model.safetensors")


def encode(model: str, count: int, output: str) -> None:
    """One run, in this process: prints seconds and the peak memory in MB."""
    import jaxvec

    encoder = jaxvec.SentenceEncoder.load(model)
    encoder.warm_up()
    started = time.perf_counter()
    jaxvec.encode_to(output, encoder, sentences(count))
    seconds = time.perf_counter() - started
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", nargs=3, metavar=("MODEL", "COUNT", "OUTPUT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        encode(asked.run[0], int(asked.run[1]), asked.run[2])
        return
    runs: dict[int, list[list[float]]] = {asked.small: [], asked.large: []}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        write_model(model)
        cache = {
            "JAX_COMPILATION_CACHE_DIR": f"{scratch}/programs",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        for number in range(1 + asked.rounds):
            for count, results in runs.items():
                command = [sys.executable, "-m", "experiments.linear_cost", "--run", str(model), str(count)]
                finished = subprocess.run(
                    [*command, f"{scratch}/v.npy"],
                    env=os.environ | cache,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                if number:
                    results.append(json.loads(finished.stdout))
    record = {
        str(count): {
            "microseconds_per_sentence": round(statistics.median(run[0] for run in results) / count * 1e6, 2),
            "peak_mb": round(statistics.median(run[1] for run in results), 1),
        }
        for count, results in runs.items()
    }
    small, large = record.values()
    record["ratios"] = {name: round(large[name] / small[name], 3) for name in small}
    (RESULTS / "linear_cost.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
