"""A round of training as one XLA program: steps scanned, seeds vmapped, data on the device."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxvec.calibration.flow.arrays import glow_of
from jaxvec.calibration.flow.glow import GlowConfig, log_density
from jaxvec.calibration.flow.recipe import Recipe, make_optimizer
from jaxvec.pooling import normalize

# XLA's CPU takes up to three times as long for a step's products, of transposed and narrow operands, by YNNPACK.
_WITHOUT_YNNPACK = {"xla_cpu_experimental_ynn_fusion_type": ""}

HIGHEST = jax.lax.Precision.HIGHEST
Arrays = dict[str, Array]


class State(NamedTuple):
    """Everything about one training that changes; a pytree, stacked over seeds.

    Attributes:
        params: what the optimiser moves.
        optimizer: its state.
        averaged: the exponential average of params.
        best: averaged parameters of the best round so far; the start, before any.
        best_loss: their held-out loss, bits per dimension; NaN where nothing is held out.
        stale: rounds since then.
        seed: of shuffling and noise.
    """

    params: Arrays
    optimizer: Any
    averaged: Arrays
    best: Arrays
    best_loss: Array
    stale: Array
    seed: Array


class Data(NamedTuple):
    """What all seeds share.

    Attributes:
        train: [n, d].
        held: [m, d], not trained on, with noise.
        deviation: of the noise that is added to training vectors.
        watched: some of train, [k, d], whose cosines are watched.
        cosines: [k, k], theirs after whitening.
    """

    train: Any
    held: Any
    deviation: Any
    watched: Any
    cosines: Any


class Losses(NamedTuple):
    """Of one round, bits per dimension; of every seed.

    Attributes:
        train: of the batches, [seeds, steps].
        held: of the held-out vectors after the round, [seeds].
        watched: of the watched vectors after the round, [seeds].
        drift: after the round, [seeds].
        trained: whether the seed still trained, [seeds]; where not, the rest says nothing.
    """

    train: Any
    held: Any
    watched: Any
    drift: Any
    trained: Any


def first_state(config: GlowConfig, recipe: Recipe, steps: int, data: Data, start: Any, seed: Array) -> State:
    """The state before the first of so many steps; `start` is what `starting_arrays` gives."""
    params, fixed = start
    optimizer = make_optimizer(recipe, steps).init(params)
    loss, _, _ = watch(config, params | fixed, data)
    state = State(params, optimizer, params, params, loss, jnp.zeros((), jnp.int32), seed)
    return jax.tree.map(jnp.copy, state)  # its buffers are donated, so none may be there twice


def bits_per_dimension(z: Float[Array, "n d"], log_det: Float[Array, " n"]) -> Float[Array, ""]:
    """Mean negative log-likelihood of the vectors that became z."""
    return -jnp.mean(jax.vmap(log_density)(z, log_det)) / (jnp.log(2.0) * z.shape[1])


def watch(config: GlowConfig, arrays: Arrays, data: Data) -> tuple[Float[Array, ""], ...]:
    """(mean loss of the held-out vectors, of the watched ones, drift), from one pass over both.

    The first is NaN where nothing is held out.

    Drift is 1 − the correlation between the watched vectors' cosines, all pairs, and those after whitening.
    """
    held = len(data.held)
    glow = glow_of(config, data.watched.shape[1:], arrays)
    z, log_det = jax.vmap(glow.transform_and_log_det)(jnp.concatenate([data.held, data.watched]))
    loss = bits_per_dimension(z[:held], log_det[:held]) if held else jnp.array(jnp.nan, jnp.float32)
    unit = normalize(z[held:])
    cosines = jnp.matmul(unit, unit.T, precision=HIGHEST)
    first, second = np.triu_indices(len(unit), 1)
    pairs = jnp.stack([cosines[first, second], data.cosines[first, second]])
    return loss, bits_per_dimension(z[held:], log_det[held:]), 1 - jnp.corrcoef(pairs)[0, 1]


def train_round(
    states: State,
    fixed: Arrays,
    data: Data,
    order: Int[Array | np.ndarray, "seeds steps batch"],
    number: Int[Array | np.ndarray, ""],
    *,
    config: GlowConfig,
    recipe: Recipe,
    rounds: int,
    mesh: Mesh | None,
) -> tuple[State, Losses]:
    """Trains every seed for one round, a part of an epoch, in one program; a seed that has stopped stays as it is.

    Args:
        states: stacked over seeds; donated.
        fixed: the arrays that are not trained, stacked over seeds.
        data: shared by all seeds.
        order: rows of the training vectors, by seed, step and batch.
        number: of the round, from 0 over all epochs.
        config: the flows' shape.
        recipe: how they are trained.
        rounds: of an epoch.
        mesh: devices over which the rows of a batch are split; None for one device.
    """
    compiled = _compiled(jax.default_backend())
    trained = compiled(
        states, fixed, data, order, number, config=config, recipe=recipe, rounds=rounds, mesh=mesh
    )
    # Its gradients are summed over the devices. CPU devices share one pool of threads, so that two programs which wait
    # for each other's devices can hold it between them for ever: one at a time.
    return jax.block_until_ready(trained)


@cache
def _compiled(backend: str) -> Any:
    """`_train_round` as one program."""
    options = _WITHOUT_YNNPACK if backend == "cpu" and _is_known(_WITHOUT_YNNPACK) else None
    return jax.jit(
        _train_round,
        static_argnames=("config", "recipe", "rounds", "mesh"),
        donate_argnums=0,
        compiler_options=options,
    )


def _is_known(options: dict[str, str]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _train_round(
    states: State,
    fixed: Arrays,
    data: Data,
    order: Array,
    number: Array,
    *,
    config: GlowConfig,
    recipe: Recipe,
    rounds: int,
    mesh: Mesh | None,
) -> tuple[State, Losses]:
    optimizer = make_optimizer(recipe, recipe.epochs * rounds * order.shape[1])
    patience = recipe.patience * rounds

    def one_seed(state: State, fixed: Arrays, order: Array) -> tuple[State, Losses]:
        key = jax.random.fold_in(jax.random.key(state.seed), number)

        def step(carry: Any, inputs: Any) -> tuple[Any, Array]:
            params, optimizer_state, averaged = carry
            rows, index = inputs
            batch = data.train[rows]
            if mesh is not None:
                batch = jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec("rows")))
            if recipe.noise != 0:
                noise = jax.random.normal(jax.random.fold_in(key, index), batch.shape, batch.dtype)
                batch += data.deviation * noise

            def loss_of(params: Arrays) -> Array:
                glow = glow_of(config, batch.shape[1:], params | fixed)
                return bits_per_dimension(*jax.vmap(glow.transform_and_log_det)(batch))

            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
            params = optax.apply_updates(params, updates)
            averaged = jax.tree.map(lambda a, p: recipe.ema * a + (1 - recipe.ema) * p, averaged, params)
            return (params, optimizer_state, averaged), loss

        carry = (state.params, state.optimizer, state.averaged)
        carry, losses = jax.lax.scan(step, carry, (order, jnp.arange(len(order))))
        averaged = carry[2]
        held, watched, drift = watch(config, averaged | fixed, data)
        inside = (drift <= recipe.drift) | (recipe.drift >= 1)
        better = inside & (held < state.best_loss) if len(data.held) else inside
        best = jax.tree.map(partial(jnp.where, better), averaged, state.best)
        best_loss = jnp.where(better, held, state.best_loss)
        stale = jnp.where(inside, jnp.where(better, 0, state.stale + 1), patience)
        new = State(*carry, best, best_loss, stale, state.seed)
        trained = state.stale < patience
        new = jax.tree.map(partial(jnp.where, trained), new, state)
        return new, Losses(losses, held, watched, drift, trained)

    return jax.vmap(one_seed)(states, fixed, order)
