"""Backpropagation through time (BPTT) around any recurrent step: full, truncated (TBPTT), randomly truncated, forward.

A recurrent step is a function `step(params, state, x) -> (state, loss)`: one time step, the state any
pytree, the loss a scalar. Each function here runs it over a sequence and returns
`(sum of the losses, last state)`; only the gradient differs:

    full         the exact gradient                                       memory and time grow with the sequence
    truncated    gradient cut every `length` steps                        biased towards short dependencies
    randomized   cut with probability c, survivors scaled by 1 / (1 - c)  unbiased (Tallec & Ollivier 2017)
    forward      the exact gradient, carried forward (RTRL)               no backward pass, memory of one step

Tallec & Ollivier 2017 is arXiv 1705.08209.

See also Dive into Deep Learning, section 9.7.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.ops import meshes

State = TypeVar("State")
Step = Callable[[object, State, object], tuple[State, Float[Array, ""]]]


@jax.custom_vjp
def scale_gradient(x: Float[Array, "..."], factor: Float[Array, ""]) -> Float[Array, "..."]:
    """Return `x` and multiply its gradient by `factor`: 0 stops the gradient, 1 changes nothing.

    >>> jax.grad(lambda x: 3.0 * scale_gradient(x, jnp.array(0.5)))(1.0).item()
    1.5
    """
    return x


def _scale_forward(x, factor):
    return x, factor


def _scale_backward(factor, gradient):
    return gradient * factor.astype(gradient.dtype), jnp.zeros_like(factor)


scale_gradient.defvjp(_scale_forward, _scale_backward)


def scan_with_factors(step: Callable, state: State, xs, factors: Float[Array, "T"]):
    """`jax.lax.scan(step, state, xs)`, but what flows back from step t into the state before it
    is multiplied by `factors[t]`."""

    def body(state, inputs):
        x, factor = inputs
        return step(jax.tree.map(lambda leaf: scale_gradient(leaf, factor), state), x)

    return meshes.scan_with_closure(body, state, (xs, factors))


def run_with_factors(
    step: Step, params, state: State, xs, factors: Float[Array, "T"]
) -> tuple[Float[Array, ""], State]:
    """The general form: what flows back from step t into the state before it is multiplied by
    `factors[t]` (0 cuts, 1 keeps)."""
    state, losses = scan_with_factors(lambda state, x: step(params, state, x), state, xs, factors)
    return losses.sum(), state


def _steps(xs) -> int:
    return jax.tree.leaves(xs)[0].shape[0]


def full(step: Step, params, state: State, xs) -> tuple[Float[Array, ""], State]:
    """Run the whole sequence with the exact gradient (d2l 9.7.1.1), also with respect to the first state."""
    return run_with_factors(step, params, state, xs, jnp.ones(_steps(xs)))


def truncation_factors(steps: int, length: int) -> Float[Array, "T"]:
    """0 at steps 0, length, 2 length, ...; 1 elsewhere.

    >>> truncation_factors(5, 2).tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0]
    """
    return (jnp.arange(steps) % length != 0).astype(jnp.float32)


def truncate_regularly(step: Step, params, state: State, xs, length: int) -> tuple[Float[Array, ""], State]:
    """The gradient is cut at steps 0, length, 2 length, ...: no gradient flows
    beyond its block (d2l 9.7.1.2)."""
    return run_with_factors(step, params, state, xs, truncation_factors(_steps(xs), length))


def random_factors(rng: Array, steps: int, probability: float) -> Float[Array, "T"]:
    """0 with `probability`, otherwise 1 / (1 - probability): the expectation is 1, so the
    expected gradient is the full one.

    Dependencies then reach back 1 / probability steps on average (d2l 9.7.1.3; Tallec & Ollivier 2017, section 4).
    Raises InputError unless 0 <= probability < 1.
    """
    if not 0 <= probability < 1:
        raise InputError(
            f"gradients must survive some steps: probability must be at least 0 and below 1, got {probability:g} (of "
            "--model.truncation-length L it is 1 / L)"
        )
    cut = jax.random.bernoulli(rng, probability, (steps,))
    return jnp.where(cut, 0.0, 1 / (1 - probability))


def truncate_randomly(
    step: Step, params, state: State, xs, probability: float, rng: Array
) -> tuple[Float[Array, ""], State]:
    """Cut before each step with `probability`; gradients that survive are scaled so that the estimate is unbiased."""
    return run_with_factors(step, params, state, xs, random_factors(rng, _steps(xs), probability))


def forward(step: Step, params, state: State, tangent, xs) -> tuple[object, State, object]:
    """Forward mode for a SCALAR parameter:
    `(gradient of the sum of losses, last state, its derivative)`; pass both to the next call.

    Real-time recurrent learning: with d state / d params carried along, the gradient of each loss through the whole
    past is available as soon as the loss is, and parameters may be updated after every step.
    """

    def body(carry, x):
        state, tangent = carry
        (state, _), (tangent, gradient) = jax.jvp(
            lambda p, s: step(p, s, x), (params, state), (jnp.ones_like(params), tangent)
        )
        return (state, tangent), gradient

    (state, tangent), gradients = meshes.scan_with_closure(body, (state, tangent), xs)
    return gradients.sum(), state, tangent


def gradient_norms(step: Step, params, state: Float[Array, "H"], xs) -> Float[Array, "T"]:
    """Compute `|d last loss / d state entering step t|` for every t: the norm of a gradient
    after T - t steps back (d2l 9.7.2).

    It vanishes or explodes like powers of the spectral radius of the step's Jacobian.
    """

    def last_loss(probes):  # probe t is added to the state that enters step t
        def body(state, inputs):
            x, probe = inputs
            return step(params, state + probe, x)

        return meshes.scan_with_closure(body, state, (xs, probes))[1][-1]

    probes = meshes.vary_like(jnp.zeros((_steps(xs), *state.shape), state.dtype), (params, state, xs))
    gradients = jax.grad(last_loss)(probes)  # [T, H]
    return jnp.linalg.norm(gradients, axis=-1)
