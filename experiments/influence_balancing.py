"""Influence balancing: truncated gradients point the wrong way, unbiased ones of the same length do not.

Chapter: training theory
Source: Tallec & Ollivier 2017 (arXiv 1705.08209), section 5.1, which shows curves; the numbers of the variant below are
  our own, from a second program (`python experiments/peers/numpy_influence.py`: influence_balancing_peer.json beside
  the results)
Data: none; a linear system of 23 units with one parameter
Command: python launch.py reproduce influence_balancing
Cost: 0.1 minutes

s' = A s + theta b, A = 0.5 I + 0.5 superdiagonal, b = +1 on the first 10 units and -1 on the other 13, loss 0.5
(s_0 - 1)^2. At rest s_0 = -6 theta, but the first steps of influence are positive, and a gradient that sees only those
makes theta grow. Protocol: s = 1, theta = 0.5; an update (learning rate 1e-4) takes the loss after `length` more steps;
after 3,000 updates the system runs 100 steps at rest, and its loss is the result. Forward mode updates after every
step. Randomized blocks have geometric lengths of mean 16. Everything is in float64.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Influence

UNITS, POSITIVE, RATE, SETTLE = 23, 10, 1e-4, 100
RANDOMIZED = 5
"""Seeds of the randomized truncation."""


def config() -> Config:
    return Config("influence_balancing", Influence(), None)


def smoke() -> Config:
    return replace(config(), **{"data.updates": 20})


def system() -> tuple[np.ndarray, np.ndarray]:
    """A and b."""
    return 0.5 * np.eye(UNITS) + 0.5 * np.eye(UNITS, k=1), np.where(np.arange(UNITS) < POSITIVE, 1.0, -1.0)


def losses(updates: int, length: int | str, seed: int = 0) -> np.ndarray:
    """The loss at each update and, last, after settling; `length` is a truncation, "forward", or "randomised"."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.recurrent import bptt

    a, b = map(jnp.asarray, system())

    def step(theta, state, target):
        """x = (is the step run at all, does its loss count)."""
        runs, counts = target
        state = jnp.where(runs, a @ state + theta * b, state)
        return state, counts * 0.5 * (state[0] - 1) ** 2

    if length == "randomised":
        lengths = np.random.default_rng(seed).geometric(1 / 16, updates)  # from one cut to the next
        factor = 1 / (1 - 1 / 16)
    else:
        lengths, factor = np.full(updates, 1 if length == "forward" else length), 1.0
    time = jnp.arange(lengths.max())
    factors = jnp.where(time == 0, 0.0, factor)

    def update(carry, last):
        theta, state, tangent = carry
        xs = (time <= last, (time == last).astype(jnp.float64))
        if length == "forward":
            gradient, next_state, tangent = bptt.forward(step, theta, state, tangent, xs)
            loss = 0.5 * (next_state[0] - 1) ** 2
        else:
            objective = lambda theta: bptt.run_with_factors(step, theta, state, xs, factors)
            (loss, next_state), gradient = jax.value_and_grad(objective, has_aux=True)(theta)
        return (theta - RATE * gradient, next_state, tangent), loss

    start = (jnp.array(0.5), jnp.ones(UNITS), jnp.zeros(UNITS))
    (theta, state, _), losses_after = jax.jit(lambda start: jax.lax.scan(update, start, jnp.asarray(lengths - 1)))(
        start
    )
    for _ in range(SETTLE):
        state = a @ state + theta * b
    return np.append(np.asarray(losses_after), 0.5 * (float(state[0]) - 1) ** 2)


def study(config: Config, directory: Path) -> dict:
    import jax

    from attention_jax.report.curves import lines

    with jax.enable_x64(True):
        runs = {f"truncation {n}": losses(config.data.updates, n) for n in (1, 10, 100)}
        runs["forward mode"] = losses(config.data.updates, "forward")
        randomized = [losses(config.data.updates, "randomised", seed) for seed in range(RANDOMIZED)]
    metrics = {f"loss.{name.replace(' ', '_')}": float(losses_after[-1]) for name, losses_after in runs.items()}
    finals = [float(losses_after[-1]) for losses_after in randomized]
    metrics |= {f"loss.randomised_seed_{seed}": value for seed, value in enumerate(finals)}
    metrics |= {
        "loss.randomised_worst": max(finals),
        "randomised_seeds_below_0.01": sum(value < 1e-2 for value in finals),
    }
    every = slice(None, -1, max(1, config.data.updates // 300))
    at = np.arange(config.data.updates)[every]
    curves = {name: (at, losses_after[every]) for name, losses_after in runs.items()} | {
        "randomized, mean 16": (at, np.stack(randomized)[:, every])
    }
    lines(
        curves, directory / "figures" / "loss.png", xlabel="update", ylabel="loss", log="y", title="Influence balancing"
    )
    return metrics
