"""Packing loses nothing, overfills nothing, wastes little and makes few shapes."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxvec.errors import InputError
from jaxvec.packing import PackedBatch, Packing, best_fit, choose_ladder, pack
from jaxvec.tokens import TokenIds, Tokenizer

CHUNK = 16_384  # what encode() packs together


def of_lengths(lengths) -> TokenIds:
    """Sentences whose every token is unlike every other one."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenIds(np.arange(1, offsets[-1] + 1, dtype=np.int32), offsets)


def unpack(packing: Packing, sentences: int) -> list[np.ndarray]:
    """The sentences read back from the batches by slot and index, each exactly once."""
    found: list[np.ndarray | None] = [None] * sentences
    for batch, index in zip(packing.batches, packing.indices, strict=True):
        rows = len(batch.token_ids)
        index = index.reshape(rows, batch.slots)
        for row, slot in np.argwhere(index >= 0):
            columns = np.flatnonzero(batch.sentence_ids[row] == slot + 1)
            assert (np.diff(columns) == 1).all()
            np.testing.assert_array_equal(batch.positions[row, columns], np.arange(len(columns)))
            assert found[index[row, slot]] is None
            found[index[row, slot]] = batch.token_ids[row, columns]
        held = {(row, slot + 1) for row, slot in np.argwhere(index >= 0)}
        seen = {(row, s) for row, s in zip(*np.nonzero(batch.sentence_ids), strict=True)}
        assert {(row, int(batch.sentence_ids[row, column])) for row, column in seen} == held
        padding = batch.sentence_ids == 0
        assert not batch.token_ids[padding].any()
        assert not batch.positions[padding].any()
        assert not batch.token_type_ids.any()
    return found


def check_laws(lengths, batch_tokens: int, row_multiple: int) -> Packing:
    ids = of_lengths(lengths)
    packing = pack(ids, batch_tokens, row_multiple)
    found = unpack(packing, len(lengths))
    for sentence, tokens in enumerate(found):
        np.testing.assert_array_equal(tokens, ids.values[ids.offsets[sentence] : ids.offsets[sentence + 1]])
    assert packing.tokens == sum(lengths)
    assert packing.computed == sum(batch.token_ids.size for batch in packing.batches)
    for batch in packing.batches:
        rows, length = batch.token_ids.shape
        assert rows % row_multiple == 0
        assert rows * length <= batch_tokens or rows == row_multiple
        assert batch.sentence_ids.any()
        assert all(
            array.dtype == np.int32 and array.shape == (rows, length)
            for array in (batch.token_ids, batch.sentence_ids, batch.positions, batch.token_type_ids)
        )
    assert len(shapes_of(packing)) <= 6
    return packing


def shapes_of(packing: Packing) -> set:
    return {(*batch.token_ids.shape, batch.slots) for batch in packing.batches}


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 512) | st.integers(1, 12), min_size=1, max_size=120),
    batch_tokens=st.sampled_from([1, 64, 1000, 2048, 32_768]),
    row_multiple=st.sampled_from([1, 2, 3, 8]),
)
@example([1], 2048, 1)
@example([512], 2048, 8)
@example([512] * 9, 2048, 1)
@example([17] * 100, 2048, 3)
@example([64] * 33, 2048, 1)
@example([1] * 1000, 2048, 2)
@example([514, 1, 513], 64, 2)
def test_every_token_appears_once_in_its_place(lengths, batch_tokens, row_multiple):
    check_laws(lengths, batch_tokens, row_multiple)


def test_ten_thousand_blanks_share_rows():
    packing = check_laws([2] * 10_000, 2048, 1)
    assert packing.tokens / packing.computed > 0.95


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=60), st.randoms())
def test_shapes_depend_on_the_lengths_alone(lengths, random):
    """Not on the ids, nor on the order the sentences come in."""
    shuffled = random.sample(lengths, len(lengths))
    one, two = pack(of_lengths(lengths)), pack(of_lengths(shuffled))
    assert [b.token_ids.shape for b in one.batches] == [b.token_ids.shape for b in two.batches]
    assert [b.slots for b in one.batches] == [b.slots for b in two.batches]


