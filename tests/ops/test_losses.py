"""Cross-entropies against NumPy, against each other, and at their edges."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import losses

N, D, V = 11, 3, 7


def numbers(rows=N):
    r = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(r.normal(size=shape), jnp.float32)
    mask = np.arange(rows) % 4 != 0
    return draw(rows, D), draw(D, V), draw(V), jnp.asarray(r.integers(V, size=rows)), jnp.asarray(mask)


def plain(hidden, kernel, bias, targets, mask, smoothing):
    return losses.masked_cross_entropy(hidden @ kernel + bias[None], targets, mask, smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_masked_cross_entropy_equals_the_definition(smoothing):
    hidden, kernel, bias, targets, mask = map(np.asarray, numbers())
    logits = hidden @ kernel + bias
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = 0.0
    for row, target, used in zip(np.log(p), targets, mask):
        soft = np.full(V, smoothing / V)
        soft[target] += 1 - smoothing
        expected -= used * (soft * row).sum()
    total, count = plain(*map(jnp.asarray, (hidden, kernel, bias, targets, mask)), smoothing)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert float(count) == float(mask.sum())


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, N, 2 * losses.ROWS + 5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_linear_cross_entropy_equals_masked_cross_entropy(rows, smoothing):
    *weights, targets, mask = numbers(rows)

    @jax.jit
    def both(weights):
        """Of each of the two: the value alone, and the value with its gradients."""
        numbers = []
        for function in (losses.linear_cross_entropy, plain):
            loss = lambda w, function=function: 3.0 * function(*w, targets, mask, smoothing)[0]
            numbers.append((loss(weights), *jax.value_and_grad(loss)(weights)))
        return numbers

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *both(weights))


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", "default"])
def test_chunk_plans_of_all_platforms_agree(monkeypatch, platform):
    """Three chunks, of which the last has no row with a weight."""
    hidden, kernel, bias, targets, mask = numbers(600)
    mask = mask & (jnp.arange(600) < 300)
    monkeypatch.setattr(losses, "LOGITS", dict.fromkeys(losses.LOGITS, losses.ROWS * V))
    way = losses._plans(600, V)[platform]
    assert way == losses.ChunkPlan(3, gathers=False, rounds=platform == "tpu")
    run = lambda *weights: losses._loss_and_gradients(*weights, targets, mask.astype(jnp.float32), 0.1, way)
    exact = lambda weights: losses.linear_cross_entropy(*weights, targets, mask, 0.1)[0]
    with jax.default_matmul_precision("bfloat16") if way.rounds else contextlib.nullcontext():
        total, gradients = jax.jit(run)(hidden, kernel, bias)
    value, expected = jax.jit(jax.value_and_grad(exact))((hidden, kernel, bias))
    for a, b in zip((total, *gradients), (value, *expected)):
        assert jnp.linalg.norm(a - b) < (2**-7 if way.rounds else 1e-5) * jnp.linalg.norm(b)


def test_tpu_keeps_requested_precision():
    rounds = lambda: {platform: way.rounds for platform, way in losses._plans(600, V).items()}
    assert rounds() == {"cpu": False, "tpu": True, "default": False}
    with jax.default_matmul_precision("highest"):
        assert not rounds()["tpu"]


def test_weights_need_not_be_zero_or_one():
    *weights, targets, _ = numbers()
    loss = jax.jit(losses.linear_cross_entropy)
    double, once = loss(*weights, targets, jnp.full(N, 2.0)), loss(*weights, targets, jnp.ones(N))
    np.testing.assert_allclose(double[0], 2 * once[0], rtol=1e-6)
    assert double[1] == 2 * N


def test_masked_nonfinite_rows_do_not_affect_loss():
    hidden, kernel, bias, targets, mask = numbers()
    hidden = jnp.where(mask[:, None], hidden, jnp.inf)
    total, count = losses.masked_cross_entropy((hidden @ kernel) + bias[None], targets, mask)
    assert jnp.isfinite(total) and float(count) == float(mask.sum())


def test_huge_logits_stay_finite():
    hidden, kernel, bias, targets, mask = numbers()
    loss = lambda h: losses.linear_cross_entropy(1e4 * h, kernel, bias, targets, mask)[0]
    value, grads = jax.jit(jax.value_and_grad(loss))(hidden)
    assert jnp.isfinite(value) and jnp.isfinite(grads).all()


def test_nothing_masked_in():
    *weights, targets, _ = numbers()
    loss = lambda w: losses.linear_cross_entropy(*w, targets, jnp.zeros(N))[0]
    value, grads = jax.jit(jax.value_and_grad(loss))(weights)
    assert value == 0 and all((g == 0).all() for g in grads)


def test_the_rows_by_vocabulary_matrix_is_never_held():
    rows, vocab = 4 * losses.ROWS, 2048
    weights = jnp.zeros((rows, D)), jnp.zeros((D, vocab)), jnp.zeros(vocab)
    grad = jax.jit(jax.grad(lambda w: losses.linear_cross_entropy(*w, jnp.zeros(rows, jnp.int32), jnp.ones(rows))[0]))
    memory = grad.lower(weights).compile().memory_analysis().temp_size_in_bytes
    assert memory < 4 * rows * vocab / 1.3
