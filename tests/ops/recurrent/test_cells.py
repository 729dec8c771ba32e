"""LSTM and GRU against PyTorch with the weights carried over, and their hand-written gradients against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.recurrent import cells

T, B, D, H = 5, 3, 4, 6


def parameters(gates, seed=0):
    r = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(r.normal(size=shape), jnp.float32)
    return draw(T, B, gates * H), draw(H, gates * H), draw(H), draw(B, H), draw(B, H)


def unroll_lstm(inputs, kernel, state):
    states = []
    for x in inputs:
        state = cells.lstm_step(x, kernel, state)
        states.append(state)
    return tuple(jnp.stack(s) for s in zip(*states))


def unroll_gru(inputs, kernel, bias, state):
    states = []
    for x in inputs:
        state = cells.gru_step(x, kernel, bias, state)
        states.append(state[0])
    return (jnp.stack(states),)


def loss(outputs, weights):
    return sum((o * w).sum() for o, w in zip(outputs, weights))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_hand_written_gradients_equal_autodiff_of_the_steps(cell):
    inputs, kernel, bias, h, c = parameters(4 if cell == "lstm" else 3)
    weights = tuple(jnp.asarray(np.random.default_rng(7 + i).normal(size=(T, B, H)), jnp.float32) for i in range(2))
    if cell == "lstm":
        fast, slow, arguments = cells.lstm, unroll_lstm, (inputs, kernel, (h, c))
    else:
        fast, slow, arguments = cells.gru, unroll_gru, (inputs, kernel, bias, (h,))
    actual = jax.jit(jax.value_and_grad(lambda a: loss(fast(*a), weights)))(arguments)
    expected = jax.jit(jax.value_and_grad(lambda a: loss(slow(*a), weights)))(arguments)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), actual, expected)


def test_lstm_equals_torch():
    torch = pytest.importorskip("torch")
    layer = torch.nn.LSTM(D, H)
    x, h, c = torch.randn(T, B, D), torch.randn(1, B, H), torch.randn(1, B, H)
    expected, (_, want_cell) = layer(x, (h, c))
    array = lambda t: jnp.asarray(t.detach().numpy())
    inputs = array(x) @ array(layer.weight_ih_l0).T + array(layer.bias_ih_l0 + layer.bias_hh_l0)[None, None]
    hidden, cell = cells.lstm(inputs, array(layer.weight_hh_l0).T, (array(h)[0], array(c)[0]))
    np.testing.assert_allclose(hidden, expected.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(cell[-1], want_cell.detach().numpy()[0], atol=1e-5)


def test_gru_equals_torch():
    torch = pytest.importorskip("torch")
    layer = torch.nn.GRU(D, H)
    x, h = torch.randn(T, B, D), torch.randn(1, B, H)
    expected, _ = layer(x, h)
    array = lambda t: jnp.asarray(t.detach().numpy())
    outside = layer.bias_ih_l0 + torch.cat([layer.bias_hh_l0[: 2 * H], torch.zeros(H)])
    inputs = array(x) @ array(layer.weight_ih_l0).T + array(outside)[None, None]
    (hidden,) = cells.gru(inputs, array(layer.weight_hh_l0).T, array(layer.bias_hh_l0[2 * H :]), (array(h)[0],))
    np.testing.assert_allclose(hidden, expected.detach().numpy(), atol=1e-5)


def test_gru_by_hand():
    # one unit, kernel (0, 0, 2), bias 1, everything else 0: r = z = 1/2, n = tanh(1/2 (2 h + 1)), h' = (n + h) / 2
    (h,) = cells.gru_step(jnp.zeros((1, 3)), jnp.array([[0.0, 0.0, 2.0]]), jnp.ones(1), (jnp.full((1, 1), 0.5),))
    np.testing.assert_allclose(h, [[(np.tanh(1.0) + 0.5) / 2]], atol=1e-6)


def test_reverse_within_is_involution_with_padding_last():
    x, length = jnp.arange(24.0).reshape(4, 3, 2), jnp.array([4, 2, 1])
    back = cells.reverse_within(x, length)
    np.testing.assert_array_equal(back[:, 0], x[::-1, 0])
    np.testing.assert_array_equal(back[2:, 1], x[2:, 1])
    np.testing.assert_array_equal(cells.reverse_within(back, length), x)


def test_at_length_reads_the_last_real_step():
    x = jnp.arange(12.0).reshape(4, 3, 1)
    np.testing.assert_array_equal(cells.at_length(x, jnp.array([4, 2, 1]))[:, 0], [9.0, 4.0, 2.0])
