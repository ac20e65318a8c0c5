"""Several processes, one job: start-up, who does which share, and moments of all shares together.

Rows are split over a process's own devices, and no step of encoding is a collective: hosts need not keep pace with each
other, and uneven shares cannot hang. The hosts meet once, when moments are merged or an output is finished.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import jax
import numpy as np

from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError

_HEARTBEAT = timedelta(seconds=20)  # a process silent for so long is dead, and ends the others
_PATIENCE = timedelta(days=7)  # shares may be uneven: a live process is waited for


def initialize(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Joins this process to the others of its job. Call it first, once, in every process.

    Without arguments on TPU VMs, under SLURM, Open MPI and Kubernetes, where the cluster tells; elsewhere give all three,
    or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. A process that dies makes the others end within
    half a minute with an error that names it; what they have finished stays, and the same command goes on with it.

    Args:
        coordinator: host:port of process 0, on which it listens.
        processes: how many there are.
        process: this one's number, from 0.

    Raises:
        InputError: an argument is missing or does not fit, or the others cannot be reached.
    """
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    processes = _number(processes, "JAX_NUM_PROCESSES")
    process = _number(process, "JAX_PROCESS_ID")
    # Its handler would swallow SIGTERM; a run that goes on after any kill needs no notice.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            heartbeat_timeout_seconds=int(_HEARTBEAT.total_seconds()),
            shutdown_timeout_seconds=int(_PATIENCE.total_seconds()),
        )
    except (ValueError, TypeError, LookupError, OSError, RuntimeError) as error:
        raise InputError(
            f"this process cannot join its job ({error}); call initialize first, and give coordinator host:port, the "
            "number of processes and this one's number wherever no TPU VM, SLURM, Open MPI or Kubernetes tells them"
        ) from error
    report = sys.excepthook

    def report_and_leave(*error: Any) -> None:
        report(*error)
        leave(1)

    sys.excepthook = report_and_leave


def leave(status: int) -> None:
    """Ends a process of a job that has failed, at once: an orderly end would wait for the others, and they for it."""
    if jax.distributed.is_initialized():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def share() -> tuple[int, int]:
    """(i, n): this process is the i-th of n, and takes every n-th chunk or file, from the i-th on.

    >>> share()
    (0, 1)
    """
    return jax.process_index(), jax.process_count()


def merge_moments(moments: Moments) -> Moments:
    """The moments of all processes' shares together, in every process; each must call it, with the same width.

    >>> moments = Moments.of(np.eye(3, dtype=np.float32))
    >>> merge_moments(moments) is moments  # one process
    True
    """
    if jax.process_count() == 1:
        return moments
    from jax.experimental.multihost_utils import process_allgather

    meet("moments")
    leaves, structure = jax.tree.flatten(moments)
    gathered = [process_allgather(np.asarray(leaf)) for leaf in leaves]
    parts = [structure.unflatten([leaf[i] for leaf in gathered]) for i in range(jax.process_count())]
    merged = None
    for part in parts:  # in their order, so that every process gets the same bits
        if float(part.counted.float64()) > 0:
            merged = part if merged is None else merged.merge(part)
    return moments if merged is None else merged


def meet(name: str) -> None:
    """Waits until every process has come here, however long it works; one that dies ends the wait with an error."""
    from jax._src.distributed import global_state

    if global_state.client is not None:
        # A collective would do it too, but those give up on a slow process after minutes.
        try:
            global_state.client.wait_at_barrier(f"jaxvec {name}", int(_PATIENCE.total_seconds() * 1000))
        except Exception as error:  # the library's own type, which differs between versions
            reason = str(error).splitlines()[0]
            raise InputError(
                f"another process of this job died or failed ({reason}); see its output, then start all of them again: "
                "they go on with what is finished"
            ) from None


def _number(given: int | None, variable: str) -> int | None:
    if given is not None or variable not in os.environ:
        return given
    if not os.environ[variable].isdecimal():
        raise InputError(f"{variable} is {os.environ[variable]!r}; expected a number")
    return int(os.environ[variable])
