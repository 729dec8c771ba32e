"""Schedules against their formulas, optimizers against a loop of NumPy, numbers against their traced selves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attention_jax.config import Optim, replace
from attention_jax.errors import InputError
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


def test_centered_rmsprop_follows_graves_2013():
    optim = Optim("rmsprop", learning_rate=1e-4, b2=0.95, momentum=0.9, eps=1e-4)
    w, n, g, delta = np.array([1.0, -2.0]), 0.0, 0.0, 0.0
    for gradient in map(np.array, GRADIENTS):
        n = 0.95 * n + 0.05 * gradient**2
        g = 0.95 * g + 0.05 * gradient
        delta = 0.9 * delta - 1e-4 * gradient / np.sqrt(n - g**2 + 1e-4)
        w = w + delta
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS), w, rtol=1e-6)


def test_clipping_bounds_global_norm():
    actual = run(optimizer(Optim("sgd", learning_rate=1.0, clip_norm=1.0), 10), GRADIENTS[:1])
    np.testing.assert_allclose(actual, [1.0 - 0.6, -2.0 - 0.8], rtol=1e-6)


def test_adam_with_bfloat16_first_moment():
    optim = Optim("adamw", learning_rate=0.1, moment_dtype="bfloat16")
    round_bfloat16 = lambda x: np.asarray(jnp.asarray(x, jnp.float32).astype(jnp.bfloat16).astype(jnp.float32))
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(map(np.array, GRADIENTS), 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w = w - 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        m = round_bfloat16(m)
    actual = run(optimizer(optim, 10), GRADIENTS)
    np.testing.assert_allclose(actual, w, rtol=2e-3)  # 0.9 m is a product in bfloat16
    assert (actual != run(optimizer(replace(optim, moment_dtype="float32"), 10), GRADIENTS)).any()
    moments = optimizer(optim, 10).init({"w": jnp.zeros(2)})[0]
    assert moments.mu["w"].dtype == jnp.bfloat16 and moments.nu["w"].dtype == jnp.float32


def test_lion_steps_by_sign_of_momentum():
    """Chen et al. 2023, algorithm 2, with decoupled decay."""
    optim = Optim("lion", learning_rate=0.01, b1=0.8, b2=0.95, weight_decay=0.1)
    w, m = np.array([1.0, -2.0]), 0.0
    for gradient in map(np.array, GRADIENTS):
        w = w - 0.01 * (np.sign(0.8 * m + 0.2 * gradient) + 0.1 * w)
        m = 0.95 * m + 0.05 * gradient
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS), w, rtol=1e-6)


def test_adafactor_scales_by_second_moment_and_parameters():
    """Shazeer & Stern 2018, algorithm 5 (a vector is not factored): eps 1e-30 and 1e-3, d = 1, b2 = 1 - t^-0.8."""
    w, v = np.array([1.0, -2.0]), 0.0
    rms = lambda x: np.sqrt(np.mean(x**2))
    for t, gradient in enumerate(map(np.array, GRADIENTS), 1):
        b2 = 1 - t**-0.8
        v = b2 * v + (1 - b2) * (gradient**2 + 1e-30)
        u = gradient / np.sqrt(v)
        w = w - 0.1 * max(1e-3, rms(w)) * u / max(1.0, rms(u))
    np.testing.assert_allclose(run(optimizer(Optim("adafactor", learning_rate=0.1), 10), GRADIENTS), w, rtol=1e-5)


def test_adafactor_factors_large_matrices():
    state = optimizer(Optim("adafactor"), 10).init({"kernel": jnp.zeros((256, 128))})
    assert sum(x.size for x in jax.tree.leaves(state)) < 2 * (256 + 128)


@pytest.mark.slow
def test_muon_orthogonalizes_the_matrices_of_linear_maps():
    """All singular values of the update are nearly 1, times 0.2 sqrt(the larger side): an RMS of 0.2 as Adam's."""
    optim = Optim("muon", learning_rate=1.0, b1=0.9, b2=0.999)
    params = {"kernel": jnp.zeros((12, 8)), "table": jnp.zeros((12, 8)), "bias": jnp.zeros(8)}
    gradient = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.ndim), x.shape), params)
    update = optimizer(optim, 10)
    change, _ = update.update(gradient, update.init(params), params)
    values = np.linalg.svd(np.asarray(change["kernel"]), compute_uv=False) / (0.2 * np.sqrt(12))
    assert values.min() > 0.6 and values.max() < 1.3, values  # the quintic polynomial does not converge to 1
    assert (np.sum(change["kernel"] * gradient["kernel"])) < 0
    adam = optax.scale_by_adam(nesterov=True)
    for name in ("table", "bias"):
        expected, _ = adam.update(gradient[name], adam.init(params[name]))
        np.testing.assert_allclose(change[name], -expected, rtol=1e-5)


