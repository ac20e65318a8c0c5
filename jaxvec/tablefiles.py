"""Several columns of a table at once, streamed: sentence pairs and their scores."""

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxvec.errors import InputError
from jaxvec.textfiles import (
    TABLES,
    Decoder,
    column_position,
    csv_rows,
    decoded_lines,
    import_pyarrow,
    open_bytes,
    refuse_surrogate,
    tsv_rows,
)


def read_columns(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    r"""Yields (line, values) for each row of a .tsv, .csv, .jsonl (all may be gzipped) or .parquet file.

    Args:
        path: the file.
        columns: names, as for `textfiles.read_sentences`; numbers from 1 in a .tsv or .csv without header.

    Returns:
        The number of the line (of the row, for .parquet) from 1, and the values in the order of `columns`: text
        in .tsv and .csv, whatever is there in .jsonl and .parquet.

    Raises:
        InputError: the file cannot be read, lacks a column, or holds a malformed row, whose line is named.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
        >>> _ = file.write_text("id\tone\ttwo\n7\tA dog barks.\tIt is loud.\n")
        >>> list(read_columns(file, ["two", "one"]))
        [(2, ('It is loud.', 'A dog barks.'))]
    """
    name = str(path)
    gzipped = name.lower().endswith(".gz")
    suffix = Path(name[:-3] if gzipped else name).suffix.lower()
    if suffix not in TABLES:
        raise InputError(f"{name}: expected a table, named {', '.join(TABLES)}")
    try:
        if suffix == ".parquet":
            yield from _parquet(name, columns)
            return
        with open_bytes(name, gzipped) as file:
            lines = decoded_lines(file, Decoder(name, "strict", unit="line"))
            if suffix == ".jsonl":
                yield from _objects(lines, columns, name)
            else:
                yield from _cells((tsv_rows if suffix == ".tsv" else csv_rows)(lines, name), columns, name)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _cells(
    rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], name: str
) -> Iterator[tuple[int, tuple[str, ...]]]:
    if all(column.isdecimal() for column in columns):
        at = [int(column) - 1 for column in columns]
        if min(at) < 0:
            raise InputError(f"{name}: columns {', '.join(columns)}: columns count from 1")
    else:
        _, header = next(rows, (1, []))
        if not header:
            raise InputError(f"{name} is empty; expected a header line that names the columns")
        at = [column_position(header, column, name) for column in columns]
    for number, row in rows:
        if len(row) <= max(at):
            raise InputError(
                f"{name}, line {number}: {len(row)} column(s); expected {max(at) + 1} or more for "
                f"{', '.join(columns)}"
            )
        yield number, tuple(row[column] for column in at)


def _objects(
    lines: Iterator[str], columns: Sequence[str], name: str
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected a JSON object, got {type(row).__name__}")
        for column in columns:
            column_position(list(row), column, where)
            if isinstance(row[column], str):
                refuse_surrogate(row[column], line, f"{where}: {column!r}")
        yield number, tuple(row[column] for column in columns)


def _parquet(name: str, columns: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    pa = import_pyarrow(name)
    try:
        with open(name, "rb") as file:
            table = pa.parquet.ParquetFile(file)
            for column in columns:
                column_position(table.schema_arrow.names, column, name)
            number = 0
            for batch in table.iter_batches(batch_size=4096, columns=list(columns)):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    number += 1
                    yield number, values
    except pa.ArrowException as error:
        raise InputError(f"{name}: not a parquet file that can be read: {error}") from error
