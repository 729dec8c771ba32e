"""Cross-entropy losses that return (sum, count); the mean is taken once, after the sum over batches and devices.

With label smoothing e over V classes the target is (1 - e) on the right class plus e / V everywhere (Szegedy et al.
2016, section 7), so the loss of one row of logits z with class y is  log sum exp(z) - (1 - e) z_y - e mean(z).
"""

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.meshes import loopable, vary_like
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.precision import cast_for_matmul, input_gradient, product, weight_gradient

ROWS = 256
"""Rows of logits alive at one time in `linear_cross_entropy` on a CPU: what stays in its cache. Nowhere fewer."""

LOGITS = {"tpu": 18 * 2**20, "default": 2**27}
"""Logits alive at one time elsewhere, where every chunk also reads and writes the whole gradient of the kernel.

On a TPU 72 MiB: its compiler keeps them in the 128 MiB beside the units, with a kernel of 36 MiB. For one v5e chip,
12,288 rows, width 512 and 37,000 classes that is 4.1 GB of traffic and 25 MiB of temporaries; 80 MiB need 5.2 GB, and
all logits at once 7.7 GB and 1,771 MiB.
"""


def masked_cross_entropy(
    logits: Float[Array, "*shape V"],
    targets: Int[Array, "*shape"],
    mask: Bool[Array, "*shape"] | Float[Array, "*shape"],
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum the cross-entropy in nats over the positions where the mask is 1; return it with the sum of the mask.

    >>> import jax.numpy as jnp
    >>> total, count = masked_cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]), jnp.array([True, False]))
    >>> round(float(total), 4), float(count)  # log(4)
    (1.3863, 1.0)
    """
    logits, weight = logits.astype(jnp.float32), mask.astype(jnp.float32)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = jax.nn.logsumexp(logits, axis=-1) - (1.0 - label_smoothing) * right - label_smoothing * logits.mean(axis=-1)
    return jnp.where(weight > 0, loss * weight, 0.0).sum(), weight.sum()


def linear_cross_entropy(
    hidden: Float[Array, "N D"],
    kernel: Float[Array, "D V"],
    bias: Float[Array, "V"],
    targets: Int[Array, "N"],
    mask: Bool[Array, "N"] | Float[Array, "N"],
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute `masked_cross_entropy(hidden @ kernel + bias, targets, mask)` without storing the [N, V] logits.

    Rows are taken in chunks (`_plans`); under differentiation, the loss and the gradients of a chunk are
    computed together while its logits are in memory, so nothing of size N x V is stored for the backward pass. Masked
    rows are moved to the end, and chunks with only masked rows are skipped: padding costs (almost) nothing.
    The mask and the smoothing are constants: they have no gradient. A masked row may share a chunk with others, so for
    the gradient of the kernel it must be finite.

    >>> import jax.numpy as jnp
    >>> x, kernel, bias = jnp.ones((3, 2)), jnp.zeros((2, 5)), jnp.zeros(5)
    >>> total, count = linear_cross_entropy(x, kernel, bias, jnp.arange(3), jnp.ones(3))
    >>> round(float(total / count), 4)  # log(5)
    1.6094
    """
    weight = mask.astype(jnp.float32)
    smoothing = jnp.float32(label_smoothing)
    return loopable(_linear_loss)(hidden, kernel, bias, targets, weight, smoothing), weight.sum()


def soft_cap(logits: Float[Array, "*shape"], cap: float) -> Float[Array, "*shape"]:
    """Return cap * tanh(logits / cap); a cap of 0 changes nothing (Gemma 2).

    >>> soft_cap(jnp.array([0.0, 1e3]), 30.0).tolist()
    [0.0, 30.0]
    """
    return cap * jnp.tanh(logits / cap) if cap else logits


class ChunkPlan(NamedTuple):
    """Static chunking strategy of a platform."""

    chunks: int
    gathers: bool
    """The logit of the right class is gathered, and its gradient scattered; else both are part of the passes over all
    logits, which then need not be written for it."""
    rounds: bool
    """Matmuls round their operands to bfloat16, whatever precision is set."""


