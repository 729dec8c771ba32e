"""Handling of SIGTERM: a process ends with exit code 143 within GRACE seconds. Standard library only."""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time

AGAIN = 0.05
"""Seconds until a SystemExit that Python has dropped is raised again."""
GRACE = 20.0
"""Seconds from SIGTERM to the end of the process at the latest; batch systems kill after 30."""


def end_on_sigterm():
    """Install a handler of SIGTERM that raises SystemExit(143) in the main thread, so that `finally` and `with` run.

    Python drops an exception that is raised inside a callback of its garbage collector (JAX has one) or inside a
    `__del__`, and calls `sys.unraisablehook`: a SystemExit that is lost there is raised again a moment later. A process
    that still runs after GRACE seconds ends without cleaning up (`end_late`).
    """
    heard = sys.unraisablehook

    def unraisable(lost):
        if isinstance(lost.exc_value, SystemExit):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            heard(lost)

    def stop(*_):
        atexit.register(end_at_once)
        sys.exit(128 + signal.SIGTERM)

    sys.unraisablehook = unraisable
    for name in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(name, stop)
    end_late(GRACE)


def end_at_once():
    """End the process without the interpreter's shutdown, which would wait for a compilation and then crash in it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe
            stream.flush()
    os._exit(128 + signal.SIGTERM)


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
