"""SIGTERM ends a process with exit code 143, whatever it is doing. Standard library only."""

import signal
import sys

AGAIN = 0.05
"""Seconds."""


def end_on_sigterm():
    """From now on SIGTERM raises SystemExit(143) in the main thread, so that `finally` and `with` clean up.

    Python drops an exception that is raised inside a callback of its garbage collector (JAX has one) or inside a
    `__del__`, and tells `sys.unraisablehook`: a SystemExit that is lost there is raised again a moment later.
    """
    heard = sys.unraisablehook

    def unraisable(lost):
        if isinstance(lost.exc_value, SystemExit):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            heard(lost)

    sys.unraisablehook = unraisable
    for name in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(name, lambda *_: sys.exit(128 + signal.SIGTERM))
