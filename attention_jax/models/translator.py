"""Recurrent translation models: one encoder, one decoder, and where attention meets the recurrence as an option.

Known models are settings of it (see `config.Translator` for what each option means):
  Sutskever et al. 2014   attention="none", layers=4, cell="lstm", bidirectional="none", start="pass", readout="state"
  Cho et al. 2014         attention="last", readout="linear"
  Bahdanau et al. 2015    attention="before", readout="maxout"  (query: the previous state; here the readout sees s_t, not s_{t-1})
  conditional GRU         attention="between", readout="tanh"  (Firat & Cho 2016; Caglayan et al. 2017)
  Luong et al. 2015       attention="feeding" (or "after", without input feeding), readout="tanh", readout_embedding=False
  GNMT, Wu et al. 2016    attention="first_layer", bidirectional="first", residual=True

Where attention does not feed the recurrence, and in all layers above one where it does, time is one fused scan per layer.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import InputError
from attention_jax.models.alignment import Alignment, weigh
from attention_jax.models.feeding import Plan, feeding_step, finish
from attention_jax.models.recurrent import Embedding, Encoder, Layer, kernel_init, used
from attention_jax.ops.deferred import deferred_scan, product
from attention_jax.ops.dropout import dropout
from attention_jax.ops.precision import matmul
from attention_jax.ops.scores import Additive


class Translator(nn.Module):
    """Encoder and decoder; attributes as in `config.Translator`."""

    source_vocab: int
    target_vocab: int
    hidden_size: int = 512
    embed_size: int = 256
    cell: str = "gru"
    layers: int = 1
    bidirectional: str = "all"
    residual: bool = False
    layer_norm: bool = False
    start_from: str = "dense"
    attention: str = "before"
    score: str = "additive"
    window: str = "all"
    window_size: int = 10
    readout: str = "maxout"
    readout_size: int = 512
    readout_embedding: bool = True
    tied: bool = False
    embed_scale: float = 0.0
    embed_dropout: float | Array = 0.0
    layer_dropout: float | Array = 0.0
    memory_dropout: float | Array = 0.0
    output_dropout: float | Array = 0.0

    def setup(self):
        hidden, embed = self.hidden_size, self.embed_size
        scale = self.embed_scale or embed**-0.5
        self.encoder = Encoder(
            self.source_vocab, embed, hidden, self.cell, self.layers, self.bidirectional, "concat", self.residual,
            self.embed_dropout, self.layer_dropout, scale,
        )  # fmt: skip
        width = self.encoder.output_size()
        if self.layer_norm:
            self.norm = nn.LayerNorm()
        if self.start_from == "pass" and self.bidirectional != "none":
            raise InputError(
                f"start_from pass needs bidirectional none, got {self.bidirectional}: use start_from dense or mean"
            )
        if self.start_from != "pass":
            self.bridge = [nn.Dense((2 if self.cell == "lstm" else 1) * hidden) for _ in range(self.layers)]
        looks = self.attention not in ("none", "last")
        context = 0 if self.attention == "none" else width
        sees = hidden + context + (embed if self.readout_embedding else 0)
        features = {"state": hidden, "linear": sees}.get(self.readout, self.readout_size)
        fed = {
            "none": 0,
            "after": 0,
            "between": 0,
            "feeding": context if self.readout in ("state", "linear") else features,
        }
        self.embed = Embedding(self.target_vocab, embed, scale)
        first = Layer((embed, fed.get(self.attention, context)), hidden, self.cell)
        above = (hidden, context) if self.attention == "first_layer" else (hidden,)
        self.stack = [first] + [Layer(above, hidden, self.cell) for _ in range(self.layers - 1)]
        if self.attention == "between":
            self.second = Layer((context,), hidden, self.cell)
        if looks:
            self.alignment = Alignment(hidden, width, hidden, self.score, self.window, self.window_size)
        if self.readout in ("tanh", "maxout"):
            columns = features * (2 if self.readout == "maxout" else 1)
            self.readout_kernel = self.param("readout_kernel", kernel_init, (sees, columns))
            self.readout_bias = self.param("readout_bias", nn.initializers.zeros, (columns,))
        if self.tied and features != embed:
            raise InputError(
                f"a tied output layer needs readout_size equal to embed_size, got {features} and {embed}: change readout_size"
            )
        if not self.tied:
            self.kernel = self.param("kernel", kernel_init, (features, self.target_vocab))
        self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    @property
    def serial(self) -> int:
        """How many layers must go step by step, because attention feeds them."""
        return {"before": self.layers, "feeding": self.layers, "first_layer": 1, "between": 1}.get(self.attention, 0)

    @property
    def plan(self) -> Plan:
        projects = isinstance(self.alignment.prepared, Additive)
        return Plan(self.attention, self.residual, self.window, self.window_size, self.readout, projects)

    def rng(self, train: bool):
        return self.make_rng("dropout") if train else None

    def encode(self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False):
        """Memory: annotations "hidden" [B, S, C], prepared "key", "length", the decoder's first "states", the "last" annotation."""
        hidden, states = self.encoder(source, source_length, train=train)
        if self.layer_norm:
            hidden = self.norm(hidden)
        hidden = dropout(hidden, self.memory_dropout, self.rng(train))
        real = (jnp.arange(source.shape[1])[None, :] < source_length[:, None]).astype(hidden.dtype)
        memory = {"length": source_length, "last": states[-1][0]}
        if self.start_from != "pass":
            count = jnp.maximum(source_length, 1).astype(hidden.dtype)[:, None]
            mean = jnp.einsum("bs,bsc->bc", real, hidden) / count
            start = [
                jnp.tanh(dense(mean if self.start_from == "mean" else s[0])) for dense, s in zip(self.bridge, states)
            ]
            states = [tuple(jnp.split(s, 2, axis=-1)) if self.cell == "lstm" else (s,) for s in start]
        memory["states"] = states
        if self.attention not in ("none", "last"):
            memory |= {"hidden": hidden, "key": self.alignment.prepare(hidden)}
        return memory

    def weights(self, memory) -> dict[str, Array]:
        """The matrices that `feeding_step` multiplies by."""
        weights = {f"recurrent_{i}": layer.recurrent_kernel for i, layer in enumerate(self.stack[: self.serial])}
        weights |= {f"input_{i}": layer.kernel(0) for i, layer in enumerate(self.stack[: self.serial]) if i > 0}
        weights["pool"] = memory["hidden"]
        if isinstance(self.alignment.prepared, Additive):
            weights["query"] = self.alignment.prepared.query_kernel
        if self.attention == "between":
            weights |= {"context": self.second.kernel(0), "recurrent_second": self.second.recurrent_kernel}
        else:
            weights["feed" if self.attention == "feeding" else "context"] = self.stack[0].kernel(1)
        if self.attention == "feeding" and self.readout in ("tanh", "maxout"):
            weights["readout"] = self.readout_kernel
        return weights

    def shared(self, memory):
        """What else `feeding_step` reads."""
        layers = [*self.stack[: self.serial]] + ([self.second] if self.attention == "between" else [])
        alignment = self.alignment.share(memory)
        if isinstance(self.alignment.prepared, Additive):
            alignment["score"] = Additive(None, None, self.alignment.prepared.vector)
        inner = [layer.inner_bias if self.cell == "gru" else None for layer in layers]
        shared = {"alignment": alignment, "bias": [layer.bias for layer in layers], "inner_bias": inner}
        return shared | ({"readout_bias": self.readout_bias} if self.readout in ("tanh", "maxout") else {})

    def carry(self, memory):
        """The serial layers' state before the first step."""
        batch = memory["length"].shape[0]
        width = self.stack[0].sizes[1] if self.attention == "feeding" else 0
        time = jnp.zeros((batch,), jnp.int32)
        return {"states": memory["states"][: self.serial], "feed": jnp.zeros((batch, width)), "time": time}

    def decode(self, memory, target_in: Int[Array, "B T"], *, train: bool = False, look: bool = False):
        """Teacher forced: hidden [B, T, D] and intermediates. Logits are `hidden @ kernel + bias` with those of `output()`."""
        tokens, features, seen, context = target_in.T, None, {}, None
        plain = not (train and used(self.embed_dropout))
        embedded = (
            self.embed(tokens) if plain else dropout(self.embed(tokens), self.embed_dropout, self.rng(train))
        )  # [T, B, E]
        projected = self.stack[0].lookup(self.embed.table, tokens) if plain else self.stack[0].project(embedded)
        x = None
        if self.serial:
            noise = jnp.ones((*tokens.shape, self.hidden_size))
            drop = train and used(self.layer_dropout)
            masks = (
                [dropout(noise, self.layer_dropout, self.rng(train)) for _ in range(self.serial - 1)] if drop else []
            )
            xs = {"input": projected, "noise": masks}
            if self.readout_embedding:
                xs["embedded"] = embedded
            step = functools.partial(feeding_step, self.plan)
            _, ys = deferred_scan(step, self.weights(memory), self.shared(memory), self.carry(memory), xs)
            x, context, features = ys["hidden"], ys["context"], ys.get("features")
            seen = {"cross_attention": ys["weights"].transpose(1, 0, 2)[:, None, None]}
        for i in range(self.serial, self.layers):
            if i > 0:
                below = dropout(x, self.layer_dropout, self.rng(train))
                projected = self.stack[i].project(below)
            if i == 0 and self.attention == "last":
                context = jnp.broadcast_to(memory["last"][None], (*tokens.shape, memory["last"].shape[-1]))
                projected = projected + self.stack[0].project(memory["last"], part=1)[None]
            if i > 0 and self.attention == "first_layer":
                projected = projected + self.stack[i].project(context, part=1)
            hidden = self.stack[i].scan(projected, memory["states"][i])[0]
            x = hidden + x if self.residual and i > 0 else hidden
        x = x.swapaxes(0, 1)  # [B, T, H]
        embedded = embedded.swapaxes(0, 1)
        if self.attention == "after":
            time = jnp.broadcast_to(jnp.arange(tokens.shape[0])[None], target_in.shape)
            context, seen = self.look(memory, x, time)
        elif context is not None:
            context = context.swapaxes(0, 1)
        features = self.read(x, context, embedded) if features is None else features.swapaxes(0, 1)
        return dropout(features, self.output_dropout, self.rng(train)), seen if look else {}

    def look(self, memory, query: Float[Array, "B T H"], time: Int[Array, "B T"]):
        """Contexts of many queries at once, and the weights."""
        weights = weigh(self.alignment.share(memory), self.window, self.window_size, query, time)
        return jnp.einsum("bts,bsc->btc", weights, memory["hidden"]), {"cross_attention": weights[:, None, None]}

    def read(self, hidden, context, embedded):
        """What the output layer sees, from the top state, the context and the embedded previous token, each [..., width]."""
        if self.readout == "state":
            return hidden
        parts = [hidden] + ([context] if context is not None else []) + ([embedded] if self.readout_embedding else [])
        parts = jnp.concatenate(parts, axis=-1)
        if self.readout == "linear":
            return parts
        y = matmul(parts, self.readout_kernel)
        return finish(self.readout, y + self.readout_bias.reshape((1,) * (y.ndim - 1) + (-1,)))

    def start(self, memory, max_length: int):
        """The cache before the first step; a recurrent cache does not grow with `max_length`."""
        if not self.serial:
            return memory | {"time": jnp.zeros((memory["length"].shape[0],), jnp.int32)}
        return memory | self.carry(memory) | {"states": memory["states"]}

    def step(self, cache, token: Int[Array, "B"]):
        """One step: logits [B, V], the next cache, and the weights [B, 1, 1, 1, S] it looked with."""
        embedded = self.embed(token)
        projected, context, features, seen, x = self.stack[0].project(embedded), None, None, {}, None
        states, cache = list(cache["states"]), dict(cache)
        if self.serial:
            weights = self.weights(cache)
            inputs = {"input": projected, "noise": []} | ({"embedded": embedded} if self.readout_embedding else {})
            carry = {"states": states[: self.serial], "feed": cache["feed"], "time": cache["time"]}
            dot = lambda name, v: product(v, weights[name])
            carry, y = feeding_step(self.plan, dot, self.shared(cache), carry, inputs)
            states[: self.serial] = carry["states"]
            cache |= {"feed": carry["feed"]}
            x, context, features = y["hidden"], y["context"], y.get("features")
            seen = {"cross_attention": y["weights"][:, None, None, None]}
        for i in range(self.serial, self.layers):
            if i > 0:
                projected = self.stack[i].project(x)
            if i == 0 and self.attention == "last":
                context = cache["last"]
                projected = projected + self.stack[0].project(context, part=1)
            if i > 0 and self.attention == "first_layer":
                projected = projected + self.stack[i].project(context, part=1)
            states[i] = self.stack[i].step(projected, states[i])
            x = states[i][0] + x if self.residual and i > 0 else states[i][0]
        if self.attention == "after":
            context, seen = self.look(cache, x[:, None], cache["time"][:, None])
            context = context[:, 0]
        features = self.read(x, context, embedded) if features is None else features
        kernel, bias = self.output()
        return features @ kernel + bias[None], cache | {"states": states, "time": cache["time"] + 1}, seen

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """Kernel and bias of the output layer; a tied one is the target embedding."""
        return (self.embed.table.T if self.tied else self.kernel), self.bias

    def __call__(self, source, source_length, target_in, *, train: bool = False, look: bool = False):
        """Teacher-forced logits [B, T, V] and intermediates."""
        hidden, seen = self.decode(self.encode(source, source_length, train=train), target_in, train=train, look=look)
        kernel, bias = self.output()
        return hidden @ kernel + bias[None, None], seen
