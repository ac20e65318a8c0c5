"""A vector depends on its sentence alone; encode takes any list of texts, and says what it cannot take."""

import jax
import numpy as np
import pytest

from jaxvec.encoder import SentenceEncoder
from jaxvec.packing import PackedBatch


@pytest.fixture(scope="module")
def encoder(bert_folder) -> SentenceEncoder:
    return SentenceEncoder.load(bert_folder)


@pytest.fixture(scope="module")
def vectors(encoder, texts) -> np.ndarray:
    return encoder.encode(texts)


def test_shape_dtype_and_distinct_vectors(vectors, texts):
    assert vectors.shape == (len(texts), 32)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    first = {text: row for row, text in reversed(list(enumerate(texts)))}
    rows = sorted(first.values())
    distances = np.linalg.norm(vectors[rows][:, None] - vectors[rows], axis=-1) + 9 * np.eye(len(rows))
    assert distances.min() > 1e-2


@pytest.mark.parametrize("seed", range(5))
def test_order_does_not_matter(encoder, texts, vectors, seed):
    order = np.random.default_rng(seed).permutation(len(texts))
    np.testing.assert_allclose(encoder.encode([texts[i] for i in order]), vectors[order], atol=1e-5)


def test_a_sentence_alone_has_the_same_vector(encoder, texts, vectors):
    alone = np.concatenate([encoder.encode([text]) for text in texts[:40]])
    np.testing.assert_allclose(alone, vectors[:40], atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 64, 700, 100_000])
def test_the_batch_does_not_matter(encoder, texts, vectors, batch_tokens):
    np.testing.assert_allclose(encoder.encode(texts, batch_tokens=batch_tokens), vectors, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_do_not_matter(encoder, texts, vectors, seed):
    """Every other sentence is replaced by a stranger as long, so that rows and slots stay the same."""
    random = np.random.default_rng(seed)
    letters = str.maketrans("bcdefgh", "stuvwxy")

    def stranger(text: str) -> str:
        words = random.permutation(text.split())
        return " ".join(word.translate(letters) if len(word) == 1 else word for word in words)

    mixed = [text if i % 2 else stranger(text) for i, text in enumerate(texts)]
    np.testing.assert_array_equal(encoder.tokenizer(mixed).lengths, encoder.tokenizer(texts).lengths)
    found = encoder.encode(mixed)
    np.testing.assert_allclose(found[1::2], vectors[1::2], atol=1e-5)
    assert np.abs(found[::2] - vectors[::2]).max() > 0.1


@pytest.mark.parametrize("side", ["right", "left"])
def test_packed_rows_equal_one_sentence_a_row(encoder, texts, vectors, side):
    ids = encoder.tokenizer(texts)
    columns = np.arange(64)
    mask = (columns < ids.lengths[:, None]).astype(int)
    mask = mask if side == "right" else mask[:, ::-1]
    token_ids = np.zeros_like(mask)
    token_ids[mask > 0] = ids.values
    apply, params = encoder.function()
    dense = jax.jit(apply)(params, PackedBatch.dense(token_ids, mask))
    np.testing.assert_allclose(dense, vectors, atol=1e-5)


def test_a_second_call_compiles_nothing(encoder, texts, vectors, compiled):
    before = len(compiled)
    encoder.encode(texts)
    encoder.encode(texts[::-1])
    assert compiled[before:] == []
    encoder.encode(texts, normalize=True)
    assert len(compiled) > before


def test_normalize_divides_by_the_length(encoder, texts, vectors):
    unit = encoder.encode(texts, normalize=True)
    np.testing.assert_allclose(unit, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-5)


def test_blank_text_has_the_vector_of_the_empty_sentence_in_its_place(encoder):
    found = encoder.encode(["a dog", "", "it rains", " \t", "\n", "\0"])
    np.testing.assert_allclose(found[[3, 4, 5]], found[[1, 1, 1]], atol=1e-5)
    np.testing.assert_allclose(found[[0, 2]], encoder.encode(["a dog", "it rains"]), atol=1e-5)
    apply, params = encoder.function()
    empty = PackedBatch.dense(np.array([[2, 3]]), np.array([[1, 1]]))
    np.testing.assert_allclose(jax.jit(apply)(params, empty)[0], found[1], atol=1e-5)


@pytest.mark.parametrize(
    "text", ["a\0b", "🙂👩‍👧", "e\u0301\u0323\u0302", "שלום", "\u202emirror", "a\u2028b", "[PAD] [MASK]"]
)
def test_unusual_text_is_encoded(encoder, text):
    found = encoder.encode(["a", text, "b"])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[[0, 2]], encoder.encode(["a", "b"]), atol=1e-5)


def test_a_stream_is_cut_into_chunks_without_a_trace(bert_folder, encoder, texts, vectors, monkeypatch):
    monkeypatch.setattr("jaxvec.pipeline.CHUNK", 32)
    ticks: list[int] = []
    parts = list(encoder.stream(iter(texts), tick=ticks.append))
    assert [sentence for chunk, _ in parts for sentence in chunk] == texts
    assert [len(chunk) for chunk, _ in parts] == [32] * 6 + [8]
    np.testing.assert_allclose(np.concatenate([part for _, part in parts]), vectors, atol=1e-5)
    assert sum(ticks) == len(texts)
    moments = encoder.moments(iter(texts))
    np.testing.assert_allclose(moments.mean, vectors.mean(0), atol=1e-5)


