"""Ragged token ids → fixed-shape rows of several sentences, and the way back to the input's order."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxvec.errors import InputError
from jaxvec.tokens import TokenIds

_LONGEST_SHORT_ROW = 64
_FEWEST_SLOTS = 8
_WORTH_A_LENGTH = (
    100_000  # tokens from which on a row length of their own saves more than its compilation costs
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedBatch:
    """Rows of tokens in which several sentences share a row.

    Nothing refers across rows, so rows may be split over devices freely. A sentence's tokens are contiguous.

    Attributes:
        token_ids: int32 [rows, length].
        sentence_ids: int32 [rows, length]; 1 … slots number the sentences of a row, 0 is padding.
        positions: int32 [rows, length]; a token's place within its sentence, from 0.
        token_type_ids: int32 [rows, length].
        slots: sentences that a row can hold (static).
    """

    token_ids: Any
    sentence_ids: Any
    positions: Any
    token_type_ids: Any
    slots: int = field(metadata={"static": True})

    @classmethod
    def dense(
        cls,
        token_ids: Int[Array | np.ndarray, "rows length"],
        attention_mask: Int[Array | np.ndarray, "rows length"] | Bool[Array | np.ndarray, "rows length"],
        token_type_ids: Int[Array | np.ndarray, "rows length"] | None = None,
    ) -> "PackedBatch":
        """One sentence a row, padded on either side: what a Hugging Face tokenizer returns. Traceable.

        Args:
            token_ids: int [rows, length].
            attention_mask: [rows, length]; tokens are where it is positive, and may have gaps between them.
            token_type_ids: int [rows, length]; 0 everywhere if left out.

        Raises:
            InputError: the shapes differ.

        >>> PackedBatch.dense(np.array([[101, 7592, 102, 0]]), np.array([[1, 1, 1, 0]])).sentence_ids
        array([[1, 1, 1, 0]], dtype=int32)
        """
        if not all(hasattr(array, "shape") for array in (token_ids, attention_mask)):
            raise InputError(
                "token_ids and attention_mask are not arrays; expected int arrays [rows, length]"
            )
        given = [token_ids, attention_mask] + ([] if token_type_ids is None else [token_type_ids])
        if len(shapes := {array.shape for array in given}) > 1 or len(token_ids.shape) != 2:
            raise InputError(
                f"token_ids, attention_mask and token_type_ids have shapes {sorted(shapes)}; expected one [rows, length]"
            )
        for ids in (token_ids, token_type_ids):
            if isinstance(ids, np.ndarray) and not _fits_int32(ids):
                raise InputError(
                    f"ids are {ids.dtype} {ids.min()} to {ids.max()}; expected integers within int32"
                )
        xp = np if isinstance(token_ids, np.ndarray) and isinstance(attention_mask, np.ndarray) else jnp
        real = (attention_mask > 0).astype(np.int32)
        positions = xp.maximum(xp.cumsum(real, axis=1, dtype=np.int32) - 1, 0)
        types = xp.zeros_like(real) if token_type_ids is None else token_type_ids.astype(np.int32)
        return cls(token_ids.astype(np.int32), real, positions, types, slots=1)


@dataclass(frozen=True)
class Packing:
    """Batches of one chunk of sentences.

    Attributes:
        batches: `PackedBatch`es of NumPy arrays, longest rows first.
        indices: for each batch int64 [rows · slots]: which sentence the vector is of, −1 for an empty slot.
        tokens: real tokens; `computed` is what the batches hold, padding included.
    """

    batches: list[PackedBatch]
    indices: list[np.ndarray]
    tokens: int
    computed: int


def _fits_int32(ids: np.ndarray) -> bool:
    limits = np.iinfo(np.int32)
    if not np.issubdtype(ids.dtype, np.integer):
        return False
    return not ids.size or bool(limits.min <= ids.min() and ids.max() <= limits.max)


def pack(ids: TokenIds, batch_tokens: int = 2048, row_multiple: int = 1) -> Packing:
    """Packs sentences into rows by best-fit decreasing, and rows into batches of few distinct shapes.

    A sentence opens a row of the shortest length in the ladder that holds it; before that it is tried in the
    tightest gap of any open row, so that the tails of long rows fill with short sentences. Shapes depend on the
    lengths given here alone.

    Args:
        ids: the tokenised sentences.
        batch_tokens: tokens of a batch, at most (a row longer than this still makes a batch of its own).
        row_multiple: every batch has a multiple of this many rows (the number of devices).

    >>> packing = pack(TokenIds.of([[1] * 3, [2] * 20, [3] * 9]))
    >>> packing.batches[0].token_ids.shape, packing.indices[0]
    ((1, 64), array([ 1,  2,  0, -1, -1, -1, -1, -1]))
    """
    lengths = ids.lengths
    if not len(lengths):
        return Packing([], [], 0, 0)
    if lengths.min() < 1:
        raise InputError(f"sentence {int(lengths.argmin())} has no tokens; every sentence needs at least one")
    ladder = choose_ladder(lengths)
    row_length, row, start, slot = best_fit(lengths, ladder)
    capacity = row_slots(lengths, ladder)
    batches, indices = [], []
    for length in sorted(set(row_length.tolist()), reverse=True):
        members = np.flatnonzero(row_length == length)
        rows = int(row[members].max()) + 1
        heights = _batch_heights(rows, length, batch_tokens, row_multiple)
        slots = capacity[length]
        filled = _fill_rows(ids, members, row, start, slot, (sum(heights), length), slots)
        for end, height in zip(accumulate(heights), heights, strict=True):
            part = slice(end - height, end)
            batches.append(PackedBatch(*(array[part] for array in filled[:4]), slots=slots))
            indices.append(filled[4][part].reshape(-1))
    computed = sum(batch.token_ids.size for batch in batches)
    return Packing(batches, indices, int(lengths.sum()), computed)


def best_fit(
    lengths: np.ndarray, ladder: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places every sentence: its row's length, the row's number among those, its first column and its slot.

    Best-fit decreasing over rows of several lengths, each closed when its slots are taken; ties keep the input's
    order. Open rows are kept by the space left in them, and a bit set over those spaces finds the tightest in constant
    time.
    """
    capacity = row_slots(lengths, ladder)
    row_length, row, start, slot = np.empty((4, len(lengths)), np.int64)
    open_rows: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    spaces, rows_of = 0, dict.fromkeys(ladder, 0)
    order = np.argsort(-lengths, kind="stable")
    for sentence, size in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            length, number, used = open_rows[space].pop()
            if not open_rows[space]:
                spaces ^= 1 << space
        else:
            length = next(rung for rung in ladder if rung >= size)
            space, number, used = length, rows_of[length], 0
            rows_of[length] += 1
        row_length[sentence], row[sentence] = length, number
        start[sentence], slot[sentence] = length - space, used
        if (left := space - size) and used + 1 < capacity[length]:
            open_rows[left].append((length, number, used + 1))
            spaces |= 1 << left
    return row_length, row, start, slot


