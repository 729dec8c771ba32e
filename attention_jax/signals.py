"""The signals that end a process: training saves and stops, anything else ends cleanly. Standard library only."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
"""What batch systems and closed terminals send."""
AGAIN = 0.05
"""Seconds until a signal whose SystemExit Python has dropped is sent again."""


class Interrupt:
    """Context in which SIGINT and the signals of ENDING set `requested` instead of ending the process. A second SIGINT
    ends it at once, also while a compiled program runs: the first restores the system's own action."""

    requested = False

    def __enter__(self):
        self.old = {}
        if threading.current_thread() is threading.main_thread():
            for number in not_ignored((signal.SIGINT, *ENDING)):
                self.old[number] = signal.signal(number, self._request)
        return self

    def _request(self, number, _):
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *_):
        for number, handler in self.old.items():
            signal.signal(number, handler)


def end_on_signals():
    """Install a handler of ENDING that raises SystemExit(128 + signal) in the main thread, so that `finally` and `with`
    run.

    Python drops an exception that is raised inside a callback of its garbage collector (JAX has one) or inside a
    `__del__`, and calls `sys.unraisablehook`: then the signal is sent again.
    """
    previous_hook = sys.unraisablehook

    def unraisable(lost):
        if isinstance(lost.exc_value, SystemExit):
            threading.Timer(AGAIN, os.kill, (os.getpid(), lost.exc_value.code - 128)).start()
        else:
            previous_hook(lost)

    def stop(number, _):
        atexit.register(end_at_once, 128 + number)
        sys.exit(128 + number)

    sys.unraisablehook = unraisable
    for number in not_ignored(ENDING):
        signal.signal(number, stop)


def not_ignored(numbers: Iterable[int]) -> list[int]:
    """The signals among `numbers` without a SIGHUP that is ignored, as under nohup."""
    return [n for n in numbers if not (n == getattr(signal, "SIGHUP", None) and signal.getsignal(n) == signal.SIG_IGN)]


def end_at_once(code: int):
    """End the process without the interpreter's shutdown, which would wait for a compilation and then crash in it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe
            stream.flush()
    os._exit(code)
