"""Sections 10.7 and 11.4 of "Dive into Deep Learning" in PyTorch, beside `fra_eng_seq2seq` and `fra_eng_bahdanau`: what
their published losses are means of.

    pip install torch==2.13.0
    python experiments/peers/d2l_seq2seq.py fra-eng.zip
    python experiments/peers/d2l_seq2seq.py fra-eng.zip attention

The settings and the data are the book's (PyTorch edition): tokens are padded to 9, the encoder reads the padding,
`Vocab` counts it, and the first 512 pairs train. The reader of the file stops after line 640 counted from 0, so that
129 pairs validate: a batch of 128 and a batch of one. The book's plot shows the mean of the two losses, in which that
one pair weighs as much as the 128. The recurrent layers have Xavier weights, and the output layer PyTorch's default:
the book's is lazy, so when its initializer runs the layer is not an nn.Linear yet and is passed over. The linear maps
of the attention are lazy, too. The loss of section 10.7 leaves padding out, that of 11.4 counts it. Three sentences
have a thin space, at which this file divides and the book does not: a word of two of them has another name here.

Written to experiments/results/fra_eng_seq2seq_peer_whole_targets.json and fra_eng_bahdanau_peer.json, for each of 8
seeds: the best epoch's loss of the 128 pairs and, as the book plots it, the best epoch's mean of the two batches.
Former versions of the script are on record, too: until 2026-11-25 the output layer had Xavier weights
(fra_eng_seq2seq_peer.json), and until 2026-11-26 targets were cut to 9 tokens with their first one counted, so that two
of the 128 lost their end mark (fra_eng_seq2seq_peer_default_output.json).
"""

import json
import platform
import statistics
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

LENGTH, TRAIN, VALID, SEEDS = 9, 512, 128, 8


def sentences(path: str) -> tuple[list, list]:
    """The tokens of the first 641 pairs of a zip file."""
    with zipfile.ZipFile(path) as file:
        name = next(name for name in file.namelist() if name.endswith("fra.txt"))
        text = file.read(name).decode("utf-8")[:200_000].lower().translate({0x202F: " ", 0xA0: " "})
    spaced = "".join(" " + c if c in ",.!?" and previous != " " else c for previous, c in zip(" " + text, text))
    rows = [line.split("\t") for line in spaced.split("\n")[: TRAIN + VALID + 1]]
    return [[*row[0].split(), "<eos>"] for row in rows], [["<bos>", *row[1].split(), "<eos>"] for row in rows]


def tokens_to_ids(rows: list, width: int) -> tuple[torch.Tensor, int, int]:
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

    def forward(self, source, target, length):
        """Tokens [B, T] and the sources' lengths [B] -> logits of the next target tokens [T, B, V]."""
        encoded, state = self.encoder(self.read(source.T))
        token = self.write(target.T)
        return self.out(self.decoder(torch.cat([token, encoded[-1].expand(*token.shape[:2], -1)], -1), state)[0])


class AttentiveTranslator(Translator):
    """Additive attention to all states of the upper reader enters every step; its query is the upper writer's state."""

    def __init__(self, source: int, target: int):
        super().__init__(source, target)
        self.query, self.key = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
        self.score, self.dropout = nn.Linear(256, 1, bias=False), nn.Dropout(0.2)

    def forward(self, source, target, length):
        encoded, state = self.encoder(self.read(source.T))
        keys, inside, outputs = self.key(encoded), torch.arange(LENGTH)[:, None] < length, []  # [S, B, D], [S, B]
        for token in self.write(target.T):
            scores = self.score(torch.tanh(self.query(state[-1]) + keys)).squeeze(-1)  # [S, B]
            weights = self.dropout(scores.masked_fill(~inside, -1e6).softmax(0))
            context = (weights[..., None] * encoded).sum(0)  # [B, D]
            output, state = self.decoder(torch.cat([context, token], -1)[None], state)
            outputs.append(output)
        return self.out(torch.cat(outputs))


def train_and_evaluate(model: nn.Module, rate: float, loss: Callable, evaluate: Callable) -> list[tuple[float, ...]]:
    """`evaluate()` after each of 30 epochs of Adam on `loss(rows)`, with gradients clipped to norm 1."""
    adam, history = torch.optim.Adam(model.parameters(), lr=rate), []
    for _ in range(30):
        model.train()
        for rows in torch.randperm(TRAIN).split(128):
            adam.zero_grad()
            loss(rows).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
        model.eval()
        with torch.no_grad():
            history.append(evaluate())
    return history


def write(name: str, command: str, best_of: Callable):
    """Write `best_of()`, after seeding, for each seed to experiments/results/NAME.json."""
    torch.set_num_threads(1)
    rows = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        rows.append({"seed": seed, **best_of()})
        print(rows[-1], flush=True)
    median = {key: statistics.median(row[key] for row in rows) for key in ("valid.loss", "as_plotted")}
    environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    report = {"command": f"python experiments/peers/{command}", "median": median, "seeds": rows}
    text = json.dumps(report | {"environment": environment}, indent=1) + "\n"
    place = Path(__file__).resolve().parents[1] / "results" / f"{name}.json"
    place.write_text(text, encoding="utf-8")


def main(path: str, decoder: str = ""):
    (source, target), validation = sentences(path), torch.arange(TRAIN, TRAIN + VALID + 1).split(VALID)
    source, source_size, source_padding = tokens_to_ids(source, LENGTH)
    target, target_size, padding = tokens_to_ids(target, LENGTH + 1)  # <bos> is not counted
    length, attend = (source != source_padding).sum(1), decoder == "attention"
    ignored = {} if attend else {"ignore_index": padding}

    def best_of_seed():
        model = (AttentiveTranslator if attend else Translator)(source_size, target_size)

        def loss(rows):
            logits = model(source[rows], target[rows, :-1], length[rows])
            return nn.functional.cross_entropy(logits.flatten(0, 1), target[rows, 1:].T.flatten(), **ignored)

        history = train_and_evaluate(model, 0.005, loss, lambda: tuple(loss(rows).item() for rows in validation))
        return {
            "valid.loss": min(losses[0] for losses in history),
            "as_plotted": min(sum(losses) / 2 for losses in history),
        }

    name = "fra_eng_bahdanau_peer" if attend else "fra_eng_seq2seq_peer_whole_targets"
    write(name, f"d2l_seq2seq.py fra-eng.zip {decoder}".rstrip(), best_of_seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
