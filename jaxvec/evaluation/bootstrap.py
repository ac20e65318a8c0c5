"""Paired bootstrap: what a figure, or the difference of two, would be on other samples of the same pairs."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Int, Real

from jaxvec.errors import InputError

_AT_ONCE = 1 << 19  # pairs × resamples at a time: what stays in cache
_BLOCK = 32
_WITHIN = (np.tril(np.ones((_BLOCK, _BLOCK))) - np.eye(_BLOCK) / 2).astype(np.float32)


def resample_spearman(
    similarities: Real[Array | np.ndarray, "cells n"],
    scores: Real[Array | np.ndarray, " n"],
    sizes: Sequence[int] | Int[np.ndarray, " s"] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Float[np.ndarray, "cells b"]]:
    """Spearman of every cell on the same resamples of the pairs, so that cells may be subtracted; AUC of 0/1 scores.

    A resample is a vector of multinomial weights, drawn within each subset. Pairs are sorted once: the rank
    of a pair in a resample is a running sum of weights in that order. Exact, ties included.

    Args:
        similarities: one row for each method, over the same n pairs.
        scores: [n], the gold scores.
        sizes: pairs of each subset, one after another; None is one subset.
        resamples: how many.
        seed: equal seeds give equal resamples, whatever the cells.

    Returns:
        "all", "mean" and "wmean", as in `metrics.aggregate`, and, where the scores are 0 and 1, "auc" over every
        pair; each float64 [cells, resamples], NaN where a resample leaves it undefined.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> gold = rng.normal(size=200)
        >>> methods = np.stack([gold + rng.normal(size=200), gold + 2 * rng.normal(size=200)])
        >>> samples = resample_spearman(methods, gold, resamples=1000)["all"]
        >>> low, high = interval(samples[0] - samples[1])  # of the difference
        >>> bool(0 < low < high)
        True

    References: B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 13 and 16.
    """
    x, y = np.asarray(similarities, np.float64), np.asarray(scores, np.float64)
    sizes = [len(y)] if sizes is None else [int(size) for size in sizes]
    if x.shape[1] != len(y) or sum(sizes) != len(y):
        raise InputError(
            f"similarities are {list(x.shape)}, scores {len(y)}, subsets hold {sum(sizes)} pairs; expected equal numbers"
        )
    if resamples < 1:
        raise InputError(f"resamples is {resamples}; expected 1 or more")
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    whole = _Pairs(x, y)
    each = [_Pairs(x[:, part], y[part]) for part in parts] if len(parts) > 1 else []
    chunk = min(resamples, max(1, _AT_ONCE // max(len(y), 1)))
    streams = np.random.default_rng(seed).spawn(-(-resamples // chunk))
    found: dict[str, list[np.ndarray]] = {"all": [], "mean": [], "wmean": [], "auc": []}
    for number, stream in enumerate(streams):
        count = min(chunk, resamples - number * chunk)
        weights = np.concatenate([_weights(stream, size, count) for size in sizes if size])
        spearman, auc = whole.measured(weights)
        found["all"].append(spearman)
        found["auc"].append(auc)
        if each:
            subsets = np.stack(
                [pairs.measured(weights[part])[0] for pairs, part in zip(each, parts, strict=True)]
            )
            found["mean"].append(subsets.mean(0))
            found["wmean"].append(np.tensordot(sizes, subsets, 1) / sum(sizes))
    if not each:
        found["mean"] = found["wmean"] = found["all"]
    if set(np.unique(y)) != {0, 1}:
        del found["auc"]
    return {name: np.concatenate(samples, axis=1) for name, samples in found.items()}


def interval(samples: Float[np.ndarray, " b"], level: float = 0.95) -> tuple[float, float]:
    """The percentile interval that holds `level` of the samples; NaN where every one is undefined.

    >>> interval(np.arange(201.0), level=0.5)
    (50.0, 150.0)
    """
    defined = samples[np.isfinite(samples)]
    if not defined.size:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class _Pairs:
    """One set of pairs, sorted by every cell once."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        self.gold = np.unique(y, return_inverse=True)[1]
        self.order_of_gold = np.argsort(self.gold, kind="stable")
        self.gold_starts = np.flatnonzero(np.diff(self.gold[self.order_of_gold], prepend=-1))
        self.cells = [_Order(row) if np.isfinite(row).all() else None for row in x]

    def measured(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Spearman, AUC), each float64 [cells, resamples], of weights float32 [n, resamples].

        AUC is for 0/1 scores. Its U over the n₁ ones and n₀ zeros of the resample is the sum of the ones' ranks, and
        with two values of gold the joint spread is n/2 of that sum, its own spread n·n₁·n₀/4: U/(n₁·n₀) = ½ + joint
        spread / (2 · gold's). Nothing is left of it where one of the labels was not drawn.
        """
        result, auc = np.full((2, len(self.cells), weights.shape[1]), np.nan)
        if not len(weights):
            return result, auc
        half = weights.sum(0) / 2
        runs = np.add.reduceat(weights[self.order_of_gold], self.gold_starts, 0)
        ranked = np.cumsum(runs, 0) - runs / 2 - half  # average ranks, less their mean
        pull = weights * ranked[self.gold]
        cubes = np.einsum("nb,nb,nb->b", weights, weights, weights, dtype=np.float64)
        gold_spread = _spread(half, (runs.astype(np.float64) ** 3).sum(0))
        for number, cell in enumerate(self.cells):
            if cell is not None:
                joint, cubes_of_runs = cell.joint(weights, pull, half, cubes)
                scale = np.sqrt(gold_spread * _spread(half, cubes_of_runs))
                np.divide(joint, scale, out=result[number], where=scale > 0)
                np.divide(joint, 2 * gold_spread, out=auc[number], where=gold_spread > 0)
        return result, np.clip(
            0.5 + auc, 0, 1
        )  # the sums' rounding would leave it where ones and zeros are apart


class _Order:
    """The order of one cell's pairs, and those among them whose values are equal."""

    def __init__(self, values: np.ndarray):
        order = np.argsort(values, kind="stable")
        first = np.diff(values[order], prepend=np.nan) != 0
        alone = first & np.append(first[1:], True)
        self.tied = order[~alone]
        self.starts = np.flatnonzero(first[~alone])
        self.order, self.left_over = np.split(order, [len(order) // _BLOCK * _BLOCK])

    def joint(
        self, weights: np.ndarray, pull: np.ndarray, half: np.ndarray, cubes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Σ pull · rank, and Σ t³ over the runs of t equal values in the resample, each [b].

        A rank is the weight before it in the order, and half its own; `pull` sums to 0, so that any constant
        drops out of it. Running sums within a block are one small product, which is faster than adding up.
        """
        shape = (-1, _BLOCK, weights.shape[1])
        w, v = weights[self.order].reshape(shape), pull[self.order].reshape(shape)
        joint = np.einsum("kib,kib->b", _WITHIN @ w, v).astype(np.float64)
        blocks = w.sum(1)
        before = np.cumsum(blocks, 0) - blocks - half
        joint += np.einsum("kb,kb->b", before, v.sum(1), dtype=np.float64)
        w = weights[self.left_over]
        ranked = np.cumsum(w, 0) - w / 2 + blocks.sum(0) - half
        joint += (ranked * pull[self.left_over]).sum(0, dtype=np.float64)
        if not len(self.tied):
            return joint, cubes
        # Equal values share their average rank: what they lack to it after having been ranked in some order.
        w, v = weights[self.tied], pull[self.tied]
        runs = np.add.reduceat(w, self.starts, 0)
        average = np.repeat(np.cumsum(runs, 0) - runs / 2, np.diff(self.starts, append=len(w)), axis=0)
        joint += ((average - (np.cumsum(w, 0) - w / 2)) * v).sum(0, dtype=np.float64)
        return joint, cubes + (runs**3).sum(0, dtype=np.float64) - (w**3).sum(0, dtype=np.float64)


def _weights(stream: np.random.Generator, size: int, count: int) -> np.ndarray:
    """How often each of `size` pairs occurs in each of `count` draws of as many pairs: float32 [size, count]."""
    drawn = stream.integers(0, size, (size, count)) * count + np.arange(count)
    return np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float32)


def _spread(half: np.ndarray, cubes: np.ndarray) -> np.ndarray:
    """Σ (rank − mean)² over n = 2·half draws: (n³ − n)/12 − Σ (t³ − t)/12 over the runs of t equal values."""
    return ((2 * half.astype(np.float64)) ** 3 - cubes) / 12
