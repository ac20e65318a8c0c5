"""From vectors on the host to trained flows: checks, the split, the loop over epochs, what is reported."""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxvec.calibration.blocks import as_rows, first_bad_row
from jaxvec.calibration.flow.checkpoints import Checkpoints
from jaxvec.calibration.flow.glow import GlowConfig
from jaxvec.calibration.flow.recipe import Recipe
from jaxvec.calibration.flow.start import Spectrum, sample_rows, starting_arrays
from jaxvec.calibration.flow.training import Data, State, first_state, mean_loss, train_epoch
from jaxvec.errors import InputError

DIVERGED = (
    20.0  # bits per dimension above the start; a Gaussian's scale would be off by a factor of a million
)
FELL = 0.05  # bits per dimension of held-out likelihood that are worth a warning
MOST_HELD = 4096
SHOWN = 8


@dataclass(frozen=True)
class Trained:
    """What a training leaves: arrays stacked over seeds, and one record a seed."""

    arrays: dict[str, Any]
    records: tuple[dict[str, Any], ...]


def train(
    vectors: Any,
    seeds: Sequence[int],
    config: GlowConfig,
    recipe: Recipe,
    preset: str,
    checkpoint: str | os.PathLike[str] | None,
    show_progress: bool,
) -> Trained:
    """Trains one flow for every seed, all in the same compiled programs; arguments as for `Flow.fit_many`."""
    rows = _checked(vectors)
    seeds = _checked_seeds(seeds)
    held, kept = _split(rows, recipe)
    spectrum = Spectrum.of(kept, recipe.noise)
    if not spectrum.variances[0] > 0:
        raise InputError(f"all {len(rows)} vectors are equal: they have no direction to fit")
    mesh = Mesh(np.array(jax.local_devices()), ("rows",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    deviation = np.sqrt(np.float32(spectrum.noise))
    data = jax.device_put(Data(kept, held, deviation), everywhere)
    steps = len(kept) // recipe.batch_size
    start = partial(_start, config=config, recipe=recipe, steps=steps * recipe.epochs)
    whitening = tuple(
        np.asarray(a, np.float32) for a in (spectrum.mean, spectrum.directions, spectrum.log_scales())
    )
    initial = sample_rows(kept, recipe.init_rows, spectrum.noise)
    states, fixed = jax.jit(start)(np.asarray(seeds, np.int32), whitening, initial, data.held, data.deviation)
    states, fixed = jax.device_put((states, fixed), everywhere)
    began = np.asarray(states.best_loss)

    history: list[tuple[np.ndarray, np.ndarray]] = []
    identity = {"data": _digest(rows), "config": asdict(config), "recipe": asdict(recipe), "seeds": seeds}
    store = None if checkpoint is None else Checkpoints(checkpoint, identity)
    if store is not None and (found := store.restore(states)) is not None:
        states, history = found
        states = jax.device_put(states, everywhere)
    epoch_of = partial(
        train_epoch,
        config=config,
        recipe=recipe,
        steps_an_epoch=steps,
        mesh=mesh if mesh.size > 1 and recipe.batch_size % mesh.size == 0 else None,
    )
    with tqdm(total=recipe.epochs, initial=len(history), unit=" epochs", disable=not show_progress) as bar:
        for epoch in range(len(history), recipe.epochs):
            if history and held.size and (np.asarray(states.stale) >= recipe.patience).all():
                break
            states, losses, held_losses = epoch_of(states, fixed, data, np.int32(epoch))
            losses = np.asarray(losses)
            _refuse_divergence(losses, steps * epoch, history[0][0] if history else losses[:, 0], seeds)
            history.append((losses.mean(axis=1), np.asarray(held_losses)))
            if store is not None:
                store.save(states, history)
            bar.update()
            bar.set_postfix_str(_progress(history[-1], len(kept[0])))
    best = states.best if held.size else states.averaged
    if held.size and history and (history[-1][1] > began + FELL).any():
        warnings.warn(
            "the held-out likelihood fell below that of the start while training went on; the parameters of its "
            "best epoch are kept. Train on more vectors, with a smaller learning_rate, or with more noise",
            stacklevel=4,
        )
    records = tuple(
        {
            "method": "flow",
            "preset": preset,
            "input_dim": rows.shape[1],
            "dim": rows.shape[1],
            "count": len(rows),
            "held_out": len(held),
            "rank": spectrum.rank,
            "noise_variance": spectrum.noise,
            "seed": seed,
            "epochs": len(history),
            "best_epoch": _best_epoch(began[i], [loss[i] for _, loss in history]) if held.size else None,
            "steps": len(history) * steps,
            "training_bits_per_dimension": [round(float(loss[i]), 6) for loss, _ in history],
            "held_out_bits_per_dimension": [round(float(loss[i]), 6) for _, loss in history]
            if held.size
            else None,
            "config": asdict(config),
            "recipe": asdict(recipe),
        }
        for i, seed in enumerate(seeds)
    )
    return Trained(best | fixed, records)


def _start(
    seeds: Any,
    whitening: Any,
    rows: Any,
    held: Any,
    deviation: Any,
    *,
    config: GlowConfig,
    recipe: Recipe,
    steps: int,
) -> tuple[State, Any]:
    def one(seed: Any) -> tuple[State, Any]:
        trained, fixed = starting_arrays(config, recipe.init, whitening, rows, jax.random.key(seed))
        state = first_state(recipe, steps, trained, seed)
        if len(held):
            noisy = held + deviation * jax.random.normal(jax.random.key(1), held.shape)
            state = state._replace(best_loss=mean_loss(config, trained | fixed, noisy))
        return state, fixed

    return jax.vmap(one)(seeds)


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


def _checked_seeds(seeds: Sequence[int]) -> list[int]:
    seeds = list(seeds)
    whole = all(isinstance(seed, int | np.integer) and not isinstance(seed, bool) for seed in seeds)
    if not seeds or not whole or any(not 0 <= seed < 2**31 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds are {seeds!r}; expected different whole numbers from 0 to 2³¹ − 1")
    return [int(seed) for seed in seeds]


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


def _refuse_divergence(losses: np.ndarray, before: int, began: np.ndarray, seeds: list[int]) -> None:
    bad = ~(losses < began[:, None] + DIVERGED)
    if bad.any():
        step = int(np.argmax(bad.any(axis=0)))
        seed = int(np.argmax(bad[:, step]))
        raise InputError(
            f"training diverged at step {before + step + 1}: the loss of seed {seeds[seed]} went from "
            f"{began[seed]:.2f} to {losses[seed, step]:.4g} bits per dimension; give a smaller learning_rate"
        )


def _best_epoch(began: float, losses: list[float]) -> int:
    """The epoch whose parameters are kept, from 1; 0 is the start."""
    return int(np.argmin([began, *losses]))


def _progress(latest: tuple[np.ndarray, np.ndarray], dim: int) -> str:
    trained, held = (-float(loss.mean()) * np.log(2) for loss in latest)
    watched = "" if np.isnan(held) else f", held out {held:.4f}"
    return f"log-likelihood {trained:.4f}{watched} nats per dimension"


def _digest(rows: np.ndarray) -> str:
    return hashlib.sha256(json.dumps(rows.shape).encode() + np.ascontiguousarray(rows).tobytes()).hexdigest()
