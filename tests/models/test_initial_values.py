"""Initial values of a Transformer that options change, and what they leave as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.config import TransformerConfig, replace
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block
from attention_jax.models.transformer import Embedding, Transformer

SMALL = TransformerConfig(
    1, 1, hidden_size=64, num_heads=4, mlp_dim=256, position_embedding="transformer_xl", shared_layers=True
)
BATCH = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 4), jnp.int32)


def initial_values(options) -> dict[str, np.ndarray]:
    """The initial values by path."""
    params = jax.jit(Transformer(options, 11, 7).init)(jax.random.key(0), *BATCH)["params"]
    flat = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in flat}


@pytest.fixture(scope="module")
def usual():
    return initial_values(SMALL)


def find_changes(usual, **options) -> dict[str, np.ndarray]:
    """The initial values that these options change; those of other paths are drawn as without them."""
    values = initial_values(replace(SMALL, **options))
    assert values.keys() == usual.keys()
    return {path: x for path, x in values.items() if not np.array_equal(x, usual[path])}


def assert_uniform_within(x, bound):
    """The largest of n uniform draws is within a few n-ths of the bound; their deviation is bound / sqrt(3)."""
    assert bound * (1 - 10 / x.size) < np.abs(x).max() <= bound * (1 + 1e-6)
    assert x.std() == pytest.approx(bound / 3**0.5, rel=3 / x.size**0.5) and abs(x.mean()) < 3 * bound / x.size**0.5


@pytest.mark.slow
def test_fan_in_init_matches_pytorch_linear(usual):
    changes = find_changes(usual, self_attention_init="fan_in")
    kernels = ["bias_0/kernel", *(f"layer_0/attention/{name}/kernel" for name in ("query", "key", "value", "out"))]
    assert changes.keys() == {f"{stack}/{kernel}" for stack in ("encoder", "decoder") for kernel in kernels}
    for x in changes.values():  # 64 inputs each
        assert_uniform_within(x, 64**-0.5)


def test_relu_init_scales_feed_forward_kernels(usual):
    changes = find_changes(usual, mlp_init="relu")
    for stack in ("encoder", "decoder"):
        layer = f"{stack}/layer_0/ffn"
        assert_uniform_within(changes.pop(f"{layer}/hidden/kernel"), 2**0.5 * (6 / (64 + 256)) ** 0.5)
        assert_uniform_within(changes.pop(f"{layer}/hidden/bias"), 64**-0.5)
        assert_uniform_within(changes.pop(f"{layer}/out/bias"), 256**-0.5)
    assert not changes, "the second kernel is Glorot's"


@pytest.mark.slow
def test_embeddings_alone_are_not_dropped(usual):
    tokens, key = jnp.arange(6)[None], jax.random.key(1)
    for dropped in (True, False):
        block = Block.of(replace(SMALL, dropout=0.5, dropout_embeddings=dropped))
        embedding = Embedding(11, block, 8, scale=False, initial="normal")
        params, rngs = jax.jit(embedding.init)(key, tokens), {"dropout": key}
        run = jax.jit(lambda p, m=embedding: (m.apply(p, tokens, train=True, rngs=rngs), m.apply(p, tokens)))
        x, plain = run(params)
        assert bool((x == 0).any()) == dropped and bool((x == plain).all()) != dropped
    model = Transformer(replace(SMALL, dropout=0.5, dropout_embeddings=False), 11, 7)
    params = jax.jit(model.init)(key, *BATCH)
    run = jax.jit(lambda p: (model.apply(p, *BATCH, train=True, rngs=rngs)[0], model.apply(p, *BATCH)[0]))
    assert not np.allclose(*run(params)), "sub-layers are dropped"


def test_relu_init_requires_dense_mlp():
    with pytest.raises(InputError, match=r"--model\.mlp-init relu needs --model\.mlp-layer dense, got swiglu"):
        Transformer(replace(SMALL, mlp_init="relu", mlp_layer="swiglu"), 11, 7)