def test_similarity_is_the_cosine_and_zero_safe(encoder, vectors):
    a, b = vectors[:3], np.concatenate([vectors[:2], np.zeros((1, 32), np.float32)])
    expected = (a @ b.T) / (np.linalg.norm(a, axis=1)[:, None] * np.maximum(np.linalg.norm(b, axis=1), 1e-30))
    found = encoder.similarity(a, b)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(np.diag(found)[:2], 1, atol=1e-6)
    assert not found[:, 2].any()
    np.testing.assert_allclose(encoder.similarity(a[0], b), found[0], atol=1e-6)
    assert encoder.similarity(a[0], b[0]).shape == ()


def test_bfloat16_vectors_point_where_float32_ones_do(stsb):
    """1,000 STS-B sentences and the bundled model."""
    sample = stsb[:: len(stsb) // 1000][:1000]
    one, two = (
        SentenceEncoder.load(dtype=dtype).encode(sample, normalize=True) for dtype in ("float32", "bfloat16")
    )
    cosines = (one.astype(np.float64) * two).sum(1)
    assert cosines.min() >= 0.999
    assert not np.array_equal(one, two)


# Without the run-time type checks of the tests, which would refuse some of these first.
CALLS = """
import json, os, sys, warnings
import numpy as np
import jaxvec, jaxvec.pipeline
jaxvec.pipeline.CHUNK = 8
folder, without_pooler, small_table = sys.argv[1:]
load = jaxvec.SentenceEncoder.load
encoder = load(folder, layers=1)
short = load(folder, layers=1, max_length=5)
plain = encoder.encode(["a dog", "it rains"])
long = ["a b c d e f", "a"] * 10
calls = {
    "empty": lambda: encoder.encode([]),
    "no rows at all": lambda: encoder.encode(iter(())),
    "tuple": lambda: encoder.encode(("a dog", "it rains")) - plain,
    "generator": lambda: encoder.encode(text for text in ("a dog", "it rains")) - plain,
    "array": lambda: encoder.encode(np.array(["a dog", "it rains"])) - plain,
    "object array": lambda: encoder.encode(np.array(["a dog", "it rains"], object)) - plain,
    "one text": lambda: encoder.encode("a dog"),
    "one text to stream": lambda: list(encoder.stream("a dog")),
    "one text to moments": lambda: encoder.moments("a dog"),
    "one text to sif_weights": lambda: jaxvec.sif_weights("a dog"),
    "a that is text": lambda: jaxvec.sif_weights(["a dog"], a="x"),
    "one text in bytes": lambda: encoder.encode(b"a dog"),
    "None among them": lambda: encoder.encode(["a", None]),
    "an int among them": lambda: encoder.encode(["a", 3, None]),
    "bytes among them": lambda: encoder.encode(["a", "b", b"c"]),
    "a pair among them": lambda: encoder.encode(["a", ("b", "c")]),
    "a list among them": lambda: encoder.encode([["a", "b"]]),
    "None in a later chunk": lambda: encoder.encode(["a"] * 17 + [None]),
    "lone surrogate": lambda: encoder.encode(["a", "b\\udc80"]),
    "lone surrogate in a later chunk": lambda: list(encoder.stream(["a"] * 21 + ["\\ud83d"] + ["a"] * 9)),
    "batch of nothing": lambda: encoder.encode(["a"], batch_tokens=0),
    "batch of True": lambda: encoder.encode(["a"], batch_tokens=True),
    "100,000 characters": lambda: encoder.encode(["a dog " * 16_667, "a"]),
    "cut": lambda: short.encode(long),
    "cut to its head": lambda: short.encode(long) - encoder.encode(["a b c", "a"] * 10),
    "max_length 97": lambda: load(folder, max_length=97),
    "max_length 0": lambda: load(folder, max_length=0),
    "max_length -1": lambda: load(folder, max_length=-1),
    "max_length True": lambda: load(folder, max_length=True),
    "max_length 2": lambda: load(folder, max_length=2),
    "dtype": lambda: load(folder, dtype="float16"),
    "pooling": lambda: load(folder, pooling="median"),
    "layers by number": lambda: load(folder, layers=4),
    "layers by name": lambda: load(folder, layers="first-last"),
    "layers True": lambda: load(folder, layers=True),
    "pooler without weights": lambda: load(without_pooler, pooling="pooler"),
    "small table": lambda: load(small_table),
    "sif without weights": lambda: load(folder, pooling="sif"),
    "weights without sif": lambda: load(folder, token_weights=np.ones(78)),
    "too few weights": lambda: load(folder, pooling="sif", token_weights=np.ones(77)),
}
report = {}
for name, call in calls.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = call()
            answer = ["array", list(found.shape), str(found.dtype), float(np.abs(found).max(initial=0))]
        except Exception as error:
            answer = [type(error).__name__, str(error)]
    report[name] = [answer, [[w.filename, str(w.message)] for w in caught]]
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(run_python, write_bert, bert_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfit")
    without_pooler = write_bert(folder / "without_pooler", blocks=1, pooler=False)
    small_table = write_bert(folder / "small_table", blocks=1, vocab_size=50)
    return run_python(CALLS, bert_folder, without_pooler, small_table)


@pytest.mark.parametrize("name", ["empty", "no rows at all"])
def test_nothing_gives_no_rows(report, name):
    assert report[name] == [["array", [0, 32], "float32", 0.0], []]


@pytest.mark.parametrize("name", ["tuple", "generator", "array", "object array"])
def test_any_collection_of_texts_will_do(report, name):
    kind, shape, dtype, difference = report[name][0]
    assert (kind, shape, dtype) == ("array", [2, 32], "float32")
    assert difference <= 1e-5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one text", "expected a list of them: [text]"),
        ("one text to stream", "expected a list of them: [text]"),
        ("one text to moments", "expected a list of them: [text]"),
        ("one text to sif_weights", "expected a list of them: [text]"),
        ("a that is text", "a is 'x'; expected a positive number"),
        ("one text in bytes", "expected a list of them: [text]"),
        ("None among them", "row 1 is NoneType, expected str"),
        ("an int among them", "row 1 is int, expected str: 3"),
        ("bytes among them", "row 2 is bytes, expected str: b'c'"),
        ("a pair among them", "row 1 is tuple, expected str"),
        ("a list among them", "row 0 is list, expected str"),
        ("None in a later chunk", "row 17 is NoneType"),
        ("lone surrogate", "row 1 holds a lone surrogate (U+DC80 at character 1)"),
        ("lone surrogate in a later chunk", "row 21 holds a lone surrogate (U+D83D at character 0)"),
        ("batch of nothing", "batch_tokens is 0; expected a positive number"),
        ("batch of True", "batch_tokens is True; expected a positive number"),
        ("max_length 97", "max_length is 97; this model's position table allows 1 to 96"),
        ("max_length 0", "max_length is 0; this model's position table allows 1 to 96"),
        ("max_length -1", "max_length is -1; this model's position table allows 1 to 96"),
        ("max_length True", "max_length is True; this model's position table allows 1 to 96"),
        ("max_length 2", "give at least 3"),
        ("dtype", "dtype is 'float16'; expected 'float32', 'bfloat16' or 'auto'"),
        ("pooling", "pooling is 'median'; expected one of cls, mean, max, pooler, sif"),
        ("layers by number", "layers is (4,); this model's hidden states are 0 (embedding) to 3"),
        ("layers by name", "layers is 'first-last'; expected last, last_two, first_last, embedding_last"),
        ("layers True", "layers is (True,)"),
        ("pooler without weights", "without_pooler: pooling 'pooler' needs the pooler's weights"),
        ("small table", "the tokenizer knows 78 tokens but the embedding table has 50 rows"),
        ("sif without weights", "pooling 'sif' needs token_weights"),
        ("weights without sif", "no other pooling takes them"),
        ("too few weights", "token_weights is float64 (77,); expected 78"),
    ],
)
def test_what_cannot_be_taken_is_said(report, name, said):
    (kind, message), warned = report[name]
    assert kind == "InputError"
    assert said in message
    assert "\n" not in message
    assert warned == []


def test_cutting_warns_once_with_the_count_and_at_the_caller(report):
    """20 sentences in three chunks, every other one too long."""
    answer, warned = report["cut"]
    assert answer[:2] == ["array", [20, 32]]
    assert warned == [["<string>", "10 of 20 sentences were cut to 5 tokens (max_length)"]]


def test_a_cut_sentence_has_the_vector_of_its_head(report):
    assert report["cut to its head"][0][3] <= 1e-5


def test_a_line_of_100_000_characters_is_cut_with_a_warning(report):
    answer, warned = report["100,000 characters"]
    assert answer[:3] == ["array", [2, 32], "float32"]
    assert [message for _, message in warned] == ["1 of 2 sentences were cut to 96 tokens (max_length)"]


def test_an_encoder_can_be_pickled_after_use_and_used_after_being_traced(write_bert, tmp_path):
    import copy
    import pickle

    import jax

    encoder = SentenceEncoder.load(write_bert(tmp_path, blocks=1))
    apply, params = encoder.function()
    batch = encoder.pack(["it rains"]).batches[0]
    traced = jax.jit(lambda batch: encoder.function()[0](encoder.params, batch))(batch)
    vector = encoder.encode(["it rains"])
    np.testing.assert_allclose(traced[:1], vector, atol=1e-6)
    np.testing.assert_allclose(apply(params, batch)[:1], vector, atol=1e-6)
    for again in (pickle.loads(pickle.dumps(encoder)), copy.copy(encoder), copy.deepcopy(encoder)):
        np.testing.assert_array_equal(again.encode(["it rains"]), vector)
