"""A claim about the mean of a run's last epochs: `Bound.last`."""

import pytest

from attention_jax.claims.verdicts import claim_value, judge
from attention_jax.config import Claim


def run(*values: float, seed: int = 0) -> dict:
    """A run with one value of test.exact_match after each epoch."""
    history = [{"epoch": n, "train.loss": 1.0, "test.exact_match": value} for n, value in enumerate(values, start=1)]
    return {"variant": "", "seed": seed, "metrics": {"test.exact_match": values[-1]}, "history": history}


def claim(last: int, **bounds) -> Claim:
    return Claim("", "test.exact_match", None, "", kind="aim" if bounds else "measurement", last=last, **bounds)


@pytest.mark.parametrize("last, value", [(0, 0.75), (1, 0.75), (2, 0.625), (3, 0.5), (4, 0.625)])
def test_the_mean_of_the_last_epochs_is_taken(last, value):
    assert claim_value(claim(last), [run(1.0, 0.25, 0.5, 0.75)]) == value


def test_run_with_fewer_epochs_has_no_value():
    assert judge(claim(3, at_least=0.0), [run(0.5, 0.5)]) == (None, "not run")


def test_the_median_over_seeds_is_of_the_means():
    runs = [run(0.0, 1.0), run(0.5, 0.75, seed=1), run(0.25, 0.25, seed=2)]  # means 0.5, 0.625 and 0.25
    assert judge(claim(2, at_least=0.25), runs) == (0.5, "holds")
    assert judge(claim(2, at_least=0.65), runs) == (0.5, "missed")
    assert judge(claim(2, at_least=0.5), runs) == (0.5, "undecided")
