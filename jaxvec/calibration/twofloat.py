"""Two-float arithmetic: a float32 pair whose exact sum carries about 48 bits, where float64 is switched off.

JAX computes in float32 unless the whole process enables 64 bits, and many accelerators have no float64 at
all. A statistic that is summed over thousands of chunks needs more: every rounded float32 addition of a
covariance moves its smallest eigenvalues.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SLICE_BITS = 12  # 2^12 integers of 12 bits have a sum that float32 holds


class TwoFloat(NamedTuple):
    """The unevaluated sum `high + low` of two float32 arrays of one shape, with |low| ≤ ½ ulp(high).

    References: T. J. Dekker, "A floating-point technique for extending the available precision",
    Numerische Mathematik 18, 1971; D. E. Knuth, The Art of Computer Programming 2, §4.2.2.

    Example:
        >>> import jax.numpy as jnp
        >>> total = TwoFloat.of(jnp.float32(2**24)) + TwoFloat.of(jnp.float32(1))
        >>> int(total.float64()), int(jnp.float32(2**24) + jnp.float32(1))
        (16777217, 16777216)
    """

    high: Any  # Float[Array, "..."]
    low: Any  # Float[Array, "..."]

    @classmethod
    def of(cls, x: Float[Array, "..."]) -> "TwoFloat":
        return cls(x, jnp.zeros_like(x))

    def __add__(self, other: "TwoFloat") -> "TwoFloat":
        high, error = two_sum(self.high, other.high)
        return fast_two_sum(high, error + (self.low + other.low))

    def __neg__(self) -> "TwoFloat":
        return TwoFloat(-self.high, -self.low)

    def __sub__(self, other: "TwoFloat") -> "TwoFloat":
        return self + (-other)

    def __mul__(self, other: "TwoFloat") -> "TwoFloat":
        """Elementwise product with broadcasting, relative error below 2^-33."""
        (a, a_tail), (b, b_tail) = halves(self.high), halves(other.high)
        cross = (a * b_tail + a_tail * b) + a_tail * b_tail
        return fast_two_sum(a * b, cross + (self.high * other.low + self.low * other.high))

    def __truediv__(self, other: "TwoFloat") -> "TwoFloat":
        """Elementwise quotient; 0 where the divisor is 0."""
        divisor = jnp.where(other.high == 0, 1, other.high)
        quotient = jnp.where(other.high == 0, 0, self.high / divisor)
        remainder = self - TwoFloat.of(quotient) * other
        return fast_two_sum(quotient, jnp.where(other.high == 0, 0, remainder.high / divisor))

    def outer(self, other: "TwoFloat") -> "TwoFloat":
        """`self[:, None] * other[None, :]` for two vectors."""
        column = TwoFloat(self.high[:, None], self.low[:, None])
        return column * TwoFloat(other.high[None, :], other.low[None, :])

    def psum(self, axis_name: Any) -> "TwoFloat":
        """The sum over the devices of a mapped axis, exact to about 2^-48 of the largest term (≤ 4,096 devices).

        A plain `lax.psum` of the pair rounds every partial sum to float32.
        """
        largest = jax.lax.pmax(jnp.abs(self.high), axis_name)
        return _exact_sum(self, largest, lambda terms: jax.lax.psum(terms, axis_name))

    @classmethod
    def sum(cls, x: Float[Array, " n"]) -> "TwoFloat":
        """The sum of up to 4,096 numbers, exact to about 2^-48 of the largest."""
        return _exact_sum(cls.of(x), jnp.max(jnp.abs(x), initial=0), jnp.sum)

    def number(self) -> Any:
        """An int where it is one (else a float) outside tracing, float32 while tracing; a stack as an array."""
        if isinstance(self.high, jax.core.Tracer):
            return self.high
        value = self.float64()
        if value.ndim:
            return value
        return int(value) if float(value).is_integer() else float(value)

    def float64(self) -> np.ndarray:
        """The value on the host, float64 NumPy (concrete arrays only)."""
        return np.asarray(np.asarray(self.high, np.float64) + np.asarray(self.low, np.float64))


def _exact_sum(terms: TwoFloat, largest: Any, reduce: Any) -> TwoFloat:
    """`reduce` of all terms, each cut into integers of 12 bits on one grid: their float32 sums are exact."""
    exponent = jnp.frexp(jnp.where(largest > 0, largest, 1))[1]
    total = TwoFloat.of(jnp.zeros_like(largest))
    for bits in (SLICE_BITS, 2 * SLICE_BITS):
        steps = jnp.round(jnp.ldexp(terms.high, bits - exponent))
        terms = terms - TwoFloat.of(jnp.ldexp(steps, exponent - bits))
        total = total + TwoFloat.of(jnp.ldexp(reduce(steps), exponent - bits))
    return total + TwoFloat(reduce(terms.high), reduce(terms.low))


def two_sum(a: Float[Array, "..."], b: Float[Array, "..."]) -> tuple[Array, Array]:
    """Rounded sum and its exact rounding error, whatever the order of magnitudes (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def fast_two_sum(a: Float[Array, "..."], b: Float[Array, "..."]) -> TwoFloat:
    """Rounded sum and its exact rounding error where |a| ≥ |b| (Dekker)."""
    total = a + b
    return TwoFloat(total, b - (total - a))


def halves(x: Float[Array, "..."]) -> tuple[Array, Array]:
    """x = head + tail exactly, 12 significant bits each, so that products of halves are exact.

    The head is cut off by masking bits: Veltkamp's multiplication would change under a fused multiply-add.
    """
    mask = jnp.int32(-(1 << 12))
    head = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.int32) & mask, jnp.float32)
    return head, x - head


def root_of_squares(*terms: Float[Array, "..."]) -> Array:
    """√(a² + b² + …), float32, where the squares themselves may leave float32."""
    magnitudes = jnp.abs(jnp.stack(terms))
    largest = jnp.max(magnitudes, axis=0)
    shares = magnitudes / jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jnp.sum(shares**2, axis=0))


def column_roots(
    squares: Float[Array, " d"], y: Float[Array, "n d"], count: Float[Array, ""], offset: Float[Array, " d"]
) -> Float[Array, " d"]:
    """√squares, from `y` again where some square is too small for float32: √(Σ y² − count · offset²)."""

    def again() -> Array:
        largest = jnp.max(jnp.abs(y), axis=0)
        inverse = jnp.where(largest > 2.0**-126, 1 / largest, 0)
        shares = jnp.sum((y * inverse) ** 2, axis=0) - count * (offset * inverse) ** 2
        return largest * jnp.sqrt(jnp.maximum(shares, 0))

    # A branch, because it costs two more passes over y, and few encoders have such coordinates.
    return jax.lax.cond(jnp.all(squares > 1e-30), lambda: jnp.sqrt(squares), again)
