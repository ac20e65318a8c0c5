"""Moments: count, mean and centred second moment of vectors, mergeable, in one pass and constant memory."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Float, Real

from jaxvec.calibration.blocks import (
    BLOCK_ROWS,
    ROW_BUCKETS,
    as_rows,
    as_weights,
    explicit_rows,
    first_bad_row,
    fixed_blocks,
)
from jaxvec.calibration.twofloat import TwoFloat, column_roots, root_of_squares, two_sum
from jaxvec.errors import InputError, is_whole

HIGHEST = jax.lax.Precision.HIGHEST


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["counted", "centre", "scatter", "spread", "cubic", "quartic"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False, repr=False)
class Moments:
    """Count, mean and centred second moment M2 = Σ w (x − mean)(x − mean)ᵀ of vectors [n, d].

    A pytree; every statistic is a float32 pair (`TwoFloat`), so that chunks merge as exactly as in float64
    on devices without it. Each block of rows is reduced in float32 at
    precision HIGHEST around a point of its own; blocks are merged exactly (Chan, Golub & LeVeque 1979), in
    any order or grouping. Two sums of third and fourth order, Σ w‖x − mean‖²(x − mean) and
    Σ w‖x − mean‖⁴, are kept too: the Ledoit–Wolf shrinkage needs them.

    Weights are frequency weights: weight 2 is the row seen twice, 0 the row not seen, fractions are allowed;
    `count` is their sum, exact to 48 bits: an int up to 2.8e14 where the weights are whole numbers. Weights are
    float32, so a whole number above 2^24 that it cannot hold is refused. No gradient flows through moments.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
        >>> whole = Moments.of(x)
        >>> parts = Moments.of(x[:123]).merge(Moments.of(x[123:]))
        >>> whole.count, bool(np.allclose(parts.covariance(), np.cov(x.T), atol=1e-6))
        (500, True)
    """

    counted: Any  # TwoFloat, Σ w, []
    centre: Any  # TwoFloat, the mean, [d]
    scatter: Any  # TwoFloat, M2, [d, d]
    spread: Any  # √diag(M2), [d], also where a square leaves float32: some LayerNorm scales are 1e-32
    cubic: Any  # TwoFloat, Σ w‖x − mean‖²(x − mean), [d]
    quartic: Any  # TwoFloat, Σ w‖x − mean‖⁴, []

    @classmethod
    def empty(cls, dim: int) -> "Moments":
        """Moments of no vectors of `dim` coordinates: the neutral element of `merge`."""
        if not is_whole(dim, 1):
            raise InputError(f"dim is {dim!r}; expected the number of coordinates of a vector, 1 or more")

        def zeros(*shape: int) -> TwoFloat:
            return TwoFloat(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

        return cls(zeros(), zeros(dim), zeros(dim, dim), zeros(dim).high, zeros(dim), zeros())

    @classmethod
    def of(
        cls, vectors: Float[Array | np.ndarray, "n d"], weights: Real[Array | np.ndarray, " n"] | None = None
    ) -> "Moments":
        """Moments of the rows of `vectors` [n, d], any floating dtype, with optional frequency weights [n].

        Raises:
            InputError: vectors that are not [n, d]; on concrete arrays also a row that is not finite, by
                number, and negative or non-finite weights.
        """
        vectors = as_rows(vectors)
        if isinstance(vectors, jax.core.Tracer) or isinstance(weights, jax.core.Tracer):
            return _of_traced(vectors, as_weights(weights, len(vectors), jnp))
        return cls.empty(vectors.shape[1]).update(vectors, weights)

    def update(
        self, chunk: Float[Array | np.ndarray, "n d"], weights: Real[Array | np.ndarray, " n"] | None = None
    ) -> "Moments":
        """These moments and those of a chunk [n, d]; arguments and errors as for `of`.

        Pure: nothing given is changed or donated. Outside tracing a chunk is cut into blocks of fixed shape,
        padded with rows of weight zero, so that one program is compiled whatever the chunks' sizes.
        """
        chunk = as_rows(chunk)
        if chunk.shape[1] != self.dim:
            raise InputError(
                f"chunk has {chunk.shape[1]} columns; these moments are of {self.dim} coordinates"
            )
        if _is_traced(self, chunk, weights):
            return _merge(self, _of_traced(chunk, as_weights(weights, len(chunk), jnp)))
        state = self
        for block, block_weights, bucket in fixed_blocks(chunk, weights):
            state = _add_block(state, block, block_weights, bucket)
        if not np.isfinite(np.asarray(state.centre.high)).all():
            raise InputError(self._why_not_finite(chunk))
        return state

    def merge(self, other: "Moments") -> "Moments":
        """Moments of both samples together, in any order or grouping."""
        if self.dim != other.dim:
            raise InputError(f"cannot merge moments of {self.dim} and of {other.dim} coordinates")
        return _merge(self, other)

    def psum(self, axis_name: Any) -> "Moments":
        """Moments of all devices' samples together, inside `shard_map`, `pmap` or `vmap` over `axis_name`.

        n and n·mean are summed first, then M2 + n(mean_i − mean)(mean_i − mean)ᵀ. A plain `jax.lax.psum` of
        the tree would lose the second term, and add up the means.

        Example:
            >>> import jax, numpy as np
            >>> x = np.random.default_rng(0).normal(size=(4, 50, 3)).astype(np.float32)
            >>> m = jax.vmap(lambda part: Moments.of(part).psum("i"), axis_name="i")(x)
            >>> bool(np.allclose(m.scatter.high[0] / 199, np.cov(x.reshape(200, 3).T), atol=1e-6))
            True
        """
        count = self.counted.psum(axis_name)
        reference = TwoFloat.of(jax.lax.pmean(self.centre.high, axis_name))
        mean = reference + ((self.centre - reference) * self.counted).psum(axis_name) / count
        offset = self.centre - mean
        terms = self.scatter + (offset * self.counted).outer(offset), *_higher_orders(self, offset)
        scatter, cubic, quartic = (term.psum(axis_name) for term in terms)
        own = root_of_squares(self.spread, jnp.sqrt(self.counted.high) * offset.high)
        largest = jnp.maximum(jax.lax.pmax(own, axis_name), 2.0**-126)
        spread = largest * jnp.sqrt(jax.lax.psum((own / largest) ** 2, axis_name))
        return Moments(count, mean, scatter, spread, cubic, quartic)

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return self.centre.high.shape[-1]

    def __repr__(self) -> str:
        shape = getattr(self.centre.high, "shape", "?")
        count = "traced" if len(shape) > 1 or shape == "?" or _is_traced(self) else self.count
        return f"Moments(count={count}, dim={' × '.join(map(str, shape))})"

    @property
    def count(self) -> Any:
        """Σ w: an int (a float for fractional weights) outside tracing, else a float32 scalar."""
        return self.counted.number()

    @property
    def mean(self) -> Any:
        """The mean [d]: float64 NumPy outside tracing, else float32."""
        return self.centre.high if _is_traced(self) else self.centre.float64()

    @property
    def m2(self) -> Any:
        """The centred second moment [d, d]: float64 NumPy outside tracing, else float32; symmetric."""
        m2 = self.scatter.high if _is_traced(self) else self.scatter.float64()
        return (m2 + m2.T) / 2

    @property
    def deviations(self) -> Any:
        """Standard deviations [d] (ddof 1): float64 NumPy outside tracing, else float32.

        Right for coordinates far smaller than others too, whose variance float32 cannot hold.
        """
        xp, squares = jnp if _is_traced(self) else np, self.m2.diagonal()
        roots = xp.where(squares > 1e-30, xp.sqrt(xp.maximum(squares, 1e-30)), self.spread)
        return roots / xp.maximum(self.count - 1, 1) ** 0.5

    def covariance(self, ddof: int = 1) -> Any:
        """M2 / (count − ddof) [d, d]: float64 NumPy outside tracing, else float32 (0 where count ≤ ddof).

        ddof 1 is the unbiased estimate (`numpy.cov`), 0 the maximum-likelihood one (scikit-learn's
        `empirical_covariance`). The divisor counts the sum of the weights, as in `numpy.cov(fweights=)`.

        Raises:
            InputError: outside tracing, when count ≤ ddof.
        """
        if _is_traced(self):
            return self.m2 / jnp.where(self.count > ddof, self.count - ddof, 1)
        if not self.count > ddof:
            raise InputError(
                f"a covariance with ddof={ddof} needs more than {ddof} vectors, these moments hold {self.count}"
            )
        return self.m2 / (self.count - ddof)

    def _why_not_finite(self, chunk: Any) -> str:
        row = first_bad_row(chunk)
        if row is not None:
            return f"row {row} of the vectors is not finite in float32; drop the row or repair it"
        if np.isfinite(np.asarray(self.centre.high)).all():
            return "the vectors' sums overflow float32; divide the vectors by a constant first"
        return "these moments are not finite: a row that a traced function added was not"


def _is_traced(*trees: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def _of_traced(vectors: Array, weights: Array) -> Moments:
    rows, dim = vectors.shape
    if rows == 0:
        return Moments.empty(dim)
    if (split := explicit_rows(vectors, weights)) is not None:
        return _of_sharded(vectors, weights, *split)
    first = min(rows % BLOCK_ROWS or BLOCK_ROWS, rows)
    state = _block_moments(vectors[:first], weights[:first], TwoFloat.sum(weights[:first]))
    if first == rows:
        return state
    blocks = vectors[first:].reshape(-1, BLOCK_ROWS, dim), weights[first:].reshape(-1, BLOCK_ROWS)

    def step(state: Moments, block: Any) -> tuple[Moments, None]:
        return _merge(state, _block_moments(*block, TwoFloat.sum(block[1]))), None

    return jax.lax.scan(step, state, blocks)[0]


def _of_sharded(vectors: Array, weights: Array, mesh: Any, axes: Any) -> Moments:
    """Moments of rows that an explicit mesh has over `axes`: each device's own, then `psum`."""
    specs = PartitionSpec(axes, None), PartitionSpec(axes)
    rows = [reshard(a, NamedSharding(mesh, spec)) for a, spec in zip((vectors, weights), specs, strict=True)]
    if axes is None:
        return _of_traced(*rows)

    def own(x: Array, w: Array) -> Moments:
        return _of_traced(x, w).psum(axes)

    return jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())(*rows)


