"""FlowEnsemble: flows that differ by their seed, and how far they are apart."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxvec.calibration.flow.flow import Flow
from jaxvec.calibration.flow.glow import GlowConfig


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["config", "dim"],
    drop_fields=["records"],
)
@dataclass(frozen=True, eq=False)
class FlowEnsemble:
    """Flows that differ by their seed: `flows[i]` is one, `flows(vectors)` are all their latent vectors.

    Made by `Flow.fit_many` (`Flow` has an example); a pytree of arrays stacked over the seeds.
    """

    arrays: dict[str, Any]
    config: GlowConfig
    dim: int
    records: Any = None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: int) -> Flow:
        """One of the flows; negative from the end."""
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"flow {index} of {len(self)}")
        record = None if self.records is None else self.records[index]
        return Flow(
            {name: array[index] for name, array in self.arrays.items()}, self.config, self.dim, record
        )

    def __call__(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "seeds *batch d"]:
        """The latent vectors of every flow."""
        return jnp.stack([flow(vectors) for flow in self])

    def spread(self, score: Callable[[Flow], Any]) -> tuple[float, float]:
        """Mean and standard deviation (ddof 1) over the flows of `score(flow)`, a number."""
        scores = np.array([float(score(flow)) for flow in self])
        return float(scores.mean()), float(scores.std(ddof=1)) if len(scores) > 1 else 0.0
