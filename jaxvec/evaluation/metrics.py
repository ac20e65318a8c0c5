"""How well similarities agree with people's scores, in float64 on the host; what is undefined is NaN, never 0."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Int, Real

from jaxvec.errors import InputError


def cosine(
    first: Float[Array | np.ndarray, "n d"], second: Float[Array | np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """Cosine of each row of `first` with the same row of `second`, float64 [n]; with a zero vector it is 0.

    >>> cosine(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [1.0, 0.0]]))
    array([0.6, 0. ])
    """
    a, b = (np.asarray(vectors, np.float64) for vectors in (first, second))
    # One root of the product: √(x·x) is exactly x, so that all pairs of equal vectors have the cosine 1, and tie.
    lengths = np.sqrt(np.einsum("nd,nd->n", a, a) * np.einsum("nd,nd->n", b, b))
    return np.einsum("nd,nd->n", a, b) / np.where(lengths > 0, lengths, 1.0)


def ranks(values: Real[Array | np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Ranks from 1, float64 [n]; equal values share the average of theirs.

    >>> ranks(np.array([0.3, 0.1, 0.3]))
    array([2.5, 1. , 2.5])
    """
    _, group, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]


def pearson(x: Real[Array | np.ndarray, " n"], y: Real[Array | np.ndarray, " m"]) -> float:
    """Pearson's r; NaN for fewer than 2 pairs, where either side is constant, or where a value is not finite.

    Raises:
        InputError: x and y are not equally long.

    >>> round(pearson(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0])), 12), pearson(np.ones(3), np.arange(3))
    (1.0, nan)
    """
    x, y = _paired(x, y)
    if len(x) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    # Divided by the largest deviation first: squares of tiny or huge values would leave float64's range.
    x, y = (v - v.mean() for v in (x, y))
    x, y = (v / np.abs(v).max() for v in (x, y))
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def spearman(x: Real[Array | np.ndarray, " n"], y: Real[Array | np.ndarray, " m"]) -> float:
    """Spearman's ρ: Pearson's r of the average ranks; NaN where that is undefined, as for `pearson`.

    >>> spearman(np.array([0.1, 0.4, 0.2]), np.array([1, 3, 2]))
    1.0
    """
    x, y = _paired(x, y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    return pearson(ranks(x), ranks(y))


def roc_auc(similarities: Real[Array | np.ndarray, " n"], labels: Real[Array | np.ndarray, " m"]) -> float:
    """Area under the ROC curve of 0/1 labels: the chance that a 1 is more similar than a 0, ties counting half.

    NaN where only one of the labels occurs.

    >>> roc_auc(np.array([0.9, 0.2, 0.4, 0.1]), np.array([1, 1, 0, 0]))
    0.75
    """
    similarities, positive = _labelled(similarities, labels)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros or not np.isfinite(similarities).all():
        return float("nan")
    return float((ranks(similarities)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def best_accuracy(
    similarities: Real[Array | np.ndarray, " n"], labels: Real[Array | np.ndarray, " m"]
) -> tuple[float, float]:
    """The highest accuracy any threshold gives on 0/1 labels, and that threshold: at or above it means 1.

    The threshold is chosen on the very pairs that are counted: an upper bound for one fixed beforehand.
    (NaN, NaN) without pairs.

    >>> best_accuracy(np.array([0.9, 0.2, 0.4, 0.1]), np.array([1, 1, 0, 0]))
    (0.75, 0.9)
    """
    similarities, positive = _labelled(similarities, labels)
    if not len(similarities) or not np.isfinite(similarities).all():
        return float("nan"), float("nan")
    order = np.argsort(-similarities, kind="stable")
    sorted_, hits = similarities[order], positive[order]
    correct = np.concatenate([[0], np.cumsum(hits)]) + (
        (~hits).sum() - np.concatenate([[0], np.cumsum(~hits)])
    )
    # Equal similarities fall on one side of a threshold together.
    cuts = np.concatenate([[True], sorted_[1:] != sorted_[:-1], [True]])
    best = int(np.argmax(np.where(cuts, correct, -1)))
    threshold = np.inf if best == 0 else sorted_[best - 1]
    return float(correct[best] / len(hits)), float(threshold)


def aggregate(
    similarities: Real[Array | np.ndarray, " n"],
    scores: Real[Array | np.ndarray, " m"],
    sizes: Sequence[int] | Int[np.ndarray, " s"],
) -> dict[str, float]:
    """Spearman over a task made of subsets, in the three ways found in the literature.

    Args:
        similarities: [n], the subsets one after another.
        scores: [n].
        sizes: pairs of each subset; they add up to n.

    Returns:
        "all": one ρ over every pair (SBERT, SimCSE); "mean": the plain mean of the subsets' ρ; "wmean": their
        mean weighted by size (BERT-flow, BERT-whitening). NaN where any ρ it needs is undefined.

    References: T. Gao, X. Yao, D. Chen, "SimCSE", EMNLP 2021, arXiv:2104.08821, Appendix B.

    >>> figures = aggregate(np.array([1, 2, 3, 1, 2]), np.array([1, 2, 3, 2, 1]), [3, 2])
    >>> {name: round(figure, 2) for name, figure in figures.items()}
    {'all': 0.56, 'mean': 0.0, 'wmean': 0.2}
    """
    x, y = _paired(similarities, scores)
    if sum(sizes) != len(x):
        raise InputError(f"the subsets hold {sum(sizes)} pairs together; expected {len(x)}")
    ends = np.cumsum(sizes)[:-1]
    each = np.array([spearman(*part) for part in zip(np.split(x, ends), np.split(y, ends), strict=True)])
    if len(each) == 1:  # the weights' rounding would tell the three apart
        return dict.fromkeys(("all", "mean", "wmean"), float(each[0]))
    return {"all": spearman(x, y), "mean": float(each.mean()), "wmean": float(each @ sizes / sum(sizes))}


def _paired(
    x: Real[Array | np.ndarray, " n"], y: Real[Array | np.ndarray, " m"]
) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) != len(y):
        raise InputError(
            f"{len(x)} values cannot be compared with {len(y)}; expected one score for each pair"
        )
    return x, y


def _labelled(similarities, labels) -> tuple[np.ndarray, np.ndarray]:
    similarities, labels = _paired(similarities, labels)
    if not np.isin(labels, (0, 1)).all():
        raise InputError("labels hold other values than 0 and 1; AUC and accuracy are defined for those only")
    return similarities, labels == 1
