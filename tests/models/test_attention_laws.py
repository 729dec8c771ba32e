"""Laws of any attention function: each holds for some functions and fails for others, and `check` measures them."""

import jax.numpy as jnp
import pytest

from attention_jax import attend, masks, models, normalizers
from attention_jax.cli import commands
from attention_jax.errors import InputError
from attention_jax.models import attention_laws, part_checks

HERE = __name__


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(attention_laws, "SIZES", (4_096, 16_384))


def linear(query, key, value):
    """Normalized linear attention with the features exp(x / 2), without this package."""
    weights = jnp.exp(query / 2) @ jnp.exp(key / 2).T
    return weights / weights.sum(1, keepdims=True) @ value


class Causal:
    def __call__(self, query, key, value):
        return attend(query, key, value, mask=masks.causal())


def sigmoid(query, key, value):
    return attend(query, key, value, normalizer=normalizers.Sigmoid())


def sparse(query, key, value):
    return attend(query, key, value, normalizer=normalizers.Sparsemax())


LAWS = [*attention_laws.LAWS]
PERMUTATION, GROWTH, DISPERSION = LAWS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "broken"),
    [(linear, None), (f"{HERE}:Causal", PERMUTATION), (f"{HERE}:sigmoid", GROWTH), (sparse, DISPERSION)],
    ids=["linear", "causal", "sigmoid", "sparse"],
)
def test_a_broken_law_is_the_one_that_fails(rule, broken):
    """Sigmoid attention also keeps the weight of a winner. One law of each that holds, and the broken one."""
    lines = models.check(rule, names=[name for name in LAWS if name in (broken, PERMUTATION)])
    assert [line.name for line in lines if not line.holds] == [broken] * (broken is not None)


def test_softmax_obeys_every_law():
    lines = models.check(attend)
    assert [line.name for line in lines] == LAWS and all(line.holds for line in lines), lines
    assert float(lines[2].evidence.split()[0]) == pytest.approx(-1, abs=0.02)


def test_dispersion_is_that_of_the_formula():
    """The weight of a winner is e^4 / (e^4 + n - 1)."""
    weight = lambda n: jnp.exp(4.0) / (jnp.exp(4.0) + n - 1)
    assert attention_laws.winner_weight(attend, 4_096) == pytest.approx(float(weight(4_096)), rel=1e-5)


def scalar(query, key, value):
    return value.sum()


def raise_error(query, key, value):
    raise ValueError("too short\nfor this")


@pytest.mark.parametrize("rule", [scalar, f"{HERE}:scalar"])
def test_an_output_of_another_shape_is_refused(rule):
    with pytest.raises(InputError, match=r"scalar.* must return \[Q, V\] = \[64, 8\] for query .* value .*; got \[\]"):
        models.check(rule)


def test_only_a_score_can_be_symmetric():
    with pytest.raises(InputError, match="got an attention function: leave --symmetric out"):
        models.check(attend, symmetric=True)


def test_an_error_of_the_function_is_no_law(capsys, monkeypatch):
    """The command prints the laws and no costs; a law that does not hold is no failure of the command."""
    monkeypatch.setattr(part_checks, "LAWS", {PERMUTATION: attention_laws.LAWS[PERMUTATION]})
    commands.main(["check", f"{HERE}:raise_error"])
    output = capsys.readouterr().out
    assert "inf  ValueError: too short\n" in output and "forward" not in output
