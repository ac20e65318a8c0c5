"""How a flow is trained: the recipe, its optimiser, and the two named presets."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxvec.calibration.flow.glow import GlowConfig
from jaxvec.errors import InputError, is_whole

Schedule = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about training but the flow's shape; the defaults are those of the preset "glow".

    Attributes:
        init: "whitening" starts at the PCA whitening of the data; "data" sets the ActNorms only.
        noise: variance of the normal noise added to every training vector, anew at each step, as a multiple of
            the geometric mean of the data's variances. None takes √(d / n), the relative error of a sample
            eigenvalue. A smoothed density does not inflate the directions of least variance.
        init_rows: ActNorms are set from this many training vectors (all, where there are fewer).
        epochs: passes over the training vectors.
        batch_size: vectors of a step; a last, smaller batch is left out.
        learning_rate: its peak.
        schedule: "cosine" (linear warm-up over a twentieth, then down to 0) or "constant".
        optimizer: "adamw", which decays matrices only; or "bert_adamw", BERT's: no bias correction, ε = 1e-6, and
            every parameter decays.
        weight_decay: per unit of learning rate.
        clip: largest norm of a gradient of the loss, which is in bits per dimension; 0 clips nothing.
        ema: decay of the averaged parameters that are evaluated and kept; 0 keeps the last ones.
        held_out: share of the vectors (at most 4,096) that are not trained on but watched; 0 watches nothing.
        patience: epochs without a better held-out likelihood before training stops; the best parameters are kept.
        drift: how far similarity may move from where it started, by 1 − the correlation between the cosines of
            pairs of training vectors and those after whitening. Training stops there; 1 lets it go on, as it
            must where init is "data".
    """

    init: str = "whitening"
    noise: float | None = None
    init_rows: int = 2048
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 5e-4
    schedule: str = "cosine"
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.99
    held_out: float = 0.1
    patience: int = 5
    drift: float = 0.01

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        for name in ("init_rows", "epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise InputError(f"{name} is {value!r}; expected a whole number, 1 or more")
        for name, most in _RANGES.items():
            value = getattr(self, name)
            if name == "noise" and value is None:
                continue
            if not isinstance(value, int | float | np.number) or not 0 <= value <= most:
                raise InputError(f"{name} is {value!r}; expected a number from 0 to {most:g}")


_CHOICES = {
    "init": ("whitening", "data"),
    "schedule": ("cosine", "constant"),
    "optimizer": ("adamw", "bert_adamw"),
}
_RANGES = {
    "noise": 1e6,
    "learning_rate": 1e3,
    "weight_decay": 1e3,
    "clip": 1e6,
    "ema": 0.999999,
    "held_out": 0.5,
    "drift": 1.0,
}

PRESETS: dict[str, tuple[GlowConfig, Recipe]] = {
    "glow": (GlowConfig(), Recipe()),
    # github.com/bohanli/BERT-flow, config_l3_d3_w32 and run_siamese.py; the paper's Table 7 says 2 levels.
    "bert_flow": (
        GlowConfig(
            levels=3,
            depth=3,
            hidden=32,
            coupling="additive",
            permutation="reversal",
            learned_prior=False,
            factor=3.0,
        ),
        Recipe(
            init="data",
            noise=0.0,
            init_rows=32,
            epochs=1,
            batch_size=32,
            learning_rate=1e-3,
            schedule="constant",
            optimizer="bert_adamw",
            weight_decay=0.01,
            clip=1.0,
            ema=0.0,
            held_out=0.0,
            drift=1.0,
        ),
    ),
}


def configure(preset: str, options: dict[str, Any]) -> tuple[GlowConfig, Recipe]:
    """A preset with some fields of `GlowConfig` and `Recipe` replaced.

    Raises:
        InputError: an unknown preset or field, or a value out of range.

    Example:
        >>> config, recipe = configure("bert_flow", {"levels": 2})
        >>> config.levels, config.coupling, recipe.epochs
        (2, 'additive', 1)
    """
    if preset not in tuple(PRESETS):
        raise InputError(f"preset is {preset!r}; expected one of {', '.join(PRESETS)}")
    # A saved flow holds them as JSON, which knows no NumPy numbers.
    options = {n: value.item() if isinstance(value, np.generic) else value for n, value in options.items()}
    merged = []
    for part in PRESETS[preset]:
        names = [field.name for field in fields(part)]
        merged.append(type(part)(**{n: options.get(n, getattr(part, n)) for n in names}))
    known = [field.name for part in merged for field in fields(part)]
    if foreign := [name for name in options if name not in known]:
        raise InputError(f"a flow has no option {', '.join(foreign)}; it has {', '.join(known)}")
    config, recipe = merged
    if recipe.init == "whitening" and config.permutation not in ("lu", "dense"):
        raise InputError(
            f"init 'whitening' needs a learned matrix to start from, and permutation is {config.permutation!r}; "
            "give permutation='lu', or init='data'"
        )
    if recipe.init == "data" and recipe.drift < 1:
        raise InputError("init 'data' starts far from the whitening, which drift measures from; give drift=1")
    return config, recipe


def make_optimizer(recipe: Recipe, steps: int) -> optax.GradientTransformation:
    """The recipe's optimiser for a training of so many steps."""
    schedule: float | Schedule = recipe.learning_rate
    if recipe.schedule == "cosine":
        warm = max(1, steps // 20)
        schedule = optax.warmup_cosine_decay_schedule(0.0, recipe.learning_rate, warm, max(steps, warm + 1))
    parts = [optax.clip_by_global_norm(recipe.clip)] if recipe.clip else []
    if recipe.optimizer == "bert_adamw":
        decay = optax.add_decayed_weights(recipe.weight_decay)
        parts += [scale_by_bert_adam(), decay, optax.scale_by_learning_rate(schedule)]
    else:
        parts.append(optax.adamw(schedule, weight_decay=recipe.weight_decay, mask=_matrices))
    return optax.chain(*parts)


def scale_by_bert_adam() -> optax.GradientTransformation:
    """Adam as BERT's released optimiser has it: m / (√v + 1e-6), without bias correction.

    References: J. Devlin et al., optimization.py of github.com/google-research/bert.
    """

    def init(params: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], gradients)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-6), first, second), (first, second)

    return optax.GradientTransformation(init, update)


def _matrices(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)
