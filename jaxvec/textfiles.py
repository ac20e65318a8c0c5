"""Sentences out of text files, streamed: the first step of the road, before the tokenizer."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import warnings
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from jaxvec.errors import InputError

_PACKED = {
    b"\x1f\x8b": "gzip data; name it .gz, or unpack it first",
    b"BZh": "bzip2 data; unpack it first",
    b"\xfd7zXZ": "xz data; unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it first",
    b"PK\x03\x04": "a zip file; unpack it first",
}
TABLES = (".tsv", ".csv", ".jsonl", ".parquet")


def read_sentences(path: str | Path, column: str | None = None, errors: str = "strict") -> Iterator[str]:
    r"""Sentences of a file, one after another, in constant memory.

    A plain text file holds one sentence a line. Lines end at `\n` or `\r\n` and nowhere else; empty lines
    are sentences too, so sentence i is always line i. A UTF-8 byte order mark at the start is dropped.
    Files named .tsv (quotes are literal), .csv (RFC 4180), .jsonl (one object a line) and .parquet are
    tables and need `column`. Every format but .parquet may be gzipped, as in `corpus.tsv.gz`.

    Args:
        path: a file, or "-" for standard input, which is read as plain text.
        column: name of the column, or key of the .jsonl objects, that holds the sentences. A number such as
            "2" means that column, counted from 1, of a .tsv or .csv file without a header line.
        errors: "strict" refuses bytes that are not UTF-8; "replace" reads them as U+FFFD and, at the end of
            the file, warns once with the number of lines concerned.

    Returns:
        An iterator. What is wrong with the file itself or with its first sentence is raised by the call,
        what is wrong further down when the iterator gets there.

    Raises:
        InputError: the file cannot be read, has no such column, or holds a row that is not text; the message
            names the file and the line (for .parquet the row), both counted from 1.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "corpus.tsv").write_text("id\ttext\n7\tA dog barks.\n8\tIt rains.\n")
        >>> list(read_sentences(folder / "corpus.tsv", column="text"))
        ['A dog barks.', 'It rains.']
    """
    if errors not in ("strict", "replace"):
        raise InputError(f"errors={errors!r}: expected 'strict' or 'replace'")
    stream = _read(str(path), column, errors)
    # Pulling the first sentence here reports a wrong path or column before a model is loaded.
    return chain(list(islice(stream, 1)), stream)


def import_pyarrow(path: str) -> Any:
    """The pyarrow module with its parquet part, which is an optional dependency."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{path}: .parquet needs pyarrow; pip install 'jaxvec[parquet]'") from error
    return pyarrow


@dataclass
class Decoder:
    """UTF-8 decoding that says where it failed, or counts what it replaced."""

    name: str
    errors: str
    unit: str
    replaced: int = 0

    def __call__(self, data: bytes, number: int, offset: int = 0) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            if number == 1 and (packed := [how for magic, how in _PACKED.items() if data.startswith(magic)]):
                raise InputError(f"{self.name} is not text but {packed[0]}") from None
            if self.errors == "replace":
                self.replaced += 1
                return data.decode(errors="replace")
            utf16 = number == 1 and data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
            raise InputError(
                f"{self.name}, {self.unit} {number}: byte 0x{data[error.start]:02x} at byte offset "
                f"{offset + error.start} is not UTF-8{' (the file is UTF-16)' if utf16 else ''}; convert the "
                f"file to UTF-8, or read such bytes as U+FFFD with --errors replace (errors='replace')"
            ) from error


def _read(path: str, column: str | None, errors: str) -> Iterator[str]:
    name = "standard input" if path == "-" else path
    gzipped = path.lower().endswith(".gz")
    suffix = Path(path[:-3] if gzipped else path).suffix.lower()
    decode = Decoder(name, errors, unit="row" if suffix == ".parquet" else "line")
    if column is not None and suffix not in TABLES:
        raise InputError(
            f"{name} is read as plain text, one sentence a line, and has no column {column!r}: "
            f"leave --column out, or give a file named {', '.join(TABLES)}"
        )
    try:
        with open_bytes(path, gzipped) as file:
            if suffix == ".parquet":
                yield from _parquet(file, column, decode, gzipped)
            elif suffix == ".jsonl":
                yield from _jsonl(decoded_lines(file, decode), column, name)
            elif suffix in TABLES:
                rows = tsv_rows if suffix == ".tsv" else csv_rows
                yield from _cells(rows(decoded_lines(file, decode), name), column, name)
            else:
                yield from map(without_line_end, decoded_lines(file, decode))
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{name} is a folder; expected a file of sentences") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if decode.replaced:
        warnings.warn(
            f"{name}: {decode.replaced} {decode.unit}(s) held bytes that are not UTF-8, read as U+FFFD",
            stacklevel=2,
        )


