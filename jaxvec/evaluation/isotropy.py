"""How evenly vectors fill the space they live in: the usual measures of isotropy, before or after a calibration."""

from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.calibration.blocks import as_rows, fixed_blocks
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError
from jaxvec.evaluation.pairwise import uniformity, unit_rows

HIGHEST = jax.lax.Precision.HIGHEST
Vectors = Float[Array | np.ndarray, "n d"]


@dataclass(frozen=True)
class Isotropy:
    """The measures of one set of vectors. Made by `measure_isotropy`.

    Attributes:
        count: how many vectors.
        dim: their width.
        mean_norm: mean Euclidean length.
        mean_cosine: over all pairs of different rows; 0 is isotropic, 1 a single ray.
        iso_score: 0 … 1, see `iso_score`.
        effective_rank: 1 … dim, see `effective_rank`.
        partition_ratio: 0 … 1, of the vectors at unit length, see `partition_ratio`.
        uniformity: at most 0, the lower the more even, see `pairwise.uniformity`.
        spectrum: the variances along the principal directions, float64 [dim], descending.
    """

    count: int
    dim: int
    mean_norm: float
    mean_cosine: float
    iso_score: float
    effective_rank: float
    partition_ratio: float
    uniformity: float
    spectrum: np.ndarray = field(repr=False)

    def figures(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"spectrum": self.spectrum.tolist()}


def measure_isotropy(vectors: Vectors) -> Isotropy:
    """Every measure of `vectors` [n, d], un-normalised.

    Time grows with n² through the uniformity alone; 5,000 rows take about a second.

    Raises:
        InputError: fewer than 2 vectors, or one that is not finite.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
        >>> even, cone = measure_isotropy(x), measure_isotropy(x + np.float32(3))
        >>> abs(even.mean_cosine) < 0.01, round(cone.mean_cosine, 1), round(even.iso_score, 1)
        (True, 0.9, 1.0)
    """
    moments = Moments.of(vectors)
    _at_least_two(moments)
    unit = unit_rows(vectors)
    unit_moments = Moments.of(unit)
    return Isotropy(
        count=moments.count,
        dim=moments.dim,
        mean_norm=float(np.linalg.norm(np.asarray(vectors, np.float32), axis=1).mean(dtype=np.float64)),
        mean_cosine=mean_cosine(unit_moments),
        iso_score=iso_score(moments),
        effective_rank=effective_rank(moments),
        partition_ratio=partition_ratio(unit, unit_moments),
        uniformity=uniformity(unit),
        spectrum=spectrum(moments),
    )


def mean_cosine(unit_moments: Moments) -> float:
    """Mean cosine of all pairs of different rows, from the moments of the rows at unit length.

    In constant memory and one pass, since Σ_{i≠j} uᵢ·uⱼ = ‖Σ u‖² − Σ ‖u‖². A zero row has cosine 0 with every
    other, as in `SentenceEncoder.similarity`.

    Args:
        unit_moments: `Moments.of(vectors of length 1 or 0)`, or of a stream of them.

    Raises:
        InputError: fewer than 2 vectors.

    Reference: K. Ethayarajh, "How Contextual are Contextualized Word Representations?", EMNLP 2019.

    Example:
        >>> x = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
        >>> round(mean_cosine(Moments.of(x)), 6)
        -0.333333
    """
    _at_least_two(unit_moments)
    n, mean = unit_moments.count, np.asarray(unit_moments.mean, np.float64)
    square = float(mean @ mean)
    lengths = float(np.trace(unit_moments.m2)) + n * square
    return (n * n * square - lengths) / (n * (n - 1))


def spectrum(moments: Moments) -> Float[np.ndarray, " d"]:
    """Variances along the principal directions (eigenvalues of the covariance), float64 [d], descending."""
    _at_least_two(moments)
    return np.maximum(np.linalg.eigvalsh(moments.covariance())[::-1], 0)


