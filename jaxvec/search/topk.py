"""Exact top-k of one block of vectors on every device: the last station before an answer."""

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float

GROUP = 32  # scores under one maximum
HIGHEST = jax.lax.Precision.HIGHEST

Best = tuple[Array, Array]  # (float32 scores, int32 indices), both [devices, q, k], best first


def corrections(
    lengths: Any, scale: Any, valid: Bool[Array, " b"], longest: Any, cosine: bool
) -> tuple[Any, Any]:
    """What makes scores of the products of a block of rows: score = product · scale + bias; pure.

    Args:
        lengths: float32 [b], of `row_lengths`; None where all are known to be 1 or 0.
        scale: float32 [b], the unit of each row's integers, or None.
        valid: bool [b], False for padding and for what was removed.
        longest: float32, length of the longest query.
        cosine: divide by the length of each row; a row of zeros scores 0.

    Returns:
        scale: float32 [b], or None where it is 1.
        bias: float32 [b]: 0 (which makes −0 to 0: a tie is for the index to break), −inf where a row is not valid, so
            that it comes last, inf where a product with a query may not be finite, so that it comes first and is
            noticed.
    """
    bias = jnp.where(valid, 0.0, -jnp.inf)
    if lengths is not None:
        # 4: the inverse of a length is no subnormal number either.
        most = 4 * lengths * jnp.maximum(longest, 1) * (1 if scale is None else jnp.maximum(scale, 1))
        bias = jnp.where(valid & ~jnp.isfinite(most), jnp.inf, bias)
    if cosine:
        scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1), 0)
    return scale, bias


@jax.jit
def row_lengths(rows: Any) -> Float[Array, " b"]:
    """Of rows [b, d] between 1e-37 and 8e37 long; shorter ones may count as 0.

    Squares of what is very short or very long are taken of a multiple, in the same pass.
    """
    rows = rows.astype(jnp.float32)
    shift = jnp.float32(2.0**80)
    plain, small, large = (jnp.sum(jnp.square(rows * by), axis=-1) for by in (1, shift, 1 / shift))
    near = jnp.where(plain < 1, jnp.sqrt(small) / shift, jnp.sqrt(large) * shift)
    return jnp.where((plain > 1e-30) & jnp.isfinite(plain), jnp.sqrt(plain), near)


def block_top_k(
    best: tuple[Any, Any], queries: Float[Array, "q d"], rows: Any, scale: Any, bias: Any, start: Any
) -> tuple[Any, Any]:
    """The k best of what has been seen and one more block of rows; pure, for one device.

    `lax.top_k` over a long row costs as much as the product that made it. Scores are therefore grouped by 32
    consecutive rows: the k best groups by their maxima hold the k best scores (a score outside them is beaten by
    k maxima, or equalled by those of earlier groups), and only these are ranked one by one. That also holds with
    ties, which the lower index wins: groups are taken in ascending order, and what was seen before comes first.

    Args:
        best: scores float32 [q, k] and indices int32 [q, k], descending; −inf where there is none yet.
        queries: float32 [q, d].
        rows: [b, d], float32, bfloat16 or int8, with indices from `start` on; later than all in `best`.
        scale, bias: of `corrections`.
        start: int32 scalar.

    Returns:
        The new `best`; a score of inf stands for one that is not finite.
    """
    count, k = len(rows), best[0].shape[-1]
    products = jnp.dot(queries, rows.astype(jnp.float32).T, precision=HIGHEST)

    # One product and one sum: every further step here costs a tenth of the search.
    def scored(products: Array, columns: Any) -> Array:
        return (products if scale is None else products * scale[columns]) + bias[columns]

    if count > 2 * k * GROUP and count % GROUP == 0:
        groups = _best_groups(scored(products, slice(None)), bias, k)
        columns = (groups[:, :, None] * GROUP + jnp.arange(GROUP)).reshape(len(queries), -1)
        place = groups + jnp.arange(len(queries))[:, None] * (count // GROUP)
        products = products.reshape(-1, GROUP)[place].reshape(columns.shape)
    else:
        columns = jnp.broadcast_to(jnp.arange(count), products.shape)
    candidates = jnp.concatenate([best[0], _noticed(scored(products, columns))], axis=1)
    indices = jnp.concatenate([best[1], columns.astype(jnp.int32) + start], axis=1)
    scores, at = jax.lax.top_k(candidates, k)
    return scores, jnp.take_along_axis(indices, at, axis=1)


def _best_groups(scores: Any, bias: Any, k: int) -> Any:
    """Numbers of the k groups of best maximum, ascending."""
    # Unlike `jnp.max`, which takes care of what is not a number, this becomes one vector instruction. That care is taken
    # by the bias of such rows.
    maxima = jax.lax.reduce(
        scores.reshape(len(scores), -1, GROUP), -jnp.inf, lambda a, b: jnp.where(a > b, a, b), (2,)
    )
    maxima += jnp.maximum(jnp.max(bias.reshape(-1, GROUP), axis=-1), 0)
    return jnp.sort(jax.lax.top_k(_noticed(maxima), k)[1])


def _noticed(scores: Array) -> Array:
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


@lru_cache(maxsize=8)
def sharded_top_k(mesh: Mesh) -> Any:
    """`block_top_k` as one compiled program over the devices of a mesh, each with its own rows and its own best.

    It takes (best, queries, rows, scale, bias, start) with rows [devices · b, d] split over the axis "rows",
    queries on every device, and best [devices, q, k].
    """
    split, whole = PartitionSpec("rows"), PartitionSpec()

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(split, whole, split, split, split, whole),
        out_specs=split,
        check_vma=False,
    )
    def step(best: Any, queries: Any, rows: Any, scale: Any, bias: Any, start: Any) -> Any:
        own = start + jax.lax.axis_index("rows").astype(jnp.int32) * len(rows)
        found = block_top_k(jax.tree.map(lambda x: x[0], best), queries, rows, scale, bias, own)
        return jax.tree.map(lambda x: x[None], found)

    return step


def nothing_yet(mesh: Mesh, queries: int, k: int) -> Best:
    """The `best` of an empty corpus, on the devices of the mesh."""
    shape = (mesh.size, queries, k)
    placed = NamedSharding(mesh, PartitionSpec("rows"))
    return (
        jax.device_put(np.full(shape, -np.inf, np.float32), placed),
        jax.device_put(np.full(shape, np.iinfo(np.int32).max, np.int32), placed),
    )


def merged(best: Best) -> tuple[np.ndarray, np.ndarray]:
    """The k best of all devices, [q, k] on the host: by score, then by index."""
    scores, indices = (np.moveaxis(np.asarray(part), 0, 1) for part in best)
    k = scores.shape[-1]
    scores, indices = (part.reshape(len(part), -1) for part in (scores, indices))
    if scores.shape[1] == k:
        return scores, indices
    order = np.lexsort((indices, -scores), axis=-1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(indices, order, axis=1)
