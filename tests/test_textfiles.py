"""Reading sentences: every format gives the same sentences, and bad rows are named."""

import csv
import gzip
import importlib
import io
import json
import re
import sys
import tracemalloc
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxvec import textfiles
from jaxvec.errors import InputError
from jaxvec.textfiles import read_sentences

# Everything that str.splitlines or universal newlines would take for a line end, and what csv and tsv quote.
ODD = "\u2028\u2029\x85\v\f\x1c\x1d\x1e\0\"',;\\ é中🙂a"
FORMATS = ["txt", "tsv", "csv", "jsonl", "parquet"]


def write(path, sentences):
    """`sentences` as column `text` behind another column; a .txt has that column alone."""
    kind = path.suffix[1:]
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        table = pa.table({"id": list(range(len(sentences))), "text": pa.array(sentences, pa.string())})
        pq.write_table(table, path, row_group_size=3)
        return path
    with open(path, "w", encoding="utf-8", newline="") as file:
        if kind == "csv":
            rows = csv.writer(file)
            rows.writerow(["id", "text"])
            rows.writerows(enumerate(sentences))
        elif kind == "jsonl":
            file.writelines(json.dumps({"id": i, "text": s}) + "\n" for i, s in enumerate(sentences))
        elif kind == "tsv":
            file.writelines(["id\ttext\n", *(f"{i}\t{s}\n" for i, s in enumerate(sentences))])
        else:
            file.writelines(s + "\n" for s in sentences)
    return path


def column_of(path):
    return None if path.suffix == ".txt" else "text"