def iso_score(moments: Moments) -> float:
    """IsoScore: 1 when the variance is the same in every direction, 0 when it lies in a single one.

    The published algorithm scales the variances along the principal directions to the norm √d and measures
    their distance from (1, …, 1). Put together it is (φ − 1) / (d − 1), with φ = (Σλ)² / Σλ² the number of
    dimensions in even use; neither sum needs an eigendecomposition. Undefined (NaN) for d = 1 or equal vectors.

    Raises:
        InputError: fewer than 2 vectors.

    Reference: W. Rudman, N. Gillman, T. Rayne, C. Eickhoff, "IsoScore: Measuring the Uniformity of Embedding
    Space Utilization", Findings of ACL 2022, arXiv:2108.07344, Algorithm 1.

    Example:
        >>> x = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
        >>> iso_score(Moments.of(x)), iso_score(Moments.of(x * np.array([1, 0], np.float32)))
        (1.0, 0.0)
    """
    _at_least_two(moments)
    covariance = np.asarray(moments.covariance())
    squares = float(np.sum(covariance**2))
    if moments.dim == 1 or squares == 0:
        return float("nan")
    return (float(np.trace(covariance)) ** 2 / squares - 1) / (moments.dim - 1)


def effective_rank(moments: Moments) -> float:
    """Effective rank: exp of the entropy of the singular values σ of the centred vectors, σ / Σσ; 1 … d.

    Undefined (NaN) for equal vectors.

    Raises:
        InputError: fewer than 2 vectors.

    Reference: O. Roy, M. Vetterli, "The effective rank: a measure of effective dimensionality", EUSIPCO 2007.

    Example:
        >>> x = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
        >>> round(effective_rank(Moments.of(x)), 6)
        2.0
    """
    singular = np.sqrt(spectrum(moments))
    if not singular[0] > 0:
        return float("nan")
    share = singular / singular.sum()
    share = share[share > 0]
    return float(np.exp(-np.sum(share * np.log(share))))


def partition_ratio(vectors: Vectors, moments: Moments | None = None) -> float:
    """min Z(c) / max Z(c) of the partition function Z(c) = Σ exp(cᵀx); near 1 when no direction stands out.

    As in the paper, c runs over the eigenvectors of XᵀX. An eigenvector's sign is arbitrary, so both signs of
    each are taken. Z depends on the scale of X: compare sets of vectors at unit length.

    Args:
        vectors: [n, d], any floating dtype.
        moments: `Moments.of(vectors)`, where it is at hand.

    Raises:
        InputError: fewer than 2 vectors, or one that is not finite.

    Reference: J. Mu, P. Viswanath, "All-but-the-Top", ICLR 2018, arXiv:1702.01417, equation (1) and §2.2; Z is
    from S. Arora et al., "A Latent Variable Model Approach to PMI-based Word Embeddings", TACL 2016.

    Example:
        >>> x = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
        >>> round(partition_ratio(x), 4), round(partition_ratio(x + 1), 4)
        (1.0, 0.0591)
    """
    moments = Moments.of(vectors) if moments is None else moments
    _at_least_two(moments)
    mean = np.asarray(moments.mean, np.float64)
    second = moments.covariance(ddof=0) + np.outer(mean, mean)
    directions = np.linalg.eigh(second)[1].astype(np.float32)
    total = np.full(2 * moments.dim, -np.inf)
    for block, weights, _ in fixed_blocks(as_rows(vectors), None):
        total = np.logaddexp(total, _log_partition(block, weights, directions))
    return float(np.exp(total.min() - total.max()))


@jax.jit
def _log_partition(block: Array, weights: Array, directions: Array) -> Array:
    scores = jnp.matmul(block, directions, precision=HIGHEST)
    both = jnp.concatenate([scores, -scores], axis=1)
    return jax.nn.logsumexp(both, axis=0, b=weights[:, None])


def _at_least_two(moments: Moments) -> None:
    if moments.count < 2:
        raise InputError(f"isotropy is a property of 2 or more vectors; {moments.count} came")
