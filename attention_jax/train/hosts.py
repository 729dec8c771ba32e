"""Multi-host training: joining the hosts, and collectives between them, which do nothing on a single host.

All hosts run the same command on the same data and sample the same batches; each computes its part of a batch
(`placement.split_over_devices`). They share one run directory, in which host 0 writes; all of them read checkpoints.
"""

import json
import re
import signal
import socket
import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from attention_jax.errors import InputError

JOINING = 300
"""Seconds the hosts wait for one another at the start."""


def join(coordinator: str, hosts: int, host: int):
    """Initialize `jax.distributed`; afterwards `jax.devices()` are the devices of all hosts.

    Args:
      coordinator: HOST:PORT of host 0, the same on every host, or "auto" on a cluster that JAX detects (Slurm, Open
        MPI, Kubernetes, TPU pods), which then sets the other two arguments.
      hosts: the number of hosts, at least 2.
      host: the index of this host.

    Raises:
      InputError: a bad argument, or not all hosts have joined within `JOINING` seconds.
    """
    if coordinator != "auto":
        if not re.fullmatch(r".+:\d+", coordinator):
            raise InputError(
                "--coordinator must be HOST:PORT of the first host, such as 10.0.0.1:9000, or auto; "
                f"got {coordinator!r}"
            )
        if hosts < 2 or not 0 <= host < hosts:
            raise InputError(
                f"--coordinator {coordinator} needs --hosts N, at least 2, and --host 0 to N - 1; "
                f"got {hosts} and {host}"
            )
        if host:
            wait_for_coordinator(coordinator)
        print(f"host {host} of {hosts}: joined when all have come, within {JOINING} seconds", file=sys.stderr)
    cluster_args = (
        {}
        if coordinator == "auto"
        else {"coordinator_address": coordinator, "num_processes": hosts, "process_id": host}
    )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(**cluster_args, initialization_timeout=JOINING, shutdown_timeout_seconds=3600)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"the hosts could not be joined through --coordinator {coordinator} ({reason}); start one command on each"
        ) from error
    signal.signal(signal.SIGTERM, handler)  # jax has replaced it


def wait_for_coordinator(coordinator: str):
    """Wait until host 0 accepts connections; without one JAX would abort the process."""
    address, port = coordinator.rsplit(":", 1)
    end, reason = time.monotonic() + JOINING, ""
    while time.monotonic() < end:
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
            return
        except (OSError, OverflowError) as error:
            reason = str(error)
            time.sleep(0.2)
    raise InputError(f"--coordinator {coordinator} did not answer for {JOINING} seconds ({reason}); start host 0 there")


def is_primary() -> bool:
    """Whether this is host 0, the only one that writes files, plots and prints."""
    return jax.process_index() == 0


def broadcast(value):
    """Return host 0's `value`, which JSON can represent, on every host."""
    if jax.process_count() == 1:
        return value
    encoded = np.frombuffer(json.dumps(value).encode(), np.uint8).astype(np.int32)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(encoded))))
    encoded = encoded if is_primary() else np.zeros(length, np.int32)
    return json.loads(multihost_utils.broadcast_one_to_all(encoded).astype(np.uint8).tobytes())


def any_host(*flags: bool) -> list[bool]:
    """Whether each flag is set on any host, with one collective for all flags."""
    if jax.process_count() == 1:
        return list(flags)
    return multihost_utils.process_allgather(np.array(flags, np.int32)).any(0).tolist()


def barrier(where: str):
    """Wait for all hosts; `where` is the name of the barrier."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)
