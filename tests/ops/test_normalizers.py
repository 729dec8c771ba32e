"""Single facts about normalizers; what they compute is in tests/ops/test_attend_properties.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.models.named_scores import AdaptiveEntmax
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.normalizers import (
    Entmax,
    Softmax,
    Sparsemax,
    StickBreaking,
    TopK,
    kth_largest,
)


def dot(query, key):
    return query @ key.T


def case(queries=9, keys=11, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return draw((queries, 4)), draw((keys, 4)) * 0.7, draw((keys, 3))


ROW = jnp.ones((1, 1)), jnp.array([[-2.0], [0.0], [0.5]])


@pytest.mark.parametrize(
    "normalizer, published",
    [
        (Sparsemax(), [0, 0.25, 0.75]),
        (Entmax(1.5), [0, 0.3260, 0.6740]),
    ],
    ids=["sparsemax", "entmax"],
)
def test_the_examples_of_the_package_entmax(normalizer, published):
    weights = jax.jit(lambda: attention_weights(*ROW, normalizer=normalizer)[0])()
    np.testing.assert_allclose(weights, published, atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_the_k_th_largest_of_a_sorted_row(kind):
    """Ties, infinities, zeros of both signs and numbers near zero among them; NaN where there are fewer."""
    x = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
    x[0, :5], x[1], x[2, 3:], x[3] = 1.0, -np.inf, -np.inf, np.tile([0.0, -0.0], 5)
    x[4, 2], x[5] = np.inf, 1e-30 * x[5]
    x = jnp.asarray(x, kind)
    actual = [kth_largest(k, x) for k in range(1, 12)]
    np.testing.assert_array_equal(np.float32(actual[:10]), np.sort(np.float32(x), axis=1).T[::-1])
    assert np.isnan(np.float32(actual[10])).all()


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_alpha_gradient_matches_entmax_package(implementation):
    """d p_0 / d alpha = -0.2562 for the scores -1, 0 and 0.5 at alpha 1.33 (its README)."""
    key, first = jnp.array([[-1.0], [0.0], [0.5]]), jnp.array([[1.0], [0.0], [0.0]])
    call = {"implementation": implementation}
    weight = lambda alpha: attend(jnp.ones((1, 1)), key, first, normalizer=Entmax(alpha), **call)[0, 0]
    value, slope = jax.jit(jax.value_and_grad(weight))(jnp.float32(1.33))
    assert abs(value - 0.0460) < 5e-5 and abs(slope + 0.2562) < 5e-5


def test_off_by_one_softmax_is_zero_sink():
    weights = jax.jit(lambda key: attention_weights(jnp.ones((1, 1)), key, normalizer=Softmax(0.0)))
    assert weights(jnp.full((5, 1), -200.0)).sum() == 0
    near = weights(jnp.zeros((5, 1)))
    np.testing.assert_allclose(near, np.full((1, 5), 1 / 6), rtol=1e-6)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_top_n_of_n_keys_is_dense(implementation):
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    call = {"implementation": implementation}
    run = lambda normalizer: attend(query, key, value, normalizer=normalizer, **call)  # jit would fuse them differently
    assert np.array_equal(run(TopK(11)), run(Softmax()))


def test_a_stick_loses_what_was_broken_off():
    query, key = (jnp.asarray(x, jnp.float32) for x in case()[:2])
    total = jax.jit(lambda: attention_weights(query, key, score=dot, normalizer=StickBreaking()).sum(axis=1))()
    np.testing.assert_allclose(total, 1 - jnp.prod(1 - jax.nn.sigmoid(query @ key.T), axis=1), rtol=1e-5)


def test_entmax_at_its_ends():
    query, key = (jnp.asarray(x, jnp.float32) for x in case()[:2])
    weights = jax.jit(lambda normalizer: attention_weights(query, key, normalizer=normalizer))
    np.testing.assert_allclose(weights(Entmax(2.0)), weights(Sparsemax()), atol=1e-6)
    np.testing.assert_allclose(weights(Entmax(1.0001)), weights(Softmax()), atol=1e-3)


def entmax_near_softmax(s, b):
    """Entmax with alpha = 1 + b for 0 < b <= 1 by bisection in float64, with the threshold moved by 1 / b."""
    weights = lambda t: np.exp(np.log1p(np.maximum(b * (s - t), -1 + 1e-16)) / b)
    low, high = s.max(), s.max() + np.log(len(s)) + 1
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(middle).sum() >= 1 else (low, middle)
    return weights(low)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_learned_entmax_near_softmax(implementation):
    """Weights sum to 1 for every logit of alpha = 1 + sigmoid(logit), and follow it as in float64."""
    scores, logits = np.array([0.3, 1.0, -0.5, 0.7]), [-100.0, -18.0, -14.0, -12.0, -8.0, -3.0, 0.0, 4.0]
    eye, query = jnp.eye(4), jnp.ones((1, 1))
    key = jnp.asarray(scores, jnp.float32)[:, None]
    run = lambda logit: attend(
        query, key, eye, score=dot, normalizer=AdaptiveEntmax(logit), implementation=implementation
    )[0]
    weights, slopes = jax.jit(jax.vmap(lambda x: jax.jvp(run, (x,), (jnp.ones(()),))))(jnp.array(logits))
    share = lambda logit: max(1 / (1 + math.exp(-logit)), 1e-9)
    exact = [entmax_near_softmax(scores, share(logit)) for logit in logits]
    np.testing.assert_allclose(weights, exact, rtol=2e-5, atol=1e-7)
    near = lambda x, step: entmax_near_softmax(scores, share(x + step))
    change = [near(x, 1e-4) - near(x, -1e-4) for x in logits]
    np.testing.assert_allclose(slopes, np.array(change) / 2e-4, rtol=2e-3, atol=1e-8)


def test_a_traced_alpha_of_one_is_the_softmax():
    run = lambda alpha: attention_weights(*ROW, score=dot, normalizer=Entmax(alpha))[0]
    weights, slope = jax.jit(lambda x: jax.jvp(run, (x,), (jnp.ones(()),)))(jnp.ones(()))
    s = np.array([-2.0, 0.0, 0.5])
    p = np.exp(s) / np.exp(s).sum()
    np.testing.assert_allclose(weights, p, rtol=1e-6)
    # dp/dalpha = p (E[log(p)^2] - log(p)^2) / 2 at alpha = 1: f(x) = exp(x - b x^2 / 2 + ...), and t keeps the sum
    np.testing.assert_allclose(slope, p * ((p * np.log(p) ** 2).sum() - np.log(p) ** 2) / 2, rtol=1e-5)


def test_what_cannot_be_asked_for():
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    for call in (
        {"normalizer": Sparsemax(), "implementation": "flash"},
        {"normalizer": Sparsemax(), "return_log_sum_exp": True},
        {"normalizer": Sparsemax},
        {"normalizer": 3},
    ):
        with pytest.raises(InputError):
            attend(query, key, value, **call)
    for wrong in (lambda: Entmax(1.0), lambda: Entmax(2.5), lambda: TopK(0), lambda: TopK(1.5)):
        with pytest.raises(InputError):
            wrong()
