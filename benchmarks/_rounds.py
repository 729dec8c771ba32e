"""Fair timing of two programs on one machine: alternating rounds, medians."""

import time

import numpy as np

from attention_jax import InputError


def import_torch():
    """Import PyTorch, which only these comparisons need."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "this comparison needs PyTorch 2.13.0, not found: pip install torch==2.13.0 (CPU wheels: pytorch.org)"
        ) from None
    return torch


def alternate(programs: dict, rounds: int = 12, calls: int = 5) -> dict[str, list[float]]:
    """Seconds per call of each program, one number a round: every round runs all programs one
    after another, `calls` times each.

    A program is a function without arguments that returns when its work is done; it is called
    twice before anything is measured.
    """
    for program in programs.values():
        program(), program()
    seconds = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            begin = time.perf_counter()
            for _ in range(calls):
                program()
            seconds[name].append((time.perf_counter() - begin) / calls)
    return seconds


def table(seconds: dict[str, list[float]], examples: int, unit: str) -> str:
    """Print one line for each program: median step time, `unit` per second, and the speed relative to the first one.

    >>> print(table({"torch": [0.2, 0.2], "jax": [0.1, 0.1]}, 10, "examples"))
    torch             200.0 ms (200.0 - 200.0)        50 examples/s    1.00x
    jax               100.0 ms (100.0 - 100.0)       100 examples/s    2.00x
    """
    first = np.median(next(iter(seconds.values())))
    line = "{:<16} {:>6.1f} ms ({:.1f} - {:.1f}) {:>9.0f} {}/s {:>7.2f}x"
    return "\n".join(
        line.format(
            name, 1e3 * np.median(s), 1e3 * min(s), 1e3 * max(s), examples / np.median(s), unit, first / np.median(s)
        )
        for name, s in seconds.items()
    )
