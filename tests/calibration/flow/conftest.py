"""Most of the time of these tests is compiling, so programs are compiled without optimisation."""

import jax
import pytest

OPTION = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly():
    before = jax.config.read(OPTION)
    jax.config.update(OPTION, True)
    yield
    jax.config.update(OPTION, before)
