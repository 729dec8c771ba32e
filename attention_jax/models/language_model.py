"""The decoder-only Transformer as a language model."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block
from attention_jax.models.taps import is_set, tap
from attention_jax.models.transformer import Decoder, Embedding, KVCache
from attention_jax.ops.losses import soft_cap
from attention_jax.ops.masks import causal
from attention_jax.ops.precision import accumulator


class ValueEmbedding(nn.Module):
    """What each of `layers` adds to its values at a token, [B, T] -> [B, T, layers, Hkv V]: 0 at first; None for a
    block without value embeddings."""

    vocab: int
    block: Block
    layers: int

    @nn.compact
    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T L V"] | None:
        if not self.block.value_embeddings:
            return None
        width = self.layers * (self.block.num_kv_heads or self.block.num_heads) * self.block.map_widths[1]
        table = self.param("embedding", nn.initializers.zeros, (self.vocab, width))
        return table[tokens].astype(self.block.dtype).reshape(*tokens.shape, self.layers, -1)


class LanguageModel(nn.Module):
    """A decoder-only Transformer language model (Radford et al. 2018).

    Call it with tokens [B, T]; returns the logits [B, T, V] of each next token and, with `return_weights`,
    {"decoder_attention": [B, layers, H, T, T]}. `start` and `step` decode one token at a time with a KV cache. Raises
    InputError for sizes and parts that do not fit each other.

    >>> from attention_jax import config
    >>> import jax
    >>> model = LanguageModel(config.LanguageModelConfig(hidden_size=8, mlp_dim=16, num_heads=2), vocab=11)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.ones((2, 5), jnp.int32))
    >>> logits.shape
    (2, 5, 11)
    """

    options: config.LanguageModelConfig
    vocab: int

    def __post_init__(self):
        list(Block.of(self.options).of_layers(self.options.num_layers))  # raises InputError for incompatible options
        super().__post_init__()

    def setup(self):
        options = self.options
        block, position_deviation = Block.of(options), options.hidden_size**-0.5
        # scaled and initialized as in the plain Transformer; learned positions begin small beside the tokens
        arguments = self.vocab, block, options.max_length, options.scale_embeddings, "normal"
        self.embedding = Embedding(*arguments, position_deviation=position_deviation)
        self.decoder = Decoder(block, options.num_layers, False, options.remat, scan=options.scan_layers)
        self.value_embedding = ValueEmbedding(self.vocab, block, options.num_layers)
        if not options.tied_embeddings:
            glorot = nn.initializers.xavier_uniform()
            self.kernel = self.param("kernel", glorot, (options.hidden_size, self.vocab))
        if options.output_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.vocab,))

    def hidden(self, tokens: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False):
        """(states [B, T, D] in float32 at least, intermediates)."""
        x, embeddings = self.embedding(tokens, train=train), self.value_embedding(tokens)
        x, weights, _ = self.decoder(x, causal(), None, train, return_weights, embeddings)
        return x.astype(accumulator(x.dtype)), {"decoder_attention": weights} if return_weights else {}

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """The output layer, logits = hidden @ kernel + bias, before the cap if there is one."""
        kernel = self.embedding.token.embedding.T if self.options.tied_embeddings else self.kernel  # [D, V]
        return kernel, self.bias if self.options.output_bias else jnp.zeros((self.vocab,))

    def __call__(self, tokens: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False):
        """(logits [B, T, V] of each next token, intermediates)."""
        hidden, weights = self.hidden(tokens, train=train, return_weights=return_weights)
        return tap(self, "logits", self._logits(hidden)), weights

    def start(self, batch_size: int, max_length: int) -> KVCache:
        """The cache before the first token."""
        self.embedding.check(max_length)
        return self.decoder.start(batch_size, max_length)

    def prefill(self, tokens: Int[Array, "B P"], lengths: Int[Array, "B"], max_length: int):
        """Read prompts, padded behind their `lengths`, at once: (logits [B, V] after the last token of each, the cache
        for `max_length` positions). Each row is at the position after its own prompt, so `step` takes one row of them,
        or many of one length."""
        if tokens.shape[1] > max_length:
            raise InputError(f"a cache of {max_length} positions cannot hold prompts of {tokens.shape[1]} tokens")
        cache, embeddings = self.start(tokens.shape[0], max_length), self.value_embedding(tokens)
        x, cache = self.decoder.prefill(self.embedding(tokens), cache, lengths, embeddings)
        take_last = lambda x: jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)  # [B, 1, D or V]
        hidden = x.astype(accumulator(x.dtype))
        if is_set(self, "logits"):
            return take_last(tap(self, "logits", self._logits(hidden)))[:, 0], cache
        return self._logits(take_last(hidden))[:, 0], cache

    def step(self, cache: KVCache, token: Int[Array, "B"], *, return_weights: bool = False):
        """One more token: (logits [B, V], cache, intermediates)."""
        x = self.embedding(token[:, None], cache.position[0])
        x, cache, weights, _ = self.decoder.step(x, cache, None, return_weights, self.value_embedding(token[:, None]))
        logits = tap(self, "logits", self._logits(x.astype(accumulator(x.dtype))))[:, 0]
        return logits, cache, {"decoder_attention": weights} if return_weights else {}

    def _logits(self, hidden):
        kernel, bias = (x.astype(hidden.dtype) for x in self.output())  # parameters may be in half precision
        return soft_cap(hidden @ kernel + bias[None, None, :], self.options.logit_cap)
