"""The numbers of transformers: token ids, hidden states and pooler outputs, dense and packed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvec.forward import make_apply
from jaxvec.models.checkpoint import cast_params, load_checkpoint
from jaxvec.models.sources import find_model
from jaxvec.packing import PackedBatch, pack
from jaxvec.tokens import TokenIds, Tokenizer

pytest.importorskip("torch", reason="torch, the reference, is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

TOLERANCE = 2e-5
CASES = [
    ("bert", {}),
    ("bert", {"num_attention_heads": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    ("bert", {"hidden_act": "silu", "type_vocab_size": 1, "num_hidden_layers": 3}),
    ("roberta", {}),
    ("roberta", {"pad_token_id": 3, "type_vocab_size": 1, "hidden_act": "relu", "layer_norm_eps": 1e-5}),
    ("roberta", {"pad_token_id": 0, "num_attention_heads": 8}),
    ("xlm-roberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    ("xlm-roberta", {"type_vocab_size": 2, "hidden_act": "gelu_new", "pad_token_id": 1}),
    ("distilbert", {}),
    ("distilbert", {"activation": "relu", "n_heads": 4, "sinusoidal_pos_embds": True}),
    ("electra", {}),
    ("electra", {"embedding_size": 24, "hidden_act": "relu", "type_vocab_size": 1}),
    ("albert", {"num_hidden_layers": 3}),
    ("albert", {"num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 4}),
    ("albert", {"embedding_size": 24, "hidden_act": "gelu", "layer_norm_eps": 1e-5}),
    ("mpnet", {"max_position_embeddings": 310}),
    ("mpnet", {"num_attention_heads": 2, "hidden_act": "silu", "layer_norm_eps": 1e-5}),
]


def law(ours: np.ndarray, torch32: np.ndarray, torch64: Callable[[], np.ndarray]):
    """Within 2e-5 of torch's float32, or twice its own distance from float64 where that is larger; layer by layer."""
    assert ours.shape == torch32.shape
    for layer, (a, b) in enumerate(zip(ours, torch32, strict=True)):
        error = np.abs(a - b).max()
        if not error <= TOLERANCE:
            own = np.abs(b - torch64()[layer]).max()
            assert error <= 2 * own, f"hidden state {layer}: {error:.2e}, torch itself {own:.2e}"


def sentences(config, count: int = 9, seed: int = 0) -> list[np.ndarray]:
    """Random ids above the special ones; one sentence of a single token, one as long as the positions allow."""
    rng = np.random.default_rng(seed)
    lengths = [1, config.max_length, *rng.integers(2, 24, count - 2)]
    return [rng.integers(5, config.vocab_size, length, dtype=np.int32) for length in lengths]


