"""Recurrent sequence-to-sequence models whose decoder runs first and looks back afterwards.

Attention here does not feed the recurrence, so the whole decoder is one fused scan and attention is one product for all
target positions ("Deep Learning from Scratch 2", chapters 7 and 8; Luong et al. 2015 without input feeding).
Models whose attention feeds the recurrence are in `translator.py`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.models.named_scores import make_score
from attention_jax.models.recurrent import Embedding, Encoder, Layer, kernel_init, used
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.dropout import dropout
from attention_jax.ops.masks import lengths


class Seq2seq(nn.Module):
    """Encoder-decoder without attention (Sutskever et al. 2014; chapter 7): the decoder starts from the encoder's last state.

    As in the book the LSTM passes its hidden state only, and the decoder's cell starts at zero (`pass_cell=False`).
    The subclasses change what a decoder step receives besides its token (`context_size`) and what the output layer sees.
    """

    source_vocab: int
    target_vocab: int
    hidden_size: int = 256
    embed_size: int = 16
    cell: str = "lstm"
    bidirectional: bool = False
    """Both directions of the encoder, summed, so that every size downstream stays the same."""
    pass_cell: bool = False
    dropout: float | Array = 0.0

    context_size = 0  # width of what each decoder step receives besides its token

    def setup(self):
        directions = "all" if self.bidirectional else "none"
        self.encoder = Encoder(
            self.source_vocab,
            self.embed_size,
            self.hidden_size,
            self.cell,
            1,
            directions,
            "sum",
            embed_dropout=self.dropout,
        )
        self.embed = Embedding(self.target_vocab, self.embed_size)
        self.layer = Layer((self.embed_size, self.context_size), self.hidden_size, self.cell)
        width = self.setup_readout()
        self.kernel = self.param("kernel", kernel_init, (width, self.target_vocab))
        self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    def setup_readout(self) -> int:
        """Create the weights between the decoder's state and the output layer; return the width the output layer sees."""
        return self.hidden_size

    def readout(self, memory, hidden: Float[Array, "B T H"], look: bool):
        """What the output layer sees [B, T, D], and the intermediates."""
        return hidden, {}

    def context(self, memory) -> Float[Array, "B C"] | None:
        """What every decoder step receives besides its token."""
        return None

    def encode(self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False):
        """Memory: the encoder's hidden states, their lengths, and the decoder's first state."""
        hidden, ((last, *cell),) = self.encoder(source, source_length, train=train)
        start = (last, *(c if self.pass_cell else jnp.zeros_like(c) for c in cell))
        return {"hidden": hidden, "length": source_length, "state": start}

    def decode(self, memory, target_in: Int[Array, "B T"], *, train: bool = False, look: bool = False):
        """Teacher forced: hidden [B, T, D] and intermediates. Logits are `hidden @ kernel + bias` with those of `output()`."""
        rng = lambda: self.make_rng("dropout") if train else None
        tokens = target_in.T
        if train and used(self.dropout):
            projected = self.layer.project(dropout(self.embed(tokens), self.dropout, rng()))  # [T, B, G]
        else:
            projected = self.layer.lookup(self.embed.table, tokens)
        if (context := self.context(memory)) is not None:
            projected = projected + self.layer.project(context, part=1)[None]
        hidden = self.layer.scan(projected, memory["state"])[0].swapaxes(0, 1)  # [B, T, H]
        features, seen = self.readout(memory, hidden, look)
        return dropout(features, self.dropout, rng()), seen

    def start(self, memory, max_length: int):
        """The cache before the first step; a recurrent cache does not grow with `max_length`."""
        return memory

    def step(self, cache, token: Int[Array, "B"]):
        """One step: logits [B, V], the next cache, and the weights [B, 1, 1, 1, S] it looked with."""
        projected = self.layer.project(self.embed(token))
        if (context := self.context(cache)) is not None:
            projected = projected + self.layer.project(context, part=1)
        state = self.layer.step(projected, cache["state"])
        features, seen = self.readout(cache, state[0][:, None], True)
        return features[:, 0] @ self.kernel + self.bias[None], {**cache, "state": state}, seen

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """Kernel and bias of the output layer."""
        return self.kernel, self.bias

    def __call__(self, source, source_length, target_in, *, train: bool = False, look: bool = False):
        """Teacher-forced logits [B, T, V] and intermediates."""
        hidden, seen = self.decode(self.encode(source, source_length, train=train), target_in, train=train, look=look)
        return hidden @ self.kernel + self.bias[None, None], seen


class PeekySeq2seq(Seq2seq):
    """Every decoder step and the output layer see the encoder's last state (chapter 7.4.2; Cho et al. 2014 in spirit)."""

    @property
    def context_size(self) -> int:
        return self.hidden_size

    def setup_readout(self):
        return 2 * self.hidden_size

    def encode(self, source, source_length, *, train: bool = False):
        memory = super().encode(source, source_length, train=train)
        return {**memory, "context": memory["state"][0]}

    def context(self, memory):
        return memory["context"]

    def readout(self, memory, hidden, look):
        peek = jnp.broadcast_to(memory["context"][:, None], hidden.shape)
        return jnp.concatenate([peek, hidden], axis=-1), {}


class AttentionSeq2seq(Seq2seq):
    """Each decoder state queries all encoder states; [context; state] goes to the output layer (chapter 8, there `score="dot"`)."""

    score: str = "dot"
    """A key of `models.named_scores.SCORES`."""

    def setup_readout(self):
        self.attention_score = make_score(self, self.score, self.hidden_size, self.hidden_size, self.hidden_size)
        self.prepared_score, _ = self.attention_score.prepare_key(
            jnp.zeros((1, self.hidden_size))
        )  # what is left for prepared keys
        return 2 * self.hidden_size

    def encode(self, source, source_length, *, train: bool = False):
        memory = super().encode(source, source_length, train=train)
        return {**memory, "key": jax.vmap(lambda key: self.attention_score.prepare_key(key)[1])(memory["hidden"])}

    def look_up(self, memory, query: Float[Array, "B T H"], look: bool):
        """Contexts [B, T, H] for all target positions at once, and the weights."""

        def one(query, key, value, length):
            common = dict(score=self.prepared_score, mask=lengths(length))
            return attend(query, key, value, **common), attention_weights(query, key, **common) if look else None

        context, weights = jax.vmap(one)(query, memory["key"], memory["hidden"], memory["length"])
        return context, {"cross_attention": weights[:, None, None]} if look else {}

    def readout(self, memory, hidden, look):
        context, seen = self.look_up(memory, hidden, look)
        return jnp.concatenate([context, hidden], axis=-1), seen


class LuongSeq2seq(AttentionSeq2seq):
    """Attentional vector s~_t = tanh(W_c [a_t; s_t] + b_c), y_t = softmax(W_y s~_t + b_y) (Luong et al. 2015, eq. 5-6)."""

    def setup_readout(self):
        super().setup_readout()
        self.attentional = nn.Dense(self.hidden_size, kernel_init=kernel_init)
        return self.hidden_size

    def readout(self, memory, hidden, look):
        both, seen = super().readout(memory, hidden, look)
        return jnp.tanh(self.attentional(both)), seen
