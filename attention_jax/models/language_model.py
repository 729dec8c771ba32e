"""Encoder-only and decoder-only Transformers: token representations that see everything, and language models that see the past."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.models.blocks import Block
from attention_jax.models.transformer import Decoder, Embedding, Encoder
from attention_jax.ops.masks import causal, lengths


class EncoderOnly(nn.Module):
    """Tokens to states that may look both ways (BERT without its heads): (states [B, T, D], intermediates)."""

    vocabulary_size: int
    block: Block = Block()
    layers: int = 6
    max_length: int = 512
    scale_embeddings: bool = True
    remat: bool = False

    def setup(self):
        self.embedding = Embedding(self.vocabulary_size, self.block, self.max_length, self.scale_embeddings)
        self.encoder = Encoder(self.block, self.layers, self.remat)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        length: Int[Array, "B"] | None = None,
        *,
        train: bool = False,
        look: bool = False,
    ):
        """Without `length` every token is real."""
        x = self.embedding(tokens, train=train)
        x, weights = self.encoder(x, None if length is None else lengths(length), train, look)
        return x, {"encoder_attention": weights} if look else {}


class LanguageCache(NamedTuple):
    """The state of generation; every leaf leads with the batch."""

    position: Int[Array, "B"]  # of the next token, the same in every row
    own: Any  # per layer keys and values of the tokens so far


class LanguageModel(nn.Module):
    """A decoder-only Transformer: the next token from those before it (Radford et al. 2018).

    The methods of every language model: `__call__` (teacher forced), `start`, `step`, `output`.
    """

    vocabulary_size: int
    block: Block = Block(norm="pre", activation="gelu")
    layers: int = 4
    max_length: int = 512
    tied: bool = True
    scale_embeddings: bool = True
    output_bias: bool = True
    remat: bool = False

    def setup(self):
        self.embedding = Embedding(self.vocabulary_size, self.block, self.max_length, self.scale_embeddings)
        self.decoder = Decoder(self.block, self.layers, False, self.remat)
        if not self.tied:
            self.kernel = self.param(
                "kernel", nn.initializers.xavier_uniform(), (self.block.width, self.vocabulary_size)
            )
        if self.output_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.vocabulary_size,))

    def hidden(self, tokens: Int[Array, "B T"], *, train: bool = False, look: bool = False):
        """(states [B, T, D] in float32, intermediates)."""
        x, own, _ = self.decoder(self.embedding(tokens, train=train), causal(), None, train, look)
        return x.astype(jnp.float32), {"decoder_attention": own} if look else {}

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """The output layer, logits = hidden @ kernel + bias."""
        kernel = self.embedding.token.embedding.T if self.tied else self.kernel
        return kernel, self.bias if self.output_bias else jnp.zeros((self.vocabulary_size,))

    def __call__(self, tokens: Int[Array, "B T"], *, train: bool = False, look: bool = False):
        """(logits [B, T, V] of each next token, intermediates)."""
        hidden, weights = self.hidden(tokens, train=train, look=look)
        return self._logits(hidden), weights

    def start(self, batch_size: int, max_length: int) -> LanguageCache:
        """The cache before the first token."""
        return LanguageCache(jnp.zeros((batch_size,), jnp.int32), self.decoder.empty_cache(batch_size, max_length))

    def step(self, cache: LanguageCache, token: Int[Array, "B"], *, look: bool = False):
        """One more token: (logits [B, V], cache, intermediates)."""
        position = cache.position[0]
        x, own, weights, _ = self.decoder.step(
            self.embedding(token[:, None], position), cache.own, position, None, look
        )
        logits = self._logits(x.astype(jnp.float32))[:, 0]
        return logits, LanguageCache(cache.position + 1, own), {"decoder_attention": weights} if look else {}

    def _logits(self, hidden):
        kernel, bias = self.output()
        return hidden @ kernel + bias[None, None, :]
