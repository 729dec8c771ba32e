"""Convolutional sequence to sequence learning (Gehring et al. 2017): no recurrence, attention in every decoder layer.

A block is a convolution to twice the width, a gated linear unit a * sigmoid(b), and a residual connection scaled by
sqrt(1/2). In decoder layer l the query is d = (W_d h + b_d + g) sqrt(1/2) with g the embedded target (eq. 1), the keys
are the encoder's outputs z, the values z + e with e the embedded source (eq. 2). As in bentrevett/pytorch-seq2seq
(tutorial 5) every sum of two is scaled by sqrt(1/2), there is no weight normalization, and section 3.4's factors of the
context (m sqrt(1/m)) and of the encoder's gradients are left out, as is section 3.5's factor p of the initial
variances, the probability that dropout keeps an input; unlike there, padding is zeroed before every convolution and
each layer has its own W_d (as in the paper).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.errors import InputError
from attention_jax.models.multihead import Linear
from attention_jax.models.named_scores import make_normalizer
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.dropout import dropout
from attention_jax.ops.masks import lengths
from attention_jax.ops.precision import matmul
from attention_jax.ops.scores import Dot
from experiments.papers.options import ConvolutionalConfig

SCALE = 0.5**0.5
glu_init = nn.initializers.variance_scaling(4.0, "fan_in", "normal")
"""Before a gated linear unit, which halves the variance twice (section 3.5)."""
linear_init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")


def glu_convolution(
    x: Float[Array, "B T D"], kernel: Float[Array, "KD E"], bias: Float[Array, "E"]
) -> Float[Array, "B U F"]:
    """A convolution with a gated linear unit, a * sigmoid(b): without padding (U = T - K + 1), as one matmul over the
    K * D inputs of each window; E = 2 F."""
    width = kernel.shape[0] // x.shape[-1]
    steps = x.shape[1] - width + 1
    windows = jnp.concatenate([x[:, k : k + steps] for k in range(width)], axis=-1)  # [B, U, K D]
    a, b = jnp.split(matmul(windows, kernel) + bias[None, None], 2, axis=-1)
    return a * jax.nn.sigmoid(b)


class Convolution(nn.Module):
    """The weights of one `glu_convolution`; `left` and `right` are the zeros put around its input."""

    hidden_size: int
    kernel_size: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], left: int = 0, right: int = 0) -> Float[Array, "B U D"]:
        kernel = self.param("kernel", glu_init, (self.kernel_size * self.hidden_size, 2 * self.hidden_size))
        bias = self.param("bias", nn.initializers.zeros, (2 * self.hidden_size,))
        return glu_convolution(jnp.pad(x, ((0, 0), (left, right), (0, 0))), kernel, bias)


class TokenPositionEmbedding(nn.Module):
    """Token plus position embeddings, both N(0, 0.1^2)."""

    vocab: int
    size: int
    positions: int

    def setup(self):
        init = nn.initializers.normal(0.1)
        self.table = self.param("table", init, (self.vocab, self.size))
        self.places = self.param("places", init, (self.positions, self.size))

    def check(self, length: int):
        """Raise InputError if `length` exceeds the number of positions."""
        if length > self.positions:
            raise InputError(
                f"--model.max-length must be at least {length}, the length of a sequence; got {self.positions}: raise "
                "it, or lower --decode.max-length"
            )

    def __call__(self, tokens: Int[Array, "B T"], first: Int[Array, "B"] | None = None) -> Float[Array, "B T D"]:
        """Embed tokens at positions first, first + 1, ... (0 by default)."""
        self.check(tokens.shape[1])
        if first is None:
            return self.table[tokens] + self.places[None, : tokens.shape[1]]
        return self.table[tokens] + self.places[first[:, None] + jnp.arange(tokens.shape[1])[None]]


class ConvSeq2seq(nn.Module):
    """Encoder and decoder of `layers` gated convolutions each."""

    options: ConvolutionalConfig
    source_vocab: int
    target_vocab: int

    def __post_init__(self):
        if self.options.kernel_size % 2 == 0:
            raise InputError(
                "--model.kernel-size must be odd, so that the encoder's windows are symmetric, got "
                f"{self.options.kernel_size}"
            )
        super().__post_init__()

    def setup(self):
        options = self.options
        hidden, embed = options.hidden_size, options.embed_size
        dense = lambda width: Linear(width, kernel_init=linear_init)
        blocks = lambda: [Convolution(hidden, options.kernel_size) for _ in range(options.num_layers)]
        self.source_embed = TokenPositionEmbedding(self.source_vocab, embed, options.max_length)
        self.target_embed = TokenPositionEmbedding(self.target_vocab, embed, options.max_length)
        self.source_in, self.source_out = dense(hidden), dense(embed)
        self.target_in, self.target_out = dense(hidden), dense(embed)
        self.source_blocks, self.target_blocks = blocks(), blocks()
        self.queries = [dense(embed) for _ in range(options.num_layers)]
        self.contexts = [dense(hidden) for _ in range(options.num_layers)]
        self.normalizers = [
            make_normalizer(self, options.normalizer, embed, embed, embed, f"normaliser_{layer}")
            for layer in range(options.num_layers)
        ]
        self.kernel = self.param("kernel", linear_init, (embed, self.target_vocab))
        self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    def drop(self, x, train: bool):
        return dropout(x, self.options.dropout, self.make_rng("dropout") if train else None)

    def encode(self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False):
        """Memory: "key" z and "value" (z + e) sqrt(1/2), both [B, S, embed], and "length"."""
        token_mask = (jnp.arange(source.shape[1])[None] < source_length[:, None])[..., None]
        embedded = self.drop(self.source_embed(source), train)
        x, padding = self.source_in(embedded), self.options.kernel_size // 2
        for block in self.source_blocks:
            inputs = jnp.where(token_mask, self.drop(x, train), 0.0)  # what a convolution sees beyond the end is zero
            x = (block(inputs, padding, padding) + x) * SCALE
        z = self.source_out(x)
        return {"key": z, "value": (z + embedded) * SCALE, "length": source_length}

    def block(self, layer: int, memory, inputs, residual, embedded, return_weights: bool):
        """A decoder block on inputs [B, T + K - 1, H] that hold the K - 1 steps before: next x [B, T, H] and the
        weights [B, T, S]."""
        x = self.target_blocks[layer](inputs)
        query = (self.queries[layer](x) + embedded) * SCALE  # [B, T, E]

        def attend_sentence(query, key, value, length):
            kwargs = dict(score=Dot(), mask=lengths(length), normalizer=self.normalizers[layer])
            return attend(query, key, value, **kwargs), attention_weights(
                query, key, **kwargs
            ) if return_weights else None

        context, weights = jax.vmap(attend_sentence)(
            query, memory["key"], memory["value"], memory["length"]
        )  # [B, T, E]
        x = (x + self.contexts[layer](context)) * SCALE
        return (x + residual) * SCALE, weights

    def decode(self, memory, target_in: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False):
        """Teacher forced: hidden [B, T, embed] and intermediates."""
        embedded = self.drop(self.target_embed(target_in), train)
        x, maps = self.target_in(embedded), []
        for layer in range(self.options.num_layers):
            inputs = jnp.pad(self.drop(x, train), ((0, 0), (self.options.kernel_size - 1, 0), (0, 0)))
            x, weights = self.block(layer, memory, inputs, x, embedded, return_weights)
            maps.append(weights)
        return self.drop(self.target_out(x), train), {
            "cross_attention": jnp.stack(maps, axis=1)[:, :, None]
        } if return_weights else {}

    def start(self, memory, max_length: int):
        """The cache before the first step: each layer's last kernel_size - 1 inputs."""
        self.target_embed.check(max_length)
        batch = memory["length"].shape[0]
        past_inputs = [
            jnp.zeros((batch, self.options.kernel_size - 1, self.options.hidden_size), memory["key"].dtype)
            for _ in range(self.options.num_layers)
        ]
        return memory | {"past_inputs": past_inputs, "time": jnp.zeros((batch,), jnp.int32)}

    def step(self, cache, token: Int[Array, "B"]):
        """One step: logits [B, V], the next cache, and its attention weights [B, layers, 1, 1, S]."""
        embedded = self.target_embed(token[:, None], cache["time"])
        x, past_inputs, maps = self.target_in(embedded), [], []
        for layer in range(self.options.num_layers):
            inputs = jnp.concatenate([cache["past_inputs"][layer], x], axis=1)
            past_inputs.append(inputs[:, 1:])
            x, weights = self.block(layer, cache, inputs, x, embedded, True)
            maps.append(weights)
        logits = self.target_out(x)[:, 0] @ self.kernel + self.bias[None]
        cache = cache | {"past_inputs": past_inputs, "time": cache["time"] + 1}
        return logits, cache, {"cross_attention": jnp.stack(maps, axis=1)[:, :, None]}

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """Kernel and bias of the output layer."""
        return self.kernel, self.bias

    def __call__(self, source, source_length, target_in, *, train: bool = False, return_weights: bool = False):
        """Teacher-forced logits [B, T, V] and intermediates."""
        hidden, maps = self.decode(
            self.encode(source, source_length, train=train), target_in, train=train, return_weights=return_weights
        )
        return hidden @ self.kernel + self.bias[None, None], maps
