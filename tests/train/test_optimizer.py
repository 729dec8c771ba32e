"""Schedules against their formulas, optimizers against a loop of NumPy, numbers against their traced selves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attention_jax.config import Optim, replace
from attention_jax.train.optimizer import kernels, optimizer, schedule

RATES = {
    "constant": lambda t: 1.0,
    "warmup_cosine": lambda t: 0.5 * (1 + np.cos(np.pi * (t - 10) / 90)),
    "inverse_sqrt": lambda t: np.sqrt(10 / t),
}


@pytest.mark.parametrize("name", RATES)
def test_schedules_warm_up_linearly_and_follow_their_formula(name):
    rate = schedule(Optim(learning_rate=2.0, schedule=name, warmup_steps=10), 100)
    np.testing.assert_allclose([rate(t - 1) for t in range(1, 10)], [2.0 * t / 10 for t in range(1, 10)], rtol=1e-6)
    np.testing.assert_allclose(
        [rate(t - 1) for t in range(10, 101, 9)],
        [2.0 * RATES[name](t) for t in range(10, 101, 9)],
        rtol=1e-5,
        atol=1e-6,
    )


def test_noam_is_inverse_sqrt_with_the_peak_given():
    rate = schedule(Optim(learning_rate=512**-0.5 * 4000**-0.5, schedule="inverse_sqrt", warmup_steps=4000), 100_000)
    noam = [512**-0.5 * min(t**-0.5, t * 4000**-1.5) for t in (1, 100, 4000, 50_000)]  # Vaswani et al. 2017, eq. 3
    np.testing.assert_allclose([rate(t - 1) for t in (1, 100, 4000, 50_000)], noam, rtol=1e-5)


def run(update: optax.GradientTransformation, gradients):
    params = {"w": jnp.array([1.0, -2.0])}
    state = update.init(params)
    for gradient in gradients:
        change, state = update.update({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = optax.apply_updates(params, change)
    return np.asarray(params["w"])


@pytest.fixture(autouse=True)
def _as_in_the_step():
    with jax.numpy_dtype_promotion("standard"):  # as train_step does around optax
        yield


GRADIENTS = [[3.0, 4.0], [0.3, 0.4], [-1.0, 2.0]]


def test_sgd_with_momentum_decays_as_l2_does():
    optim = Optim("sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    w, delta = np.array([1.0, -2.0]), 0.0
    for gradient in map(np.array, GRADIENTS):
        delta = 0.9 * delta + gradient + 0.01 * w
        w = w - 0.1 * delta
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS), w, rtol=1e-6)


def test_adamw_decays_beside_its_step():
    optim = Optim("adamw", learning_rate=0.1, b1=0.8, b2=0.95, eps=1e-2, weight_decay=0.01)
    w, m, v = np.array([1.0, -2.0]), 0.0, 0.0
    for t, gradient in enumerate(map(np.array, GRADIENTS), 1):
        m, v = 0.8 * m + 0.2 * gradient, 0.95 * v + 0.05 * gradient**2
        w = w - 0.1 * (m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-2) + 0.01 * w)
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS), w, rtol=1e-5)


def test_adam_decays_as_l2_does():
    """The decay is part of the gradient and of both moments, as in PyTorch's Adam; adamw is the other form."""
    optim = Optim("adam", learning_rate=0.1, b1=0.8, b2=0.95, eps=1e-2, weight_decay=0.5)
    w, m, v = np.array([1.0, -2.0]), 0.0, 0.0
    for t, gradient in enumerate(map(np.array, GRADIENTS), 1):
        gradient = gradient + 0.5 * w
        m, v = 0.8 * m + 0.2 * gradient, 0.95 * v + 0.05 * gradient**2
        w = w - 0.1 * m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-2)
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS), w, rtol=1e-5)


def test_centred_rmsprop_with_momentum_is_graves_2013_eq_38_to_41():
    optim = Optim("rmsprop", learning_rate=1e-4, b2=0.95, momentum=0.9, eps=1e-4)
    w, n, g, delta = np.array([1.0, -2.0]), 0.0, 0.0, 0.0
    for gradient in map(np.array, GRADIENTS):
        n = 0.95 * n + 0.05 * gradient**2
        g = 0.95 * g + 0.05 * gradient
        delta = 0.9 * delta - 1e-4 * gradient / np.sqrt(n - g**2 + 1e-4)
        w = w + delta
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS), w, rtol=1e-6)