def padded(rows: list[np.ndarray], pad: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((len(rows), max(map(len, rows))), pad, np.int32)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def unpack(states: np.ndarray, batch: PackedBatch, index: np.ndarray) -> dict[int, np.ndarray]:
    """Hidden states [layers, tokens, d] of every sentence in a batch."""
    found = {}
    for place, sentence in enumerate(index):
        if sentence >= 0:
            row, slot = divmod(place, batch.slots)
            found[int(sentence)] = states[:, row, batch.sentence_ids[row] == slot + 1]
    return found


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_hidden_states_equal_those_of_torch(tmp_path, build, torch_states, our_states, kind, settings):
    model = build(kind, **settings)
    model.save_pretrained(tmp_path)
    config, params = load_checkpoint(tmp_path)
    rows = sentences(config)
    ids, mask = padded(rows, model.config.pad_token_id)
    types = np.cumsum(ids % 7 == 0, axis=1) % 2 if config.token_types > 1 else None
    real = mask.astype(bool)

    def law_of_batch(ours: np.ndarray, types: np.ndarray | None):
        expected = torch_states(model, ids, mask, types)[0][:, real]
        law(ours, expected, lambda: torch_states(model, ids, mask, types, double=True)[0][:, real])

    batch = PackedBatch.dense(ids, mask, types)
    law_of_batch(our_states(config, params, batch)[:, real], types)

    packing = pack(TokenIds.of([row.tolist() for row in rows]))
    assert max(batch.slots for batch in packing.batches) > 1
    seen = {}
    for batch, index in zip(packing.batches, packing.indices, strict=True):
        seen |= unpack(our_states(config, params, batch), batch, index)
    assert seen.keys() == set(range(len(rows)))
    law_of_batch(np.concatenate([seen[i] for i in range(len(rows))], axis=1), None)  # token types are all 0


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "albert", "mpnet"])
def test_pooler_outputs_equal_those_of_torch(tmp_path, build, torch_states, kind):
    model = build(kind, num_hidden_layers=1)
    model.save_pretrained(tmp_path)
    config, params = load_checkpoint(tmp_path)
    assert config.has_pooler
    ids, mask = padded(sentences(config), model.config.pad_token_id)
    expected = torch_states(model, ids, mask)[1]
    apply = jax.jit(make_apply(config, "pooler", (1,), jnp.float32))
    vectors = apply({"encoder": params}, PackedBatch.dense(ids, mask))
    law(
        np.asarray(vectors)[None],
        expected[None],
        lambda: torch_states(model, ids, mask, double=True)[1][None],
    )


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_bfloat16_stays_near_float32(tmp_path, build, our_states, kind):
    build(kind).save_pretrained(tmp_path)
    config, params = load_checkpoint(tmp_path)
    ids, mask = padded(sentences(config), 1)
    batch = PackedBatch.dense(ids, mask)
    exact = our_states(config, params, batch)[:, mask > 0]
    rough = our_states(config, cast_params(params, jnp.bfloat16), batch, jnp.bfloat16)[:, mask > 0]
    error = np.linalg.norm(rough - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
    # A bfloat16 has 8 significant bits; a bfloat16 LayerNorm or softmax would lose several times this.
    assert (error > 2**-12).all()
    assert (error < 2**-5).all(), error


TEXTS = [
    "A man plays the guitar.",
    "Hello",
    "",
    "   ",
    "Two dogs run through a field of tall grass, and a third one watches them from the gate.",
    "Ünïcödé: ÀÉÎ, ſ ß İ ı, Straße, naïve café",
    "e\u0301 a\u0308 o\u0302 combining marks",
    "שלום עולם، مرحبا بالعالم",
    "emoji 😀 👩‍👩‍👧‍👦 🏳️‍🌈",
    "NUL \0 inside\0",
    "control \x01\x02\x1b[0m and zero \u200b\u200d width",
    "[SEP] inside [CLS] a [PAD] text [MASK] and [UNK]",
    "<s> also </s> these <pad> <mask> <unk>",
    "separators \u2028 in \u0085 \v\f text\t\r\n",
    "人工智能 是 什么？ 中文混合 text",
    "日本語ひらがなカタカナ 한국어 ไทย हिन्दी",
    "don't can't U.S.A. 3.14 $5,000 ½ １２３ ＡＢＣ ﬁ \ufeff \ufffd",
    "antidisestablishmentarianism" * 8,
    "x" * 300,
    " leading and trailing ",
]
LONG = "the committee did not publish its findings on the matter until the following spring " * 7
MORE = [f"Sentence number {i} says that {i} times {i} is {i * i}." for i in range(11)]


def real_folder(name: str) -> Path:
    if name == "all-MiniLM-L6-v2":
        return find_model(name)
    if "JAXVEC_MODELS" not in os.environ:
        pytest.skip("JAXVEC_MODELS, the folder of the encoders, is not set")
    return Path(os.environ["JAXVEC_MODELS"]) / name


REAL = pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "all-mpnet-base-v2", "chinese_roberta_l2"])


@REAL
def test_hidden_states_of_real_encoders_equal_those_of_torch(torch_states, our_states, name):
    """32 sentences, one of more than 94 tokens; torch sees each alone, so its padding plays no part."""
    from transformers import AutoModel

    folder = real_folder(name)
    config, params = load_checkpoint(folder)
    model = AutoModel.from_pretrained(folder).eval()
    # transformers places a literal "<pad>" on the padding row and does not count it; here it is a token as any.
    texts = [LONG, *(text.replace("<pad>", "") for text in TEXTS), *MORE]
    ids = Tokenizer(folder, 128)(texts)
    rows = [ids.values[a:b] for a, b in zip(ids.offsets, ids.offsets[1:], strict=False)]
    assert len(rows) == 32
    assert len(rows[0]) > 94

    def law_of_sentence(ours: np.ndarray, row: np.ndarray):
        alone = (model, row[None], np.ones_like(row)[None])
        law(ours, torch_states(*alone)[0][:, 0], lambda: torch_states(*alone, double=True)[0][:, 0])

    packing = pack(ids)
    seen = {}
    for batch, index in zip(packing.batches, packing.indices, strict=True):
        seen |= unpack(our_states(config, params, batch), batch, index)
    for i, row in enumerate(rows):
        law_of_sentence(seen[i], row)

    dense = our_states(config, params, PackedBatch.dense(*padded(rows[:9], 0)))
    for i, row in enumerate(rows[:9]):
        law_of_sentence(dense[:, i, : len(row)], row)


@REAL
@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.txt"])
def test_token_ids_equal_those_of_transformers(tmp_path, name, files):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = real_folder(name)
    if files == "vocab.txt":
        for file in ("vocab.txt", "config.json", "tokenizer_config.json"):
            shutil.copy(folder / file, tmp_path)
        folder = tmp_path
    reference = AutoTokenizer.from_pretrained(folder)
    if name == "chinese_roberta_l2" and files == "tokenizer.json":
        # Its tokenizer_config.json asks for lower-casing, against the tokenizer.json, which goes first here.
        reference = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    texts = [*TEXTS, LONG * 5, "无 " * 5000]
    for max_length in (8, 128):
        ours = Tokenizer(folder, max_length)(texts)
        expected = [reference(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
        assert [
            ours.values[a:b].tolist() for a, b in zip(ours.offsets, ours.offsets[1:], strict=False)
        ] == expected
        whole = [len(reference(text)["input_ids"]) for text in texts]
        assert ours.truncated == sum(length > max_length for length in whole)
