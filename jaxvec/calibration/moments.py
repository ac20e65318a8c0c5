"""Moments: count, mean and centred second moment of vectors, mergeable, in one pass and constant memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from jaxvec.calibration.twofloat import TwoFloat
from jaxvec.errors import InputError

BLOCK_ROWS = 4096  # one float32 product each; larger ones lose accuracy, smaller ones lose to the d×d merge
ROW_BUCKETS = (256, 1024, BLOCK_ROWS)  # one compiled program, which multiplies only the rows it needs
HIGHEST = jax.lax.Precision.HIGHEST


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["counted", "centre", "scatter", "cubic", "quartic"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Moments:
    """Count, mean and centred second moment M2 = Σ w (x − mean)(x − mean)ᵀ of vectors [n, d].

    A pytree; every statistic is a float32 pair (`TwoFloat`), so that chunks merge as exactly as in float64
    on devices without it, and the count is exact beyond 2^24. Each block of rows is reduced in float32 at
    precision HIGHEST around a point of its own; blocks are merged exactly (Chan, Golub & LeVeque 1979), in
    any order or grouping. Two sums of third and fourth order, Σ w‖x − mean‖²(x − mean) and
    Σ w‖x − mean‖⁴, are kept too: the Ledoit–Wolf shrinkage needs them.

    Weights are frequency weights: weight 2 is the row seen twice, 0 the row not seen, fractions are allowed;
    `count` is their sum. No gradient flows through moments.

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
    cubic: Any  # TwoFloat, Σ w‖x − mean‖²(x − mean), [d]
    quartic: Any  # TwoFloat, Σ w‖x − mean‖⁴, []

    @classmethod
    def empty(cls, dim: int) -> "Moments":
        """Moments of no vectors of `dim` coordinates: the neutral element of `merge`."""
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise InputError(f"dim is {dim!r}; expected the number of coordinates of a vector, 1 or more")

        def zeros(*shape: int) -> TwoFloat:
            return TwoFloat(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

        return cls(zeros(), zeros(dim), zeros(dim, dim), zeros(dim), zeros())

    @classmethod
    def of(
        cls, vectors: Float[Array | np.ndarray, "n d"], weights: Real[Array | np.ndarray, " n"] | None = None
    ) -> "Moments":
        """Moments of the rows of `vectors` [n, d], any floating dtype, with optional frequency weights [n].

        Raises:
            InputError: vectors that are not [n, d]; on concrete arrays also a row that is not finite, by
                number, and negative or non-finite weights.
        """
        vectors = _as_rows(vectors)
        if isinstance(vectors, jax.core.Tracer) or isinstance(weights, jax.core.Tracer):
            return _of_traced(vectors, _as_weights(weights, len(vectors)))
        return cls.empty(vectors.shape[1]).update(vectors, weights)

    def update(
        self, chunk: Float[Array | np.ndarray, "n d"], weights: Real[Array | np.ndarray, " n"] | None = None
    ) -> "Moments":
        """These moments and those of a chunk [n, d]; arguments and errors as for `of`.

        Pure: nothing given is changed or donated. Outside tracing a chunk is cut into blocks of fixed shape,
        padded with rows of weight zero, so that one program is compiled whatever the chunks' sizes.
        """
        chunk = _as_rows(chunk)
        if chunk.shape[1] != self.dim:
            raise InputError(
                f"chunk has {chunk.shape[1]} columns; these moments are of {self.dim} coordinates"
            )
        if _is_traced(self, chunk, weights):
            return _merge(self, _of_traced(chunk, _as_weights(weights, len(chunk))))
        state = self
        for block, block_weights, bucket in _blocks(chunk, weights):
            state = _add_block(state, block, block_weights, bucket)
        if not np.isfinite(np.asarray(state.centre.high)).all():
            _name_bad_row(self, chunk)
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
        moved = _shifted(self, self.centre - mean)
        return Moments(count, mean, *(term.psum(axis_name) for term in moved))

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return self.centre.high.shape[-1]

    @property
    def count(self) -> Any:
        """Σ w: an int (a float for fractional weights) outside tracing, else a float32 scalar."""
        if _is_traced(self):
            return self.counted.high
        count = float(self.counted.float64())
        return int(count) if count.is_integer() else count

    @property
    def mean(self) -> Any:
        """The mean [d]: float64 NumPy outside tracing, else float32."""
        return self.centre.high if _is_traced(self) else self.centre.float64()

    @property
    def m2(self) -> Any:
        """The centred second moment [d, d]: float64 NumPy outside tracing, else float32; symmetric."""
        m2 = self.scatter.high if _is_traced(self) else self.scatter.float64()
        return (m2 + m2.T) / 2

    def covariance(self, ddof: int = 1) -> Any:
        """M2 / (count − ddof) [d, d]: float64 NumPy outside tracing, else float32.

        ddof 1 is the unbiased estimate (`numpy.cov`), 0 the maximum-likelihood one (scikit-learn's
        `empirical_covariance`). The divisor counts the sum of the weights, as in `numpy.cov(fweights=)`.

        Raises:
            InputError: outside tracing, when count ≤ ddof.
        """
        if not _is_traced(self) and not self.count > ddof:
            raise InputError(
                f"a covariance with ddof={ddof} needs more than {ddof} vectors, these moments hold {self.count}"
            )
        return self.m2 / (self.count - ddof)


def _is_traced(*trees: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def _as_rows(vectors: Any) -> Any:
    vectors = vectors if isinstance(vectors, jax.Array) else np.asarray(vectors)
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise InputError(f"vectors have shape {vectors.shape}; expected [n, d], one row a sentence")
    return vectors


def _as_weights(weights: Any, rows: int) -> Array:
    weights = jnp.ones(rows, jnp.float32) if weights is None else jnp.asarray(weights, jnp.float32)
    if weights.shape != (rows,):
        raise InputError(f"weights have shape {weights.shape}; expected one weight for each of {rows} rows")
    return weights


def _blocks(chunk: Any, weights: Any) -> Iterator[tuple[Any, np.ndarray, int]]:
    """A concrete chunk as float32 blocks [BLOCK_ROWS, d] with weights, and the bucket of rows in use."""
    rows, dim = chunk.shape
    weights = np.ones(rows, np.float32) if weights is None else np.asarray(weights, np.float32)
    if weights.shape != (rows,):
        raise InputError(f"weights have shape {weights.shape}; expected one weight for each of {rows} rows")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"weight of row {row} is {weights[row]}; expected a finite number, 0 or more")
    if isinstance(chunk, jax.Array) and all(device.platform == "cpu" for device in chunk.devices()):
        chunk = np.asarray(chunk)  # no copy, and slicing compiles nothing
    for start in range(0, rows, BLOCK_ROWS):
        block, used = chunk[start : start + BLOCK_ROWS], min(BLOCK_ROWS, rows - start)
        if isinstance(block, jax.Array):
            block = jnp.pad(block.astype(jnp.float32), ((0, BLOCK_ROWS - used), (0, 0)))
        elif used < BLOCK_ROWS:
            padded = np.zeros((BLOCK_ROWS, dim), np.float32)
            with np.errstate(over="ignore"):
                padded[:used] = block
            block = padded
        else:
            with np.errstate(over="ignore"):
                block = np.asarray(block, np.float32)
        block_weights = np.zeros(BLOCK_ROWS, np.float32)
        block_weights[:used] = weights[start : start + used]
        yield block, block_weights, int(np.searchsorted(ROW_BUCKETS, used))


def _name_bad_row(before: Moments, chunk: Any) -> None:
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.asarray(chunk).astype(np.float32)).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(
            f"row {row} of the vectors holds a value that is not a finite float32; drop the row or repair it"
        )
    if np.isfinite(np.asarray(before.centre.high)).all():
        raise InputError("the vectors' sums overflow float32; divide the vectors by a constant first")
    raise InputError("these moments are not finite: a row added inside a traced function was not")


