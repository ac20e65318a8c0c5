"""Moments that every device keeps of its own rows: merged, and carried from some devices to others."""

import numpy as np
import pytest

_STREAM = """
import json, sys
import jax
import numpy as np
import jaxvec
from jaxvec.calibration.device_moments import DeviceMoments
from jaxvec.pipeline import local_rows

x = np.random.default_rng(0).normal(3, 2, (96, 5)).astype(np.float32)
here = local_rows()
state = DeviceMoments.empty(5, here)
for start in range(0, 96, 24):
    state = state.add(jax.device_put(x[start : start + 24], here), np.ones(24, np.float32))
kept = state.host()
again = DeviceMoments.place(kept, here)
same = [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again.host()))]
again.add(x[:24], np.ones(24, np.float32))  # uses its own arrays up, not the kept ones
same += [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(state.host()))]
mesh = jax.sharding.Mesh(np.array(jax.local_devices()[:1]), ("rows",))
fewer = DeviceMoments.place(kept, jax.sharding.NamedSharding(mesh, here.spec)).merged()
whole = jaxvec.Moments.of(x)
off = [float(np.abs(m.covariance() - whole.covariance()).max()) for m in (state.merged(), fewer)]
print(json.dumps([len(kept.spread), all(same), state.merged().count, fewer.count, off]))
"""


@pytest.mark.parametrize("devices", [1, 3])
def test_the_devices_own_moments_are_those_of_all_rows(run_python, devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    found, same, count, fewer, off = run_python(_STREAM, XLA_FLAGS=flags)
    assert (found, same, count, fewer) == (devices, True, 96, 96)
    assert np.max(off) < 4e-6  # of variances near 4: what float32 resolves
