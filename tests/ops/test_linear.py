"""Linear attention against the quadratic one, its recurrent form, and its promises about memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.errors import InputError
from attention_jax.ops import linear
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.dispatch import Call, choose_implementation
from attention_jax.ops.linear import Elu, PositiveFeatures
from attention_jax.ops.masks import causal, lengths, window

DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (jnp.asarray(DRAW.normal(size=(300, n)) * 0.7, jnp.float32) for n in (4, 4, 3))
SCORES = {"elu": Elu(), "positive": PositiveFeatures(jnp.asarray(DRAW.normal(size=(8, 4)), jnp.float32))}
MASKS = {"none": None, "causal": causal(), "lengths": lengths(170), "both": causal() & lengths(170)}


def oracle(score, mask):
    """phi(q) . phi(k) by two loops' worth of NumPy in float64, from the papers' formulas."""
    if isinstance(score, Elu):
        phi = lambda x: np.where(x > 0, x + 1, np.exp(x))
    else:
        w = np.asarray(score.projection, np.float64)
        phi = lambda x: np.exp(x @ w.T - (x**2).sum(1, keepdims=True) / 2) / np.sqrt(len(w))
    query, key, value = (np.asarray(x, np.float64) for x in (QUERY, KEY, VALUE))
    weights = phi(query) @ phi(key).T
    if mask in ("causal", "both"):
        weights = np.tril(weights)
    if mask in ("lengths", "both"):
        weights[:, 170:] = 0
    return weights / weights.sum(1, keepdims=True) @ value


@pytest.mark.parametrize("mask", slow_but(["none", "both"], MASKS))
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_every_implementation_is_the_formula(score, mask):
    """One program."""
    run = lambda implementation: attend(QUERY, KEY, VALUE, score=score, mask=MASKS[mask], implementation=implementation)
    for actual in jax.jit(lambda: [run(implementation) for implementation in ("linear", "plain", "fused")])():
        np.testing.assert_allclose(actual, oracle(score, mask), atol=1e-5)


@pytest.mark.parametrize("mask", ["none", "both"])
def test_gradients_are_those_of_the_weights_written_out(mask):
    def loss(arrays, projection, implementation):
        score = PositiveFeatures(projection)
        return jnp.sum(jnp.sin(attend(*arrays, score=score, mask=MASKS[mask], implementation=implementation)))

    gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
    call = (QUERY, KEY, VALUE), SCORES["positive"].projection
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient(*call, "linear"), gradient(*call, "plain")
    )


def test_causal_linear_attention_is_a_recurrent_network():
    actual = jax.jit(linear.recurrent)(QUERY, KEY, VALUE, Elu())
    np.testing.assert_allclose(actual, oracle(Elu(), "causal"), atol=1e-5)


def test_unattended_nan_has_no_effect():
    poisoned = [x.at[170:].set(jnp.nan) for x in (KEY, VALUE)]
    run = lambda query, key, value, n: attend(query, key, value, score=Elu(), mask=lengths(n), implementation="linear")
    actual = jax.jit(run)(QUERY, *poisoned, 170)
    np.testing.assert_allclose(actual, oracle(Elu(), "lengths"), atol=1e-5)
    nothing, slope = jax.jit(jax.value_and_grad(lambda query: run(query, KEY, VALUE, 0).sum()))(QUERY)
    assert nothing == 0 and not slope.any()


def test_linear_is_chosen_where_supported():
    long = jnp.zeros((2048, 4))
    call = Call(long, long, long, Elu(), mask=causal())
    names = lambda call: {choice.implementation for choice in choose_implementation(call).values()}
    assert names(call) == {"linear"}
    assert "linear" not in names(call._replace(mask=window(3)))
    assert "linear" not in names(Call(*[long[:8]] * 3, Elu(), mask=causal()))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"bias": ALiBi(0.1)}, "without bias"),
        ({"mask": window(3)}, "no masks but"),
        ({"query_offset": 1}, "query_offset=0"),
    ],
)
def test_what_it_cannot_compute_is_one_line(change, words):
    with pytest.raises(InputError, match=words):
        attend(QUERY, KEY, VALUE, score=Elu(), implementation="linear", **{"mask": causal()} | change)


def test_memory_is_linear():
    def cost(length):
        x = jax.ShapeDtypeStruct((length, 16), jnp.float32)
        gradient = jax.grad(lambda q, k, v: attend(q, k, v, score=Elu(), mask=causal(), implementation="linear").sum())
        return jax.jit(gradient).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    assert cost(8192) < 2.2 * cost(4096)


@pytest.mark.parametrize("size", [1.0, 12.0])
def test_positive_features_of_long_vectors_stay_finite(size):
    """At size 12 the exponents reach beyond +-88, where float32 has neither exp(x) nor exp(-x)."""
    rng = np.random.default_rng(0)
    query, key = size * rng.standard_normal((2, 6, 4)) / 2
    value, projection = rng.standard_normal((6, 3)), rng.standard_normal((16, 4))
    phi = lambda x: x @ projection.T - (x**2).sum(1, keepdims=True) / 2
    exponents = phi(query)[:, None] + phi(key)[None]  # [Q, K, F]
    logits = np.log(np.exp(exponents - exponents.max((1, 2), keepdims=True)).sum(-1))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ value
    call = [jnp.asarray(x, jnp.float32) for x in (query, key, value)]
    score = PositiveFeatures(jnp.asarray(projection, jnp.float32))
    run = jax.jit(attend, static_argnames="implementation")
    for implementation in ("plain", "fused", "linear"):
        np.testing.assert_allclose(run(*call, score=score, implementation=implementation), expected, atol=1e-4)


@pytest.mark.slow
def test_padding_does_not_scale_keys():
    """Keys of long vectors have tiny features; a padded key of zeros has large ones and must not count."""
    query, key, value = (10 * jax.random.normal(k, (5, 4)) for k in jax.random.split(jax.random.key(1), 3))
    score = PositiveFeatures(0.1 * jax.random.normal(jax.random.key(2), (8, 4)))
    padded = [jnp.concatenate([x, jnp.zeros((3, 4))]) for x in (key, value)]
    actual = attend(query, *padded, score=score, mask=lengths(5), implementation="linear")
    np.testing.assert_allclose(actual, attend(query, key, value, score=score, implementation="linear"), rtol=1e-5)
