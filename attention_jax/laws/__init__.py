"""Laws of attention: statements of theory, each a function of a few lines over `attend` that measures one number.

A law measures a subject, and a broken subject misses its bound: the change of `attend` under a permutation is 1e-7,
that of causal attention about 1. `LAWS` has all laws by the metric of their claim in experiments/laws.py, which has
the bounds. A law that is `general` measures any attention function (query [Q, D], key [K, D], value [K, V]) -> [Q, V].
"""

from functools import partial

import jax.numpy as jnp

from attention_jax.laws import fast_weights, regression, weights
from attention_jax.laws.law import Law
from attention_jax.ops.attention import attend
from attention_jax.ops.normalizers import ReluPower, Softmax

SOFTMAX, RELU = Softmax(), ReluPower(1)
LAWS = {
    "kernel.rate_inside": Law(
        partial(regression.rate_on_circle, 0.5),
        attend,
        general="kernel regression: the error falls as n^-0.8 inside",
    ),
    "kernel.rate_boundary": Law(
        partial(regression.rate_on_circle, 0.0),
        attend,
        general="kernel regression: as n^-0.4 at the boundary",
    ),
    "kernel.local_linear_rate_boundary": Law(partial(regression.rate, 0.0), regression.local_linear),
    "kernel.ridge_error": Law(regression.normal_equations, regression.ridge),
    "kernel.parallax_error": Law(regression.as_local_linear, regression.parallax),
    "weights.dispersion": Law(weights.dispersion, attend, general="dispersion: the weight of a winner falls as 1 / n"),
    "weights.concentration": Law(
        weights.concentration, weights.sparse, general="concentration: a winner of 65,536 keys keeps all weight"
    ),
    "weights.retrieval_error": Law(
        partial(weights.retrieval, 1.01), weights.sparse, general="retrieval: one step completes a pattern exactly"
    ),
    "weights.retrieval_error_below": Law(partial(weights.retrieval, 0.9), weights.sparse),
    "weights.growth_sigmoid": Law(weights.growth, weights.sigmoid),
    "weights.growth": Law(
        weights.growth, weights.sigmoid_with_bias, general="growth: the sum of the weights does not grow with n"
    ),
    "weights.sink_softmax": Law(weights.sink, SOFTMAX),
    "weights.sink_relu": Law(weights.sink, RELU),
    "weights.sink_softmax_loss": Law(weights.sink_loss, SOFTMAX),
    "weights.sink_relu_loss": Law(weights.sink_loss, RELU),
    "weights.own_value": Law(
        weights.own_value, weights.exclusive, general="exclusion: outputs are orthogonal to their own value"
    ),
    "weights.permutation_error": Law(
        weights.permutation, attend, general="permutation: outputs move with their positions"
    ),
    "weights.closure_errors": Law(partial(weights.closure, weights.window_of_three()), weights.window_attention),
    "memory.hebbian_crosstalk": Law(fast_weights.crosstalk, fast_weights.hebbian),
    "memory.delta_last_error": Law(fast_weights.last_pair, fast_weights.delta),
    "memory.least_squares_residual": Law(fast_weights.residual_share, fast_weights.least_squares),
    "memory.exact_flow_error": Law(fast_weights.exact_flow, fast_weights.exact_rate),
    "memory.duality_error": Law(fast_weights.duality, fast_weights.dual_form),
    "memory.state_rank": Law(
        fast_weights.state_rank, fast_weights.linear, general="recurrence: late queries see early keys by D numbers"
    ),
    "memory.parity_positive": Law(fast_weights.parity, jnp.linspace(0.0, 1.0, 21)),
    "memory.parity_negative": Law(fast_weights.parity, jnp.array([2.0])),
}
"""{metric: law}"""
