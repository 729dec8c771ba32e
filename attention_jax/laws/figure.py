"""One figure of four laws: rates at the boundary, dispersion, the capacity of fast weights, and parity."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from attention_jax.laws import fast_weights, regression, weights
from attention_jax.report.curves import line_panels


def panels(path: Path, seed: int) -> Path:
    """Measure and plot."""
    rates = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    accuracy = [fast_weights.parity(jnp.array([beta]), seed, words=500) for beta in rates]
    errors = fast_weights.errors_figure(seed)
    ratios = np.array(errors["Hebbian"][0])
    errors |= {"N / d": (ratios, ratios), "1 - d / N": (ratios[4:], 1 - 1 / ratios[4:])}
    rates_at_edge, winners = regression.rates_figure(), weights.winners_figure()
    parity = {"delta rule": (rates, accuracy)}
    return line_panels(
        {
            "Regression at the boundary of the data": (rates_at_edge, "points n", "root mean squared error", "xy"),
            "Weight of a winner among n keys": (winners, "keys n", "weight of the largest score", "xy"),
            "Reading N pairs from a memory of size d": (errors, "pairs N / dimensions d", "relative squared error", ""),
            "Parity of 256 bits, by a recurrence": (parity, "rate beta (eigenvalue 1 - beta)", "best accuracy", ""),
        },
        path,
    )
