"""A Transformer in PyTorch: eager, with scaled_dot_product_attention and a KV cache for beam search.

The same mathematics as models/transformer.py (post-norm, ReLU, sinusoidal positions, embeddings shared with the output
layer where `tied`), to measure against. `build(torch, ...)` because PyTorch is not needed by anything else here.
"""

import math
from typing import NamedTuple


class Sizes(NamedTuple):
    """The options of the model, which has as many encoder as decoder layers."""

    source_vocabulary: int
    target_vocabulary: int
    width: int
    heads: int
    ffn: int
    layers: int
    dropout: float
    tied: bool


def build(torch, *sizes):
    """The module of these `Sizes`; `forward(source, source_pad, target_in)` returns logits, `beam` decodes."""
    sizes = Sizes(*sizes)
    attention = attention_class(torch, sizes)
    return transformer_class(torch, sizes, layer_class(torch, sizes, attention))()


def attention_class(torch, sizes: Sizes):
    """Multi-head attention over PyTorch's own kernel."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads = sizes.width, sizes.heads

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

        def split(self, x):
            return x.view(x.shape[0], -1, heads, width // heads).transpose(1, 2)

        def memory(self, x):
            return self.split(self.k(x)), self.split(self.v(x))

        def forward(self, x, keys, values, mask=None, causal=False):
            y = functional.scaled_dot_product_attention(
                self.split(self.q(x)), keys, values, attn_mask=mask, is_causal=causal
            )
            return self.o(y.transpose(1, 2).reshape(x.shape[0], -1, width))

    return Attention


def layer_class(torch, sizes: Sizes, attention_class):
    """A layer of the encoder, or (with cross-attention) of the decoder."""
    nn, functional = torch.nn, torch.nn.functional
    width, ffn = sizes.width, sizes.ffn

    class Layer(nn.Module):
        def __init__(self, cross):
            super().__init__()
            self.attention, self.cross = attention_class(), attention_class() if cross else None
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
            self.hidden, self.out, self.drop = nn.Linear(width, ffn), nn.Linear(ffn, width), nn.Dropout(sizes.dropout)

        def cross_and_feed_forward(self, x, memory, mask):
            if self.cross is not None:
                x = self.norms[1](x + self.drop(self.cross(x, *memory, mask)))
            return self.norms[-1](x + self.drop(self.out(functional.relu(self.hidden(x)))))

        def forward(self, x, mask=None, causal=False, memory=None, memory_mask=None):
            x = self.norms[0](x + self.drop(self.attention(x, *self.attention.memory(x), mask, causal)))
            return self.cross_and_feed_forward(x, memory, memory_mask)

        def step(self, x, cache, memory, memory_mask):
            new = self.attention.memory(x)
            cache = new if cache is None else tuple(torch.cat([old, n], dim=2) for old, n in zip(cache, new))
            x = self.norms[0](x + self.drop(self.attention(x, *cache)))
            return self.cross_and_feed_forward(x, memory, memory_mask), cache

    return Layer


def transformer_class(torch, sizes: Sizes, layer_class):
    """Encoder, decoder and embeddings."""
    nn, width = torch.nn, sizes.width

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.target_table = nn.Embedding(sizes.target_vocabulary, width)
            self.source_table = self.target_table if sizes.tied else nn.Embedding(sizes.source_vocabulary, width)
            nn.init.normal_(self.target_table.weight, std=width**-0.5)
            self.encoder = nn.ModuleList(layer_class(False) for _ in range(sizes.layers))
            self.decoder = nn.ModuleList(layer_class(True) for _ in range(sizes.layers))
            self.output = nn.Linear(width, sizes.target_vocabulary, bias=not sizes.tied)
            if sizes.tied:
                self.output.weight = self.target_table.weight
            self.drop = nn.Dropout(sizes.dropout)
            angles = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, width, 2)[None] / width)
            self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))

        def embed(self, table, tokens, first=0):
            return self.drop(table(tokens) * math.sqrt(width) + self.positions[first : first + tokens.shape[1]])

        def encode(self, source, real):
            x = self.embed(self.source_table, source)
            for layer in self.encoder:
                x = layer(x, real)
            return x

        def forward(self, source, real, target_in):
            states = self.encode(source, real)
            x = self.embed(self.target_table, target_in)
            for layer in self.decoder:
                x = layer(x, causal=True, memory=layer.cross.memory(states), memory_mask=real)
            return self.output(x)

        @torch.no_grad()
        def beam(self, source, real, size: int, steps: int, bos: int):
            return beam(torch, self, source, real, size, steps, bos)

    return Transformer


def beam(torch, model, source, real, size: int, steps: int, bos: int):
    """The best of `size` hypotheses after `steps` tokens each (no end token: both sides do equal work)."""
    states = model.encode(source, real).repeat_interleave(size, 0)
    real, batch = real.repeat_interleave(size, 0), source.shape[0]
    memories = [layer.cross.memory(states) for layer in model.decoder]
    caches = [None] * len(model.decoder)
    vocabulary = model.output.out_features
    tokens = torch.full((batch * size, 1), bos)
    scores = torch.full((batch, size), -math.inf)
    scores[:, 0] = 0.0
    for t in range(steps):
        x = model.embed(model.target_table, tokens[:, -1:], t)
        for i, layer in enumerate(model.decoder):
            x, caches[i] = layer.step(x, caches[i], memories[i], real)
        log_p = torch.nn.functional.log_softmax(model.output(x[:, 0]), dim=-1).view(batch, size, -1)
        scores, chosen = (scores[:, :, None] + log_p).flatten(1).topk(size)
        rows = (chosen // vocabulary + size * torch.arange(batch)[:, None]).flatten()
        tokens = torch.cat([tokens[rows], (chosen % vocabulary).view(-1, 1)], dim=1)
        caches = [tuple(x[rows] for x in cache) for cache in caches]
    return tokens.view(batch, size, -1)[:, 0, 1:], scores[:, 0]
