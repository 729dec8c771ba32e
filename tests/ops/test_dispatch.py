"""The rule of `implementation=None`, and the blocks."""

import jax
import jax.numpy as jnp
import pytest

from attention_jax.ops import scores
from attention_jax.ops.attention import attend
from attention_jax.ops.dispatch import choose, choose_blocks, pair_cost
from attention_jax.ops.masks import causal

SCALED_DOT = scores.ScaledDot()
ADDITIVE = scores.Additive.init(jax.random.key(0), 8, 8, 128)


def chosen(queries, keys, score=SCALED_DOT, implementation=None):
    return choose(
        jnp.ones((queries, 8)), jnp.ones((keys, 8)), jnp.ones((keys, 8)), score, None, None, None, 0, implementation
    )


def test_small_is_plain_and_large_is_fused():
    assert chosen(128, 128) == "plain" and chosen(256, 256) == "fused"
    assert chosen(1, 10**6) == "plain"  # a decoding step: the weights are no larger than the keys
    assert chosen(32, 64, ADDITIVE) == "plain" and chosen(64, 64, ADDITIVE) == "fused"
    assert chosen(4096, 4096, implementation="plain") == "plain" and chosen(2, 2, implementation="fused") == "fused"


def test_none_is_the_chosen_one():
    x = jax.random.normal(jax.random.key(0), (300, 8))
    loops = lambda implementation: str(
        jax.make_jaxpr(lambda x: attend(x, x, x, implementation=implementation, mask=causal()))(x)
    ).count("while[")
    assert loops(None) == loops("fused") > loops("plain") == 0


@pytest.mark.parametrize(
    "score, cost", [(scores.ScaledDot(), 1), (scores.Gaussian(), 1), (scores.Cosine(), 1), (ADDITIVE, 128)]
)
def test_costs_and_blocks(score, cost):
    x = jnp.ones((1000, 8))
    assert pair_cost(score, x, x) == cost
    assert choose_blocks(score, x, x) == ((512, 256) if cost == 1 else (64, 64))
    assert choose_blocks(score, x, x, 10, 20) == (10, 20)


def test_the_cost_of_your_own_score_is_read_off_its_trace():
    def absolute(query, key):
        return -jnp.abs(query[:, None, :] - key[None, :, :]).sum(axis=-1)

    assert pair_cost(absolute, jnp.ones((5, 8)), jnp.ones((5, 8))) == 8
