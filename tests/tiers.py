"""Which cases of a parametrized test belong to the default tier, and which to the slow one."""

import pytest


def slow_but(chosen, cases) -> list:
    """The cases as parameters, marked slow unless they are among the chosen ones."""
    values = lambda case: case if isinstance(case, tuple) else (case,)
    return [case if case in chosen else pytest.param(*values(case), marks=pytest.mark.slow) for case in cases]
