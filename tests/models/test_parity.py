"""With weights carried over, our layers are PyTorch's, forward and backward (the table of names is in
models/multihead.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.config import TransformerConfig
from attention_jax.models.blocks import Block, DecoderLayer, EncoderLayer
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.ops.masks import causal, lengths

torch = pytest.importorskip("torch", reason="parity with PyTorch needs torch==2.13.0, an extra")

WIDTH, HEADS, FFN, LENGTHS = 16, 4, 24, np.array([5, 3])
KEY_PADDING = torch.arange(5)[None] >= torch.tensor(LENGTHS)[:, None]  # True = may NOT attend


def block(norm, activation):
    return Block.of(
        TransformerConfig(hidden_size=WIDTH, num_heads=HEADS, mlp_dim=FFN, norm=norm, activation=activation)
    )


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def linear(layer):
    return {"kernel": array(layer.weight).T, "bias": array(layer.bias)}


def norm(layer):
    return {"scale": array(layer.weight), "bias": array(layer.bias)}


def attention(layer):
    d = layer.embed_dim
    if layer._qkv_same_embed_dim:
        kernels = [layer.in_proj_weight[i * d : (i + 1) * d] for i in range(3)]
    else:
        kernels = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    names = ("query", "key", "value")
    biases = [layer.in_proj_bias[i * d : (i + 1) * d] for i in range(3)]
    params = {name: {"kernel": array(k).T, "bias": array(b)} for name, k, b in zip(names, kernels, biases, strict=True)}
    return params | {"out": linear(layer.out_proj)}


def randomize(layer, seed=0):
    """PyTorch starts biases at 0 and norms at 1, which would hide a swap."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer.train()


def draw(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected.detach().numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("widths", [(16, 16), (10, 7)], ids=["one width", "kdim, vdim"])
def test_multihead_attention(widths):
    torch_layer = randomize(torch.nn.MultiheadAttention(WIDTH, HEADS, kdim=widths[0], vdim=widths[1], batch_first=True))
    query, key, value = draw(2, 4, WIDTH), draw(2, 5, widths[0], seed=2), draw(2, 5, widths[1], seed=3)
    torch_inputs = [torch.tensor(x) for x in (query, key, value)]
    expected, expected_weights = torch_layer(*torch_inputs, key_padding_mask=KEY_PADDING, average_attn_weights=False)
    actual, actual_weights = MultiHeadAttention(HEADS, WIDTH).apply(
        {"params": attention(torch_layer)}, query, key, value, mask=lengths(jnp.asarray(LENGTHS)), return_weights=True
    )
    close(actual, expected)
    close(actual_weights, expected_weights)


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(placement, activation):
    options = {"dropout": 0.0, "activation": activation, "norm_first": placement == "pre", "batch_first": True}
    torch_layer = randomize(torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, **options))
    x = draw(2, 5, WIDTH)
    params = {
        "attention": attention(torch_layer.self_attn), "attention_norm": norm(torch_layer.norm1),
        "ffn_norm": norm(torch_layer.norm2),
        "ffn": {"hidden": linear(torch_layer.linear1), "out": linear(torch_layer.linear2)},
    }  # fmt: skip
    layer = EncoderLayer(block(placement, activation))

    def run(params, x):
        return layer.apply({"params": params}, x, lengths(jnp.asarray(LENGTHS)))[0]

    torch_input, real = torch.tensor(x, requires_grad=True), ~KEY_PADDING.numpy()
    expected = torch_layer(torch_input, src_key_padding_mask=KEY_PADDING)
    close(run(params, x)[real], expected[~KEY_PADDING])
    # gradients too: of sum(y^2) over the real positions
    (expected[~KEY_PADDING] ** 2).sum().backward()
    d_params, d_x = jax.jit(
        jax.grad(lambda p, x: jnp.sum(jnp.where(real[..., None], run(p, x), 0.0) ** 2), argnums=(0, 1))
    )(params, x)
    np.testing.assert_allclose(d_x, torch_input.grad.numpy(), atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(
        d_params["ffn"]["hidden"]["kernel"].T, torch_layer.linear1.weight.grad.numpy(), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_decoder_layer(placement, activation):
    options = {"dropout": 0.0, "activation": activation, "norm_first": placement == "pre", "batch_first": True}
    torch_layer = randomize(torch.nn.TransformerDecoderLayer(WIDTH, HEADS, FFN, **options))
    x, states = draw(2, 4, WIDTH), draw(2, 5, WIDTH, seed=2)
    params = {
        "attention": attention(torch_layer.self_attn), "cross_attention": attention(torch_layer.multihead_attn),
        "attention_norm": norm(torch_layer.norm1), "cross_norm": norm(torch_layer.norm2),
        "ffn_norm": norm(torch_layer.norm3),
        "ffn": {"hidden": linear(torch_layer.linear1), "out": linear(torch_layer.linear2)},
    }  # fmt: skip
    layer = DecoderLayer(block(placement, activation))

    def run(module):
        return module(x, causal(), None, (*module.project(states), lengths(jnp.asarray(LENGTHS))))[0]

    mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
    expected = torch_layer(torch.tensor(x), torch.tensor(states), tgt_mask=mask, memory_key_padding_mask=KEY_PADDING)
    close(layer.apply({"params": params}, method=run), expected)
