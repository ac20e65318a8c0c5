"""max|cov − I| after whitening at n = 20,000, d = 768, condition 1e5, however the data came in."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments

# float32 merging leaves 5e-4 (100 chunks) and 1.7e-3 (1,000), a float32 eigh 2.7e-2, a float32 svd 1.6e-1.
DEFAULT, TRACEABLE = 3e-4, 2e-3


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(768, 768)))[0]
    scaled = rng.standard_normal((20_000, 768)) * np.sqrt(np.geomspace(1, 1e-5, 768))
    return (scaled @ rotation.T + 0.3 * rng.normal(size=768)).astype(np.float32)


def deviation(whitened):
    return np.abs(np.cov(np.asarray(whitened, np.float64).T) - np.eye(whitened.shape[1])).max()


def test_one_array(vectors):
    assert deviation(whitening(Moments.of(vectors))(vectors)) < DEFAULT


@pytest.mark.parametrize(("chunks", "order"), [(100, "given"), (1000, "given"), (100, "sorted")])
def test_uneven_chunks_in_any_order(vectors, chunks, order):
    rows = vectors if order == "given" else vectors[np.argsort(vectors[:, 0])]
    cuts = np.sort(np.random.default_rng(1).choice(np.arange(1, 20_000), chunks - 1, replace=False))
    moments = Moments.empty(768)
    for chunk in np.split(rows, cuts):
        moments = moments.update(chunk)
    assert moments.count == 20_000
    assert deviation(whitening(moments)(vectors)) < DEFAULT


@pytest.mark.parametrize("solver", ["eigh", "svd"])
def test_the_traceable_solvers(vectors, solver):
    assert deviation(jax.jit(lambda x: whitening(Moments.of(x), solver=solver)(x))(vectors)) < TRACEABLE


SHARDED = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments
x = np.load({path!r})
mesh = jax.make_mesh((8,), ("data",))
sharded = jax.device_put(x[np.argsort(x[:, 0])], NamedSharding(mesh, P("data")))
def fit(function):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P()))(sharded)
moments = fit(lambda x: Moments.of(x).psum("data"))
assert moments.count == 20_000
plain = fit(lambda x: jax.lax.psum(Moments.of(x), "data"))
pmapped = jax.pmap(lambda x: Moments.of(x).psum("data"), axis_name="data")(x[:1600, :9].reshape(8, 200, 9))
np.testing.assert_allclose(pmapped.scatter.high[5] / 1599, np.cov(x[:1600, :9].T), atol=1e-6)
explicit = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
few = x[:1600, :8]
for layout in (P("rows"), P(("rows", "columns")), P("rows", "columns"), P(None, "columns")):
    laid_out = jax.device_put(few, NamedSharding(explicit, layout))
    for m in (jax.jit(Moments.of)(laid_out), Moments.of(laid_out)):
        np.testing.assert_allclose(m.covariance(), np.cov(few.T), atol=1e-6)
for m in (moments, plain):
    z = np.asarray(whitening(m)(x), np.float64)
    print(np.abs(np.cov(z.T) - np.eye(z.shape[1])).max())
"""


def test_eight_devices(vectors, tmp_path):
    np.save(tmp_path / "x.npy", vectors)
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    script = SHARDED.format(path=str(tmp_path / "x.npy"))
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    ours, plain = map(float, run.stdout.split())
    assert ours < DEFAULT
    assert plain > 0.1
