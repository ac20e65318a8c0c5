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


def block_top_k(
    best: tuple[Any, Any],
    queries: Float[Array, "q d"],
    rows: Any,
    scale: Any,
    valid: Bool[Array, " b"],
    start: Any,
    cosine: bool,
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
        scale: float32 [b], the unit of each row's integers, or None.
        valid: bool [b], False for padding and for what was removed.
        start: int32 scalar.
        cosine: divide by the length of each row; a row of zeros scores 0.

    Returns:
        The new `best`; a score of inf stands for one that is not finite.
    """
    count, k = len(rows), best[0].shape[-1]
    values = rows.astype(jnp.float32)
    products = jnp.dot(queries, values.T, precision=HIGHEST)
    if cosine:
        square = jnp.sum(values * values, axis=-1)
        scale = jnp.where(square > 0, 1 / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    def scored(products: Array, columns: Any) -> Array:
        if scale is not None:
            products = products * scale[columns]
        # A value that is not finite comes first, where it is noticed. −0 and 0 are a tie for the index to break, but
        # not for every sort.
        products = jnp.where(jnp.isfinite(products), jnp.where(products == 0, 0.0, products), jnp.inf)
        return jnp.where(valid[columns], products, -jnp.inf)

    columns = jnp.arange(count)
    if count > 2 * k * GROUP and count % GROUP == 0:
        scores = scored(products, columns).reshape(len(queries), -1, GROUP)
        groups = jnp.sort(jax.lax.top_k(jnp.max(scores, axis=-1), k)[1])
        columns = (groups[:, :, None] * GROUP + jnp.arange(GROUP)).reshape(len(queries), -1)
        products = jnp.take_along_axis(products, columns, axis=1)
    else:
        columns = jnp.broadcast_to(columns, products.shape)
    candidates = jnp.concatenate([best[0], scored(products, columns)], axis=1)
    indices = jnp.concatenate([best[1], columns.astype(jnp.int32) + start], axis=1)
    scores, at = jax.lax.top_k(candidates, k)
    return scores, jnp.take_along_axis(indices, at, axis=1)


@lru_cache(maxsize=8)
def sharded_top_k(mesh: Mesh) -> Any:
    """`block_top_k` as one compiled program over the devices of a mesh, each with its own rows and its own best.

    It takes (best, queries, rows, scale, valid, start, cosine) with rows [devices · b, d] split over the axis
    "rows", queries on every device, and best [devices, q, k].
    """
    split, whole = PartitionSpec("rows"), PartitionSpec()

    @partial(jax.jit, static_argnames="cosine")
    def step(best: Any, queries: Any, rows: Any, scale: Any, valid: Any, start: Any, cosine: bool) -> Any:
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(split, whole, split, split, split, whole),
            out_specs=split,
            check_vma=False,
        )
        def local(best: Any, queries: Any, rows: Any, scale: Any, valid: Any, start: Any) -> Any:
            own = start + jax.lax.axis_index("rows").astype(jnp.int32) * len(rows)
            mine = jax.tree.map(lambda x: x[0], best)
            found = block_top_k(mine, queries, rows, scale, valid, own, cosine)
            return jax.tree.map(lambda x: x[None], found)

        return local(best, queries, rows, scale, valid, start)

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