OWN = """
import optax

def plain(b2, momentum=0.0):
    return optax.scale(b2 + momentum)

def linear(optim, total_steps):
    return optax.linear_schedule(optim.learning_rate, 0.0, total_steps)

def needs_a_rate(learning_rate):
    return optax.scale(learning_rate)

returns_nothing = lambda: None
"""


@pytest.fixture
def custom_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "custom_optimizer.py").write_text(OWN)


def test_an_optimizer_and_a_schedule_by_import_path(custom_module):
    optim = Optim("custom_optimizer:plain", learning_rate=0.1, b2=0.5, weight_decay=0.25, clip_norm=1.0)
    w = np.array([1.0, -2.0])
    w = w - 0.1 * (0.5 * np.array([0.6, 0.8]) + 0.25 * w)  # clipped, scaled, decayed apart from the gradient
    np.testing.assert_allclose(run(optimizer(optim, 10), GRADIENTS[:1]), w, rtol=1e-6)
    rate = schedule(Optim(learning_rate=2.0, schedule="custom_optimizer:linear"), 10)
    assert [float(rate(step)) for step in (0, 5, 10)] == [2.0, 1.0, 0.0]
    actual = run(optimizer(Optim("optax:scale_by_yogi", learning_rate=0.1, b1=0.8), 10), GRADIENTS)
    np.testing.assert_allclose(actual, run(optax.yogi(0.1, b1=0.8, eps=1e-8), GRADIENTS), rtol=1e-6)


@pytest.mark.parametrize("name", ["needs_a_rate", "returns_nothing", "OWN", "absent"])
def test_what_is_no_optimizer_is_one_line(custom_module, name):
    with pytest.raises(InputError, match=f"custom_optimizer:{name}") as error:
        optimizer(Optim(f"custom_optimizer:{name}"), 10)
    assert "\n" not in str(error.value)


PARAMS = {"encoder": {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.ones(2)}, "head": {"kernel": jnp.full((2, 2), 5.0)}}


def mean_updates(optim, gradient: float):
    update = optimizer(optim, 10)
    gradients = jax.tree.map(lambda x: jnp.full_like(x, gradient), PARAMS)
    return jax.tree.map(lambda x: float(x.mean()), update.update(gradients, update.init(PARAMS), PARAMS)[0])


def test_rates_and_decays_by_pattern():
    optim = Optim("sgd", learning_rate=1.0, rates=("encoder/bias=0", ".*/kernel=0.5"))
    assert mean_updates(optim, 1.0) == {"encoder": {"bias": 0.0, "kernel": -0.5}, "head": {"kernel": -0.5}}
    optim = Optim("adamw", learning_rate=1.0, weight_decay=0.5, decays=("head/.*=0.5", "encoder/bias=2"))
    assert mean_updates(optim, 0.0) == {"encoder": {"bias": -1.0, "kernel": -1.5}, "head": {"kernel": -1.25}}
    optim = replace(optim, decayed="kernels", decays=())
    assert mean_updates(optim, 0.0) == {"encoder": {"bias": 0.0, "kernel": -1.5}, "head": {"kernel": -2.5}}
    optim = replace(optim, decays=("head/.*=0.5",), rates=("encoder/.*=0.1",))
    expected = {"encoder": {"bias": 0.0, "kernel": -0.15}, "head": {"kernel": -1.25}}
    jax.tree.map(
        lambda actual, value: np.testing.assert_allclose(actual, value, rtol=1e-6), mean_updates(optim, 0.0), expected
    )


@pytest.mark.parametrize("patterns", [("decoder/.*=0.1",), ("encoder=0.1",), (".*=1", "head/.*=2")])
@pytest.mark.parametrize("option", ["rates", "decays"])
def test_a_pattern_that_matches_nothing_is_refused(option, patterns):
    """Also one that matches a part of a path, and one that comes after a pattern that matches all it would."""
    update = optimizer(Optim("adamw", weight_decay=0.1, **{option: patterns}), 10)
    with pytest.raises(InputError, match=f"--optim.{option} .*{patterns[-1]!r}.*3 parameters are encoder/bias"):
        update.init(PARAMS)