def open_bytes(path: str, gzipped: bool) -> Any:
    """The file's bytes, unpacked, as a context manager; "-" is standard input."""
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed; give a file, or pipe text into the command")
        return nullcontext(sys.stdin.buffer)
    return gzip.open(path, "rb") if gzipped else open(path, "rb")


def decoded_lines(file: Any, decode: Decoder) -> Iterator[str]:
    """Lines with their ends. A binary file breaks at newline only; str.splitlines knows ten more ends."""
    offset = 0
    for number, line in enumerate(file, start=1):
        if number == 1 and line.startswith(BOM_UTF8):
            line, offset = line[3:], 3
            if not line:
                return
        yield decode(line, number, offset)
        offset += len(line)


def without_line_end(line: str) -> str:
    return line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def tsv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with their line; quotes are literal."""
    for number, line in enumerate(lines, start=1):
        yield number, without_line_end(line).split("\t")


def csv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line each begins on. Strict: an unclosed quote would swallow the rest of the file."""
    csv.field_size_limit(2**31 - 1)  # the default, 131,072 characters, is less than some documents hold
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{name}, line {number}: not valid CSV (RFC 4180): {error}") from error
        if row is None:
            return
        yield number, row or [""]  # csv gives [] for an empty line, which is one empty field


def _cells(rows: Iterator[tuple[int, list[str]]], column: str | None, name: str) -> Iterator[str]:
    if column is not None and column.isdecimal():
        at = int(column) - 1
        if at < 0:
            raise InputError(f"{name}: column {column!r}: columns count from 1")
    else:
        _, header = next(rows, (1, None))
        if header is None:
            raise InputError(f"{name} is empty; expected a header line that names the columns")
        at = column_position(header, column, name, " (or its number, if there is no header line)")
    for number, row in rows:
        if len(row) <= at:
            tabs = "; its fields are split by tabs: name the file .tsv" if "\t" in row[0] else ""
            raise InputError(
                f"{name}, line {number}: {len(row)} column(s), so no column {column!r}, which is number {at + 1}{tabs}"
            )
        yield row[at]


def column_position(names: list[str], column: str | None, where: str, hint: str = "") -> int:
    """Where a column stands among `names`; one that is not there, or twice, is refused with what was found."""
    found = ", ".join(map(repr, names))
    if column is None:
        raise InputError(f"{where}: say with --column which column holds the sentences{hint}. Found: {found}")
    if names.count(column) != 1:
        problem = "several columns" if column in names else "no column"
        raise InputError(f"{where}: {problem} named {column!r}. Found: {found}")
    return names.index(column)


def _jsonl(lines: Iterator[str], column: str | None, name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected a JSON object, got {type(row).__name__}")
        if column is None or column not in row:
            column_position(list(row), column, where)
        text = row[column]
        if not isinstance(text, str):
            raise InputError(f"{where}: {column!r} holds {json.dumps(text)[:80]}; expected a string")
        refuse_surrogate(text, line, f"{where}: {column!r}")
        yield text


def refuse_surrogate(text: str, line: str, where: str) -> None:
    """Raises an InputError where a text of a JSON line holds half of a character, which no encoder takes."""
    if "\\u" in line and any("\ud800" <= c <= "\udfff" for c in text):
        raise InputError(f"{where} holds a lone surrogate (half of a \\ud83d\\ude00), not text")


def _parquet(file: Any, column: str | None, decode: Decoder, gzipped: bool) -> Iterator[str]:
    if gzipped:
        raise InputError(f"{decode.name}: parquet is compressed inside; unpack the .gz first")
    pa = import_pyarrow(decode.name)
    try:
        table = pa.parquet.ParquetFile(file)
        at = column_position(table.schema_arrow.names, column, decode.name)
        kind = table.schema_arrow.field(at).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (
            pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
        ):
            raise InputError(f"{decode.name}: column {column!r} holds {kind}; expected strings")
        number = 0
        for batch in table.iter_batches(batch_size=4096, columns=[column]):
            for data in batch.column(0).cast(value).cast(pa.large_binary()).to_pylist():
                number += 1
                if data is None:
                    raise InputError(f"{decode.name}, row {number}: {column!r} is null; expected a string")
                yield decode(data, number)
    except pa.ArrowException as error:
        raise InputError(f"{decode.name}: not a parquet file that can be read: {error}") from error
