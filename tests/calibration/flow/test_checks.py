"""What a training refuses before it starts and while it runs; nothing here is compiled."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from jaxvec import InputError
from jaxvec.calibration.blocks import as_rows
from jaxvec.calibration.flow.fitting import checked_seeds, refuse_divergence
from jaxvec.calibration.flow.recipe import configure
from jaxvec.calibration.flow.training import Losses


def test_numbers_of_numpy_are_kept_as_those_that_json_takes():
    options = {"depth": np.int64(1), "epochs": np.int32(1), "learning_rate": np.float32(0.5**10)}
    config, recipe = (json.loads(json.dumps(asdict(part))) for part in configure("glow", options))
    assert (config["depth"], recipe["epochs"], recipe["learning_rate"]) == (1, 1, 0.5**10)
    with pytest.raises(InputError, match="expected one of glow, bert_flow"):
        configure.__wrapped__([], {})


def test_a_divergence_at_the_last_step_is_seen_and_one_of_a_stopped_seed_is_not():
    one, nothing = np.ones(1, np.float32), np.full(1, np.nan, np.float32)
    losses = Losses(np.ones((1, 4), np.float32), nothing, 1e9 * one, nothing, np.array([True]))
    with pytest.raises(InputError, match=r"diverged at step 4: .* smaller"):
        refuse_divergence([losses], 4, [0])
    refuse_divergence([losses._replace(watched=one)], 4, [0])
    refuse_divergence([losses._replace(trained=np.array([False]))], 4, [0])


@pytest.mark.parametrize("seeds", [[], 8, None, [0, 0], [True], [0.0], ["0"]])
def test_seeds_are_different_whole_numbers(seeds):
    with pytest.raises(InputError, match="expected different whole numbers"):
        checked_seeds(seeds)


@pytest.mark.parametrize("vectors", [[[1.0, 2.0], [1.0]], [["a", "b"]], [[{}, None]]])
def test_vectors_are_an_array_of_numbers(vectors):
    with pytest.raises(InputError, match=r"not an array of numbers; expected \[n, d\]"):
        as_rows(vectors)


def test_vectors_are_real():
    with pytest.raises(InputError, match="vectors are complex128; expected real numbers"):
        as_rows(np.ones((2, 3), complex))
