"""From vectors on the host to trained flows: checks, the split, the loop over rounds, what is reported."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxvec.calibration.blocks import as_rows, first_bad_row
from jaxvec.calibration.flow.checkpoints import Checkpoints
from jaxvec.calibration.flow.glow import GlowConfig
from jaxvec.calibration.flow.recipe import Recipe
from jaxvec.calibration.flow.start import Spectrum, starting_arrays
from jaxvec.calibration.flow.training import Data, Losses, State, first_state, train_round
from jaxvec.errors import InputError, is_whole

DIVERGED = (
    20.0  # bits per dimension above the start; a Gaussian's scale would be off by a factor of a million
)
FELL = 0.05  # bits per dimension of held-out likelihood that are worth a warning
MOST_HELD = 4096
WATCHED = 512
ROUND = 256  # steps, at most, between two looks at the held-out vectors
SHOWN = 8


@dataclass(frozen=True)
class Trained:
    """What a training leaves: arrays stacked over seeds, and one record a seed."""

    arrays: dict[str, Any]
    records: tuple[dict[str, Any], ...]


def train(
    vectors: Any,
    seeds: Any,
    config: GlowConfig,
    recipe: Recipe,
    preset: str,
    checkpoint: str | os.PathLike[str] | None,
    show_progress: bool,
    mesh: Mesh,
) -> Trained:
    """Trains one flow for every seed, all in the same compiled programs, on a mesh with one axis, "rows".

    The other arguments are those of `Flow.fit_many`.
    """
    rows = _checked(vectors)
    seeds = checked_seeds(seeds)
    held, kept = _split(rows, recipe)
    spectrum = Spectrum.of(kept, recipe.noise)
    everywhere = NamedSharding(mesh, PartitionSpec())
    watched = kept[:WATCHED]
    if len(kept) < 3 and recipe.drift < 1:
        raise InputError(
            f"{len(kept)} training vectors have one cosine at most, so that there is no drift of cosines to stop at; give "
            "3 or more vectors beside those held out, or drift=1"
        )
    deviation = np.sqrt(np.float32(spectrum.noise))
    noisy = held + deviation * np.random.default_rng(1).normal(size=held.shape).astype(np.float32)
    data = Data(kept, noisy, deviation, watched, spectrum.cosines(watched))
    data = jax.device_put(data, everywhere)
    rounds = -(-(len(kept) // recipe.batch_size) // ROUND)
    steps = len(kept) // recipe.batch_size // rounds
    total = recipe.epochs * rounds
    begin = partial(_start, config=config, recipe=recipe, steps=total * steps)
    whitening, first = spectrum.arrays(), _first_rows(kept, deviation, seeds, recipe.init_rows)
    # One by one: under `vmap` they would be rounded otherwise, and a seed among others train otherwise than alone.
    starts = [
        begin(seed, whitening, rows, data)
        for seed, rows in zip(np.asarray(seeds, np.int32), first, strict=True)
    ]
    states, fixed = jax.device_put(jax.tree.map(lambda *each: jnp.stack(each), *starts), everywhere)
    began = np.asarray(states.best_loss)

    history: list[Losses] = []
    identity = {"data": _digest(rows), "config": asdict(config), "recipe": asdict(recipe), "seeds": seeds}
    store = None if checkpoint is None else Checkpoints(checkpoint, identity)
    if store is not None and (found := store.restore(states, steps)) is not None:
        states, history = jax.device_put(found[0], everywhere), found[1]
    one_round = partial(
        train_round,
        config=config,
        recipe=recipe,
        rounds=rounds,
        mesh=mesh if mesh.size > 1 and recipe.batch_size % mesh.size == 0 else None,
    )
    with tqdm(
        total=total * steps, initial=len(history) * steps, unit=" steps", disable=not show_progress
    ) as bar:
        for number in range(len(history), total):
            if history and (np.asarray(states.stale) >= recipe.patience * rounds).all():
                break
            order = _order(seeds, number, len(kept), (rounds, steps, recipe.batch_size))
            states, losses = one_round(states, fixed, data, order, np.asarray(number, np.int32))
            history.append(jax.tree.map(np.asarray, losses))
            refuse_divergence(history, steps, seeds)
            if store is not None:
                store.save(states, history)
            bar.update(steps)
            bar.set_postfix_str(_progress(history[-1]))
    shared = {
        "method": "flow",
        "preset": preset,
        "input_dim": rows.shape[1],
        "dim": rows.shape[1],
        "count": len(rows),
        "held_out": len(held),
        "rank": spectrum.rank,
        "noise_variance": spectrum.noise,
        "config": asdict(config),
        "recipe": asdict(recipe),
    }
    records = tuple(
        shared
        | {
            "seed": seed,
            "steps": sum(bool(losses.trained[i]) for losses in history) * steps,
            "rounds": _rounds(history, i),
            "start_training_bits_per_dimension": float(history[0].train[i, 0]),
            "start_held_out_bits_per_dimension": _number(began[i]),
            "best_held_out_bits_per_dimension": _number(states.best_loss[i]),
        }
        for i, seed in enumerate(seeds)
    )
    last = [record["rounds"][-1]["held_out_bits_per_dimension"] for record in records]
    if held.size and (np.array(last) > began + FELL).any():
        warnings.warn(
            "the held-out likelihood fell below that of the start while training went on; the best parameters "
            "are kept. Train on more vectors, with a smaller learning_rate, or with more noise",
            stacklevel=4,
        )
    return Trained(states.best | fixed, records)


@partial(jax.jit, static_argnames=("config", "recipe", "steps"))
def _start(
    seed: Any, whitening: Any, rows: Any, data: Data, *, config: GlowConfig, recipe: Recipe, steps: int
) -> tuple[State, Any]:
    arrays = starting_arrays(config, recipe, whitening, rows, seed)
    return first_state(config, recipe, steps, data, arrays, seed), arrays[1]


def _first_rows(vectors: np.ndarray, deviation: Any, seeds: list[int], count: int) -> np.ndarray:
    """What every seed's ActNorms are set from: the first vectors it trains on, with noise; [seeds, count, d]."""
    rows = []
    for seed in seeds:
        chosen = vectors[_shuffled(seed, 0, len(vectors))[:count]]
        rows.append(chosen + deviation * np.random.default_rng(seed).normal(size=chosen.shape))
    return np.asarray(rows, np.float32)