def _plans(rows: int, classes: int) -> dict[str, ChunkPlan]:
    """Return the chunk plan of each platform. A TPU multiplies float32 in one bfloat16 pass by default; casting first
    gives the same operands at half the memory."""
    count = lambda size: max(1, -(-rows // size))
    most = {platform: count(max(ROWS, logits // classes)) for platform, logits in LOGITS.items()}
    one_pass = jax.config.jax_default_matmul_precision in (None, "default", "fastest")
    return {
        "cpu": ChunkPlan(count(ROWS), gathers=True, rounds=False),
        "tpu": ChunkPlan(most["tpu"], gathers=False, rounds=one_pass),
        "default": ChunkPlan(most["default"], gathers=False, rounds=False),
    }


def _split_chunks(count, hidden, targets, weight):
    """Split the rows, those with nonzero weight first, into equal chunks: hidden [C, R, D], targets and weights [C, R].

    Also returns the number of chunks with a nonzero weight, and the new index of each row, [N]."""
    rows = hidden.shape[0]
    size = -(-rows // count)  # equal chunks need less padding than full chunks and a remainder
    has_weight = weight != 0
    order = jnp.argsort(~has_weight, stable=True)
    place = (
        jnp.where(has_weight, jnp.cumsum(has_weight), has_weight.sum() + jnp.cumsum(~has_weight)) - 1
    )  # the inverse, without a sort
    pad = count * size - rows
    cut = lambda x: jnp.pad(jnp.asarray(x)[order], ((0, pad),) + ((0, 0),) * (x.ndim - 1)).reshape(
        count, size, *x.shape[1:]
    )
    used = (jnp.sum(has_weight, dtype=jnp.int32) + size - 1) // size
    return (cut(hidden), cut(targets), cut(weight)), used, place


def _chunk_loss(logits, targets, weight, smoothing, plan):
    """Return the weighted loss of a chunk, and the (max, sum of exponentials) of its rows."""
    top = logits.max(axis=-1, keepdims=True)
    exp = jnp.exp(logits - top)
    total = exp.sum(axis=-1, keepdims=True)
    if plan.gathers:
        right = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    else:
        right = jnp.where(_hits(targets, logits), logits, 0.0).sum(axis=-1)
    loss = (jnp.log(total) + top)[:, 0] - (1.0 - smoothing) * right - smoothing * logits.mean(axis=-1)
    return jnp.where(weight > 0, loss * weight, 0.0).sum(), exp, total


def _hits(targets, logits):
    """Return a one-hot mask of the target classes, [R, V]."""
    return targets[:, None] == jnp.arange(logits.shape[1], dtype=targets.dtype)[None, :]


@jax.custom_vjp
def _linear_loss(hidden, kernel, bias, targets, weight, smoothing):
    def run(plan):
        chunks, used, _ = _split_chunks(plan.chunks, hidden, targets, weight)

        def add(i, total):
            h, y, w = (x[i] for x in chunks)
            logits = (h @ kernel + bias[None, :]).astype(jnp.float32)
            return total + _chunk_loss(logits, y, w, smoothing, plan)[0]

        return jax.lax.fori_loop(0, used, add, vary_like(jnp.float32(0), hidden))

    return by_platform(run, _plans(hidden.shape[0], kernel.shape[1]))


def _linear_loss_forward(hidden, kernel, bias, targets, weight, smoothing):
    """Compute the loss and its gradients with respect to hidden, kernel and bias."""

    def run(plan):
        with jax.default_matmul_precision("bfloat16") if plan.rounds else contextlib.nullcontext():
            return _loss_and_gradients(hidden, kernel, bias, targets, weight, smoothing, plan)

    return by_platform(run, _plans(hidden.shape[0], kernel.shape[1]))


def _loss_and_gradients(hidden, kernel, bias, targets, weight, smoothing, plan):
    chunks, used, place = _split_chunks(plan.chunks, hidden, targets, weight)
    factors = cast_for_matmul(kernel)

    def add(i, sums):
        (total, d_kernel, d_bias, d_hidden), (h, y, w) = sums, (x[i] for x in chunks)
        logits = (product(h, factors) + bias[None, :]).astype(jnp.float32)  # [R, V]
        loss, exp, norm = _chunk_loss(logits, y, w, smoothing, plan)
        # d loss / d logits = w (softmax - (1 - e) onehot - e / V)
        d_logits = (exp * (w[:, None] / norm) - (smoothing * w / kernel.shape[1])[:, None]).astype(kernel.dtype)
        d_right = -((1.0 - smoothing) * w).astype(kernel.dtype)
        if plan.gathers:
            d_logits = d_logits.at[jnp.arange(len(y)), y].add(d_right)
        else:
            d_logits = jnp.where(_hits(y, logits), d_logits + d_right[:, None], d_logits)
        return (
            total + loss,
            d_kernel + weight_gradient(h, d_logits),
            d_bias + d_logits.sum(axis=0),
            d_hidden.at[i].set(input_gradient(d_logits, factors)),
        )

    start = (vary_like(jnp.float32(0), hidden), jnp.zeros_like(kernel), jnp.zeros_like(bias), jnp.zeros_like(chunks[0]))
    total, d_kernel, d_bias, d_hidden = jax.lax.fori_loop(0, used, add, start)
    return total, (d_hidden.reshape(-1, hidden.shape[1])[place], d_kernel, d_bias)  # d_hidden [N, D]


def _linear_loss_backward(residuals, g):
    d_hidden, d_kernel, d_bias = (g.astype(d.dtype) * d for d in residuals)
    return d_hidden, d_kernel, d_bias, None, None, None


_linear_loss.defvjp(_linear_loss_forward, _linear_loss_backward)


def token_accuracy(
    predicted: Int[Array, "*shape"], targets: Int[Array, "*shape"], mask: Bool[Array, "*shape"] | Float[Array, "*shape"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Count the correct tokens under the mask, and all tokens under it.

    >>> import jax.numpy as jnp
    >>> right, count = token_accuracy(jnp.array([1, 2, 3]), jnp.array([1, 9, 9]), jnp.array([True, True, False]))
    >>> float(right), float(count)
    (1.0, 2.0)
    """
    weight = mask.astype(jnp.float32)
    return ((predicted == targets).astype(jnp.float32) * weight).sum(), weight.sum()
