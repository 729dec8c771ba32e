"""The four date models of "Deep Learning from Scratch 2", chapters 7 and 8: attention after the recurrence.

Attention here does not feed the recurrence, so the whole decoder is one fused scan and attention is one product for all
target positions. Models for translation, with deeper stacks and attention inside the recurrence, are in
`translator.py`.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.models.encoder import Encoder
from attention_jax.models.named_scores import Rules, make_rules, prepare_keys
from attention_jax.models.recurrent import Embedding, Layer, kernel_init
from attention_jax.models.taps import tap
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.masks import lengths
from attention_jax.ops.recurrent import cells
from attention_jax.ops.scores import prepare_key


class Memory(NamedTuple):
    """The encoder's output and the decoder's state."""

    hidden: Float[Array, "B S H"]  # the encoder's
    length: Int[Array, " B"]
    last: Float[Array, "B H"]  # the encoder's last state
    state: cells.State  # the decoder's
    key: Float[Array, "B S F"] | None = None  # keys after the score's `prepare_key`


class BookModel(nn.Module):
    """Abstract. The decoder starts from the encoder's last hidden state; an LSTM's cell at zero, as in the book."""

    options: config.Seq2seqConfig
    source_vocab: int
    target_vocab: int

    def setup(self):
        o = self.options
        directions = "all" if o.bidirectional else "none"
        self.encoder = Encoder(self.source_vocab, o.embed_size, o.hidden_size, o.cell, 1, directions, "sum")
        self.embed = Embedding(self.target_vocab, o.embed_size)
        width = self.make_decoder()
        self.kernel = self.param("kernel", kernel_init, (width, self.target_vocab))
        self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    def make_decoder(self) -> int:
        """Create the decoder's `layer` and readout, in `setup`; return the width of the output layer's input."""
        raise NotImplementedError

    def prepare_memory(self, memory: Memory) -> Memory:
        """Precompute what depends only on the source, such as the projected keys, and store it in the memory."""
        return memory

    def run(self, memory: Memory, projected: Float[Array, "T B G"]) -> tuple[Float[Array, "T B H"], ...]:
        """The decoder's state after each step."""
        return self.layer.scan(projected, memory.state)

    def read(
        self, memory: Memory, hidden: Float[Array, "B T H"], return_weights: bool
    ) -> tuple[Float[Array, "B T D"], dict]:
        """Return the inputs of the output layer, and the intermediates."""
        raise NotImplementedError

    def encode(self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False) -> Memory:
        """Encode the source."""
        hidden, ((last, *cell),) = self.encoder(source, source_length, train=train)
        state = (last, *(jnp.zeros_like(c) for c in cell))
        hidden = tap(self, "encoder.states", hidden)
        return self.prepare_memory(Memory(hidden, source_length, last, state))

    def decode(
        self, memory: Memory, target_in: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False
    ):
        """Teacher forced: hidden [B, T, D] and intermediates; logits are `hidden @ kernel + bias` (see `output`)."""
        hidden = self.run(memory, self.layer.lookup(self.embed.table, target_in.T))[0]  # [T, B, H]
        states = tap(self, "decoder.states", hidden.swapaxes(0, 1))  # [B, T, H]
        return self.read(memory, states, return_weights)

    def start(self, memory: Memory, max_length: int) -> Memory:
        """The cache before the first step; a recurrent cache does not grow with `max_length`."""
        return memory

    def step(self, cache: Memory, token: Int[Array, "B"]):
        """One step: logits [B, V], the next cache, and its attention weights [B, 1, 1, 1, S]."""
        steps = self.run(cache, self.layer.project(self.embed(token))[None])  # T = 1
        state = tuple(component[0] for component in steps)
        features, intermediates = self.read(cache, state[0][:, None], True)
        return features[:, 0] @ self.kernel + self.bias[None], cache._replace(state=state), intermediates

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """Kernel and bias of the output layer."""
        return self.kernel, self.bias

    def __call__(self, source, source_length, target_in, *, train: bool = False, return_weights: bool = False):
        """Teacher-forced logits [B, T, V] and intermediates."""
        hidden, intermediates = self.decode(
            self.encode(source, source_length), target_in, return_weights=return_weights
        )
        return tap(self, "logits", hidden @ self.kernel + self.bias[None, None]), intermediates