def test_clipping_keeps_the_direction_and_bounds_the_global_norm():
    found = run(optimizer(Optim("sgd", learning_rate=1.0, clip_norm=1.0), 10), GRADIENTS[:1])
    np.testing.assert_allclose(found, [1.0 - 0.6, -2.0 - 0.8], rtol=1e-6)


def test_adam_with_its_first_moment_in_bfloat16_is_adam_with_a_rounded_moment():
    optim = Optim("adamw", learning_rate=0.1, moment_dtype="bfloat16")
    rounded = lambda x: np.asarray(jnp.asarray(x, jnp.float32).astype(jnp.bfloat16).astype(jnp.float32))
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(map(np.array, GRADIENTS), 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w = w - 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        m = rounded(m)
    found = run(optimizer(optim, 10), GRADIENTS)
    np.testing.assert_allclose(found, w, rtol=2e-3)  # 0.9 m is a product in bfloat16
    assert (found != run(optimizer(replace(optim, moment_dtype="float32"), 10), GRADIENTS)).any()
    moments = optimizer(optim, 10).init({"w": jnp.zeros(2)})[0]
    assert moments.mu["w"].dtype == jnp.bfloat16 and moments.nu["w"].dtype == jnp.float32


def test_kernels_alone_decay():
    update = optimizer(Optim("adamw", learning_rate=1.0, weight_decay=0.1, decayed="kernels"), 10)
    params = {"layer": {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.ones(2)}, "scale": jnp.ones(2)}
    nothing = jax.tree.map(jnp.zeros_like, params)
    change, _ = update.update(nothing, update.init(params), params)
    np.testing.assert_allclose(change["layer"]["kernel"], -0.3, rtol=1e-6)
    assert not change["layer"]["bias"].any() and not change["scale"].any()


def test_the_matrices_of_recurrent_models_and_of_the_turing_machine_decay():
    cell = {"input_kernel": 0.0, "recurrent_kernel": 0.0, "bias": 0.0}
    params = {"encoder": cell, "readout_kernel": 0.0, "embed": {"table": 0.0}, "score": {"key_kernel": 0.0}}
    machine = {"controller": 0.0, "heads": 0.0, "heads_bias": 0.0, "memory_start": 0.0}
    decayed = kernels({"seq2seq": params, "machine": machine})
    assert decayed["seq2seq"]["encoder"] == {"input_kernel": True, "recurrent_kernel": True, "bias": False}
    assert decayed["seq2seq"]["readout_kernel"] and not decayed["seq2seq"]["embed"]["table"]
    assert not decayed["seq2seq"]["score"]["key_kernel"], "recorded results of scores in a Transformer have it so"
    assert decayed["machine"] == {"controller": True, "heads": True, "heads_bias": False, "memory_start": False}


TRACED = ("learning_rate", "clip_norm", "weight_decay", "momentum", "warmup_steps", "b1", "b2")


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_traced_number_means_what_the_plain_one_means(name, clip):
    plain = Optim(
        name,
        learning_rate=0.1,
        schedule="warmup_cosine",
        warmup_steps=2,
        clip_norm=clip,
        weight_decay=0.01,
        momentum=0.9,
    )
    traced = jax.jit(lambda numbers: run_traced(replace(plain, **numbers)))(
        {n: jnp.asarray(getattr(plain, n), jnp.float32) for n in TRACED}
    )
    np.testing.assert_allclose(traced, run(optimizer(plain, 10), GRADIENTS), rtol=1e-5)


def run_traced(optim):
    params = {"w": jnp.array([1.0, -2.0])}
    update = optimizer(optim, 10)
    state = update.init(params)
    for gradient in GRADIENTS:
        change, state = update.update({"w": jnp.array(gradient)}, state, params)
        params = optax.apply_updates(params, change)
    return params["w"]
