"""Choices by the platform that a program is lowered for, never by the machine on which it is traced.

One trace then serves every platform: `jax.export` can lower for a TPU on a laptop, and a program for the CPU is the
same on a machine with a GPU.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

import jax

Choice = TypeVar("Choice", bound=Hashable)
Result = TypeVar("Result")


def by_platform(run: Callable[..., Result], choices: Mapping[str, Choice], *operands) -> Result:
    """Call `run(choice, *operands)` with the choice for the platform that is lowered for: "cpu", "cuda", "rocm", "tpu",
    or "default" for all others.

    While tracing, `run` is called once for each distinct choice; if all are equal, no branch remains. Under `jax.grad`
    the residuals of one branch are outputs of every branch, zeros in the others. XLA removes them if value and gradient
    are one program; otherwise they cost memory, so keep the residuals of a branch small.

    >>> jax.jit(lambda x: by_platform(lambda n: n * x, {"cpu": 2, "default": 3}))(1.0).item()
    2.0
    """
    branches = {platform: choice for platform, choice in choices.items() if choice != choices["default"]}
    if not branches:
        return run(choices["default"], *operands)
    branches["default"] = choices["default"]
    return jax.lax.platform_dependent(
        **{platform: partial(run, choice, *operands) for platform, choice in branches.items()}
    )


def choose_program(programs: Mapping[str, Callable[..., Result]]) -> Callable[..., Result]:
    """Return the program of the platform that is lowered for, the one program itself if all are equal.

    >>> jax.jit(choose_program({"cpu": abs, "default": abs}))(-1.0).item()
    1.0
    """
    branches = {platform: program for platform, program in programs.items() if program != programs["default"]}
    if not branches:
        return programs["default"]
    return partial(jax.lax.platform_dependent, **branches, default=programs["default"])
