"""Input feeding in OpenNMT-py, beside `input_feeding`: its two decoders on the same batches.

    pip install torch==2.13.0 && pip install --no-deps OpenNMT-py==3.5.1
    python experiments/peers/opennmt_feeding.py DIR    # the published files of Multi30k

`StdRNNDecoder` and `InputFeedRNNDecoder` with their encoder, one direction, their global attention "general", their
uniform initialization within 0.1 and their dropout of the attentional vector, which is dropped before it is fed. Data,
order of the batches, sizes, embedding dropout, Adam, rates, clipping, smoothing and updates are those of the
experiment. Written to experiments/results/input_feeding_peer.json: losses after each epoch. About 5 minutes a model on
one core.
"""

import importlib
import importlib.util
import json
import math
import platform
import sys
import time
import types
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from attention_jax.config import replace  # noqa: E402
from attention_jax.data import batches  # noqa: E402
from attention_jax.data.pairs import load_pairs  # noqa: E402
from experiments import input_feeding  # noqa: E402


def opennmt() -> tuple:
    """Their encoder and two decoders, without what the rest of the package imports at its door."""
    folder = Path(importlib.util.find_spec("onmt").submodule_search_locations[0])
    for name in ("onmt", "onmt.modules", "onmt.utils", "onmt.decoders", "onmt.encoders"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder.parent.joinpath(*name.split(".")))]
    modules, load = sys.modules["onmt.modules"], importlib.import_module
    modules.GlobalAttention = load("onmt.modules.global_attention").GlobalAttention
    modules.context_gate_factory = None
    decoders = load("onmt.decoders.decoder")
    return load("onmt.encoders.rnn_encoder").RNNEncoder, decoders.StdRNNDecoder, decoders.InputFeedRNNDecoder


RNNEncoder, StdRNNDecoder, InputFeedRNNDecoder = opennmt()


class Embeddings(nn.Module):
    """What their encoder and decoder ask of embeddings: tokens [B, T, 1] -> [B, T, E], dropped."""

    def __init__(self, vocabulary: int, size: int, dropout: float):
        super().__init__()
        self.embedding_size = size
        self.table, self.drop = nn.Embedding(vocabulary, size), nn.Dropout(dropout)

    def forward(self, tokens):
        return self.drop(self.table(tokens[..., 0]))


class Translator(nn.Module):
    def __init__(self, options, source: int, target: int):
        super().__init__()
        size, rate = options.hidden_size, options.embed_dropout
        decoder = InputFeedRNNDecoder if options.input_feeding else StdRNNDecoder
        self.encoder = RNNEncoder("GRU", False, 1, size, 0.0, Embeddings(source, size, rate))
        self.decoder = decoder(
            "GRU",
            False,
            1,
            size,
            options.score,
            dropout=options.output_dropout,
            embeddings=Embeddings(target, size, rate),
        )
        self.out = nn.Linear(size, target)
        for weight in self.parameters():
            nn.init.uniform_(weight, -0.1, 0.1)

    def forward(self, source, length, target):
        """Tokens [B, S] and the target's [B, T] -> logits [B, T, V]."""
        memory, last, _ = self.encoder(source[..., None], length)
        self.decoder.init_state(source, memory, last)
        return self.out(self.decoder(target[..., None], memory, src_len=length)[0])


def total_loss(model, pairs, rows, smoothing: float = 0.0):
    """The sum over the target tokens of some rows, and their number."""
    source, length, target, words = (torch.from_numpy(array[rows]).long() for array in pairs)
    source = source[:, : length.max()]
    real = torch.arange(target.shape[1] - 1)[None] < words[:, None]
    logits = model(source, length, target[:, :-1])[real]
    loss = nn.functional.cross_entropy(logits, target[:, 1:][real], label_smoothing=smoothing, reduction="sum")
    return loss, int(real.sum())


def rate(optim, step: int, steps: int) -> float:
    """As `attention_jax.train.optimizer.schedule`, step counted from 1."""
    progress = (step - optim.warmup_steps) / (steps - optim.warmup_steps)
    return optim.learning_rate * min(step / optim.warmup_steps, 0.5 + 0.5 * math.cos(math.pi * max(progress, 0.0)))


def train_and_evaluate(config, data) -> list[dict]:
    """The losses after each epoch."""
    torch.manual_seed(config.train.seed)
    model = Translator(config.model, len(data.source_vocabulary), len(data.target_vocabulary))
    train, adam, (pairs,), history, step = config.train, torch.optim.Adam(model.parameters()), data.train, [], 0
    steps = train.total_epochs * -(-len(pairs.source) // train.batch_size)
    for epoch in range(train.total_epochs):
        began, losses = time.time(), []
        plan = batches.plan(
            config.train.seed, epoch, [len(pairs.source)], data.batch_sizes, config.train.steps_per_call
        )
        model.train()
        for indices, weight in ((i, w) for chunk in plan for i, w in zip(chunk.indices, chunk.weight) if w.any()):
            step += 1
            adam.param_groups[0]["lr"] = rate(config.optim, step, steps)
            loss, count = total_loss(model, pairs, indices[weight > 0], train.label_smoothing)
            adam.zero_grad()
            (loss / count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
            adam.step()
            losses.append((loss.item(), count))
        model.eval()
        with torch.no_grad():
            valid = data.held_out["valid"]
            held_out = [total_loss(model, valid, slice(i, i + 128)) for i in range(0, len(valid.source), 128)]
        mean = lambda sums: float(sum(loss for loss, _ in sums) / sum(count for _, count in sums))
        row = {"epoch": epoch + 1, "step": step, "train.loss": mean(losses), "valid.loss": mean(held_out)}
        history.append(row | {"seconds": round(time.time() - began, 1)})
        print(config.model.input_feeding, history[-1], flush=True)
    return history


def main(path: str):
    torch.set_num_threads(1)
    config = replace(input_feeding.config(), **{"data.path": path})
    data = load_pairs(config.data, config.train.batch_size)
    histories = {
        name: train_and_evaluate(replace(config, **{"model.input_feeding": name == "general-feeding"}), data)
        for name in ("general", "general-feeding")
    }
    environment = {"torch": torch.__version__, "OpenNMT-py": "3.5.1", "python": platform.python_version()}
    report = {"command": "python experiments/peers/opennmt_feeding.py multi30k", "environment": environment}
    place = ROOT / "experiments" / "results" / "input_feeding_peer.json"
    place.write_text(json.dumps(report | {"histories": histories}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
