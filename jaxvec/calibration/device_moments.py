"""Moments of a stream whose vectors lie on several devices: each device keeps its own, merged when they are asked for."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jaxvec.calibration.moments import Moments


@dataclass(frozen=True, eq=False)
class DeviceMoments:
    """One `Moments` a device, stacked: the state of a stream between two of its batches.

    Nothing passes between devices while the stream runs. A sum over devices (an all-reduce) in every batch would, and CPU
    devices share one pool of threads: with several such programs in flight, beside those that encode, each waits for a
    thread that another one holds, until XLA aborts the process.

    Attributes:
        stacked: moments whose every array has a leading axis, the devices', split over `rows`.
        rows: how the rows of a batch are spread over a mesh with one axis, "rows".

    Example:
        >>> rows = NamedSharding(Mesh(np.array(jax.local_devices()), ("rows",)), PartitionSpec("rows"))
        >>> state = DeviceMoments.empty(3, rows).add(np.eye(3, dtype=np.float32), np.ones(3, np.float32))
        >>> state.merged().count
        3
    """

    stacked: Moments
    rows: NamedSharding

    @classmethod
    def empty(cls, dim: int, rows: NamedSharding) -> "DeviceMoments":
        """The state before the first batch."""
        return cls.place(_stack([_on_host(Moments.empty(dim))]), rows)

    @classmethod
    def place(cls, stacked: Moments, rows: NamedSharding) -> "DeviceMoments":
        """A state that `host` gave, on these devices; if there are more or fewer of them now, the first has it all."""
        devices = rows.mesh.size
        if len(stacked.spread) != devices:
            whole = _on_host(_merged(stacked))
            stacked = _stack([whole] + [_on_host(Moments.empty(whole.dim))] * (devices - 1))
        return cls(jax.tree.map(lambda leaf: _copied(leaf, rows), stacked), rows)

    def add(self, vectors: Float[Array | np.ndarray, "n d"], weights: np.ndarray) -> "DeviceMoments":
        """This state and a batch [n, d] with frequency weights [n], n a multiple of the devices; this one is used up."""
        with jax.set_mesh(self.rows.mesh):  # whatever mesh the caller has set
            return DeviceMoments(
                _adding(self.rows.mesh)(self.stacked, vectors, jax.device_put(weights, self.rows)), self.rows
            )

    def host(self) -> Moments:
        """The stacked moments as NumPy arrays, once the device has finished them."""
        return _on_host(self.stacked)

    def merged(self) -> Moments:
        """The moments of all devices together, in their order."""
        return _merged(self.host())


@cache
def _adding(mesh: Mesh) -> Any:
    split = PartitionSpec("rows")

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    def add(stacked: Moments, vectors: Array, weights: Array) -> Moments:
        own = jax.tree.map(lambda leaf: leaf[0], stacked).update(vectors, weights)
        return jax.tree.map(lambda leaf: leaf[None], own)

    return add


def _merged(stacked: Moments) -> Moments:
    whole, *others = (
        jax.tree.map(lambda leaf, i=i: jax.device_put(leaf[i]), stacked) for i in range(len(stacked.spread))
    )
    for part in others:
        whole = whole.merge(part)
    return whole


def _on_host(moments: Moments) -> Moments:
    return jax.tree.map(np.asarray, jax.device_get(moments))


def _stack(parts: list[Moments]) -> Moments:
    return jax.tree.map(lambda *each: np.stack(each), *parts)


def _copied(leaf: np.ndarray, rows: NamedSharding) -> Array:
    # A step donates its state, and on a CPU an array made of host memory would share it.
    return jax.device_put(leaf, rows, may_alias=False)
