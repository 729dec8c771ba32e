"""Choices by the platform that a program is lowered for, never by the machine on which it is traced.

So one trace serves every platform, `jax.export` lowers on a laptop what a TPU will run, and a program for the CPU is
the same on a machine that has a GPU.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

import jax

Choice = TypeVar("Choice", bound=Hashable)
Result = TypeVar("Result")


def by_platform(run: Callable[[Choice], Result], choices: Mapping[str, Choice]) -> Result:
    """`run(choice)` with the choice of the platform that is lowered for: "cpu", "cuda", "rocm", "tpu" or "default", the
    choice for all that are not named.

    While tracing, `run` is called once for each choice that differs; where all are alike that is once, and nothing is
    left to decide. Under `jax.grad` the arrays that one branch saves are outputs of every branch, zeros in the others:
    XLA drops them where gradient and value are one program, so what a branch saves should be small.

    >>> jax.jit(lambda x: by_platform(lambda n: n * x, {"cpu": 2, "default": 3}))(1.0).item()
    2.0
    """
    named = {platform: choice for platform, choice in choices.items() if choice != choices["default"]}
    if not named:
        return run(choices["default"])
    named["default"] = choices["default"]
    return jax.lax.platform_dependent(**{platform: partial(run, choice) for platform, choice in named.items()})