def _of_traced(vectors: Array, weights: Array) -> Moments:
    rows, dim = vectors.shape
    if rows == 0:
        return Moments.empty(dim)
    first = min(rows % BLOCK_ROWS or BLOCK_ROWS, rows)
    state = _block_moments(vectors[:first], weights[:first])
    if first == rows:
        return state
    blocks = vectors[first:].reshape(-1, BLOCK_ROWS, dim), weights[first:].reshape(-1, BLOCK_ROWS)
    return jax.lax.scan(lambda m, block: (_merge(m, _block_moments(*block)), None), state, blocks)[0]


def _block_moments(x: Array, w: Array) -> Moments:
    """Moments of one block [rows, d]: one product of rows, around a point near their mean.

    The exact mean would cost another pass over the block. The mean of a sample of its rows is near enough:
    what M2 around it has too much, n·offset·offsetᵀ, is small, and taken off in two-float arithmetic.
    """
    x = jax.lax.stop_gradient(x).astype(jnp.float32)
    w = jax.lax.stop_gradient(w)
    stride = max(1, len(x) // 64)
    sampled = (w[::stride] > 0).astype(jnp.float32)
    # Around the first row, so that a constant coordinate is centred to exact zeros.
    point = x[0] + jnp.matmul(sampled, x[::stride] - x[0], precision=HIGHEST) / jnp.maximum(sampled.sum(), 1)
    root = jnp.sqrt(w)
    y = (x - point) * root[:, None]
    squares = jnp.sum(y * y, axis=1)  # w‖x − point‖²
    m2 = TwoFloat.of(jnp.matmul(y.T, y, precision=HIGHEST))
    norms = jnp.where(w > 0, squares / jnp.where(w > 0, root, 1), 0)  # √w ‖x − point‖²
    first, third = jnp.matmul(jnp.stack([root, norms]), y, precision=HIGHEST)
    fourth, count, trace = jnp.sum(norms * norms), jnp.sum(w), jnp.sum(squares)

    offset = jnp.where(count > 0, first / jnp.where(count > 0, count, 1), 0)
    along = jnp.matmul(m2.high, offset, precision=HIGHEST)
    length = jnp.sum(offset * offset)
    fourth = fourth - 4 * jnp.vdot(offset, third, precision=HIGHEST) - 3 * count * length**2
    fourth = fourth + 4 * jnp.vdot(offset, along, precision=HIGHEST) + 2 * length * trace
    third = third - trace * offset - 2 * along + 2 * count * length * offset
    offset, count = TwoFloat.of(offset), TwoFloat.of(count)
    m2 = m2 - (offset * count).outer(offset)
    return Moments(count, TwoFloat.of(point) + offset, m2, TwoFloat.of(third), TwoFloat.of(fourth))


def _shifted(moments: Moments, offset: TwoFloat) -> tuple[TwoFloat, TwoFloat, TwoFloat]:
    """Second, third and fourth order sums around the point mean − offset instead of the mean."""
    n, shift, m2 = moments.counted.high, offset.high, moments.scatter.high
    along, trace = jnp.matmul(m2, shift, precision=HIGHEST), jnp.trace(m2)
    length = jnp.sum(shift * shift)
    third = 2 * along + (trace + n * length) * shift
    fourth = 4 * jnp.vdot(shift, moments.cubic.high + along, precision=HIGHEST)
    fourth = fourth + length * (2 * trace + n * length)
    return (
        moments.scatter + (offset * moments.counted).outer(offset),
        moments.cubic + TwoFloat.of(third),
        moments.quartic + TwoFloat.of(fourth),
    )


@jax.jit
def _merge(a: Moments, b: Moments) -> Moments:
    count = a.counted + b.counted
    step = (b.centre - a.centre) * (b.counted / count)
    mean = a.centre + step
    moved = zip(_shifted(a, a.centre - mean), _shifted(b, b.centre - mean), strict=True)
    return Moments(count, mean, *(left + right for left, right in moved))


@jax.jit
def _add_block(state: Moments, block: Array, weights: Array, bucket: Array) -> Moments:
    branches = [lambda rows=rows: _block_moments(block[:rows], weights[:rows]) for rows in ROW_BUCKETS]
    return _merge(state, jax.lax.switch(bucket, branches))
