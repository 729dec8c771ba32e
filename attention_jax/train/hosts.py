"""One training on several hosts: joining them, and what they must agree on. With one host nothing here does anything.

All hosts run the same command on the same data and draw the same batches; each computes its share of a batch
(`placement.divide`). They see one run directory, in which the first writes; all of them read checkpoints.
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

from attention_jax import InputError

JOINING = 300
"""Seconds the hosts wait for one another at the start."""


def join(coordinator: str, hosts: int, host: int):
    """Wait for all hosts; afterwards `jax.devices()` are the devices of all of them.

    `coordinator` is HOST:PORT of host 0, the same on every host, or "auto" where jax knows the cluster (Slurm, Open
    MPI, Kubernetes, TPU pods) and finds the other two numbers by itself.
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
            reach(coordinator)
        print(f"host {host} of {hosts}: joined when all have come, within {JOINING} seconds", file=sys.stderr)
    known = (
        {}
        if coordinator == "auto"
        else {"coordinator_address": coordinator, "num_processes": hosts, "process_id": host}
    )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(**known, initialization_timeout=JOINING, shutdown_timeout_seconds=3600)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"the hosts could not be joined through --coordinator {coordinator} ({reason}); start one command on each"
        ) from error
    signal.signal(signal.SIGTERM, handler)  # jax puts its own in the way of the loop's


def reach(coordinator: str):
    """Wait until host 0 listens; what jax itself does if it never does is to abort the process."""
    address, port = coordinator.rsplit(":", 1)
    end, reason = time.monotonic() + JOINING, ""
    while time.monotonic() < end:
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
            return
        except (OSError, OverflowError) as error:
            reason = str(error)
            time.sleep(0.2)
    raise InputError(
        f"nobody listened at --coordinator {coordinator} for {JOINING} seconds ({reason}); start host 0 there"
    )


def first() -> bool:
    """Whether this is the host that writes, draws and speaks."""
    return jax.process_index() == 0


def agree(value):
    """The first host's `value` (anything that JSON can say), on every host."""
    if jax.process_count() == 1:
        return value
    said = np.frombuffer(json.dumps(value).encode(), np.uint8).astype(np.int32)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(said))))
    said = said if first() else np.zeros(length, np.int32)
    return json.loads(multihost_utils.broadcast_one_to_all(said).astype(np.uint8).tobytes())


def anywhere(*flags: bool) -> list[bool]:
    """Of each flag whether it is set on any host, in one exchange."""
    if jax.process_count() == 1:
        return list(flags)
    return multihost_utils.process_allgather(np.array(flags, np.int32)).any(0).tolist()


def together(where: str):
    """Go on when all hosts have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)
