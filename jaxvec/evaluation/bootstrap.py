"""Paired bootstrap: what a figure, or the difference of two, would be on other samples of the same pairs."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Int, Real

from jaxvec.errors import InputError

_AT_ONCE = 1 << 20  # weights in cache at a time: pairs × resamples


def resample_spearman(
    similarities: Real[Array | np.ndarray, "cells n"],
    scores: Real[Array | np.ndarray, " n"],
    sizes: Sequence[int] | Int[np.ndarray, " s"] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Float[np.ndarray, "cells b"]]:
    """Spearman of every cell on the same resamples of the pairs, so that cells may be subtracted.

    A resample is a vector of multinomial weights, drawn within each subset. Pairs are sorted once: the rank
    of a pair in a resample is a running sum of weights in that order. Exact, ties included.

    Args:
        similarities: one row for each method, over the same n pairs.
        scores: [n], the gold scores.
        sizes: pairs of each subset, one after another; None is one subset.
        resamples: how many.
        seed: equal seeds give equal resamples, whatever the cells.

    Returns:
        "all", "mean" and "wmean", as in `metrics.aggregate`, each float64 [cells, resamples]; NaN where a
        resample leaves it undefined.

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
    found: dict[str, list[np.ndarray]] = {"all": [], "mean": [], "wmean": []}
    for number, stream in enumerate(streams):
        count = min(chunk, resamples - number * chunk)
        weights = np.concatenate(
            [stream.multinomial(size, np.full(size, 1 / size), count).T for size in sizes if size]
        ).astype(np.float32)
        found["all"].append(whole.spearman(weights))
        if each:
            subsets = np.stack(
                [pairs.spearman(weights[part]) for pairs, part in zip(each, parts, strict=True)]
            )
            found["mean"].append(subsets.mean(0))
            found["wmean"].append(np.tensordot(sizes, subsets, 1) / sum(sizes))
    every = np.concatenate(found["all"], axis=1)
    if not each:
        return {"all": every, "mean": every, "wmean": every}
    return {name: np.concatenate(samples, axis=1) for name, samples in found.items()}


def auc_of_spearman(rho: Float[np.ndarray, "..."], share_of_ones: float) -> Float[np.ndarray, "..."]:
    """ROC-AUC from Spearman's ρ with 0/1 labels, where no two similarities are equal.

    Both are linear in the sum of the ranks of the ones: AUC = ½ + ρ / √(12 p (1 − p)), p the share of ones
    (with n² for n² − 1, which no interval can tell).
    """
    return 0.5 + rho / np.sqrt(12 * share_of_ones * (1 - share_of_ones))


def interval(samples: Float[np.ndarray, " b"], level: float = 0.95) -> tuple[float, float]:
    """The percentile interval that holds `level` of the samples; NaN where every one is undefined.

    >>> interval(np.arange(101.0), level=0.9)
    (5.0, 95.0)
    """
    defined = samples[np.isfinite(samples)]
    if not defined.size:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class _Pairs:
    """One set of pairs, sorted by every cell once."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        self.gold = _Order(y)
        self.cells = [_Order(row) if np.isfinite(row).all() else None for row in x]

    def spearman(self, weights: np.ndarray) -> np.ndarray:
        """float64 [cells, resamples] of weights float32 [n, resamples]."""
        total = weights.sum(0, dtype=np.float64)
        ranked, gold_spread = self.gold.ranks_and_spread(weights, total)
        pull = (weights * ranked).astype(np.float32)
        result = np.full((len(self.cells), weights.shape[1]), np.nan)
        for number, cell in enumerate(self.cells):
            if cell is not None:
                joint, spread = cell.joint_and_spread(weights, pull, total)
                scale = np.sqrt(gold_spread * spread)
                result[number] = np.where(scale > 0, joint / np.where(scale > 0, scale, 1), np.nan)
        return result


class _Order:
    """The order of one row of values and where runs of equal ones begin."""

    def __init__(self, values: np.ndarray):
        self.order = np.argsort(values, kind="stable")
        self.starts = np.flatnonzero(np.diff(values[self.order], prepend=np.nan) != 0)
        self.tied = len(self.starts) < len(values)
        self.group = (np.unique(values, return_inverse=True)[1]) if self.tied else np.argsort(self.order)

    def ranks_and_spread(self, weights: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Average ranks less their mean, [n, b] in the pairs' own order, and their sum of squares, [b]."""
        grouped = self._grouped(weights)
        ranked = np.cumsum(grouped, 0) - grouped / 2 - (total / 2).astype(np.float32)
        return ranked[self.group], _spread(grouped, total)

    def joint_and_spread(
        self, weights: np.ndarray, pull: np.ndarray, total: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Σ pull · rank, where `pull` sums to 0 so that the ranks' mean drops out, and the ranks' sum of squares."""
        grouped, pulled = self._grouped(weights), self._grouped(pull)
        running = np.cumsum(grouped, 0)
        running -= grouped / 2
        running -= (total / 2).astype(np.float32)
        return np.einsum("nb,nb->b", running, pulled, dtype=np.float64), _spread(grouped, total)

    def _grouped(self, values: np.ndarray) -> np.ndarray:
        values = values[self.order]
        return np.add.reduceat(values, self.starts, 0) if self.tied else values


def _spread(grouped: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Σ (rank − mean)² over the resample: (n³ − n)/12 − Σ (t³ − t)/12 over its runs of t equal values."""
    cubes = np.einsum("nb,nb,nb->b", grouped, grouped, grouped, dtype=np.float64)
    return (total**3 - cubes) / 12
