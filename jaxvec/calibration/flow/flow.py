"""Flow: a trained Glow as a calibration of sentence vectors, and an exact density of them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxvec.calibration.flow.arrays import glow_of
from jaxvec.calibration.flow.fitting import train
from jaxvec.calibration.flow.glow import GlowConfig, log_density
from jaxvec.calibration.flow.recipe import configure
from jaxvec.errors import InputError, is_whole


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["config", "dim"],
    drop_fields=["record"],
)
@dataclass(frozen=True, eq=False)
class Flow:
    """An invertible map from sentence vectors to latent ones that are close to N(0, I). Made by `Flow.fit`.

    A pytree of floating arrays: pass it to, or close over it in, `jit`, `vmap`, `grad`, `shard_map`. `record`, what
    the fit saw, stays behind when a flow goes through one of them.

    References: B. Li, H. Zhou, J. He, M. Wang, Y. Yang, L. Li, "On the Sentence Embeddings from Pre-trained
    Language Models", EMNLP 2020, arXiv:2011.05864; D. P. Kingma, P. Dhariwal, "Glow: Generative Flow with
    Invertible 1×1 Convolutions", NeurIPS 2018, arXiv:1807.03039.

    Example:
        >>> vectors = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
        >>> flows = Flow.fit_many(vectors, seeds=range(2), levels=1, depth=1, hidden=8, epochs=1)
        >>> flow = flows[0]
        >>> latent = flow(vectors)
        >>> latent.shape, bool(np.allclose(flow.inverse(latent), vectors, atol=1e-4))
        ((300, 2), True)
        >>> flow.sample(jax.random.key(0), 5).shape
        (5, 2)
        >>> mean, deviation = flows.spread(lambda flow: flow.log_likelihood(vectors).mean())
        >>> len(flows), flows(vectors).shape, bool(deviation < 0.1)
        (2, (2, 300, 2), True)
    """

    arrays: dict[str, Any]
    config: GlowConfig
    dim: int
    record: Any = None

    @classmethod
    def fit(
        cls,
        vectors: Float[Array | np.ndarray, "n d"],
        *,
        preset: str = "glow",
        seed: int = 0,
        checkpoint: str | os.PathLike[str] | None = None,
        show_progress: bool = False,
        **options: Any,
    ) -> "Flow":
        """A flow trained by maximum likelihood on vectors, on every local device.

        Likelihood keeps rising long after similarity has stopped to gain: a flow that is let go pulls the
        training sentences apart, whatever they mean. The preset "glow" therefore starts at the whitening of the
        data and trains on vectors with noise (`Recipe.noise`), whose density it cannot overfit; held-out
        likelihood of such vectors is watched, and the best round kept.

        Args:
            vectors: un-normalised, [n, d].
            preset: "glow", affine couplings and learned 1×1 matrices that start at the whitening of the data; or
                "bert_flow", the released configuration: additive couplings of width 32, fixed reversal, 3
                levels × 3 steps, one epoch of BERT's AdamW at 1e-3.
            seed: of rotations, weights, shuffling and noise.
            checkpoint: folder that keeps the training after every round, 256 steps or an epoch; a call with the
                same arguments goes on from there, bit for bit.
            show_progress: a progress bar with the likelihood on stderr.
            **options: fields of `GlowConfig` and `Recipe`: levels, depth, hidden, coupling, permutation, init,
                epochs, batch_size, learning_rate, …

        Raises:
            InputError: vectors that are not finite, all equal, or fewer than a batch; an unknown option;
                training that diverges, with its step; a checkpoint that is damaged or of another training.

        Warns:
            UserWarning: a coordinate is constant, or training does not raise the held-out likelihood.
        """
        return Flow.fit_many(
            vectors, [seed], preset=preset, checkpoint=checkpoint, show_progress=show_progress, **options
        )[0]

    @staticmethod
    def fit_many(
        vectors: Float[Array | np.ndarray, "n d"],
        seeds: Sequence[int] = range(5),
        *,
        preset: str = "glow",
        checkpoint: str | os.PathLike[str] | None = None,
        show_progress: bool = False,
        **options: Any,
    ) -> Any:
        """One flow for every seed, trained side by side in one compiled program; the rest is as for `fit`.

        Returns:
            A `FlowEnsemble`.
        """
        from jaxvec.calibration.flow.ensemble import FlowEnsemble

        config, recipe = configure(preset, options)
        if isinstance(vectors, jax.core.Tracer):
            raise InputError("the vectors are traced; a flow is trained outside jit, on concrete ones")
        mesh = Mesh(np.array(jax.local_devices()), ("rows",))
        with jax.set_mesh(mesh):  # instead of the caller's, if there is one
            trained = train(vectors, seeds, config, recipe, preset, checkpoint, show_progress, mesh)
        # By way of the host, so that a flow is bound to no mesh and goes into every program.
        arrays = {name: jnp.asarray(np.asarray(array)) for name, array in trained.arrays.items()}
        return FlowEnsemble(arrays, config, trained.records[0]["dim"], trained.records)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], arrays: Mapping[str, Any]) -> "Flow":
        """The flow of which these are `spec()` and `to_arrays()`, concrete or traced; see `rebuild`."""
        config, dim = GlowConfig(**spec["config"]), spec["dim"]
        glow_of(config, (dim,), arrays)
        traced = any(isinstance(array, jax.core.Tracer) for array in arrays.values())
        if not traced and not all(np.isfinite(np.asarray(array)).all() for array in arrays.values()):
            raise InputError("an array of the flow holds a value that is not finite; fit it again")
        own = {name: jnp.asarray(array) for name, array in arrays.items()}
        return cls(own, config, dim, None if spec["record"] is None else json.loads(spec["record"]))

    @property
    def input_dim(self) -> int:
        """The number of coordinates, in and out."""
        return self.dim

    def __call__(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch d"]:
        """The latent vectors, float32: parts that left at a level first, level by level.

        Raises:
            InputError: vectors whose last axis is not `dim` long.
        """
        return _map("latent", self, vectors)

    def inverse(self, latent: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch d"]:
        """The vectors that have these latent ones."""
        return _map("inverse", self, latent)

    def log_likelihood(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch"]:
        """log p(vector), in nats."""
        return _map("log_likelihood", self, vectors)

    def bits_per_dimension(self, vectors: Float[Array | np.ndarray, "*batch d"]) -> Float[Array, "*batch"]:
        """−log₂ p(vector) / d: what training minimises."""
        return -self.log_likelihood(vectors) / (np.log(2) * self.dim)

    def sample(self, key: Array, count: int) -> Float[Array, "count d"]:
        """Vectors drawn from the density, float32."""
        if not is_whole(count, 0):
            raise InputError(f"count is {count!r}; expected a whole number, 0 or more")
        return self.inverse(jax.random.normal(key, (count, self.dim)))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The float32 arrays on the host, by name."""
        return {name: np.asarray(array) for name, array in self.arrays.items()}

    def spec(self) -> dict[str, Any]:
        """Shape and record, as JSON takes them."""
        return {
            "kind": "flow",
            "dim": self.dim,
            "config": asdict(self.config),
            "record": None if self.record is None else json.dumps(self.record),
        }

    def figures(self) -> dict[str, Any]:
        """What the fit saw: counts, recipe, and the likelihood round by round, in bits per dimension."""
        return {"method": "flow", "input_dim": self.dim, "dim": self.dim, **(self.record or {})}


def _map(what: str, flow: Flow, vectors: Any) -> Array:
    vectors = jnp.asarray(vectors)
    if vectors.ndim == 0 or vectors.shape[-1] != flow.dim:
        raise InputError(f"vectors have shape {vectors.shape}; this flow takes [..., {flow.dim}]")
    return _apply(what, flow.config, flow.arrays, vectors)


@partial(jax.jit, static_argnums=(0, 1))
def _apply(what: str, config: GlowConfig, arrays: dict[str, Array], vectors: Array) -> Array:
    dim = vectors.shape[-1]
    glow = glow_of(config, (dim,), arrays)

    def one(x: Array) -> Array:
        if what == "inverse":
            return glow.inverse_and_log_det(x)[0]
        z, log_det = glow.transform_and_log_det(x)
        return z if what == "latent" else log_density(z, log_det)

    dtype = next(iter(arrays.values())).dtype
    out = jax.vmap(one)(vectors.astype(dtype).reshape(-1, dim))
    return out.reshape(*vectors.shape[:-1], *out.shape[1:])