def row_slots(lengths: np.ndarray, ladder: Sequence[int]) -> dict[int, int]:
    """How many sentences a row of each length can hold: as many as fit of the shortest fifth, or some more.

    Few distinct numbers, so that the chunks of a corpus agree on them. The shortest sentences come last and fill rows of
    the shortest kind; the others hold one per 8 tokens at most.

    >>> row_slots(np.array([30, 100, 500] * 9), [64, 512]), row_slots(np.array([7] * 99), [64])
    ({64: 8, 512: 64}, {64: 16})
    """
    shortest = np.partition(lengths, fifth := len(lengths) // 5)[: fifth + 1].mean()
    slots = {}
    for length in ladder:
        wanted = min(len(lengths), length / shortest)
        choices = (min(_FEWEST_SLOTS, length // 8), length // 8, length // 4, length // 2)
        slots[length] = next((most for most in choices if most >= wanted), length)
        if length > min(ladder):
            slots[length] = min(slots[length], length // 8)
    return slots


def choose_ladder(lengths: np.ndarray) -> tuple[int, ...]:
    """At most two row lengths that suit the sentences: the cheapest choice for an even sample of them.

    They are powers of two, so that chunks of a corpus, and calls, agree on them; only a large chunk whose
    sentences mostly cannot share a row gets lengths of its own. The cost of a row is its tokens, with attention's
    share growing with its length; a further length costs a compiled program and a half-empty last batch.
    """
    longest, median = int(lengths.max()), int(np.median(lengths))
    top = max(_LONGEST_SHORT_ROW, 1 << (longest - 1).bit_length())
    tops, rungs = {top}, {_LONGEST_SHORT_ROW << power for power in range(top.bit_length())}
    if lengths.sum() >= _WORTH_A_LENGTH and 2 * median > longest:
        own = {-(-size // 16) * 16 for size in (median, longest)}
        tops, rungs = tops | {max(own)}, rungs | own
    sample = np.sort(lengths)[:: max(1, len(lengths) // 512)]
    ladders = [
        (*below, top) for top in sorted(tops) for below in [(), *((r,) for r in sorted(rungs) if r < top)]
    ]

    def cost(ladder: tuple[int, ...]) -> float:
        row_length, row, _, _ = best_fit(sample, ladder)
        firsts = {(length, number) for length, number in zip(row_length.tolist(), row.tolist(), strict=True)}
        return sum(length * (1 + length / 1024) for length, _ in firsts) * (1 + 0.01 * len(ladder))

    return min(ladders, key=cost)


def _batch_heights(rows: int, length: int, batch_tokens: int, multiple: int) -> list[int]:
    """Rows of every batch: as many full ones as there are, then quarters for the rest; two shapes a row length.

    So few rows that a quarter holds them take one of few smaller heights, weighing padding against calls.
    """
    full, quarter, small = _heights(length, batch_tokens, multiple)
    if rows <= quarter:
        per_call = batch_tokens // 8
        height = min(small, key=lambda height: -(-rows // height) * (height * length + per_call))
        return [height] * -(-rows // height)
    fulls, rest = divmod(rows, full)
    quarters = -(-rest // quarter)
    if quarters * quarter == full:
        fulls, quarters = fulls + 1, 0
    return [full] * fulls + [quarter] * quarters


def _heights(length: int, batch_tokens: int, multiple: int) -> tuple[int, int, list[int]]:
    full = multiple << max(0, int(math.log2(max(1, batch_tokens // (length * multiple)))))
    quarter = max(full // 4, multiple)
    return full, quarter, sorted({max(quarter >> power, multiple) for power in (0, 2, 4, 16)})


def common_shapes(longest: int, batch_tokens: int, row_multiple: int = 1) -> list[tuple[int, int, int]]:
    """(rows, length, slots) of the batches that most corpora and calls give, for sentences up to `longest` tokens.

    >>> common_shapes(100, batch_tokens=256)
    [(1, 64, 8), (4, 64, 8), (1, 64, 16), (4, 64, 16), (1, 128, 8), (2, 128, 8), (1, 128, 16), (2, 128, 16)]
    """
    top = max(_LONGEST_SHORT_ROW, 1 << (longest - 1).bit_length())
    lengths = [_LONGEST_SHORT_ROW << power for power in range((top // _LONGEST_SHORT_ROW).bit_length())]
    shapes = []
    for length in lengths:
        full, _, small = _heights(length, batch_tokens, row_multiple)
        # Very short sentences fill short rows.
        slots = {_FEWEST_SLOTS, length // (4 if length == _LONGEST_SHORT_ROW else 8)}
        shapes += [(rows, length, most) for most in sorted(slots) for rows in sorted({full, *small})]
    return shapes


def _fill_rows(
    ids: TokenIds,
    members: np.ndarray,
    row: np.ndarray,
    start: np.ndarray,
    slot: np.ndarray,
    shape: tuple[int, int],
    slots: int,
) -> tuple[np.ndarray, ...]:
    lengths = ids.lengths[members]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    target = np.repeat(row[members] * shape[1] + start[members], lengths) + within
    token_ids, sentence_ids, positions, token_types = (np.zeros(shape, np.int32) for _ in range(4))
    token_ids.reshape(-1)[target] = ids.values[np.repeat(ids.offsets[members], lengths) + within]
    sentence_ids.reshape(-1)[target] = np.repeat(slot[members] + 1, lengths)
    positions.reshape(-1)[target] = within
    index = np.full((shape[0], slots), -1, np.int64)
    index[row[members], slot[members]] = members
    return token_ids, sentence_ids, positions, token_types, index
