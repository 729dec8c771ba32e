"""Products of weights in bfloat16: the same numbers as rounding by hand, float32 sums,
and gradients close to float32's."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from attention_jax import catalog, tasks
from attention_jax.ops import precision
from attention_jax.ops.losses import linear_cross_entropy
from attention_jax.ops.recurrent.cells import gru, lstm
from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.step import init_state

RNG = np.random.default_rng(0)


def round_to_bfloat16(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def test_matmul_rounds_factors_and_gradients():
    x, weight, d = normal(3, 5, 40), normal(40, 7), normal(3, 5, 7)
    with jax.default_matmul_precision("bfloat16"):
        y, back = jax.vjp(precision.matmul, x, weight)
        d_x, d_weight = back(d)
    assert y.dtype == d_x.dtype == d_weight.dtype == jnp.float32  # sums are not rounded
    np.testing.assert_allclose(y, round_to_bfloat16(x) @ round_to_bfloat16(weight), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_x, round_to_bfloat16(d) @ round_to_bfloat16(weight).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        d_weight, np.einsum("btk,btn->kn", round_to_bfloat16(x), round_to_bfloat16(d)), rtol=1e-5, atol=1e-5
    )
    assert np.abs(np.asarray(y) - np.asarray(x) @ np.asarray(weight)).max() > 1e-3  # and factors are


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_affine_is_equal_for_any_leading_axes(dtype, tolerance, flatten, monkeypatch):
    """In value and gradient, against float64."""
    monkeypatch.setattr(precision, "FLATTEN_BATCH", {"default": flatten})
    x, d = (normal(3, 5, width).astype(dtype) for width in (8, 7))
    weight, bias = normal(8, 7).astype(dtype).astype(jnp.float32), normal(7).astype(dtype).astype(jnp.float32)

    @jax.jit
    def gradients(x, weight, bias):
        y, back = jax.vjp(precision.affine, x, weight, bias)
        return y, *back(d)

    x64, d64, weight64, bias64 = (np.asarray(a, np.float64) for a in (x, d, weight, bias))
    expected = x64 @ weight64 + bias64, d64 @ weight64.T, np.einsum("btk,btn->kn", x64, d64), d64.sum((0, 1))
    for actual, exact, kind in zip(
        gradients(x, weight, bias), expected, (x.dtype, x.dtype, jnp.float32, jnp.float32), strict=True
    ):
        assert actual.dtype == kind
        np.testing.assert_allclose(np.asarray(actual, np.float64), exact, rtol=0, atol=tolerance * np.abs(exact).max())


def test_without_the_setting_nothing_is_rounded():
    x, weight = normal(4, 8), normal(8, 3)
    np.testing.assert_array_equal(precision.matmul(x, weight), x @ weight)
    assert str(jax.make_jaxpr(precision.matmul)(x, weight)) == str(
        jax.make_jaxpr(lambda x, weight: x @ weight)(x, weight)
    )


def recurrent(layer, gates, bias):
    state = (normal(3, 8),) * (2 if layer is lstm else 1)
    inputs = (normal(4, 3, gates * 8), normal(8, gates * 8) / 4, *bias)
    return lambda *inputs: layer(*inputs, state)[0], inputs


CASES = {
    "lstm": recurrent(lstm, 4, ()),
    "gru": recurrent(gru, 3, (normal(8),)),
    "deferred_scan": (
        lambda w, x: deferred_scan(lambda w, h, x: (jnp.tanh(x + h @ w),) * 2, DeferredWeight(w), jnp.zeros((3, 8)), x)[
            1
        ],
        (normal(8, 8) / 3, normal(4, 3, 8)),
    ),
    "linear_cross_entropy": (
        lambda h, k, b: linear_cross_entropy(h, k, b, jnp.arange(20) % 9, jnp.ones(20))[0],
        (normal(20, 16), normal(16, 9), normal(9)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_hand_written_gradients_obey_the_setting(name):
    """Value and gradients are off by bfloat16's rounding: not by more, and not by nothing."""
    f, inputs = CASES[name]

    @jax.jit
    def value_and_gradients(*inputs):
        value, back = jax.vjp(lambda *x: (f(*x) ** 2).sum(), *inputs)
        return value, *back(jnp.float32(1))

    exact = value_and_gradients(*inputs)
    with jax.default_matmul_precision("bfloat16"):
        close = value_and_gradients(*inputs)
    for a, b in zip(exact, close, strict=True):
        assert a.dtype == b.dtype
        off = float(jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(a.ravel()))
        assert 1e-7 < off < 2e-2, off


@pytest.mark.slow
def test_training_obeys_the_option():
    config = catalog.load_experiment("date_luong").smoke()
    task, update = tasks.build(config), optimizer(config.optim, 10)
    bucket, indices, weight = task.plan(0, 1)[0]
    call = (jax.eval_shape(lambda: init_state(task.init, update, 0)), task.buckets[bucket], indices, weight)
    programs = [Program(task.loss, update, matmul_precision=setting) for setting in ("default", "bfloat16")]
    steps = [program.compiled.lower(*call).as_text() for program in programs]
    assert ["bf16" in text for text in steps] == [False, True]
