"""`check` finds planted mistakes, each by the property that it breaks, and none in the same class without it."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import pytest

from attention_jax import biases, masks, normalizers, pooling, pytree, scores
from attention_jax.cli import commands
from attention_jax.errors import InputError
from attention_jax.models import part_checks

HERE = __name__


@pytree
@dataclass(frozen=True)
class Tempered(scores.Score):
    """scale * (q . k + mistakes), with a learned scale."""

    scale: jax.Array
    mistake: str = field(default="", metadata={"static": True})

    def __call__(self, query, key):
        scale = jax.lax.stop_gradient(self.scale) if self.mistake == "cut" else self.scale
        product = query @ key.T
        if self.mistake == "index":  # of the key in its block
            product = product + 0.1 * jnp.arange(len(key))[None].astype(product.dtype)
        if self.mistake == "asymmetric":
            product = product + key.sum(1)[None]
        if self.mistake == "root":  # whose slope at 0 is infinite
            product = product - jnp.sqrt(((query[:, None] - key[None]) ** 2).sum(-1))
        if self.mistake == "rounding":
            product = (product + 300) - 300
        return scale.astype(product.dtype) * product

    def terms(self, query, key):
        return scores.Terms(query, key, scale=2.0 if self.mistake == "terms" else 0.5)


@pytree
@dataclass(frozen=True)
class Laplace(scores.Score):
    """-|q - k|_1 / width, which has no derivative where a feature of q is that of k."""

    width: jax.Array
    is_cut: bool = field(default=False, metadata={"static": True})

    def __call__(self, query, key):
        width = jax.lax.stop_gradient(self.width) if self.is_cut else self.width
        return -jnp.abs(query[:, None] - key[None]).sum(-1) / width.astype(query.dtype)


@pytree
@dataclass(frozen=True)
class Share(pooling.Pool):
    """The mean of the values, of which mistakes take that of all keys away, or divide by the number of queries."""

    mistake: str = field(default="", metadata={"static": True})

    def lift(self, key, value):
        return value - value.mean(0, keepdims=True) if self.mistake == "centered" else value

    def finish(self, query, pooled, terms, width):
        return pooled / len(query) if self.mistake == "divided" else pooled


@pytree
@dataclass(frozen=True)
class Distance(biases.Bias):
    rate: jax.Array

    def __call__(self, query, query_positions, key_positions):
        return -self.rate * jnp.abs(query_positions[:, None] - key_positions[None]).astype(query.dtype)


@pytree
@dataclass(frozen=True)
class Strided(masks.Mask):
    stride: int = field(metadata={"static": True})
    first_key: int = field(default=0, metadata={"static": True})

    def __call__(self, query_positions, key_positions):
        return (query_positions[:, None] - key_positions[None]) % self.stride == 0

    def key_range(self, first, last):
        return self.first_key, last + 100


@pytree
@dataclass(frozen=True)
class Near(masks.Mask):
    """Keys at most 4 positions before a query; bounds may be one too short or too long."""

    short: int = field(default=0, metadata={"static": True})
    long: int = field(default=0, metadata={"static": True})

    def __call__(self, query_positions, key_positions):
        distance = query_positions[:, None] - key_positions[None]
        return (distance >= 0) & (distance <= 4)

    def key_range(self, first, last):
        return first - 4, last + 1 - self.short

    def unmasked_range(self, first, last):
        return last - 4 - self.long, first + 1


@pytree
@dataclass(frozen=True)
class Slope(biases.Bias):
    """-|i - j| / 2, a term of the key under a causal mask alone."""

    is_wrong: bool = field(default=False, metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        return -0.5 * jnp.abs(query_positions[:, None] - key_positions[None]).astype(query.dtype)

    def terms(self, query_positions, key_positions, causal):
        return scores.Terms(key_term=0.5 * key_positions.astype(jnp.float32)) if causal or self.is_wrong else None


@pytree
@dataclass(frozen=True)
class Lonely(scores.Score):
    """Wrong for a key that is alone in its block."""

    is_wrong: bool = field(default=False, metadata={"static": True})

    def __call__(self, query, key):
        return query @ key.T + (0.5 if self.is_wrong and len(key) == 1 else 0.0) * key.sum(1)[None]


HALF = jnp.asarray(0.5)
PLANTED = [
    ("gradients = differences", Tempered(HALF), Tempered(HALF, "cut"), "gradient of scale"),
    ("gradients = differences", Laplace(HALF), Laplace(HALF, True), "gradient of width"),
    ("a pair alone", Tempered(HALF), Tempered(HALF, "index"), "score"),
    ("keys in another order", Tempered(HALF), Tempered(HALF, "index"), "output"),
    ("symmetric", Tempered(HALF), Tempered(HALF, "asymmetric"), "score"),
    ("finite at 0 and at q = k", Tempered(HALF), Tempered(HALF, "root"), "is nan instead of 0"),
    ("bfloat16 = float64", Tempered(HALF), Tempered(HALF, "rounding"), "output"),
    ("prepare_key, terms = call", Tempered(HALF), Tempered(HALF, "terms"), "terms"),
    ("masked keys = no keys", Share(), Share("centered"), "output"),
    ("cached decoding = the whole", Share(), Share("divided"), "output"),
    ("plain = fused", Strided(3), Strided(3, 30), "gradient of"),
    ("plain = fused", Lonely(), Lonely(True), "gradient of"),
    ("bounds of a mask", Near(), Near(short=1), "key_range[0, 0, 0]"),
    ("bounds of a mask", Near(), Near(long=1), "unmasked_range[0, 5, 0]"),
    ("prepare_key, terms = call", Slope(), Slope(True), "terms"),
]


@pytest.mark.parametrize(
    ("name", "right", "wrong", "evidence"), PLANTED, ids=[f"{type(case[2]).__name__} {case[0]}" for case in PLANTED]
)
def test_a_mistake_is_in_its_property_alone(name, right, wrong, evidence):
    subjects = [part_checks.draw_subject(rule, symmetric=name == "symmetric") for rule in (right, wrong)]
    good, bad = (part_checks.measure_property(name, subject) for subject in subjects)
    assert good.holds and good.difference is not None, good
    assert not bad.holds and bad.difference > 3 * bad.tolerance and evidence in bad.evidence, bad


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("gaussian", "score"),
        ("entmax(1.5)", "normalizer"),
        ("learned_sink", "normalizer"),
        ("window(4)", "mask"),
        ("moments", "pool"),
        (f"{HERE}:make_bias(0.5)", "bias"),
        (normalizers.Sparsemax, "normalizer"),
        (biases.ALiBi(0.5), "bias"),
    ],
)
def test_the_kind_follows_from_the_type(rule, kind):
    assert part_checks.draw_subject(rule).kind == kind


def make_bias(rate):
    return Distance(jnp.asarray(rate))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("math:pi", "check needs a class that inherits from Score"),
        (f"{HERE}:Plain", "must be a dataclass with @pytree"),
    ],
)
def test_what_is_none_of_them_is_one_line(rule, message):
    with pytest.raises(InputError, match=message):
        part_checks.check(rule)


class Plain(scores.Score):
    pass


def test_the_command_prints_a_table_and_fails_with_the_rule(capsys, monkeypatch):
    """Of two properties, the others being tested above; an error in the class is one of them."""
    names = ("a pair alone", "keys in another order")
    monkeypatch.setattr(part_checks, "PROPERTIES", {name: part_checks.PROPERTIES[name] for name in names})
    for rule, code in (("dot", 0), (f"{HERE}:Broken", 1)):
        with pytest.raises(SystemExit) as stop:
            commands.main(["check", rule])
        assert stop.value.code == code
    good, bad = capsys.readouterr().out.split(f"{HERE}:Broken")
    assert good.count(" ok") == 2 and bad.count("inf  RuntimeError: nothing here") == 2


@pytree
@dataclass(frozen=True)
class Broken(scores.Score):
    def __call__(self, query, key):
        raise RuntimeError("nothing here")


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", ["gaussian", "sparsemax", "softpick", "window(3)", "local_linear(0.1)", biases.ALiBi(0.5)], ids=str
)
def test_every_property_holds_for_classes_of_the_package(rule):
    assert [line for line in part_checks.check(rule) if not line.holds] == []