def _order(seeds: list[int], number: int, count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Rows of a round, [seeds, steps, batch]: a part of the seed's order of the epoch."""
    epoch, part = divmod(number, shape[0])
    orders = [_shuffled(seed, epoch, count)[: np.prod(shape)].reshape(shape)[part] for seed in seeds]
    return np.asarray(orders, np.int32)


def _shuffled(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


def _checked(vectors: Any) -> np.ndarray:
    rows = as_rows(vectors)
    if (bad := first_bad_row(rows)) is not None:
        raise InputError(f"row {bad} of the vectors is not finite; drop it, or encode its sentence again")
    rows = np.asarray(rows, np.float32)
    if len(rows) < 2:
        raise InputError(f"a flow is fitted on 2 or more vectors, these are {len(rows)}")
    constant = np.flatnonzero((rows == rows[0]).all(axis=0))
    if 0 < constant.size < rows.shape[1]:
        shown = ", ".join(map(str, constant[:SHOWN])) + (" …" if constant.size > SHOWN else "")
        warnings.warn(
            f"coordinates {shown} are constant over all {len(rows)} vectors; their scale is floored",
            stacklevel=5,
        )
    return rows


def checked_seeds(seeds: Any) -> list[int]:
    """The seeds as a list of Python's whole numbers.

    Raises:
        InputError: none, something else, one below 0 or above 2³¹ − 1, or one twice.
    """
    listed = list(seeds) if isinstance(seeds, Iterable) else []
    known = all(is_whole(seed, 0) and seed < 2**31 for seed in listed)
    if not listed or not known or len(set(listed)) < len(listed):
        raise InputError(
            f"seeds are {listed or seeds!r}; expected different whole numbers from 0 to 2³¹ − 1, such as range(5)"
        )
    return [int(seed) for seed in listed]


def _split(rows: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    # The same for every seed, so that their likelihoods compare.
    order = np.random.default_rng(0).permutation(len(rows))
    held = min(int(recipe.held_out * len(rows)), MOST_HELD)
    if len(rows) - held < recipe.batch_size:
        raise InputError(
            f"{len(rows)} vectors, {held} of them held out, are fewer than a batch of {recipe.batch_size}; "
            "give more vectors, a smaller batch_size, or held_out=0"
        )
    return rows[order[:held]], rows[order[held:]]


def refuse_divergence(history: list[Losses], steps: int, seeds: list[int]) -> None:
    """Raises an InputError, with the step, if a loss of the latest round is far above that of the first step."""
    began, latest = history[0].train[:, 0], history[-1]
    # The loss of a batch is that before its step; that of the watched vectors is the one after the last step.
    losses = np.concatenate([latest.train, latest.watched[:, None]], axis=1)
    bad = ~(losses < began[:, None] + DIVERGED) & latest.trained[:, None]
    if bad.any():
        step = int(np.argmax(bad.any(axis=0)))
        seed = int(np.argmax(bad[:, step]))
        raise InputError(
            f"training diverged at step {(len(history) - 1) * steps + min(step + 1, steps)}: the loss of seed {seeds[seed]} went "
            f"from {began[seed]:.2f} to {losses[seed, step]:.4g} bits per dimension; give a smaller learning_rate"
        )


def _progress(latest: Losses) -> str:
    trained, held = (-float(loss.mean()) * np.log(2) for loss in (latest.train, latest.held))
    watched = "" if np.isnan(held) else f", held out {held:.4f}"
    return f"log-likelihood {trained:.4f}{watched} nats per dimension"


def _rounds(history: list[Losses], seed: int) -> list[dict[str, float | None]]:
    return [
        {
            "training_bits_per_dimension": float(losses.train[seed].mean()),
            "held_out_bits_per_dimension": _number(losses.held[seed]),
            "drift": _number(losses.drift[seed]),
        }
        for losses in history
        if losses.trained[seed]
    ]


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _digest(rows: np.ndarray) -> str:
    return hashlib.sha256(json.dumps(rows.shape).encode() + np.ascontiguousarray(rows).tobytes()).hexdigest()