@pytest.mark.parametrize("wrong", ["encoder", "=1", "(=1", "a=-1", "a=x", "a=inf"])
@pytest.mark.parametrize("option", ["rates", "decays"])
def test_malformed_pattern_is_rejected(option, wrong):
    with pytest.raises(InputError, match=f"--optim.{option} must be REGEX=FACTOR"):
        Optim(weight_decay=0.1, **{option: (wrong,)})


def test_decays_need_weight_decay():
    with pytest.raises(InputError, match="--optim.weight-decay"):
        Optim(decays=("a=1",))


def test_recurrent_and_ntm_matrices_decay():
    cell = {"input_kernel": 0.0, "recurrent_kernel": 0.0, "bias": 0.0}
    params = {"encoder": cell, "readout_kernel": 0.0, "embed": {"table": 0.0}, "score": {"key_kernel": 0.0}}
    machine = {"controller": 0.0, "heads": 0.0, "heads_bias": 0.0, "memory_start": 0.0}
    decayed = kernels({"seq2seq": params, "machine": machine})
    assert decayed["seq2seq"]["encoder"] == {"input_kernel": True, "recurrent_kernel": True, "bias": False}
    assert decayed["seq2seq"]["readout_kernel"] and not decayed["seq2seq"]["embed"]["table"]
    assert not decayed["seq2seq"]["score"]["key_kernel"], "recorded results of scores in a Transformer have it so"
    assert decayed["machine"] == {"controller": True, "heads": True, "heads_bias": False, "memory_start": False}


TRACED = ("learning_rate", "clip_norm", "weight_decay", "momentum", "warmup_steps", "b1", "b2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "lion", "muon", "adafactor"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_traced_option_equals_plain_number(name, clip):
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


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "lion", "muon", "adafactor"])
def test_scanned_layers_are_updated_like_single_ones(name):
    """Compiles two programs an optimizer. Widths of 128 and more, so that adafactor factors its moments."""

    def tree(key):
        layers = [
            {"dense": {"kernel": jax.random.normal(k, (160, 128)) * (i + 1), "bias": jax.random.normal(k, 130) * 5**i}}
            for i, k in enumerate(jax.random.split(key, 3))
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        stacked["dense"]["kernel"] = stacked["dense"]["kernel"].swapaxes(1, 2)  # [layers, out, in]
        return {"decoder": {f"layer_{i}": layer for i, layer in enumerate(layers)}}, {"decoder": {"layers_0": stacked}}

    update = optimizer(Optim(name, learning_rate=0.1, weight_decay=0.01), 10)
    step = jax.jit(lambda gradients, params: update.update(gradients, update.init(params), params)[0]["decoder"])
    (alone, scanned), (params, stacked) = tree(jax.random.key(0)), tree(jax.random.key(1))
    actual, expected = step(scanned, stacked)["layers_0"]["dense"], step(alone, params)
    for i in range(3):
        layer = expected[f"layer_{i}"]["dense"]
        np.testing.assert_allclose(actual["kernel"][i].T, layer["kernel"], atol=1e-6)
        np.testing.assert_allclose(actual["bias"][i], layer["bias"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["adam", "adamw", "sgd", "rmsprop", "lion", "muon", "adafactor", "optax:scale_by_yogi"]
)
def test_every_optimizer_freezes(name):
    """Steps and moments of a tree with frozen parameters are those of the tree without them, although the frozen
    gradients are large, then NaN."""
    options = {"learning_rate": 0.1, "clip_norm": 1.0, "clip_value": 3.0, "weight_decay": 0.1, "momentum": 0.9}
    frozen = Optim(name, **options, rates=("encoder/.*=0",), decays=("head/.*=0.5",))
    alone = Optim(name, **options, decays=(".*=0.5",))
    head = {"head": PARAMS["head"]}
    steps, states = [], []
    for optim, params in (frozen, PARAMS), (alone, head):
        update = optimizer(optim, 10)
        gradients = {"head": jax.tree.map(lambda x: x + jnp.arange(x.size).reshape(x.shape), params["head"])}
        state = update.init(params)
        for value in (1e6, np.nan):
            filled = jax.tree.map(lambda x, value=value: jnp.full_like(x, value), params)
            change, state = update.update(filled | gradients, state, params)
            params = optax.apply_updates(params, change)
        steps.append(change)
        states.append(len(jax.tree.leaves(state)))
    np.testing.assert_array_equal(steps[0]["head"]["kernel"], steps[1]["head"]["kernel"])
    assert not any(x.any() for x in jax.tree.leaves(steps[0]["encoder"])) and states[0] == states[1]