@pytest.mark.parametrize("kind", FORMATS)
@given(sentences=st.lists(st.text(alphabet=ODD, max_size=8), max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_format_gives_back_what_was_written(tmp_path, kind, sentences):
    path = write(tmp_path / f"corpus.{kind}", sentences)
    assert list(read_sentences(path, column_of(path))) == sentences


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@given(sentences=st.lists(st.text(alphabet=ODD + "\r\n\t", max_size=8), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_formats_that_quote_also_keep_newlines_and_tabs(tmp_path, kind, sentences):
    path = write(tmp_path / f"corpus.{kind}", sentences)
    assert list(read_sentences(path, "text")) == sentences


@given(
    lines=st.lists(st.text(alphabet=ODD + "\r", max_size=6), max_size=8), final=st.sampled_from(["", "\n"])
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_text_lines_end_at_newline_only(tmp_path, lines, final):
    data = "\n".join(lines) + final
    (tmp_path / "corpus.txt").write_bytes(data.encode())
    expected = re.split("\r?\n", data)
    if expected[-1] == "":
        expected.pop()
    assert list(read_sentences(tmp_path / "corpus.txt")) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\rc\r", ["a\r", "b\rc\r"]),
        (b"\n \n\na\n\n", ["", " ", "", "a", ""]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n\xef\xbb\xbfa", ["", "\ufeffa"]),
    ],
)
def test_line_ends_blank_lines_and_byte_order_marks(tmp_path, monkeypatch, data, expected):
    (tmp_path / "corpus.txt").write_bytes(data)
    (tmp_path / "corpus").write_bytes(data)
    (tmp_path / "corpus.txt.gz").write_bytes(gzip.compress(data))
    for name in ("corpus.txt", "corpus", "corpus.txt.gz"):
        assert list(read_sentences(tmp_path / name)) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert list(read_sentences("-")) == expected
    assert not sys.stdin.buffer.closed


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_tables_may_be_gzipped_and_start_with_a_byte_order_mark(tmp_path, kind):
    plain = write(tmp_path / f"corpus.{kind}", ["one", "two"])
    packed = tmp_path / f"packed.{kind.upper()}.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    assert list(read_sentences(packed, "text")) == ["one", "two"]


@pytest.mark.parametrize("kind", ["tsv", "csv"])
def test_a_number_is_a_column_of_a_file_without_header(tmp_path, kind):
    path = write(tmp_path / f"corpus.{kind}", ["one", "two"])
    assert list(read_sentences(path, "2")) == ["text", "one", "two"]
    with pytest.raises(InputError, match=r"count from 1"):
        read_sentences(path, "0")
    with pytest.raises(InputError, match=rf"corpus.{kind}, line 1: 2 column\(s\), so no column '3'"):
        read_sentences(path, "3")


def test_tsv_quotes_are_literal_and_csv_quotes_are_not(tmp_path):
    row = '"a ""b"""'
    (tmp_path / "corpus.tsv").write_text(f"text\n{row}\n")
    (tmp_path / "corpus.csv").write_text(f"text\n{row}\n")
    assert list(read_sentences(tmp_path / "corpus.tsv", "text")) == [row]
    assert list(read_sentences(tmp_path / "corpus.csv", "text")) == ['a "b"']


def test_a_blank_line_of_a_one_column_table_is_an_empty_sentence(tmp_path):
    for name in ("corpus.tsv", "corpus.csv"):
        (tmp_path / name).write_text("text\na\n\nb\n")
        assert list(read_sentences(tmp_path / name, "text")) == ["a", "", "b"]


def test_a_csv_field_may_be_long(tmp_path):
    long = "word " * 100_000
    assert list(read_sentences(write(tmp_path / "corpus.csv", [long]), "text")) == [long]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_tables_need_a_column_and_name_those_there_are(tmp_path, kind):
    path = write(tmp_path / f"corpus.{kind}", ["one"])
    with pytest.raises(InputError, match=rf"corpus\.{kind}.*--column.*'id', 'text'"):
        read_sentences(path)
    with pytest.raises(InputError, match=rf"corpus\.{kind}.*no column named 'txet'.*'id', 'text'"):
        read_sentences(path, "txet")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", "id\ttext\n1\tone\n2\n", r"a\.tsv, line 3: 1 column"),
        ("a.tsv", "text\ttext\n1\tone\n", r"a\.tsv: several columns named 'text'"),
        ("a.tsv", "", r"a\.tsv is empty"),
        ("a.csv", 'id,text\n1,"one\ntwo"\n2\n', r"a\.csv, line 4: 1 column"),
        ("a.csv", 'id,text\n1,"one\n2,two\n', r"a\.csv, line 2: not valid CSV"),
        ("a.csv", 'id,text\n1,"one" two\n', r"a\.csv, line 2: not valid CSV"),
        ("a.csv", "id,text\n1\tone\n", r"a\.csv, line 2: 1 column.* name the file \.tsv"),
        ("a.jsonl", '{"text": "one"}\n{"text": 2}\n', r"a\.jsonl, line 2: 'text' holds 2; expected a string"),
        ("a.jsonl", '{"text": "one"}\n{"text": null}\n', r"a\.jsonl, line 2: 'text' holds null"),
        ("a.jsonl", '{"text": "one"}\n{"id": 2}\n', r"a\.jsonl, line 2: no column named 'text'. Found: 'id'"),
        ("a.jsonl", '{"text": "one"}\n["two"]\n', r"a\.jsonl, line 2: expected a JSON object, got list"),
        ("a.jsonl", '{"text": "one"}\n\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", '{"text": "one"}\n' + "[" * 100_000, r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", '{"text": "one"}\n{"text": "\\ud800"}\n', r"a\.jsonl, line 2: .*lone surrogate"),
        ("a.parquet", "PAR1 this is no parquet", r"a\.parquet: not a parquet file"),
        ("a.parquet.gz", "", r"a\.parquet\.gz: .*unpack"),
        ("a.gz", "not gzip", r"a\.gz cannot be read: Not a gzipped file"),
        ("a.txt", "one\n", r"a\.txt is read as plain text.* no column 'text'"),
    ],
)
def test_a_bad_row_or_file_is_named(tmp_path, name, data, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if name == "a.parquet.gz":
        data = gzip.compress(b"PAR1")
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(InputError, match=message):
        list(read_sentences(tmp_path / name, "text" if name != "a.gz" else None))


def test_escaped_surrogate_pairs_are_one_character(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud83d\\ude42"}\n')
    assert list(read_sentences(tmp_path / "a.jsonl", "text")) == ["🙂"]


def test_parquet_rows_that_are_not_text_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    dirty = pa.array([b"one", b"t\xffo"]).view(pa.string())
    pq.write_table(
        pa.table({"null": ["one", None], "number": [1, 2], "dirty": dirty}), tmp_path / "a.parquet"
    )
    for column, message in [
        ("null", r"a\.parquet, row 2: 'null' is null"),
        ("number", r"a\.parquet: column 'number' holds int64; expected strings"),
        ("dirty", r"a\.parquet, row 2: byte 0xff at byte offset 1"),
    ]:
        with pytest.raises(InputError, match=message):
            list(read_sentences(tmp_path / "a.parquet", column))


def test_every_arrow_string_type_is_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    plain = pa.array(["one", "", "one"])
    kinds = {"a.b": plain, "large": plain.cast(pa.large_string()), "codes": plain.dictionary_encode()}
    pq.write_table(pa.table(kinds), tmp_path / "a.parquet")
    for column in kinds:
        assert list(read_sentences(tmp_path / "a.parquet", column)) == ["one", "", "one"]


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"a\.parquet.*pip install 'jaxvec\[parquet\]'"):
        read_sentences(tmp_path / "a.parquet", "text")


@pytest.mark.parametrize("kind", ["txt", "tsv", "csv", "jsonl"])
def test_bytes_that_are_not_utf8_are_located_or_replaced(tmp_path, kind):
    path = write(tmp_path / f"corpus.{kind}", ["one", "t@o", "th@@ee"])
    data = path.read_bytes().replace(b"@", b"\xe9")
    path.write_bytes(b"\xef\xbb\xbf" + data)
    line = data[: data.index(b"\xe9")].count(b"\n") + 1
    message = rf"{path.name}, line {line}: byte 0xe9 at byte offset {3 + data.index(bytes([0xE9]))} .*--errors replace"
    with pytest.raises(InputError, match=message):
        list(read_sentences(path, column_of(path)))
    with pytest.warns(UserWarning, match=rf"{path.name}: 2 line\(s\)") as caught:
        assert list(read_sentences(path, column_of(path), errors="replace")) == ["one", "t�o", "th��ee"]
    assert len(caught) == 1


def test_replace_is_silent_where_nothing_was_replaced(tmp_path):
    path = write(tmp_path / "corpus.txt", ["é", "�"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(read_sentences(path, errors="replace")) == ["é", "�"]


def test_utf16_is_recognised(tmp_path):
    (tmp_path / "corpus.txt").write_bytes("one\n".encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        read_sentences(tmp_path / "corpus.txt")


def test_wrong_paths_and_arguments_are_refused_by_the_call_itself(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"nowhere\.txt: no such file"):
        read_sentences(tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="is a folder"):
        read_sentences(tmp_path)
    with pytest.raises(InputError, match=r"errors='ignore'.*'strict' or 'replace'"):
        read_sentences(tmp_path / "nowhere.txt", errors="ignore")

    def refuse(path, gzipped):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(textfiles, "open_bytes", refuse)
    with pytest.raises(InputError, match=r"secret\.txt cannot be read: Permission denied"):
        read_sentences(tmp_path / "secret.txt")


LONG = ["A sentence that is as long as sentences are wont to be, more or less. " * 5] * 8000


@pytest.mark.parametrize("kind", ["txt", "tsv", "csv", "jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    path = write(tmp_path / f"corpus.{kind}", LONG)
    stream = read_sentences(path, column_of(path))
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream) == len(LONG)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300_000 < path.stat().st_size / 9


def test_parquet_is_read_in_batches(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    distinct = [f"{i} {s}" for i, s in enumerate(LONG * 5)]
    pq.write_table(pa.table({"text": distinct}), tmp_path / "a.parquet", row_group_size=500)
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() for _ in read_sentences(tmp_path / "a.parquet", "text")) - before
    assert 0 < peak < 3_000_000 < sum(map(len, distinct)) / 4


@pytest.mark.parametrize("packing", ["bz2", "lzma", "gzip"])
def test_a_packed_file_is_called_one(tmp_path, packing):
    path = tmp_path / "corpus.txt"
    path.write_bytes(importlib.import_module(packing).compress(b"it rains\n" * 9))
    for errors in ("strict", "replace"):
        with pytest.raises(InputError, match="is not text but"):
            list(read_sentences(path, errors=errors))