class Seq2seq(BookModel):
    """Without attention (chapter 7; Sutskever et al. 2014): one vector represents the source."""

    def make_decoder(self) -> int:
        o = self.options
        self.layer = Layer((o.embed_size,), o.hidden_size, o.cell)
        return o.hidden_size

    def read(self, memory, hidden, return_weights):
        return hidden, {}


class PeekySeq2seq(BookModel):
    """Every decoder step and the output layer see the encoder's last state (7.4.2; Cho et al. 2014 in spirit)."""

    options: config.PeekySeq2seqConfig

    def make_decoder(self) -> int:
        o = self.options
        self.layer = Layer((o.embed_size, o.hidden_size), o.hidden_size, o.cell)
        return 2 * o.hidden_size

    def run(self, memory, projected):
        return self.layer.scan(projected + self.layer.project(memory.last, input_index=1)[None], memory.state)

    def read(self, memory, hidden, return_weights):
        peek = jnp.broadcast_to(memory.last[:, None], hidden.shape)  # [B, T, H]
        return jnp.concatenate([peek, hidden], axis=-1), {}


def attend_to_source(rules: Rules, memory: Memory, query: Float[Array, "B T H"], return_weights: bool):
    """Contexts [B, T, H] of all decoder states at once, and, if `return_weights`, the weights [B, 1, 1, T, S]."""
    prepared_score, _ = prepare_key(rules.score, memory.hidden[0, :1])  # the memory holds prepared keys

    def attend_sentence(query, key, value, length):
        kwargs = {"score": prepared_score, "bias": rules.bias, "mask": lengths(length), "normalizer": rules.normalizer}
        return attend(query, key, value, **kwargs), attention_weights(query, key, **kwargs) if return_weights else None

    context, weights = jax.vmap(attend_sentence)(
        query, memory.key, memory.hidden, memory.length
    )  # [B, T, H], [B, T, S]
    return context, {"cross_attention": weights[:, None, None]} if return_weights else {}


class AttentionSeq2seq(BookModel):
    """An encoder-decoder with attention: each decoder state is the query over all encoder states, and the output layer
    reads [context; state]."""

    options: config.AttentionSeq2seqConfig

    def make_decoder(self) -> int:
        o = self.options
        self.layer = Layer((o.embed_size,), o.hidden_size, o.cell)
        self.rules = make_rules(self, o, o.hidden_size, o.hidden_size)
        return 2 * o.hidden_size

    def prepare_memory(self, memory):
        return memory._replace(key=prepare_keys(self.rules.score, memory.hidden))

    def read(self, memory, hidden, return_weights):
        context, intermediates = attend_to_source(self.rules, memory, hidden, return_weights)
        return jnp.concatenate([context, hidden], axis=-1), intermediates


class LuongSeq2seq(BookModel):
    """s~_t = tanh(W_c [c_t; s_t] + b_c), y_t = softmax(W_y s~_t + b_y) (Luong et al. 2015, eq. 5-6)."""

    options: config.LuongSeq2seqConfig

    def make_decoder(self) -> int:
        o = self.options
        self.layer = Layer((o.embed_size,), o.hidden_size, o.cell)
        self.rules = make_rules(self, o, o.hidden_size, o.hidden_size)
        self.attentional = nn.Dense(o.hidden_size, kernel_init=kernel_init)
        return o.hidden_size

    def prepare_memory(self, memory):
        return memory._replace(key=prepare_keys(self.rules.score, memory.hidden))

    def read(self, memory, hidden, return_weights):
        context, intermediates = attend_to_source(self.rules, memory, hidden, return_weights)
        return jnp.tanh(self.attentional(jnp.concatenate([context, hidden], axis=-1))), intermediates
