"""Where the training of a flow starts: at the data's own scale, or where whitening ends."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxvec.calibration.affine import RTOL, principal_directions
from jaxvec.calibration.fit_checks import checked
from jaxvec.calibration.flow.arrays import arrays_of
from jaxvec.calibration.flow.glow import Glow, GlowConfig
from jaxvec.calibration.flow.recipe import Recipe
from jaxvec.calibration.moments import Moments


@dataclass(frozen=True)
class Spectrum:
    """Mean, principal directions and variances of the training vectors, solved in float64.

    Attributes:
        mean: [d].
        directions: [d, d], one a row, descending.
        variances: [d], as measured; 0 where they are rounding.
        noise: variance of the noise that training adds in every direction.
    """

    mean: np.ndarray
    directions: np.ndarray
    variances: np.ndarray
    noise: float

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "n d"], noise: float | None) -> "Spectrum":
        """Of the training vectors; `noise` as in `Recipe`.

        Raises:
            InputError: all vectors are equal, or too small or too large for float32.
        """
        moments = checked(Moments.of(vectors))
        variances, columns, _ = principal_directions(moments, moments.covariance(), "float64", RTOL)
        kept = variances[variances > RTOL * variances[0]]
        typical = float(np.exp(np.log(kept).mean()))
        n, d = vectors.shape
        share = float(np.sqrt(d / n)) if noise is None else noise
        return cls(np.asarray(moments.mean), columns.T, variances, share * typical)

    @property
    def rank(self) -> int:
        """Directions with a variance above 1e-6 of the largest."""
        return int((self.variances > RTOL * self.variances[0]).sum())

    def log_scales(self) -> np.ndarray:
        """log of 1/√variance, with the noise in it; a direction below the rank cut is floored, not inverted."""
        return -0.5 * np.log(np.maximum(self.variances, RTOL * self.variances[0]) + self.noise)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(mean, directions, log_scales), float32."""
        return tuple(
            np.asarray(array, np.float32) for array in (self.mean, self.directions, self.log_scales())
        )

    def cosines(self, vectors: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k k"]:
        """Of the vectors after this whitening."""
        latent = (vectors - self.mean) @ (self.directions.T * np.exp(self.log_scales()))
        unit = latent / np.maximum(np.linalg.norm(latent, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return (unit @ unit.T).astype(np.float32)


def starting_arrays(
    config: GlowConfig,
    recipe: Recipe,
    spectrum: Any,
    rows: Float[Array, "n d"],
    seed: Int[Array, ""],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(trained, fixed) arrays of a flow before its first step; pure, so that `vmap` over seeds starts many.

    Args:
        config: the flow's shape.
        recipe: how it is trained.
        spectrum: `Spectrum.arrays()`.
        rows: what the ActNorms are set from.
        seed: of rotations and weights.
    """
    glow = Glow(config, rows.shape[1:], jax.random.key(seed))
    if recipe.init == "data":
        glow.initialise(rows)
        return arrays_of(glow)
    mean, directions, log_scales = spectrum
    first = glow.levels[0][0]
    first.norm.shift[...] = -mean
    if config.permutation == "lu":
        first.mixing.rotation[...] = directions
        first.mixing.log_diagonal[...] = log_scales
    else:
        first.mixing.matrix[...] = jnp.exp(log_scales)[:, None] * directions
    glow.initialise_after_first(rows)
    return arrays_of(glow)
