"""The signals that end a process: training saves and stops, anything else ends cleanly. Standard library only."""

import signal
import sys
import threading

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
"""What batch systems and closed terminals send."""


class Interrupt:
    """Context in which SIGINT and the signals of ENDING set `requested` instead of ending the process."""

    requested = False

    def __enter__(self):
        self.old = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *not_ignored()):
                self.old[number] = signal.signal(number, lambda *_: setattr(self, "requested", True))
        return self

    def __exit__(self, *_):
        for number, handler in self.old.items():
            signal.signal(number, handler)


def end_on_signals():
    """Install a handler of ENDING that raises SystemExit(128 + signal), so that `finally` and `with` run."""
    for number in not_ignored():
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def not_ignored() -> list[int]:
    """The signals of ENDING without those that are ignored, as SIGHUP is under nohup."""
    return [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
