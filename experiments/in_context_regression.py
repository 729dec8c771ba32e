"""A layer of linear attention learns to regress in its context, and ends at the optimum that has a closed form.

Chapter: theory of attention
Source: von Oswald et al. 2023 (arXiv 2212.07677); Ahn et al. 2023; Zhang, Frei, Bartlett 2024 (arXiv 2306.09927)
Data: generated; 20 pairs (x, w . x) and a question, x and w normal in 10 dimensions
Command: python launch.py reproduce in_context_regression
Cost: 0.5 minutes

One step of gradient descent on the context from w = 0 is attention without a softmax, sum_i y_i (x_i . G q) / N
(von Oswald et al., proposition 1). The best G is a multiple of the identity, and the error that is left is
E (y - f)^2 / d = (d + 1) / (N + d + 1) = 0.3548 for d = 10, N = 20. It is compared with softmax attention with a
Gaussian score, which is the kernel regression of 1964 with a learned width and scale. All train on fresh tasks by Adam.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

DIMENSIONS, PAIRS, BATCH = 10, 20, 512
EXACT = (DIMENSIONS + 1) / (PAIRS + DIMENSIONS + 1)


def config() -> Config:
    return Config("in_context_regression", Samples(1_500_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 20_000})


def linear_attention(params, x, y, query):
    """y^T X^T G q / N: values y, keys x, a query, no softmax; [N, D], [N], [D] -> a number."""
    return y @ (x @ (params["matrix"] @ query)) / len(x)


def kernel_regression(params, x, y, query):
    """Nadaraya-Watson with a learned width, and a learned factor on its estimate."""
    import jax.numpy as jnp

    from attention_jax.ops.attention import attend
    from attention_jax.ops.scores import Gaussian

    return params["scale"] * attend(query[None], x, y[:, None], score=Gaussian(jnp.exp(params["log_width"])))[0, 0]


def mean_error(model, params, rng, tasks: int):
    """E (y - f)^2 / d over fresh tasks."""
    import jax
    import jax.numpy as jnp

    for_w, for_x = jax.random.split(rng)
    w = jax.random.normal(for_w, (tasks, DIMENSIONS))
    x = jax.random.normal(for_x, (tasks, PAIRS + 1, DIMENSIONS))
    y = jnp.einsum("bnd,bd->bn", x, w)
    predictions = jax.vmap(model, (None, 0, 0, 0))(params, x[:, :-1], y[:, :-1], x[:, -1])
    return jnp.mean((predictions - y[:, -1]) ** 2) / DIMENSIONS


def train(model, params, steps: int, seed: int):
    """Adam on fresh tasks, its rate falling to zero: (parameters, errors [steps])."""
    import jax
    import optax

    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, steps))

    @jax.jit
    def run(params, rngs):
        def step(carry, rng):
            params, state = carry
            error, gradient = jax.value_and_grad(lambda p: mean_error(model, p, rng, BATCH))(params)
            with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer count
                update, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, update), state), error

        (params, _), errors = jax.lax.scan(step, (params, optimizer.init(params)), rngs)
        return params, errors

    params, errors = run(params, jax.random.split(jax.random.key(seed), steps))
    return params, np.asarray(errors)


def study(config: Config, directory: Path) -> dict:
    import jax
    import jax.numpy as jnp

    from attention_jax.report.curves import lines

    steps, seed = max(config.data.samples // BATCH, 20), config.train.seed
    matrix = 0.1 * jax.random.normal(jax.random.key(seed + 1), (DIMENSIONS, DIMENSIONS))
    starts = {
        "linear attention": (linear_attention, {"matrix": matrix}),
        "kernel regression": (kernel_regression, {"log_width": jnp.float32(1.0), "scale": jnp.float32(1.0)}),
    }
    series, errors = {}, {}
    for name, (model, params) in starts.items():
        params, curve = train(model, params, steps, seed)
        rngs = jax.random.split(jax.random.key(seed + 2), 20 if config.data.samples > 100_000 else 2)
        error = jax.jit(lambda rng, model=model, params=params: mean_error(model, params, rng, 20_000))
        errors[name] = float(np.mean([error(rng) for rng in rngs]))
        smooth = curve[: len(curve) // 20 * 20].reshape(-1, 20).mean(1)
        series[name] = (20 * np.arange(1, len(smooth) + 1), smooth)
        if name == "linear attention":
            best = PAIRS / (PAIRS + DIMENSIONS + 1)
            off = float(
                jnp.linalg.norm(params["matrix"] - best * jnp.eye(DIMENSIONS))
                / jnp.linalg.norm(best * jnp.eye(DIMENSIONS))
            )
    lines(
        series,
        directory / "figures" / "error.png",
        xlabel="training step",
        ylabel="mean squared error per dimension",
        reference={"closed form": EXACT},
    )
    return {
        "linear.error": errors["linear attention"],
        "linear.error_over_exact": errors["linear attention"] / EXACT,
        "linear.matrix_from_identity": off,
        "softmax.error": errors["kernel regression"],
        "softmax_less_linear": errors["kernel regression"] - errors["linear attention"],
    }