def test_packing_twice_gives_the_same_bytes():
    lengths = np.random.default_rng(0).integers(2, 90, 500)
    one, two = pack(of_lengths(lengths)), pack(of_lengths(lengths))
    assert jax.tree.all(jax.tree.map(np.array_equal, (one.batches, one.indices), (two.batches, two.indices)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=100))
def test_best_fit_never_overlaps_and_ladder_holds_the_longest(lengths):
    lengths = np.array(lengths)
    ladder = choose_ladder(lengths)
    assert 1 <= len(ladder) <= 3
    assert list(ladder) == sorted(set(ladder))
    assert ladder[-1] >= lengths.max()
    row_length, row, start, slot = best_fit(lengths, ladder)
    assert set(row_length.tolist()) <= set(ladder)
    assert (start >= 0).all()
    assert (start + lengths <= row_length).all()
    order = np.lexsort((start, row, row_length))
    same = (np.diff(row_length[order]) == 0) & (np.diff(row[order]) == 0)
    ends = (start + lengths)[order]
    assert (start[order][1:][same] >= ends[:-1][same]).all()
    assert (np.diff(slot[order])[same] == 1).all()


def test_a_sentence_takes_the_tightest_gap():
    # 60 leaves 4, 50 leaves 14, 40 leaves 24: a sentence of 14 belongs into the second gap, one of 4 into the first.
    _, row, start, _ = best_fit(np.array([60, 50, 40, 14, 4]), (64,))
    assert row.tolist() == [0, 1, 2, 1, 0]
    assert start.tolist() == [0, 0, 0, 50, 60]


def test_no_sentences_make_no_batches():
    assert pack(TokenIds.of([])) == Packing([], [], 0, 0)


def test_a_sentence_without_tokens_is_refused():
    with pytest.raises(InputError, match="sentence 1 has no tokens"):
        pack(TokenIds.of([[5], [], [6]]))


def _pack_stream(chunks, batch_tokens: int, row_multiple: int):
    packings = [pack(ids, batch_tokens, row_multiple) for ids in chunks]
    share = sum(p.tokens for p in packings) / sum(p.computed for p in packings)
    return share, set().union(*map(shapes_of, packings)), sum(p.tokens for p in packings)


@pytest.fixture(scope="module")
def stsb_ids(stsb):
    from jaxvec.models.sources import find_model

    tokenizer = Tokenizer(find_model("all-MiniLM-L6-v2"), 256)
    assert len(stsb) == 17_256
    return [tokenizer(stsb[i : i + CHUNK], i) for i in range(0, len(stsb), CHUNK)]


@pytest.fixture(scope="module")
def lcqmc_ids(data):
    if "JAXVEC_MODELS" not in os.environ:
        pytest.skip("JAXVEC_MODELS does not name the folder of the Chinese encoder")
    tokenizer = Tokenizer(Path(os.environ["JAXVEC_MODELS"]) / "chinese_roberta_l2", 512)
    lines = (data / "LCQMC/LCQMC.test.data").read_text("utf-8").split("\n")
    rows = [line.split("\t") for line in lines if line]
    sentences = [row[column] for column in (0, 1) for row in rows]
    assert len(sentences) == 25_000
    return [tokenizer(sentences[i : i + CHUNK], i) for i in range(0, len(sentences), CHUNK)]


@pytest.fixture(scope="module")
def log_uniform_ids():
    spread = np.random.default_rng(0).uniform(0, np.log(513), 10_000)
    lengths = np.minimum(np.exp(spread).astype(np.int64), 512)
    assert (lengths.min(), lengths.max()) == (1, 512)
    return [of_lengths(lengths)]


