"""Shapes and types of every jaxvec function are checked at run time in the tests; a tiny encoder for them."""

import json
import os
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import install_import_hook

hook = install_import_hook("jaxvec", "beartype.beartype")

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_VOCABULARY = (
    _SPECIAL
    + list(string.ascii_lowercase + string.digits + ".,!?")
    + [f"##{letter}" for letter in string.ascii_lowercase]
    + ["the", "man", "plays", "rains", "guitar", "dog", "it"]
)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(_VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_bert(folder: Path, blocks: int = 3, pooler: bool = True, seed: int = 0, **config) -> Path:
    """A random BERT with a tokenizer, as a model folder: NumPy and safetensors only.

    Weights are large enough that attention is far from uniform, so that a leak between sentences shows.
    """
    from safetensors.numpy import save_file

    sizes = {
        "model_type": "bert",
        "vocab_size": len(_VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": blocks,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 96,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    } | config
    rng = np.random.default_rng(seed)
    d, wide = sizes["hidden_size"], sizes["intermediate_size"]
    arrays: dict[str, np.ndarray] = {}

    def linear(name: str, features_out: int, features_in: int) -> None:
        arrays[f"{name}.weight"] = rng.normal(0, 1.2 / features_in**0.5, (features_out, features_in))
        arrays[f"{name}.bias"] = rng.normal(0, 0.3, features_out)

    def norm(name: str) -> None:
        arrays[f"{name}.weight"] = rng.normal(1, 0.2, d)
        arrays[f"{name}.bias"] = rng.normal(0, 0.2, d)

    for kind, rows in (
        ("word", "vocab_size"),
        ("position", "max_position_embeddings"),
        ("token_type", "type_vocab_size"),
    ):
        arrays[f"embeddings.{kind}_embeddings.weight"] = rng.normal(0, 1, (sizes[rows], d))
    norm("embeddings.LayerNorm")
    for block in range(blocks):
        stem = f"encoder.layer.{block}"
        for part in ("query", "key", "value"):
            linear(f"{stem}.attention.self.{part}", d, d)
        linear(f"{stem}.attention.output.dense", d, d)
        norm(f"{stem}.attention.output.LayerNorm")
        linear(f"{stem}.intermediate.dense", wide, d)
        linear(f"{stem}.output.dense", d, wide)
        norm(f"{stem}.output.LayerNorm")
    if pooler:
        linear("pooler.dense", d, d)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: a.astype(np.float32) for n, a in arrays.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(sizes))
    _write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def write_bert():
    """write_bert(folder, blocks=3, pooler=True, seed=0, **config) → folder, a random BERT's."""
    return _write_bert


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    """A model folder of a random BERT: 3 blocks × 32, with pooler, 96 positions."""
    return _write_bert(tmp_path_factory.mktemp("bert") / "model")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """200 distinct sentences of 2 to 60 tokens for that folder's tokenizer."""
    rng = np.random.default_rng(7)
    words = np.array(_VOCABULARY[-7:] + list(string.ascii_lowercase))
    return [" ".join(rng.choice(words, rng.integers(0, 59))) + "." * (i % 2) for i in range(200)]


@pytest.fixture(scope="session")
def run_python():
    """run_python(code, *arguments, **environment) → what the code printed, parsed as JSON.

    A fresh interpreter without the run-time type checks: what a user sees.
    """

    def run(code: str, *arguments: object, **environment: str):
        finished = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            cwd=Path(__file__).parents[1],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert finished.returncode == 0, finished.stderr[-3000:]
        return json.loads(finished.stdout)

    return run


@pytest.fixture(scope="session")
def compiled():
    """A list that grows by one whenever XLA compiles a program."""
    import jax

    names: list[str] = []

    def listen(event: str, seconds: float, **details: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name", event)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return names


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of released data sets; the test is skipped where JAXVEC_DATA does not name it."""
    if "JAXVEC_DATA" not in os.environ:
        pytest.skip("JAXVEC_DATA does not name the folder of released data sets")
    return Path(os.environ["JAXVEC_DATA"])


@pytest.fixture(scope="session")
def stsb(data) -> list[str]:
    """STS-B's 17,256 sentences: train, dev and test, first and second column."""
    sentences = []
    for split in ("train", "dev", "test"):
        lines = (data / f"STSB/sts-{split}.csv").read_text("utf-8").split("\n")
        rows = [line.split("\t") for line in lines if line]
        sentences += [row[column] for column in (5, 6) for row in rows]
    return sentences
