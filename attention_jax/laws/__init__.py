"""Laws of attention: statements of theory, each a function of a few lines over `attend` that measures one number.

A law measures a subject, and a broken subject misses its bound: the change of `attend` under a permutation is 1e-7,
that of causal attention about 1. `LAWS` has all laws by the metric of their claim in experiments/laws.py, which has
the bounds. A law that is `general` measures any attention function (query [Q, D], key [K, D], value [K, V]) -> [Q, V].
"""

from functools import partial

import jax.numpy as jnp

from attention_jax.laws import memory, regression, weights
from attention_jax.laws.law import Law
from attention_jax.ops.attention import attend
from attention_jax.ops.normalizers import ReluPower, Softmax

SOFTMAX, RELU = Softmax(), ReluPower(1)
LAWS = {
    "kernel.rate_inside": Law(
        partial(regression.rate_on_circle, 0.5),
        attend,
        general="is kernel regression: its error falls as n^-0.8 inside the data",
    ),
    "kernel.rate_boundary": Law(
        partial(regression.rate_on_circle, 0.0),
        attend,
        general="is a local constant: its error falls as n^-0.4 at the boundary",
    ),
    "kernel.local_linear_rate_boundary": Law(partial(regression.rate, 0.0), regression.local_linear),
    "kernel.ridge_error": Law(regression.normal_equations, regression.ridge),
    "kernel.parallax_error": Law(regression.as_local_linear, regression.parallax),
    "weights.dispersion": Law(weights.dispersion, attend, general="disperses: the weight of one winner falls as 1 / n"),
    "weights.concentration": Law(
        weights.concentration, weights.sparse, general="concentrates: one winner among 65,536 keys keeps all weight"
    ),
    "weights.retrieval_error": Law(
        partial(weights.retrieval, 1.01), weights.sparse, general="retrieves a stored pattern exactly in one step"
    ),
    "weights.retrieval_error_below": Law(partial(weights.retrieval, 0.9), weights.sparse),
    "weights.growth_sigmoid": Law(weights.growth, weights.sigmoid),
    "weights.growth": Law(
        weights.growth, weights.biased_sigmoid, general="its weights have a sum that does not grow with n"
    ),
    "weights.sink_softmax": Law(weights.sink, SOFTMAX),
    "weights.sink_relu": Law(weights.sink, RELU),
    "weights.sink_softmax_loss": Law(weights.sink_loss, SOFTMAX),
    "weights.sink_relu_loss": Law(weights.sink_loss, RELU),
    "weights.own_value": Law(
        weights.own_value, weights.exclusive, general="its outputs are orthogonal to the value at their own position"
    ),
    "weights.permutation_error": Law(
        weights.permutation, attend, general="is equivariant to permutations of the positions"
    ),
    "weights.closure_errors": Law(partial(weights.closure, weights.window_of_three()), weights.windowed),
    "memory.hebbian_crosstalk": Law(memory.crosstalk, memory.hebbian),
    "memory.delta_last_error": Law(memory.last_pair, memory.delta),
    "memory.least_squares_residual": Law(memory.residual_share, memory.least_squares),
    "memory.exact_flow_error": Law(memory.exact_flow, memory.exact_rate),
    "memory.duality_error": Law(memory.duality, memory.dual_form),
    "memory.state_rank": Law(
        memory.state_rank, memory.linear, general="is causal and a recurrence with D state dimensions for each value"
    ),
    "memory.parity_positive": Law(memory.parity, jnp.linspace(0.0, 1.0, 21)),
    "memory.parity_negative": Law(memory.parity, jnp.array([2.0])),
}
"""{metric: law}"""
