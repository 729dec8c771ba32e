"""Straightforward Flax Linen models, whose compiled programs are compared with ours.

Each has two forms. `exact` keeps float32 where ours does (softmax, logits, the exact GELU), so that only overhead is
compared; the other is the usual one, everything in `dtype`. They have as many parameters as ours
(tests/bench/test_compile.py).
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp


class ViT(nn.Module):
    """Dosovitskiy et al. 2021, with the mean of all tokens instead of a class token."""

    width: int
    heads: int
    ffn: int
    layers: int
    exact: bool
    patch: int = 16
    classes: int = 1000
    dtype: type = jnp.bfloat16

    @nn.compact
    def __call__(self, images):
        """[B, S, S, 3] -> logits [B, classes] in float32."""
        dtype, size = self.dtype, (self.patch, self.patch)
        x = nn.Conv(self.width, size, strides=size, padding="VALID", dtype=dtype)(images.astype(dtype))
        x = x.reshape(x.shape[0], -1, self.width)
        table = self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.width))
        x = x + table.astype(dtype)
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=dtype)
        for _ in range(self.layers):
            h = norm()(x)
            x = x + attention(self.heads, dtype, self.exact)(h, h)
            h = nn.gelu(nn.Dense(self.ffn, dtype=dtype)(norm()(x)), approximate=not self.exact)
            x = x + nn.Dense(self.width, dtype=dtype)(h)
        return nn.Dense(self.classes)(norm()(x).mean(axis=1).astype(jnp.float32))


def attention(heads: int, dtype, exact: bool) -> nn.Module:
    """Flax's own multi-head attention."""
    return nn.MultiHeadDotProductAttention(heads, dtype=dtype, deterministic=True, force_fp32_for_softmax=exact)


class Transformer(nn.Module):
    """Vaswani et al. 2017: post-norm, ReLU, sinusoidal positions, one table for both embeddings and the output."""

    vocabulary: int
    width: int
    heads: int
    ffn: int
    layers: int
    exact: bool
    dtype: type = jnp.bfloat16

    @nn.compact
    def __call__(self, source, length, target_in):
        """[B, S], [B], [B, T] -> logits [B, T, V] in float32."""
        table = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)
        real = (jnp.arange(source.shape[1])[None, :] < length[:, None])[:, None, None, :]  # [B, 1, 1, S]
        x = self.embed_tokens(table, source)
        for _ in range(self.layers):
            x = self.add_norm(x, self.attend()(x, x, mask=real))
            x = self.add_norm(x, self.feed_forward(x))
        memory, x = x, self.embed_tokens(table, target_in)
        for _ in range(self.layers):
            x = self.add_norm(x, self.attend()(x, x, mask=nn.make_causal_mask(target_in)))
            x = self.add_norm(x, self.attend()(x, memory, mask=real))
            x = self.add_norm(x, self.feed_forward(x))
        if not self.exact:
            return table.attend(x).astype(jnp.float32)
        kernel = table.embedding.astype(self.dtype)
        return jnp.einsum("btd,vd->btv", x, kernel, preferred_element_type=jnp.float32)

    def attend(self):
        return attention(self.heads, self.dtype, self.exact)

    def add_norm(self, x, y):
        return nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x + y)

    def feed_forward(self, x):
        return nn.Dense(self.width, dtype=self.dtype)(nn.relu(nn.Dense(self.ffn, dtype=self.dtype)(x)))

    def embed_tokens(self, table, tokens):
        rate = 10_000.0 ** -(jnp.arange(0, self.width, 2) / self.width)
        angle = jnp.arange(tokens.shape[1])[:, None] * rate[None, :]
        waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(tokens.shape[1], self.width)
        return table(tokens) * self.width**0.5 + waves.astype(self.dtype)[None]


class BahdanauStep(nn.Module):
    """One step of the decoder: (state, (annotations, keys, mask)), embedded token -> state, (state, context)."""

    hidden: int
    dtype: type

    @nn.compact
    def __call__(self, state, memory, token):
        annotations, keys, real = memory
        query = nn.Dense(self.hidden, use_bias=False, dtype=self.dtype)(state)
        scores = nn.Dense(1, use_bias=False, dtype=self.dtype)(jnp.tanh(query[:, None] + keys))[..., 0]  # [B, S]
        weights = jax.nn.softmax(scores, where=real)
        context = jnp.einsum("bs,bsc->bc", weights, annotations)
        state, _ = nn.GRUCell(self.hidden, dtype=self.dtype)(state, jnp.concatenate([token, context], axis=-1))
        return state, (state, context)


class Bahdanau(nn.Module):
    """Bahdanau et al. 2015: a bidirectional GRU, additive attention before a GRU, a maxout readout."""

    vocabulary: int
    embed: int
    hidden: int
    readout: int
    exact: bool

    @nn.compact
    def __call__(self, source, length, target_in):
        """[B, S], [B], [B, T] -> logits [B, T, V] in float32."""
        dtype = jnp.float32 if self.exact else jnp.bfloat16
        embed = functools.partial(nn.Embed, self.vocabulary, self.embed, dtype=dtype)
        cell = functools.partial(nn.GRUCell, self.hidden, dtype=dtype)
        encoder = nn.Bidirectional(nn.RNN(cell()), nn.RNN(cell()), return_carry=True)
        last, annotations = encoder(embed()(source), seq_lengths=length)  # [B, S, 2 H]
        keys = nn.Dense(self.hidden, use_bias=False, dtype=dtype)(annotations)
        real = jnp.arange(source.shape[1])[None, :] < length[:, None]
        state = jnp.tanh(nn.Dense(self.hidden, dtype=dtype)(jnp.concatenate(last, axis=-1)))
        token = embed()(target_in)
        over_time = nn.scan(
            BahdanauStep, variable_broadcast="params", split_rngs={"params": False}, in_axes=(nn.broadcast, 1),
            out_axes=1,
        )  # fmt: skip
        _, (states, contexts) = over_time(self.hidden, dtype)(state, (annotations, keys, real), token)
        features = jnp.concatenate([states, contexts, token], axis=-1)
        y = nn.Dense(2 * self.readout, dtype=dtype)(features)
        y = y.reshape(*y.shape[:-1], self.readout, 2).max(axis=-1)
        return nn.Dense(self.vocabulary, dtype=dtype)(y).astype(jnp.float32)


def attention_function(exact: bool):
    """`jax.nn.dot_product_attention` of [B, T, H, D]: in XLA, or (not exact) JAX's default on a GPU."""
    return functools.partial(jax.nn.dot_product_attention, implementation="xla" if exact else "cudnn")
