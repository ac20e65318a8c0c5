"""Text becomes the ids that the model's own tokenizer gives; what is cut is counted; bad text is named by row."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from jaxvec.errors import InputError
from jaxvec.tokens import TokenIds, Tokenizer

valid_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CLS, SEP = 2, 3


def rows_of(ids: TokenIds) -> list[list[int]]:
    return [ids.values[a:b].tolist() for a, b in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)]


@pytest.fixture(scope="module")
def tokenizer(bert_folder) -> Tokenizer:
    return Tokenizer(bert_folder, 96)


@pytest.fixture(scope="module")
def backend(bert_folder) -> Backend:
    return Backend.from_file(str(bert_folder / "tokenizer.json"))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(valid_text, max_size=8))
def test_ids_are_those_of_the_tokenizer_itself(tokenizer, backend, sentences):
    ids = tokenizer(sentences)
    assert rows_of(ids) == [backend.encode(s).ids for s in sentences]
    assert ids.truncated == 0
    assert ids.values.dtype == np.int32
    assert ids.offsets.dtype == np.int64
    np.testing.assert_array_equal(ids.lengths, [len(r) for r in rows_of(ids)])


@settings(deadline=None)
@given(st.lists(valid_text, min_size=1, max_size=8), st.integers(3, 12))
def test_a_cut_sentence_keeps_its_head_and_its_special_tokens(bert_folder, backend, sentences, max_length):
    ids = Tokenizer(bert_folder, max_length)(sentences)
    whole = [backend.encode(s).ids for s in sentences]
    for cut, full in zip(rows_of(ids), whole, strict=True):
        assert cut == (full if len(full) <= max_length else [*full[: max_length - 1], SEP])
    assert ids.truncated == sum(len(full) > max_length for full in whole)


def test_a_tokenizer_that_cuts_on_the_left_keeps_the_tail(bert_folder, tmp_path):
    shutil.copy(bert_folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    left, right = Tokenizer(tmp_path, 5), Tokenizer(bert_folder, 5)
    whole = rows_of(Tokenizer(bert_folder, 9)(["a b c d e"]))[0]
    assert rows_of(left(["a b c d e"])) == [[CLS, *whole[3:]]]
    assert rows_of(right(["a b c d e"])) == [[*whole[:4], SEP]]
    assert left(["a b c d e"]).truncated == 1


def test_truncation_stored_in_the_file_does_not_hide_the_cut(bert_folder, tmp_path):
    """Folders often store a truncation of 128 and padding to a fixed length; neither may act unseen."""
    stored = Backend.from_file(str(bert_folder / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.enable_padding(length=50)
    stored.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer(tmp_path, 6)(["a b c d e f g", "a"])
    assert ids.lengths.tolist() == [6, 3]
    assert ids.truncated == 1


@pytest.mark.parametrize("blank", ["", " ", "\t \n", "\0", "\u2028", "\u200b", "\ufeff"])
def test_blank_text_is_the_empty_sentence(tokenizer, blank):
    assert rows_of(tokenizer(["a", blank, "b"]))[1] == [CLS, SEP]


@pytest.mark.parametrize(
    "text", ["a\0b", "🙂👩‍👩‍👧", "e\u0301", "שלום עולם", "مرحبا", "\u202eabc", "𝔘", "ﬁ", "a\u2028b\x85c"]
)
def test_any_text_has_ids_within_the_vocabulary(tokenizer, text):
    [row] = rows_of(tokenizer([text]))
    assert row[0] == CLS
    assert row[-1] == SEP
    assert len(row) > 2
    assert all(0 <= i < tokenizer.vocab_size for i in row)


def test_composed_and_decomposed_accents_are_one_text(tokenizer):
    assert rows_of(tokenizer(["\u00e9"])) == rows_of(tokenizer(["e\u0301"]))


def test_a_line_of_100_000_characters_is_cut_and_counted(tokenizer):
    ids = tokenizer(["a dog " * 16_667, "x" * 100_000, "short"])
    assert ids.lengths.tolist()[0] == 96
    assert ids.truncated >= 1
    assert ids.lengths.max() <= 96


def test_lower_case_is_asked_for_by_the_folder(bert_folder, tmp_path):
    from tokenizers import normalizers

    cased = Backend.from_file(str(bert_folder / "tokenizer.json"))
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    cased.save(str(tmp_path / "tokenizer.json"))
    as_is, lowered = Tokenizer(tmp_path, 9)(["A Dog"]), Tokenizer(tmp_path, 9, lower_case=True)(["A Dog"])
    assert rows_of(lowered) == rows_of(Tokenizer(bert_folder, 9)(["a dog"]))
    assert rows_of(as_is) != rows_of(lowered)


@pytest.mark.parametrize("lower_case", [False, True])
@pytest.mark.parametrize(
    "entry", [None, 3, 2.5, b"bytes", ("a", "b"), ["a", "b"], ("a",), ["a"], float("nan"), ...], ids=repr
)
def test_an_entry_that_is_not_text_is_named_by_row(bert_folder, entry, lower_case):
    with pytest.raises(InputError, match=rf"row 1002 is {type(entry).__name__}, expected str"):
        Tokenizer(bert_folder, 9, lower_case)(["a", "b", entry, None], first_row=1000)


def test_a_lone_surrogate_is_named_by_row_and_place(tokenizer):
    with pytest.raises(InputError, match=r"row 12 holds a lone surrogate \(U\+DC80 at character 3\)"):
        tokenizer(["fine", "pair 🙂 is fine", "bad\udc80", "\ud83d\ude42"], first_row=10)


def test_strings_of_numpy_are_text(tokenizer):
    assert rows_of(tokenizer(list(np.array(["a dog", "it"])))) == rows_of(tokenizer(["a dog", "it"]))


@pytest.mark.parametrize("max_length", [-1, 0, 1, 2])
def test_a_limit_without_room_for_text_is_refused(bert_folder, max_length):
    with pytest.raises(InputError, match=rf"max_length is {max_length}, .*give at least 3"):
        Tokenizer(bert_folder, max_length)
    assert Tokenizer(bert_folder, 3)(["a b"]).lengths.tolist() == [3]


def test_ids_beyond_a_gap_need_rows_too(bert_folder, tmp_path):
    stored = json.loads((bert_folder / "tokenizer.json").read_text())
    assert Tokenizer(bert_folder, 9).vocab_size == len(stored["model"]["vocab"])
    stored["model"]["vocab"]["guitar"] = 500
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    tokenizer = Tokenizer(tmp_path, 9)
    assert rows_of(tokenizer(["guitar"])) == [[CLS, 500, SEP]]
    assert tokenizer.vocab_size == 501


def test_a_folder_without_tokenizer_says_what_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer there \(looked for tokenizer.json, vocab.txt"):
        Tokenizer(tmp_path, 9)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}'])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json: not a readable tokenizer"):
        Tokenizer(tmp_path, 9)


def test_a_damaged_tokenizer_config_is_named(bert_folder, tmp_path):
    shutil.copy(bert_folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: not readable as JSON"):
        Tokenizer(tmp_path, 9)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6))
def test_lists_of_ids_join_and_split_again(sentences):
    assert rows_of(TokenIds.of(sentences)) == sentences


def test_a_bare_vocabulary_file_gives_the_same_ids(bert_folder, tmp_path, tokenizer, backend):
    """Older folders hold a vocab.txt alone; transformers knows how to build BERT's tokenizer from it."""
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    (tmp_path / "vocab.txt").write_text("\n".join(token for token, _ in vocabulary) + "\n")
    shutil.copy(bert_folder / "config.json", tmp_path)
    sentences = ["The man plays guitar!", "it rains.", "", "Élan 7 💧"]
    assert rows_of(Tokenizer(tmp_path, 96)(sentences)) == rows_of(tokenizer(sentences))


@pytest.mark.parametrize("cased", [False, True])
def test_a_release_of_googles_has_a_vocabulary_and_no_more(tmp_path, cased):
    pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", *(["Dog"] if cased else [])]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "bert_config.json").write_text("{}")
    expected = [2, 5, 8 if cased else 6, 7, 3]
    assert rows_of(Tokenizer(tmp_path, 9)(["the Dogs"])) == [expected]


def test_a_tokenizer_without_vocabulary_is_refused(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    Backend(models.WordPiece({}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="does not work"):
        Tokenizer(tmp_path, 9)
