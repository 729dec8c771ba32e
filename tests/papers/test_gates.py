"""Hard concrete gates: how often they are closed, and that the loss can close them."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers.gates import draw_gates, evaluation_gates, open_probability

LOG_ALPHA = jnp.array([-4.0, -1.0, 0.0, 2.0, 6.0])


def test_sampled_gates_are_open_with_stated_probability():
    gates = jax.vmap(draw_gates, in_axes=(0, None))(jax.random.split(jax.random.key(0), 40_000), LOG_ALPHA)
    np.testing.assert_allclose((gates > 0).mean(0), open_probability(LOG_ALPHA), atol=0.01)
    assert gates.min() == 0.0 and gates.max() == 1.0
    assert ((gates[:, 2] > 0) & (gates[:, 2] < 1)).any()  # and between


def test_settled_gates_are_ends_where_it_is_decided():
    gates = evaluation_gates(LOG_ALPHA)
    assert gates[0] == 0.0 and gates[-1] == 1.0
    assert (jnp.diff(gates) >= 0).all()


def test_penalty_closes_only_unneeded_gates():
    """Minimize 4 (1 - gate_0)^2 and 0.2 for each open gate: gate 0 is worth its price, gate 1 is not."""

    def loss(log_alpha, rng):
        return 4.0 * (1.0 - draw_gates(rng, log_alpha)[0]) ** 2 + 0.2 * open_probability(log_alpha).sum()

    def step(log_alpha, rng):
        return log_alpha - 2.0 * jax.grad(loss)(log_alpha, rng), None

    learned, _ = jax.lax.scan(step, jnp.array([2.0, 2.0]), jax.random.split(jax.random.key(1), 400))
    assert evaluation_gates(learned).tolist() == [1.0, 0.0]
