"""How far apart two sentences are as strings: what a similarity of meanings should not measure."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxvec.errors import InputError

_TOGETHER = 256  # pairs whose tables advance together


def edit_distance(
    first: Sequence[Sequence[Hashable]], second: Sequence[Sequence[Hashable]]
) -> Int[np.ndarray, " n"]:
    """Levenshtein distance of each entry of `first` to the same row of `second`, int64 [n].

    The least number of symbols to insert, delete or replace. A sentence given as `str` is compared by
    characters, as a list of words or token ids by those. All pairs of similar length go through the recursion
    together, a row of their tables at a time.

    Raises:
        InputError: lists of different lengths.

    Reference: V. Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals", 1966.

    Example:
        >>> edit_distance(["kitten", ""], ["sitting", "abc"]).tolist()
        [3, 3]
        >>> edit_distance(["a man plays".split()], ["a woman plays well".split()]).tolist()
        [2]
    """
    if len(first) != len(second):
        raise InputError(f"{len(first)} sentences cannot be compared with {len(second)}; expected pairs")
    numbers: dict[Hashable, int] = {}
    a, b = (
        [np.array([numbers.setdefault(symbol, len(numbers)) for symbol in row], np.int32) for row in rows]
        for rows in (first, second)
    )
    distances = np.empty(len(a), np.int64)
    lengths = np.array([max(len(x), len(y)) for x, y in zip(a, b, strict=True)], np.int64)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), _TOGETHER):
        chosen = order[start : start + _TOGETHER]
        distances[chosen] = _together([a[i] for i in chosen], [b[i] for i in chosen])
    return distances


def token_edit_distance(tokenizer: Any, first: Sequence[str], second: Sequence[str]) -> Int[np.ndarray, " n"]:
    """`edit_distance` in the tokens of a model: `tokenizer` is a `SentenceEncoder.tokenizer`."""

    def rows(sentences: Sequence[str]) -> list[list[int]]:
        ids = tokenizer(sentences)
        return [row.tolist() for row in np.split(ids.values, ids.offsets[1:-1])]

    return edit_distance(rows(first), rows(second))


def _together(a: list[np.ndarray], b: list[np.ndarray]) -> np.ndarray:
    long_a, long_b = max(map(len, a)), max(map(len, b))
    columns = np.arange(long_b + 1, dtype=np.int32)
    target = np.full((len(b), long_b), -1, np.int32)
    source = np.full((len(a), long_a), -2, np.int32)
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        source[row, : len(x)], target[row, : len(y)] = x, y
    ends_a, ends_b = np.array([len(x) for x in a]), np.array([len(y) for y in b])
    table = np.broadcast_to(columns, (len(a), long_b + 1)).copy()
    result = np.where(ends_a == 0, ends_b, -1)
    for i in range(long_a):
        replaced = table[:, :-1] + (target != source[:, i, None])
        best = np.minimum(table + 1, np.pad(replaced, ((0, 0), (1, 0)), constant_values=i + 1))
        # Insertions cost 1 a column: a running minimum along the row, tilted by the columns.
        table = (np.minimum.accumulate(best - columns, axis=1) + columns).astype(np.int32)
        done = ends_a == i + 1
        result[done] = table[done, ends_b[done]]
    return result
