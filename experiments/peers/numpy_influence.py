"""Influence balancing in NumPy alone, beside `influence_balancing`: another program for the same protocol.

    python experiments/peers/numpy_influence.py

It shares no code with the experiment and computes no derivative: the influence of theta on s_0 over the last n steps is
a number that is known beforehand, sum_{k < n} sum_j binomial(k, j) 2^-k b_j, because the entries of A^k are binomial
coefficients. An update of truncation n subtracts the learning rate times (s_0 - 1) times this number; forward mode sees
all steps so far; in a randomized block what lies k steps back counts (16 / 15)^k times. Written to
experiments/results/influence_balancing_peer.json. About 5 seconds.
"""

import json
import platform
from math import comb
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "results"
UPDATES, SEEDS = 3_000, 5
MEAN_LENGTH = 16


def influences(steps: int, factor: float = 1.0) -> np.ndarray:
    """d s_0 / d theta over the last 1, 2, ... `steps` steps, [steps]; a step back multiplies by `factor`."""
    powers = [sum((1 if j < 10 else -1) * comb(k, j) for j in range(23)) / 2**k for k in range(steps)]
    return np.cumsum(factor ** np.arange(steps) * np.array(powers))


def advance(state: np.ndarray, theta: float, steps: int) -> np.ndarray:
    """The state after some more steps: every unit becomes the mean of itself and the next one, plus or minus theta."""
    push = theta * np.repeat([1.0, -1.0], [10, 13])
    for _ in range(steps):
        state = (state + np.append(state[1:], 0.0)) / 2 + push
    return state


def final_loss(lengths: np.ndarray, influence_rows: np.ndarray) -> float:
    """The loss after one update behind each of `lengths` steps, with the `influence_rows`, and 100 steps at rest."""
    theta, state = 0.5, np.ones(23)
    for length, influence in zip(lengths, influence_rows):
        state = advance(state, theta, length)
        theta -= 1e-4 * (state[0] - 1) * influence
    return float(0.5 * (advance(state, theta, 100)[0] - 1) ** 2)


def final_losses(updates: int, truncations: tuple[int, ...] = (1, 10, 100), seeds: int = SEEDS) -> dict[str, float]:
    """{name of the experiment's metric: loss}."""
    unit_lengths = np.ones(updates, int)
    losses = {f"truncation_{n}": final_loss(n * unit_lengths, influences(n)[-1] * unit_lengths) for n in truncations}
    losses["forward_mode"] = final_loss(unit_lengths, influences(updates))
    for seed in range(seeds):
        lengths = np.random.default_rng(seed).geometric(1 / MEAN_LENGTH, updates)
        influence_rows = influences(lengths.max(), MEAN_LENGTH / (MEAN_LENGTH - 1))
        losses[f"randomised_seed_{seed}"] = final_loss(lengths, influence_rows[lengths - 1])
    return {f"loss.{name}": loss for name, loss in losses.items()}


def main():
    report = {
        "command": "python experiments/peers/numpy_influence.py",
        "environment": {"python": platform.python_version(), "numpy": np.__version__},
        "metrics": final_losses(UPDATES),
    }
    place = RESULTS / "influence_balancing_peer.json"
    place.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
