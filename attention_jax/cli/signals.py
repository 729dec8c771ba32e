"""Handling of the signals that end a process, SIGTERM within GRACE seconds. Standard library only."""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable

AGAIN = 0.05
"""Seconds until a SystemExit that Python has dropped is raised again."""
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
"""What batch systems and closed terminals send; with SIGINT, training saves and stops at each of them."""
GRACE = 20.0
"""Seconds from SIGTERM to the end of the process at the latest; batch systems kill after 30."""


def end_on_sigterm():
    """Install a handler of ENDING that raises SystemExit(128 + signal) in the main thread, so that `finally` and `with`
    run. A SIGHUP that the process was started to ignore (nohup) stays ignored.

    Python drops an exception that is raised inside a callback of its garbage collector (JAX has one) or inside a
    `__del__`, and calls `sys.unraisablehook`: a SystemExit that is lost there is raised again a moment later. A process
    that still runs GRACE seconds after a SIGTERM ends without cleaning up (`end_late`).
    """
    previous_hook, received = sys.unraisablehook, []

    def unraisable(lost):
        if isinstance(lost.exc_value, SystemExit):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            previous_hook(lost)

    def stop(number, _):
        received.append(number)  # SIGALRM is the first one again
        atexit.register(end_at_once, 128 + received[0])
        sys.exit(128 + received[0])

    sys.unraisablehook = unraisable
    for number in (*not_ignored(ENDING), signal.SIGALRM):
        signal.signal(number, stop)
    end_late(GRACE)


def not_ignored(numbers: Iterable[int]) -> list[int]:
    """The signals among `numbers` without a SIGHUP that is ignored, as under nohup."""
    return [n for n in numbers if not (n == getattr(signal, "SIGHUP", None) and signal.getsignal(n) == signal.SIG_IGN)]


def end_at_once(code: int):
    """End the process without the interpreter's shutdown, which would wait for a compilation and then crash in it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe
            stream.flush()
    os._exit(code)


def end_late(grace: float):
    """End the process `grace` seconds after a SIGTERM, wherever its main thread is.

    Python runs the handler of a signal in the main thread, between two of its own instructions: not while XLA compiles
    or a compiled program runs, which can take minutes. The interpreter writes the number of each signal to a socket at
    once, and a thread waits there. What a training has saved is complete at any moment, and `--resume` continues from
    it with the same bits.
    """
    arrived, written = socket.socketpair()
    written.setblocking(False)
    signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are not ours

    def wait(written=written):  # which keeps the socket open
        while arrived.recv(1)[0] != signal.SIGTERM:
            pass
        time.sleep(grace)
        line = f"ended by SIGTERM, {grace:g} seconds after it came; continue a training with --resume"
        print(line, file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
