"""Section 11.7 of "Dive into Deep Learning" in PyTorch, beside `fra_eng_transformer`: its loss with the causal mask.

    pip install torch==2.13.0
    python experiments/peers/d2l_transformer.py fra-eng.zip

Settings, data and initial values are the book's (PyTorch edition of August 2023, its last), as in `d2l_seq2seq.py`.
All linear layers are lazy and start as PyTorch's do; embeddings start with a standard deviation of 1 and are multiplied
by 16; the loss counts the padding. The book's decoder has its causal mask in training mode only, so that in validation
every position attends to the targets after it.

Written to experiments/results/fra_eng_transformer_peer.json, for each of 8 seeds: the best epoch's loss of the 128
pairs with the causal mask and, as the book plots it, the best epoch's mean of two batches, 128 pairs and one, without.
"""

import math
import sys

import torch
from d2l_seq2seq import LENGTH, TRAIN, VALID, sentences, tokens_to_ids, train_and_evaluate, write
from torch import nn

WIDTH, HEADS, DROPOUT = 256, 4, 0.2


class Attention(nn.Module):
    """Multi-head attention of x [B, Q, D] to y [B, K, D] where `seen` [B or 1, Q or 1, K] is true."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.LazyLinear(WIDTH, bias=False) for _ in range(4))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, y, mask):
        split = lambda z: z.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # [B, H, T, D / H]
        query, key, value = split(self.query(x)), split(self.key(y)), split(self.value(y))
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH / HEADS)  # [B, H, Q, K]
        weights = scores.masked_fill(~mask[:, None], -1e6).softmax(-1)
        return self.out((self.dropout(weights) @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention to x itself and, in a decoder, to the encoder's states; then a feed-forward network."""

    def __init__(self, attentions: int):
        super().__init__()
        self.attentions = nn.ModuleList(Attention() for _ in range(attentions))
        self.feed_forward = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(attentions + 1))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, mask, states=None, inside=None):
        x = self.norms[0](self.dropout(self.attentions[0](x, x, mask)) + x)
        if states is not None:
            x = self.norms[1](self.dropout(self.attentions[1](x, states, inside)) + x)
        return self.norms[-1](self.dropout(self.feed_forward(x)) + x)


class Transformer(nn.Module):
    """Two layers read, two write."""

    def __init__(self, source: int, target: int):
        super().__init__()
        self.read, self.write = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        self.encoder = nn.ModuleList(Block(1) for _ in range(2))
        self.decoder = nn.ModuleList(Block(2) for _ in range(2))
        self.out, self.dropout = nn.LazyLinear(target), nn.Dropout(DROPOUT)
        angles = torch.arange(LENGTH)[:, None] / 10_000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # [T, D]

    def forward(self, source, length, target, causal: bool):
        """Tokens [B, T] and the sources' lengths [B] -> logits of the next target tokens [B, T, V]."""
        embed = lambda table, tokens: self.dropout(table(tokens) * math.sqrt(WIDTH) + self.positions)
        inside = (torch.arange(LENGTH) < length[:, None])[:, None]  # [B, 1, T]
        past = torch.ones(1, LENGTH, LENGTH, dtype=torch.bool)
        past = past.tril() if causal else past
        states, x = embed(self.read, source), embed(self.write, target)
        for block in self.encoder:
            states = block(states, inside)
        for block in self.decoder:
            x = block(x, past, states, inside)
        return self.out(x)


def main(path: str):
    (source, target), (main_batch, last) = sentences(path), torch.arange(TRAIN, TRAIN + VALID + 1).split(VALID)
    source, source_size, padding = tokens_to_ids(source, LENGTH)
    target, target_size, _ = tokens_to_ids(target, LENGTH + 1)  # <bos> is not counted
    length = (source != padding).sum(1)

    def best_of_seed():
        model = Transformer(source_size, target_size)

        def loss(rows, causal=True):
            logits = model(source[rows], length[rows], target[rows, :-1], causal)
            return nn.functional.cross_entropy(logits.flatten(0, 1), target[rows, 1:].flatten())

        def evaluate():
            return loss(main_batch).item(), (loss(main_batch, False) + loss(last, False)).item() / 2

        masked, plotted = zip(*train_and_evaluate(model, 0.001, loss, evaluate), strict=True)
        return {"valid.loss": min(masked), "as_plotted": min(plotted)}

    write("fra_eng_transformer_peer", "d2l_transformer.py fra-eng.zip", best_of_seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
