"""What a published table is: columns, rows of settings, and the figures that were published for them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ENGLISH = ("stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sickr")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: how its vectors are made, and what was published.

    Attributes:
        label: as the paper writes it.
        published: × 100, by column.
        model: Hugging Face id; None: published only, such as a method or a model that jaxvec does not have.
        pooling, layers, calibrate, fit: as for `jaxvec eval sts`.
        figure: "all", "mean", "wmean", "pearson", "auc"; None takes the table's.
        note: what differs from the published setting, or why nothing can be run.
    """

    label: str
    published: Mapping[str, float]
    model: str | None = None
    pooling: str = "mean"
    layers: str | int | tuple[int, ...] = "last"
    calibrate: str = "raw"
    fit: str = "target"
    figure: str | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One published table.

    Attributes:
        title, source: what it is and where it stands.
        columns: tasks, or, with `measure`, whatever it returns.
        rows: in the paper's order.
        figure: what of a score is compared.
        max_length: tokens, as in the published code.
        measure: for a table of other things than task scores: measure(setup, row) → figures × 100 by column.
        reads: for a table with `measure`: the texts that its figures depend on.
        in_place_of: task → the task that is run where its data is not there, said so in the table.
    """

    title: str
    source: str
    columns: Sequence[str]
    rows: Sequence[Row]
    figure: str = "wmean"
    max_length: int = 64
    measure: Callable[[Any, Row], Mapping[str, float]] | None = None
    reads: Callable[[Any], Iterable[str]] | None = None
    in_place_of: Mapping[str, str] = field(default_factory=dict)


def figures(columns: Sequence[str], text: str) -> dict[str, float]:
    """Figures of a row as a paper prints them, in the order of the columns; "-" is none.

    >>> figures(("stsb", "sickr"), "59.04 -")
    {'stsb': 59.04}
    """
    cells = text.replace("/", " ").replace("|", " ").split()
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} figures for {len(columns)} columns: {text}")
    return {column: float(cell) for column, cell in zip(columns, cells, strict=True) if cell != "-"}
