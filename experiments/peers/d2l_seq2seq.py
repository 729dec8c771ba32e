"""Section 10.7 of "Dive into Deep Learning" in PyTorch, beside `fra_eng_seq2seq`: what its published loss is a mean of.

    pip install torch==2.13.0
    python experiments/peers/d2l_seq2seq.py fra-eng.zip

The settings and the data are the book's (PyTorch edition): tokens are padded to 9, the encoder reads the padding,
`Vocab` counts it, and the first 512 pairs train. The reader of the file stops after line 640 counted from 0, so that
129 pairs validate: a batch of 128 and a batch of one. The book's plot shows the mean of the two losses, in which that
one pair weighs as much as the 128. The recurrent layers have Xavier weights, and the output layer PyTorch's default:
the book's is lazy, so when its initializer runs the layer is not an nn.Linear yet and is passed over.

Written to experiments/results/fra_eng_seq2seq_peer_whole_targets.json, for each of 8 seeds: the best epoch's loss of
the 128 pairs and, as the book plots it, the best epoch's mean of the two batches. Former versions of the script are on
record, too: until 2026-11-25 the output layer had Xavier weights (fra_eng_seq2seq_peer.json), and until 2026-11-26
targets were cut to 9 tokens with their first one counted, so that two of the 128 lost their end mark
(fra_eng_seq2seq_peer_default_output.json).
"""

import json
import platform
import statistics
import sys
import zipfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

LENGTH, TRAIN, VALID, SEEDS = 9, 512, 128, 8


def sentences(path: str) -> tuple[list, list]:
    """The tokens of the first 641 pairs of a zip file."""
    with zipfile.ZipFile(path) as file:
        name = next(name for name in file.namelist() if name.endswith("fra.txt"))
        text = file.read(name).decode("utf-8")[:200_000].lower().translate({0x202F: " ", 0xA0: " "})
    spaced = "".join(" " + c if c in ",.!?" and before != " " else c for before, c in zip(" " + text, text))
    rows = [line.split("\t") for line in spaced.split("\n")[: TRAIN + VALID + 1]]
    return [[*row[0].split(), "<eos>"] for row in rows], [["<bos>", *row[1].split(), "<eos>"] for row in rows]


def numbered(rows: list, width: int) -> tuple[torch.Tensor, int, int]:
    """Tokens as numbers, those seen once as 0; the size of the vocabulary; the number of the padding."""
    rows = [(row + ["<pad>"] * width)[:width] for row in rows]
    counts = Counter(token for row in rows for token in row)
    numbers = {token: n for n, token in enumerate(sorted(t for t in counts if counts[t] >= 2), start=1)}
    return torch.tensor([[numbers.get(token, 0) for token in row] for row in rows]), len(numbers) + 1, numbers["<pad>"]


class Translator(nn.Module):
    """Two GRU layers read, two write; the last state of the upper reader enters every step."""

    def __init__(self, source: int, target: int):
        super().__init__()
        self.read, self.write = nn.Embedding(source, 256), nn.Embedding(target, 256)
        self.encoder, self.decoder = nn.GRU(256, 256, 2, dropout=0.2), nn.GRU(512, 256, 2, dropout=0.2)
        self.out = nn.Linear(256, target)
        for name, weight in self.named_parameters():
            if "weight" in name and not name.startswith(("read", "write", "out")):
                nn.init.xavier_uniform_(weight)

    def forward(self, source, target):
        """Tokens [B, T] -> logits of the next target tokens [T, B, V]."""
        seen, state = self.encoder(self.read(source.T))
        token = self.write(target.T)
        return self.out(self.decoder(torch.cat([token, seen[-1].expand(*token.shape[:2], -1)], -1), state)[0])


def trained(seed: int, source, target, sizes: tuple[int, int], padding: int) -> list[tuple[float, float]]:
    """The losses of the two validation batches after each of 30 epochs."""
    torch.manual_seed(seed)
    model = Translator(*sizes)
    adam = torch.optim.Adam(model.parameters(), lr=0.005)

    def loss(rows):
        logits = model(source[rows], target[rows, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), target[rows, 1:].T.flatten(), ignore_index=padding)

    history = []
    for _ in range(30):
        model.train()
        for rows in torch.randperm(TRAIN).split(128):
            adam.zero_grad()
            loss(rows).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
        model.eval()
        with torch.no_grad():
            held_out = torch.arange(TRAIN, len(source))
            history.append(tuple(loss(rows).item() for rows in held_out.split(VALID)))
    return history


def main(path: str):
    torch.set_num_threads(1)
    (source, target), found = sentences(path), []
    (source, source_size, _), (target, target_size, padding) = (
        numbered(source, LENGTH),
        numbered(target, LENGTH + 1),  # <bos> is not counted
    )
    for seed in range(SEEDS):
        history = trained(seed, source, target, (source_size, target_size), padding)
        best, plotted = min(loss for loss, _ in history), min(sum(losses) / 2 for losses in history)
        found.append({"seed": seed, "valid.loss": best, "as_plotted": plotted})
        print(found[-1], flush=True)
    median = {name: statistics.median(row[name] for row in found) for name in ("valid.loss", "as_plotted")}
    environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    report = {"command": "python experiments/peers/d2l_seq2seq.py fra-eng.zip", "median": median, "seeds": found}
    text = json.dumps(report | {"environment": environment}, indent=1) + "\n"
    place = Path(__file__).resolve().parents[1] / "results" / "fra_eng_seq2seq_peer_whole_targets.json"
    place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