@pytest.mark.parametrize(
    ("corpus", "cpu_share"), [("stsb_ids", 0.97), ("lcqmc_ids", 0.97), ("log_uniform_ids", 0.99)]
)
def test_little_padding_and_few_shapes(corpus, cpu_share, request):
    """Padding rows of the last batches counted; one CPU device, eight of them, and an accelerator's budget."""
    chunks = request.getfixturevalue(corpus)
    for batch_tokens, row_multiple, least in ((2048, 1, cpu_share), (16_384, 8, 0.95), (32_768, 1, 0.95)):
        share, shapes, tokens = _pack_stream(chunks, batch_tokens, row_multiple)
        assert tokens == sum(ids.lengths.sum() for ids in chunks)
        assert share >= least, (batch_tokens, share, shapes)
        assert len(shapes) <= 6, (batch_tokens, shapes)


@pytest.mark.parametrize("sentences", [1, 2, 3, 7])
def test_a_few_short_sentences_make_one_small_batch(sentences):
    packing = pack(of_lengths([9] * sentences))
    assert len(packing.batches) == 1
    assert packing.computed <= 128


def test_many_small_calls_and_many_chunks_need_few_shapes():
    """A service that is asked for a few sentences at a time, and a long corpus: each shape compiles once."""
    random = np.random.default_rng(0)

    def lengths(count):
        return np.clip(np.exp(random.normal(2.8, 0.6, count)), 3, 256).astype(np.int64)

    calls = [pack(of_lengths(lengths(int(n)))) for n in np.exp(random.uniform(0, np.log(300), 200))]
    assert len(set().union(*map(shapes_of, calls))) <= 14
    chunks = [pack(of_lengths(lengths(CHUNK))) for _ in range(8)]
    assert len(set().union(*map(shapes_of, chunks))) <= 4


dense_inputs = st.integers(1, 5).flatmap(
    lambda rows: st.integers(1, 9).flatmap(
        lambda length: st.lists(
            st.lists(st.booleans(), min_size=length, max_size=length), min_size=rows, max_size=rows
        )
    )
)


@settings(deadline=None, max_examples=60)
@given(dense_inputs)
def test_dense_numbers_the_tokens_of_each_row(mask):
    """Padding on the right, on the left, within, or everywhere."""
    mask = np.array(mask, np.int64)
    ids = np.arange(mask.size).reshape(mask.shape)
    batch = PackedBatch.dense(ids, mask)
    assert batch.slots == 1
    np.testing.assert_array_equal(batch.token_ids, ids)
    np.testing.assert_array_equal(batch.sentence_ids, mask)
    for row in range(len(mask)):
        real = batch.positions[row][mask[row] > 0]
        np.testing.assert_array_equal(real, np.arange(len(real)))
    for array in (batch.token_ids, batch.sentence_ids, batch.positions, batch.token_type_ids):
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.int32
    assert (batch.positions >= 0).all()


def test_dense_is_traceable_and_takes_boolean_masks_and_token_types():
    ids, mask, types = (
        np.arange(12).reshape(3, 4),
        np.array([[1, 1, 1, 0], [0, 1, 1, 1], [0] * 4]),
        np.ones((3, 4), int),
    )
    host = PackedBatch.dense(ids, mask, types)
    traced = jax.jit(PackedBatch.dense)(jnp.asarray(ids), jnp.asarray(mask) > 0, jnp.asarray(types))
    assert jax.tree.all(jax.tree.map(np.array_equal, host, traced))
    assert jax.tree.all(jax.tree.map(lambda array: array.dtype == np.int32, traced))
    assert traced.token_type_ids.sum() == 12


def test_dense_refuses_a_mask_of_another_shape(run_python):
    code = """
import json, numpy as np
from jaxvec import PackedBatch
said = []
for ids, mask, types in (((2, 5), (2, 4), None), ((2, 5), (5,), None), ((5,), (5,), None), ((2, 5), (2, 5), (1, 5))):
    try:
        PackedBatch.dense(np.zeros(ids, int), np.ones(mask, int), None if types is None else np.ones(types, int))
    except ValueError as error:
        said.append([type(error).__name__, str(error)])
print(json.dumps(said))
"""
    said = run_python(code)
    assert [name for name, _ in said] == ["InputError"] * 4
    assert all("expected one [rows, length]" in text for _, text in said)
