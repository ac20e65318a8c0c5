"""Glow: levels of (ActNorm, 1×1 convolution, coupling) that turn a sentence vector into a latent one."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxvec.calibration.flow.actnorm import ActNorm
from jaxvec.calibration.flow.coupling import AdditiveCoupling, AffineCoupling
from jaxvec.calibration.flow.levels import Split, Squeeze
from jaxvec.calibration.flow.linear import DenseMatrix, LUMatrix, Permutation, Reversal
from jaxvec.errors import InputError, is_whole

COUPLINGS = {"additive": AdditiveCoupling, "affine": AffineCoupling}
PERMUTATIONS = {"lu": LUMatrix, "dense": DenseMatrix, "reversal": Reversal, "random": Permutation}


@dataclass(frozen=True, kw_only=True)
class GlowConfig:
    """The shape of a Glow; the defaults are those of the preset "glow".

    Attributes:
        levels: after each but the last, half of the coordinates (rounded down) leaves as latent.
        depth: steps of a level.
        hidden: width of the network inside a coupling.
        coupling: "affine" or "additive".
        permutation: what mixes the coordinates: "lu" or "dense" (a learned matrix), "reversal" or "random".
        learned_prior: whether what leaves at a level is predicted from what stays, or simply N(0, I).
        factor: what a stored log-scale of ActNorm is multiplied by.
    """

    levels: int = 2
    depth: int = 3
    hidden: int = 64
    coupling: str = "affine"
    permutation: str = "lu"
    learned_prior: bool = True
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("levels", "depth", "hidden"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise InputError(f"{name} is {value!r}; expected a whole number, 1 or more")
        for name, known in (("coupling", COUPLINGS), ("permutation", PERMUTATIONS)):
            if getattr(self, name) not in tuple(known):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        if not isinstance(self.learned_prior, bool):
            raise InputError(f"learned_prior is {self.learned_prior!r}; expected True or False")
        if not isinstance(self.factor, int | float) or not 1e-3 <= self.factor <= 1e3:
            raise InputError(f"factor is {self.factor!r}; expected a number from 0.001 to 1000")


class Step(nnx.Module):
    """One step of a level: ActNorm, then what mixes the coordinates, then the coupling."""

    def __init__(self, config: GlowConfig, dim: int, key: Array, dtype: Any):
        first, second = jax.random.split(key)
        self.norm = ActNorm(dim, config.factor, dtype)
        self.mixing = PERMUTATIONS[config.permutation](dim, first, dtype)
        self.coupling = COUPLINGS[config.coupling](dim, config.hidden, second, config.factor, dtype)

    def initialise(self, batch: Array) -> Array:
        """Sets the ActNorms from a batch [n, …], and returns it transformed."""
        batch = self.norm.initialise(batch)
        return self.finish(batch)

    def finish(self, batch: Array) -> Array:
        """As `initialise`, from behind the ActNorm."""
        mixed = jax.vmap(lambda x: self.mixing.transform_and_log_det(x)[0])(batch)
        return self.coupling.initialise(mixed)

    def transform_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """(y, log|det ∂y/∂x|)."""
        log_det = jnp.zeros((), x.dtype)
        for part in (self.norm, self.mixing, self.coupling):
            x, change = part.transform_and_log_det(x)
            log_det += change
        return x, log_det

    def inverse_and_log_det(self, y: Array) -> tuple[Array, Array]:
        """(x, log|det ∂x/∂y|)."""
        log_det = jnp.zeros((), y.dtype)
        for part in (self.coupling, self.mixing, self.norm):
            y, change = part.inverse_and_log_det(y)
            log_det += change
        return y, log_det


class Glow(nnx.Module):
    """x ↦ z with base density N(0, I) over one event: a vector [dim], or [height, width, channels].

    An event with spatial shape is squeezed at the start of every level, and every layer acts on its channels. z
    is flat: the parts that left, level by level, then the rest, which is the order of the released BERT-flow.

    Args:
        config: levels, depth, hidden, kinds.
        shape: of an event; height and width divisible by 2^levels.
        key: random key of rotations, permutations and weights.

    References: Kingma & Dhariwal 2018; B. Li et al., "On the Sentence Embeddings from Pre-trained Language
    Models", EMNLP 2020, arXiv:2011.05864.

    Example:
        >>> glow = Glow(GlowConfig(levels=2, depth=1), (7,), jax.random.key(0))
        >>> z, log_det = glow.transform_and_log_det(jnp.arange(7.0))
        >>> bool(jnp.allclose(glow.inverse_and_log_det(z)[0], jnp.arange(7.0), atol=1e-5))
        True
    """

    def __init__(self, config: GlowConfig, shape: tuple[int, ...], key: Array, dtype: Any = jnp.float32):
        *space, channels = shape
        if len(space) not in (0, 2) or any(side % 2**config.levels for side in space):
            raise InputError(
                f"an event has shape {shape}; expected [dim], or [height, width, channels] with height and width "
                f"divisible by {2**config.levels} (2 to the levels)"
            )
        self.shape, self.squeeze = shape, Squeeze() if space else None
        self.shapes, levels, splits = [], [], []
        keys = jax.random.split(key, (config.levels, config.depth))
        for level in range(config.levels):
            if space:
                space, channels = [side // 2 for side in space], 4 * channels
            self.shapes.append((*space, channels))
            levels.append(nnx.List(Step(config, channels, k, dtype) for k in keys[level]))
            if level + 1 < config.levels:
                splits.append(Split(channels, dtype) if config.learned_prior else None)
                channels -= channels // 2
        self.levels, self.splits = nnx.List(levels), nnx.List(splits)

    def initialise(self, batch: Float[Array, "n *event"]) -> Float[Array, "n latent"]:
        """Sets every ActNorm from a batch, front to back, and returns its latent vectors."""
        return self._initialise(batch, Step.initialise)

    def initialise_after_first(self, batch: Float[Array, "n *event"]) -> Float[Array, "n latent"]:
        """As `initialise`, but the ActNorm of the first step stays as it is."""
        first = self.levels[0][0]

        def initialise(step: Step, rows: Array) -> Array:
            if step is not first:
                return step.initialise(rows)
            return step.finish(jax.vmap(step.norm)(rows))

        return self._initialise(batch, initialise)

    def _initialise(self, batch: Array, initialise: Any) -> Array:
        for number, steps in enumerate(self.levels):
            if self.squeeze is not None:
                batch = jax.vmap(lambda x: self.squeeze.transform_and_log_det(x)[0])(batch)
            for step in steps:
                batch = initialise(step, batch)
            if number < len(self.splits):
                batch = batch[..., : self._kept(number)]
        return batch.reshape(len(batch), -1)

    def transform_and_log_det(
        self, x: Float[Array, "*event"]
    ) -> tuple[Float[Array, " latent"], Float[Array, ""]]:
        """(z, log|det ∂z/∂x|)."""
        left, log_det = [], jnp.zeros((), x.dtype)
        for number, steps in enumerate(self.levels):
            if self.squeeze is not None:
                x, _ = self.squeeze.transform_and_log_det(x)
            for step in steps:
                x, change = step.transform_and_log_det(x)
                log_det += change
            if number < len(self.splits):
                if (split := self.splits[number]) is not None:
                    x, change = split.transform_and_log_det(x)
                    log_det += change
                kept = self._kept(number)
                left.append(x[..., kept:].reshape(-1))
                x = x[..., :kept]
        return jnp.concatenate([*left, x.reshape(-1)]), log_det

    def inverse_and_log_det(
        self, z: Float[Array, " latent"]
    ) -> tuple[Float[Array, "*event"], Float[Array, ""]]:
        """(x, log|det ∂x/∂z|)."""
        left = []
        for number in range(len(self.splits)):
            shape = self._left(number)
            left.append(z[: int(np.prod(shape))].reshape(shape))
            z = z[int(np.prod(shape)) :]
        x, log_det = z.reshape(*self.shapes[-1]), jnp.zeros((), z.dtype)
        for number in reversed(range(len(self.levels))):
            if number < len(self.splits):
                x = jnp.concatenate([x, left[number]], axis=-1)
                if (split := self.splits[number]) is not None:
                    x, change = split.inverse_and_log_det(x)
                    log_det += change
            for step in reversed(self.levels[number]):
                x, change = step.inverse_and_log_det(x)
                log_det += change
            if self.squeeze is not None:
                x, _ = self.squeeze.inverse_and_log_det(x)
        return x, log_det

    def _kept(self, number: int) -> int:
        channels = self.shapes[number][-1]
        return channels - channels // 2

    def _left(self, number: int) -> tuple[int, ...]:
        *space, channels = self.shapes[number]
        return (*space, channels // 2)


def log_density(z: Float[Array, " latent"], log_det: Float[Array, ""]) -> Float[Array, ""]:
    """log p(x) in nats of the event that became z: log N(z; 0, I) + log|det ∂z/∂x|."""
    return -0.5 * (jnp.sum(z * z) + z.size * jnp.log(2 * jnp.pi)) + log_det
