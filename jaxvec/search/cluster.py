"""Clusters of vectors: k-means on the devices, over data of any size."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxvec.errors import InputError, is_whole
from jaxvec.pipeline import local_rows
from jaxvec.search.storage import Rows, check_rows, finite

BLOCK = 16_384  # rows on the devices at a time
SAMPLE = 64  # vectors for each cluster that the first centres are chosen among


@dataclass(frozen=True, eq=False)
class Clusters:
    """What `k_means` found.

    Attributes:
        centres: float32 [k, dim], the mean of each cluster; the largest cluster comes first.
        labels: int32 [n], the cluster of each vector.
        distances: float32 [n], squared, of each vector to its centre.
        passes: how often the data was read.
    """

    centres: np.ndarray
    labels: np.ndarray
    distances: np.ndarray
    passes: int

    @property
    def sizes(self) -> np.ndarray:
        """int64 [k], vectors in each cluster."""
        return np.bincount(self.labels, minlength=len(self.centres))

    def nearest(self, cluster: int, count: int) -> np.ndarray:
        """The vectors of a cluster that are closest to its centre, closest first."""
        members = np.flatnonzero(self.labels == cluster)
        return members[np.argsort(self.distances[members], kind="stable")[:count]]


def k_means(vectors: Rows, k: int, *, seed: int = 0, passes: int = 50, tolerance: float = 1e-4) -> Clusters:
    """Lloyd's algorithm from k-means++ centres: each pass streams the data through the devices once.

    On vectors of unit length, as an index for cosine holds them, the nearest centre is the one of highest inner
    product up to the centres' lengths, so that the clusters are those of cosine. A centre that loses all its vectors
    moves to the one that is worst served.

    Args:
        vectors: float [n, dim]: an array, or a memory map of any size.
        k: how many clusters.
        seed: of the first centres; the same seed gives the same clusters.
        passes: at most this many.
        tolerance: stop when the sum of squared distances falls by less than this share.

    Raises:
        InputError: k is not between 1 and n, a negative seed, no pass, or vectors that are not [n, dim] and finite.

    References: S. P. Lloyd, "Least squares quantization in PCM", IEEE Trans. Information Theory 28, 1982;
    D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.

    Example:
        >>> clusters = k_means(np.array([[0.0], [9.1], [9.0], [0.1], [9.2]], np.float32), 2)
        >>> clusters.labels.tolist(), clusters.sizes.tolist(), clusters.nearest(0, 1).tolist()
        ([1, 0, 0, 1, 0], [3, 2], [1])
    """
    check_rows(vectors)
    n = vectors.shape[0]
    if not n:
        raise InputError("there are no vectors to group")
    if not is_whole(k, 1) or k > n:
        raise InputError(f"k is {k!r}; expected a number of clusters from 1 to {n}, the number of vectors")
    for name, value, least in (("seed", seed, 0), ("passes", passes, 1)):
        if not is_whole(value, least):
            raise InputError(f"{name} is {value!r}; expected a whole number, {least} or more")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(n, min(n, SAMPLE * k), replace=False))
    sample = finite(np.asarray(vectors[chosen], np.float32))
    centres = _plus_plus(sample, k, rng)
    before = np.inf
    for number in range(1, passes + 1):
        labels, distances, sums = _assign(vectors, centres)
        counts = np.bincount(labels, minlength=k)
        total = float(distances.sum(dtype=np.float64))
        if not np.isfinite(total):
            raise InputError("a vector holds a value that is not finite; encode it again with dtype float32")
        empty = np.flatnonzero(counts == 0)
        if number == passes or (not len(empty) and before - total <= tolerance * total):
            break
        before = total
        centres = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        worst = np.argsort(-distances, kind="stable")[: len(empty)]
        centres[empty] = np.asarray(vectors[worst], np.float32)
    order = np.argsort(-counts, kind="stable")
    renamed = np.empty(k, np.int32)
    renamed[order] = np.arange(k)
    return Clusters(centres[order], renamed[labels], distances, number)


def _assign(vectors: Rows, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, squared distances, and the sum of each cluster's vectors in float64."""
    n, rows = vectors.shape[0], local_rows()
    size = -(-min(n, BLOCK) // rows.mesh.size) * rows.mesh.size
    assign = _assign_block(rows.mesh)
    placed = jax.device_put(centres, NamedSharding(rows.mesh, PartitionSpec()))
    sums = np.zeros(centres.shape, np.float64)
    found: list[tuple[Any, Any, Any]] = []
    labels, distances = np.empty(n, np.int32), np.empty(n, np.float32)

    def collect(start: int) -> None:
        part = slice(start, min(start + size, n))
        mine, near, sum_ = found.pop(0)
        labels[part] = np.asarray(mine)[: part.stop - start]
        distances[part] = np.asarray(near)[: part.stop - start]
        np.add(sums, np.asarray(sum_).sum(axis=0, dtype=np.float64), out=sums)

    for start in range(0, n, size):
        block = np.zeros((size, centres.shape[1]), np.float32)
        part = vectors[start : start + size]
        block[: len(part)] = part
        weights = (np.arange(size) < len(part)).astype(np.float32)
        found.append(assign(*jax.device_put((block, weights), rows), placed))
        if start:
            collect(start - size)
    collect(start)
    return labels, distances, sums


@cache
def _assign_block(mesh: Mesh) -> Any:
    """Of rows [b, d] split over a mesh: labels [b], squared distances [b], and each device's own sums [devices, k, d].

    The devices' sums are added on the host: no block waits for another device, as those in flight would for each other.
    """
    split, whole = PartitionSpec("rows"), PartitionSpec()

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(split, split, whole), out_specs=split, check_vma=False)
    def assign(rows: Any, weights: Any, centres: Any) -> tuple[Any, Any, Any]:
        highest = jax.lax.Precision.HIGHEST
        products = jnp.dot(rows, centres.T, precision=highest)
        partial_distances = jnp.sum(centres * centres, axis=1) - 2 * products
        labels = jnp.argmin(partial_distances, axis=1)
        # From the differences themselves: the expanded square has lost what is small beside the vectors.
        near = jnp.sum(jnp.square(rows - centres[labels]), axis=1)
        sums = jax.ops.segment_sum(rows * weights[:, None], labels, num_segments=len(centres))
        return labels, near, sums[None]

    return assign


def _plus_plus(sample: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """k rows of the sample, each drawn with a chance that grows with its squared distance to those before."""
    placed = jnp.asarray(sample)
    centres = [int(rng.integers(len(sample)))]
    nearest = np.full(len(sample), np.inf, np.float32)
    for _ in range(k - 1):
        nearest = np.minimum(nearest, np.asarray(_squared_distance(placed, placed[centres[-1]])))
        mass = np.cumsum(nearest, dtype=np.float64)
        # Fewer different vectors than clusters: the rest of the draws are even.
        at = np.searchsorted(mass, rng.random() * mass[-1], side="right") if mass[-1] else len(centres)
        centres.append(min(int(at), len(sample) - 1))
    return sample[centres]


@jax.jit
def _squared_distance(rows: Any, row: Any) -> Any:
    return jnp.sum(jnp.square(rows - row), axis=1)
