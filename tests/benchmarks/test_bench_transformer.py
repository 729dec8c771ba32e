"""The two programs that the benchmark compares compute the same thing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _torch_transformer, transformer

torch = pytest.importorskip("torch", reason="the comparison needs torch==2.13.0, an extra")
SIZES = transformer.Sizes("small", 30, 30, 16, 2, 24, 2, 0.0, True, 0.1)


def to_jax_params(module):
    """Our parameters with the weights of the PyTorch module."""
    array = lambda tensor: jnp.asarray(tensor.detach().numpy())
    linear = lambda layer: {"kernel": array(layer.weight).T, "bias": array(layer.bias)}
    norm = lambda layer: {"scale": array(layer.weight), "bias": array(layer.bias)}

    def attention(layer):
        return {"query": linear(layer.q), "key": linear(layer.k), "value": linear(layer.v), "out": linear(layer.o)}

    def layer(torch_layer):
        params = {
            "attention": attention(torch_layer.attention),
            "ffn": {"hidden": linear(torch_layer.hidden), "out": linear(torch_layer.out)},
        }
        params |= {"attention_norm": norm(torch_layer.norms[0]), "ffn_norm": norm(torch_layer.norms[-1])}
        return (
            params
            if torch_layer.cross is None
            else params | {"cross_attention": attention(torch_layer.cross), "cross_norm": norm(torch_layer.norms[1])}
        )

    stack = lambda layers: {f"layer_{i}": layer(x) for i, x in enumerate(layers)}
    table = {"token": {"embedding": array(module.target_table.weight)}}
    return {"params": {"target_embedding": table, "encoder": stack(module.encoder), "decoder": stack(module.decoder)}}


def test_logits_and_beams_agree(monkeypatch):
    monkeypatch.setattr(transformer, "SENTENCES", 4)
    monkeypatch.setattr(transformer, "WRITTEN", 6)
    torch.manual_seed(0)
    module = _torch_transformer.build(torch, *SIZES[1:9]).eval()
    source, length, target = transformer.draw(SIZES, 4)
    real = (torch.arange(source.shape[1])[None] < torch.tensor(length)[:, None])[:, None, None]
    params = to_jax_params(module)
    expected = module(torch.tensor(source).long(), real, torch.tensor(target).long()).detach().numpy()
    logits, _ = jax.jit(transformer.our_model(SIZES).apply)(params, source, length, target)
    np.testing.assert_allclose(logits, expected, atol=2e-5)

    tokens, scores = module.beam(torch.tensor(source).long(), real, transformer.BEAM, 6, 1)
    beam_tokens, beam_scores = transformer.our_beam(SIZES, params)[1](source, length, written=6)
    np.testing.assert_allclose(beam_scores[:, 0], scores, atol=1e-4)
    np.testing.assert_array_equal(beam_tokens[:, 0], tokens)