def _block_moments(x: Array, w: Array, counted: TwoFloat) -> Moments:
    """Moments of one block [rows, d] of summed weights `counted`: one product, around a point near the mean.

    The exact mean would cost another pass over the block. The mean of a sample of its rows is near enough:
    what M2 around it has too much, n·offset·offsetᵀ, is small.
    """
    x = jax.lax.stop_gradient(x).astype(jnp.float32)
    w, counted = jax.lax.stop_gradient((w, counted))
    stride = max(1, len(x) // 64)
    sampled = (w[::stride] > 0).astype(jnp.float32)
    # Around the first row, so that a constant coordinate is centred to exact zeros.
    point = x[0] + jnp.matmul(sampled, x[::stride] - x[0], precision=HIGHEST) / jnp.maximum(sampled.sum(), 1)
    root = jnp.sqrt(w)
    y = (x - point) * root[:, None]
    squares = jnp.sum(y * y, axis=1)  # w‖x − point‖²
    m2 = jnp.matmul(y.T, y, precision=HIGHEST)
    norms = jnp.where(w > 0, squares / jnp.where(w > 0, root, 1), 0)  # √w ‖x − point‖²
    first, third = jnp.matmul(jnp.stack([root, norms]), y, precision=HIGHEST)
    fourth, count, trace = jnp.sum(norms * norms), counted.high, jnp.sum(squares)

    offset = first / jnp.where(count > 0, count, 1)
    along = jnp.matmul(m2, offset, precision=HIGHEST)
    length = jnp.sum(offset * offset)
    fourth = fourth - 4 * jnp.vdot(offset, third, precision=HIGHEST) - 3 * count * length**2
    fourth = fourth + 4 * jnp.vdot(offset, along, precision=HIGHEST) + 2 * length * trace
    third = third - trace * offset - 2 * along + 2 * count * length * offset
    m2 = TwoFloat(*two_sum(m2, -count * offset[:, None] * offset[None, :]))
    mean = TwoFloat.of(point) + TwoFloat.of(offset)
    spread = column_roots(jnp.diagonal(m2.high), y, count, offset)
    return Moments(counted, mean, m2, spread, TwoFloat.of(third), TwoFloat.of(fourth))


def _higher_orders(moments: Moments, offset: TwoFloat) -> tuple[TwoFloat, TwoFloat]:
    """The sums of third and fourth order around the point mean − offset instead of the mean."""
    n, shift, m2 = moments.counted.high, offset.high, moments.scatter.high
    along, trace = jnp.matmul(m2, shift, precision=HIGHEST), jnp.sum(jnp.diagonal(m2))
    length = jnp.sum(shift * shift)
    third = 2 * along + (trace + n * length) * shift
    fourth = 4 * jnp.vdot(shift, moments.cubic.high + along, precision=HIGHEST)
    fourth = fourth + length * (2 * trace + n * length)
    return moments.cubic + TwoFloat.of(third), moments.quartic + TwoFloat.of(fourth)


@jax.jit
def _merge(a: Moments, b: Moments) -> Moments:
    count = a.counted + b.counted
    step, share = b.centre - a.centre, b.counted / count
    mean = a.centre + step * share
    scatter = a.scatter + b.scatter + (step * (a.counted * share)).outer(step)
    between = jnp.sqrt(a.counted.high * share.high) * step.high
    spread = root_of_squares(a.spread, b.spread, between)
    moved = zip(_higher_orders(a, a.centre - mean), _higher_orders(b, b.centre - mean), strict=True)
    return Moments(count, mean, scatter, spread, *(left + right for left, right in moved))


@jax.jit
def _add_block(state: Moments, block: Array, weights: Array, bucket: Array) -> Moments:
    counted = TwoFloat.sum(weights)
    branches = [lambda n=n: _block_moments(block[:n], weights[:n], counted) for n in ROW_BUCKETS]
    return _merge(state, jax.lax.switch(bucket, branches))
