"""Nadaraya-Watson kernel regression: attention whose score is the logarithm of a kernel (1964; d2l 11.2).

    f(q) = sum_i k(q, x_i) y_i / sum_j k(q, x_j) = softmax_i(log k(q, x_i)) y

Keys are the inputs x_i, values the outputs y_i, queries the points to predict. Everything here is `attend` with a
score of `ops.scores`: Gaussian, Boxcar, Triangular, Constant. One-hot values make it a classifier.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.masks import dense
from attention_jax.ops.meshes import loopable
from attention_jax.ops.scores import Gaussian, Score


def nadaraya_watson(
    query: Float[Array, "Q D"], x: Float[Array, "K D"], y: Float[Array, "K V"], score: Score = Gaussian()
) -> Float[Array, "Q V"]:
    """The Nadaraya-Watson estimate: the kernel-weighted mean of the outputs at every query, [Q, V].

    f(q) = sum_i k(q, x_i) y_i / sum_j k(q, x_j) (Nadaraya 1964; Watson 1964), 0 where all weights are 0.

    Args:
      query: the points to predict, [Q, D].
      x, y: inputs [K, D] and outputs [K, V] of the data. One-hot outputs make it a classifier.
      score: the logarithm of the kernel k, such as `scores.Gaussian(width)`, `Boxcar`, `Triangular`.

    >>> x, y = jnp.array([[0.0], [1.0], [9.0]]), jnp.array([[1.0], [3.0], [5.0]])
    >>> nadaraya_watson(jnp.array([[0.5], [9.0]]), x, y).tolist()
    [[2.0], [5.0]]
    """
    return attend(query, x, y, score=score, implementation="plain")


def count_neighbors(query: Float[Array, "Q D"], x: Float[Array, "K D"], score: Score) -> Float[Array, "Q"]:
    """Count the inputs with a weight above 0 for each query; the estimate is undefined where the count is 0."""
    return (attention_weights(query, x, score=score) > 0).sum(axis=1)


def leave_one_out(x: Float[Array, "K D"], y: Float[Array, "K V"], score: Score) -> Float[Array, ""]:
    """Leave-one-out error: the mean squared error of each output's estimate from the others. Differentiable, so
    a score's width can be learned."""
    not_itself = dense(~jnp.eye(x.shape[0], dtype=bool))
    estimates = attend(x, x, y, score=score, mask=not_itself, implementation="plain")
    return jnp.mean((estimates - y) ** 2)


def learn_width(
    x: Float[Array, "K D"], y: Float[Array, "K V"], width: float = 1.0, steps: int = 200, rate: float = 0.1
) -> Float[Array, ""]:
    """The Gaussian's width that minimizes the leave-one-out error, by gradient descent on its
    logarithm with steps of bounded size."""

    def step(x, y, log_width, _):
        gradient = jax.grad(lambda w: leave_one_out(x, y, Gaussian(jnp.exp(w))))(log_width)
        return log_width - rate * jnp.tanh(gradient), None

    run = lambda start, x, y: jax.lax.scan(partial(step, x, y), start, None, length=steps)[0]
    return jnp.exp(loopable(run)(jnp.log(jnp.float32(width)), x, y))


def silverman_width(x: Float[Array, "K D"]) -> Float[Array, ""]:
    """Silverman's rule of thumb, `1.06 s n^(-1/5)` (Silverman 1986, equation 3.28), for inputs of one dimension."""
    return 1.06 * jnp.std(x) * x.shape[0] ** -0.2


def local_widths(query: Float[Array, "Q D"], x: Float[Array, "K D"], pilot: Float[Array, ""]) -> Float[Array, "Q 1"]:
    """Compute a width for each query: the pilot width times `(density / geometric mean density)^(-1/2)`
    (after Silverman 1986, section 5.3, where each observation has a width).

    Wide where inputs are rare, narrow where they are many; pass it to the score as `Gaussian(local_widths(...))`.
    """
    density = lambda points: jnp.exp(Gaussian(pilot)(points, x)).mean(axis=1)  # [Q]
    reference = jnp.exp(jnp.log(density(x)).mean())
    return (pilot * jax.lax.rsqrt(jnp.maximum(density(query), 1e-6) / reference))[:, None]
