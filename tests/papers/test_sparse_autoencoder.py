"""Sparse autoencoders: loss, pseudo-derivatives and metrics by their formulas, and a population of sizes that is each
member alone. 12 CPU-seconds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import tasks
from attention_jax.config import Config, Optim, Train, replace
from attention_jax.errors import InputError
from attention_jax.runs import api, lifecycle
from attention_jax.sweep import batch
from experiments.papers import sparse_autoencoder as sae
from experiments.papers.options import Activations, SparseAutoencoderConfig

CONFIG = Config(
    "x",
    Activations(),
    SparseAutoencoderConfig(largest=24, size=16, k=3, penalty=0.01, first_threshold=0.4, width=0.3),
    Optim(learning_rate=3e-3),
    Train(batch_size=512, total_epochs=1, save_minutes=0),
)


def features_of(params, x, options):
    """Features [B, N] of the definition, in float64."""
    u = x @ np.float64(params["encoder"]) + np.float64(params["encoder_bias"])
    u[:, int(options.size) :] = -np.inf
    if options.activation == "topk":
        is_largest = np.argsort(np.argsort(-u, axis=1), axis=1) < options.k
        return np.where(is_largest & (u > 0), u, 0)
    return np.where(u > np.exp(np.float64(params["log_threshold"])), u, 0)


@pytest.mark.parametrize("activation", ["topk", "jumprelu"])
def test_loss_and_metrics_are_those_of_the_definition(activation):
    task = tasks.build(replace(CONFIG, **{"model.activation": activation}))
    params, options = jax.jit(task.init)(jax.random.key(0)), task.config.model
    batch = {name: jnp.asarray(x[:8]) for name, x in task.buckets[0].items()}
    total, count, metrics = jax.jit(task.loss)(
        params, batch | {"weight": (jnp.arange(8) < 6).astype(jnp.float32)}, None
    )
    directions = np.float64(params["decoder"]) / np.linalg.norm(np.float64(params["decoder"]), axis=1, keepdims=True)
    x = np.float64(batch["input"])[:6]
    features = features_of(params, x, options)
    error = np.square(x - features @ directions).mean(1)
    penalty = options.penalty * (features > 0).sum(1) if activation == "jumprelu" else 0
    assert float(total / count) == pytest.approx((error + penalty).mean(), rel=1e-5)
    assert float(metrics["l0"][0]) == (features > 0).sum()

    x = np.float64(task.data.valid.input)
    features = features_of(params, x, options)
    measured = task.evaluate(params, True).metrics
    error = np.square(x - features @ directions).sum()
    assert measured["valid.explained"] == pytest.approx(1 - error / np.square(x).sum(), rel=1e-5)
    assert measured["valid.l0"] == pytest.approx((features > 0).sum(1).mean(), rel=1e-5)
    assert measured["valid.dead"] == pytest.approx(1 - (features > 0).any(0).sum() / 16)


def test_pseudo_derivatives_of_thresholds():
    """Rajamanoharan et al. 2024, eq. 11-12: -theta / epsilon and -1 / epsilon within epsilon / 2 of a threshold."""
    u, theta = jnp.array([[0.5, 0.31, 0.29, 0.1], [0.3, -1.0, 2.0, 0.34]]), jnp.full((1, 4), 0.3)
    near = (abs(np.asarray(u) - 0.3) < 0.05).sum(0)
    gradient = lambda function: jax.grad(lambda *args: function(*args, 0.1).sum(), (0, 1))(u, theta)
    by_u, by_theta = gradient(sae.jump_relu)
    np.testing.assert_array_equal(by_u, u > 0.3)
    np.testing.assert_allclose(by_theta[0], -0.3 / 0.1 * near, rtol=1e-5)
    by_u, by_theta = gradient(sae.step)
    assert not by_u.any()
    np.testing.assert_allclose(by_theta[0], -1 / 0.1 * near, rtol=1e-5)


def test_sizes_and_seeds_are_one_program_and_each_alone(tmp_path):
    members = [
        batch.Member(replace(CONFIG, **{"model.size": size, "train.seed": seed}), tmp_path / f"{size}-{seed}")
        for size, seed in ((8.0, 0), (16.0, 1))
    ]
    built = [tasks.build(member.config) for member in members]
    assert batch.classes(built, [0, 1]) == [[0, 1]]
    batch.train_batch(members, built, tmp_path)
    for config, directory in members:
        alone = lifecycle.start(config, tmp_path / f"alone-{directory.name}", quiet=True)
        result = api.load_run(directory)
        assert result.result["metrics"] == alone["metrics"]
        params = api.load_run(tmp_path / f"alone-{directory.name}").params
        jax.tree.map(np.testing.assert_array_equal, result.params, params)


def test_an_activation_is_reconstructed_in_its_own_units():
    task = tasks.build(CONFIG)
    params = jax.jit(task.init)(jax.random.key(0))
    data = task.data
    raw = data.input_scale.undo(data.valid.input[:6]).reshape(2, 3, -1)
    y = task.reconstruct(params)(jnp.asarray(raw))
    features = features_of(params, np.float64(data.valid.input[:6]), task.config.model)
    directions = np.asarray(params["decoder"]) / np.linalg.norm(params["decoder"], axis=1, keepdims=True)
    expected = (features @ directions) / data.input_scale.factor + data.input_scale.mean
    np.testing.assert_allclose(y.reshape(6, -1), expected, atol=1e-4)
    assert np.square(data.train.input).sum(1).mean() == pytest.approx(16, rel=1e-5)
    with pytest.raises(InputError, match=r"--model.size must be from --model.k 3 to --model.largest 24, got 40"):
        replace(CONFIG, **{"model.size": 40.0})
