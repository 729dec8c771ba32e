"""LSTM and GRU layers as pure functions over a whole sequence, with hand-written gradients.

Unlike the rest of `ops` these take a batch, and time comes first: `inputs [T, B, gates * H]` are the inputs already
multiplied by their weights (one large matmul for the whole sequence, made by the caller), so that only the recurrent
matmul is inside the scan. The gradient keeps the activated gates, and computes the recurrent weight gradient as
ONE matmul over all steps after the scan instead of a small one per step.

All sigmoids are computed as sigmoid(x) = tanh(x / 2) / 2 + 1 / 2, so the gates of a step are one tanh over one block.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.ops.meshes import loopable
from attention_jax.ops.precision import cast_for_matmul, product, weight_gradient

State = tuple[Float[Array, "B H"], ...]
"""LSTM: (hidden, cell). GRU: (hidden,)."""


def _activate(z, scales):
    """Apply sigmoid (scale 1/2) or tanh (scale 1) to the equal parts of `z [B, n * H]` with a single tanh."""
    scale = jnp.asarray(np.repeat(scales, z.shape[-1] // len(scales)), z.dtype)[None, :]
    return jnp.tanh(z * scale) * scale + (1 - scale)


def lstm_step(inputs: Float[Array, "B G"], kernel: Float[Array, "H G"], state: State) -> State:
    """One step of an LSTM: gates i, f, g, o in this order (Hochreiter & Schmidhuber 1997; Gers
    et al. 2000; as torch.nn.LSTM).

    i, f, o = sigmoid(...), g = tanh(...), each of `inputs + hidden @ kernel`;  c' = f c + i g;  h' = o tanh(c').

    >>> import jax.numpy as jnp
    >>> h, c = lstm_step(jnp.zeros((1, 4)), jnp.ones((1, 4)), (jnp.zeros((1, 1)), jnp.full((1, 1), 2.0)))
    >>> c.tolist()  # every gate is half open
    [[1.0]]
    """
    return _lstm_step(inputs, kernel, *state)[:2]


def _lstm_step(inputs, kernel, hidden, cell):
    return _lstm_gates(inputs + product(hidden, kernel), cell)


def _lstm_gates(z, cell):
    gates = _activate(z, (0.5, 0.5, 1.0, 0.5))  # [B, 4H]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = f * cell + i * g
    return o * jnp.tanh(cell), cell, gates


def lstm(
    inputs: Float[Array, "T B G"], kernel: Float[Array, "H G"], state: State
) -> tuple[Float[Array, "T B H"], Float[Array, "T B H"]]:
    """An LSTM layer over a sequence from `state`: all hidden states and all cells (`lstm_step` scanned)."""
    return loopable(_lstm)(inputs, kernel, state)


@jax.custom_vjp
def _lstm(inputs, kernel, state):
    return _lstm_forward(inputs, kernel, state)[0]


def _lstm_forward(inputs, kernel, state):
    kernel = cast_for_matmul(kernel)

    def step(carry, x):
        hidden, cell, gates = _lstm_step(x, kernel, *carry)
        return (hidden, cell), (hidden, cell, gates)

    _, (hidden, cell, gates) = jax.lax.scan(step, state, inputs)
    return (hidden, cell), (kernel, state, hidden, cell, gates)


def _lstm_backward(residuals, cotangents):
    kernel, (h0, c0), hidden, cell, gates = residuals
    d_hidden, d_cell = cotangents
    kernel_t = kernel.T  # [4 H, H]

    def step(carry, x):
        (dh, dc), (d_h, d_c, gates, cell, previous_cell) = carry, x
        i, f, g, o = jnp.split(gates, 4, axis=-1)  # [B, H] each
        dh, top = dh + d_h, jnp.tanh(cell)
        dc = dc + d_c + dh * o * (1 - top * top)
        dz = jnp.concatenate(
            [dc * g * i * (1 - i), dc * previous_cell * f * (1 - f), dc * i * (1 - g * g), dh * top * o * (1 - o)],
            axis=-1,
        )
        return (product(dz, kernel_t), dc * f), dz

    zero = jnp.zeros_like(h0)
    previous_cell = jnp.concatenate([c0[None], cell[:-1]])  # [T, B, H]
    (dh, dc), dz = jax.lax.scan(step, (zero, zero), (d_hidden, d_cell, gates, cell, previous_cell), reverse=True)
    d_kernel = weight_gradient(jnp.concatenate([h0[None], hidden[:-1]]), dz)  # [H, 4 H]
    return dz, d_kernel, (dh, dc)


_lstm.defvjp(_lstm_forward, _lstm_backward)


def advance(
    inputs: Float[Array, "B G"], product: Float[Array, "B G"], state: State, bias: Float[Array, "H"] | None = None
) -> State:
    """Run one step, given the recurrent product `hidden @ kernel`: of an LSTM, or of a GRU if the
    state has one part."""
    if len(state) == 2:
        return _lstm_gates(inputs + product, state[1])[:2]
    return (_gru_gates(inputs, product, bias, state[0])[0],)


def gru_step(inputs: Float[Array, "B G"], kernel: Float[Array, "H G"], bias: Float[Array, "H"], state: State) -> State:
    """One step of a GRU: gates r, z, n in this order, reset AFTER the product (cuDNN's variant, as torch.nn.GRU).

    r, z = sigmoid(inputs + h @ kernel);  n = tanh(inputs_n + r (h @ kernel_n + bias));  h' = (1 - z) n + z h.
    Cho et al. (2014) reset before the product, tanh(inputs_n + (r h) @ kernel_n); the two train
    equally well, and this one needs a single matmul.

    >>> import jax.numpy as jnp
    >>> gru_step(jnp.zeros((1, 3)), jnp.zeros((1, 3)), jnp.zeros(1), (jnp.full((1, 1), 2.0),))[0].tolist()
    [[1.0]]
    """
    return (_gru_step(inputs, kernel, bias, *state)[0],)


def _gru_step(inputs, kernel, bias, hidden):
    return _gru_gates(inputs, product(hidden, kernel), bias, hidden)


def _gru_gates(inputs, product, bias, hidden):
    size = hidden.shape[-1]
    gates = _activate(inputs[:, : 2 * size] + product[:, : 2 * size], (0.5, 0.5))
    r, z = gates[:, :size], gates[:, size:]
    inner = product[:, 2 * size :] + bias[None, :]
    n = jnp.tanh(inputs[:, 2 * size :] + r * inner)
    return n + z * (hidden - n), gates, inner, n


def gru(
    inputs: Float[Array, "T B G"], kernel: Float[Array, "H G"], bias: Float[Array, "H"], state: State
) -> tuple[Float[Array, "T B H"]]:
    """A GRU layer over a sequence from `state`: all hidden states, in a tuple of one like
    the state (`gru_step` scanned)."""
    return loopable(_gru)(inputs, kernel, bias, state)


@jax.custom_vjp
def _gru(inputs, kernel, bias, state):
    return _gru_forward(inputs, kernel, bias, state)[0]


def _gru_forward(inputs, kernel, bias, state):
    kernel = cast_for_matmul(kernel)

    def step(hidden, x):
        hidden, *residuals = _gru_step(x, kernel, bias, hidden)
        return hidden, (hidden, *residuals)

    _, (hidden, gates, inner, n) = jax.lax.scan(step, state[0], inputs)
    return (hidden,), (kernel, state[0], hidden, gates, inner, n)


def _gru_backward(residuals, cotangents):
    kernel, h0, hidden, gates, inner, n = residuals
    kernel_t = kernel.T  # [3 H, H]

    def step(dh, x):
        d_h, gates, inner, n, previous_hidden = x
        r, z = jnp.split(gates, 2, axis=-1)
        dh = dh + d_h
        dn = dh * (1 - z) * (1 - n * n)
        gate = jnp.concatenate([dn * inner * r * (1 - r), dh * (previous_hidden - n) * z * (1 - z)], axis=-1)  # [B, 2H]
        d_product = jnp.concatenate([gate, dn * r], axis=-1)  # [B, 3H]
        return dh * z + product(d_product, kernel_t), (d_product, dn)

    previous_hidden = jnp.concatenate([h0[None], hidden[:-1]])  # [T, B, H]
    dh, (d_product, dn) = jax.lax.scan(
        step, jnp.zeros_like(h0), (cotangents[0], gates, inner, n, previous_hidden), reverse=True
    )
    size = h0.shape[-1]
    d_inputs = jnp.concatenate([d_product[..., : 2 * size], dn], axis=-1)  # [T, B, 3 H]
    return d_inputs, weight_gradient(previous_hidden, d_product), d_product[..., 2 * size :].sum(axis=(0, 1)), (dh,)


_gru.defvjp(_gru_forward, _gru_backward)


def reverse_within(x: Float[Array, "T B D"] | Int[Array, "T B"], length: Int[Array, "B"]):
    """Reverse each sequence's first `length` steps and leave its padding at the end; this is its own inverse.

    >>> import jax.numpy as jnp
    >>> reverse_within(jnp.array([[1, 1], [2, 2], [3, 0]]), jnp.array([3, 2])).T.tolist()
    [[3, 2, 1], [2, 1, 0]]
    """
    time = jnp.arange(x.shape[0])[:, None]
    index = jnp.where(time < length[None, :], length[None, :] - 1 - time, time)  # [T, B]
    return jnp.take_along_axis(x, index.reshape(index.shape + (1,) * (x.ndim - 2)), axis=0)


def at_length(x: Float[Array, "T B H"], length: Int[Array, "B"]) -> Float[Array, "B H"]:
    """The last step of each example before its padding: `x[length[b] - 1, b]`, each length at least 1. The states that
    were computed on padding are never read."""
    return x[length - 1, jnp.arange(x.shape[1])]
