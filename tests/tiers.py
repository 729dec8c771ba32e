"""Which cases of a parametrized test belong to the default tier, and which to the slow one."""

import pytest

SLOW_CASES = 3
"""Cases of a test in the slow tier, at most: a product of many is a sample there, evenly spread."""


def slow_but(chosen, cases) -> list:
    """The chosen cases as parameters, and as slow ones at most `SLOW_CASES` of the others.

    >>> [case if isinstance(case, int) else case.values for case in slow_but([3], range(12))]
    [3, (0,), (5,), (9,)]
    """
    values = lambda case: case if isinstance(case, tuple) else (case,)
    chosen, remaining = [x for x in cases if x in chosen], [x for x in cases if x not in chosen]
    sample = remaining[:: -(-len(remaining) // SLOW_CASES) or 1]
    return chosen + [pytest.param(*values(case), marks=pytest.mark.slow) for case in sample]
