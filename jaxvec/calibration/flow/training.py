"""One epoch of training as one XLA program: steps scanned, seeds vmapped, data on the device."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxvec.calibration.flow.arrays import glow_of
from jaxvec.calibration.flow.glow import GlowConfig, log_density
from jaxvec.calibration.flow.recipe import Recipe, make_optimizer

Arrays = dict[str, Array]


class State(NamedTuple):
    """Everything about one training that changes; a pytree, stacked over seeds.

    Attributes:
        params: what the optimiser moves.
        optimizer: its state.
        averaged: the exponential average of params, or params.
        best: averaged parameters of the best epoch by held-out likelihood.
        best_loss: their held-out loss, bits per dimension.
        stale: epochs since then.
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
    """What all seeds share: training and held-out vectors, and the noise's standard deviation."""

    train: Any  # Float[Array, "n d"]
    held: Any  # Float[Array, "m d"]
    deviation: Any  # Float[Array, ""]


def first_state(recipe: Recipe, steps: int, params: Arrays, seed: Array) -> State:
    """The state before the first step."""
    optimizer = make_optimizer(recipe, steps).init(params)
    zero = jnp.zeros((), jnp.int32)
    state = State(params, optimizer, params, params, jnp.array(jnp.inf, jnp.float32), zero, seed)
    return jax.tree.map(jnp.copy, state)  # its buffers are donated, so none may be there twice


def mean_loss(config: GlowConfig, arrays: Arrays, batch: Float[Array, "n d"]) -> Float[Array, ""]:
    """Mean negative log-likelihood, bits per dimension."""
    glow = glow_of(config, batch.shape[1:], arrays)
    z, log_det = jax.vmap(glow.transform_and_log_det)(batch)
    return -jnp.mean(jax.vmap(log_density)(z, log_det)) / (jnp.log(2.0) * batch.shape[1])


@partial(jax.jit, static_argnames=("config", "recipe", "steps_an_epoch", "mesh"), donate_argnums=0)
def train_epoch(
    states: State,
    fixed: Arrays,
    data: Data,
    epoch: Int[Array, ""],
    *,
    config: GlowConfig,
    recipe: Recipe,
    steps_an_epoch: int,
    mesh: Mesh | None,
) -> tuple[State, Array, Array]:
    """Trains every seed for one epoch; a seed that has run out of patience stays as it is.

    Args:
        states: stacked over seeds; donated.
        fixed: the arrays that are not trained, stacked over seeds.
        data: shared by all seeds.
        epoch: its number, from 0.
        config: the flows' shape.
        recipe: how they are trained.
        steps_an_epoch: whole batches in the training vectors.
        mesh: devices over which the rows of a batch are split; None for one device.

    Returns:
        (states, losses [seeds, steps] of the training batches, held-out losses [seeds]), bits per dimension;
        the latter are NaN where nothing is held out.
    """
    optimizer = make_optimizer(recipe, recipe.epochs * steps_an_epoch)

    def one_seed(state: State, fixed: Arrays) -> tuple[State, Array, Array]:
        shuffle, noise = jax.random.split(jax.random.fold_in(jax.random.key(state.seed), epoch))
        order = jax.random.permutation(shuffle, len(data.train))
        order = order[: steps_an_epoch * recipe.batch_size].reshape(steps_an_epoch, recipe.batch_size)

        def step(carry: Any, inputs: Any) -> tuple[Any, Array]:
            params, optimizer_state, averaged = carry
            rows, number = inputs
            batch = data.train[rows]
            if mesh is not None:
                batch = jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec("rows")))
            if recipe.noise != 0:
                key = jax.random.fold_in(noise, number)
                batch += data.deviation * jax.random.normal(key, batch.shape)
            loss, gradients = jax.value_and_grad(lambda p: mean_loss(config, p | fixed, batch))(params)
            updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
            params = optax.apply_updates(params, updates)
            averaged = jax.tree.map(lambda a, p: recipe.ema * a + (1 - recipe.ema) * p, averaged, params)
            return (params, optimizer_state, averaged), loss

        carry = (state.params, state.optimizer, state.averaged)
        carry, losses = jax.lax.scan(step, carry, (order, jnp.arange(steps_an_epoch)))
        if not len(data.held):
            return (
                State(*carry, carry[2], state.best_loss, state.stale, state.seed),
                losses,
                jnp.array(jnp.nan),
            )
        held = data.held + data.deviation * jax.random.normal(jax.random.key(1), data.held.shape)
        held_loss = mean_loss(config, carry[2] | fixed, held)
        better = held_loss < state.best_loss
        best = jax.tree.map(partial(jnp.where, better), carry[2], state.best)
        stale = jnp.where(better, 0, state.stale + 1)
        new = State(*carry, best, jnp.minimum(held_loss, state.best_loss), stale, state.seed)
        going = state.stale < recipe.patience
        new = jax.tree.map(partial(jnp.where, going), new, state)
        return new, losses, held_loss

    return jax.vmap(one_seed)(states, fixed)
