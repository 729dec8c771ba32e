"""Learning algorithms from examples: Neural Turing Machines, and LSTMs beside them, on the tasks of
`data/algorithmic.py`."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.config import Config
from attention_jax.data import algorithmic, batches
from attention_jax.report.attended import LONGEST, Answer, Attention, Looked, Side, check_length
from attention_jax.report.figures import over_time
from attention_jax.tasks import Evaluation, build_model, initial
from attention_jax.train.placement import map_batches

SHOWN = 20
"""Sequences in each set that measures generalisation."""
EVALUATED = 200
"""Sequences a batch when evaluating."""
BEYOND = {  # task -> {name of a set: arguments of its generator}; sizes the machine never saw in training
    "copy": {f"length_{n}": {"shortest": n, "longest": n} for n in (10, 20, 30, 50, 120)},
    "repeat_copy": {
        "length_10_times_10": {"shortest": 10, "longest": 10, "fewest": 10, "most": 10},
        "length_20_times_10": {"shortest": 20, "longest": 20, "fewest": 10, "most": 10},
        "length_10_times_20": {"shortest": 10, "longest": 10, "fewest": 20, "most": 20},
    },
    "associative_recall": {f"items_{n}": {"fewest": n, "most": n} for n in (6, 10, 15, 20)},
    "ngrams": {},
    "priority_sort": {},
}


def ends(length: np.ndarray) -> tuple[int, ...]:
    """Where sequences may be cut: at quarters of the longest one. A program is compiled for each, and padding costs a
    quarter at most.

    >>> ends(np.array([3, 41, 11])), ends(np.array([200, 200]))
    ((11, 21, 31, 41), (200,))
    """
    longest = int(length.max())
    cuts = (-(-longest * quarter // 4) for quarter in (1, 2, 3, 4))
    return tuple(cut for cut in cuts if cut >= length.min())


class Sets(NamedTuple):
    """Sequences to train on, to choose the best epoch on, to test on, and, by name, of sizes that do not occur in
    training."""

    train: algorithmic.Sequences
    valid: algorithmic.Sequences
    test: algorithmic.Sequences
    beyond: dict[str, algorithmic.Sequences]


def build(config: Config) -> "MemoryTask":
    """The task of a machine on one of the five tasks."""
    train, valid, test = algorithmic.load(config.data, config.train.seed)
    rng, generate = np.random.default_rng([config.train.seed, 1]), algorithmic.GENERATORS[config.data.task]
    beyond = {name: generate(rng, SHOWN, **arguments) for name, arguments in BEYOND[config.data.task].items()}
    return MemoryTask(config, Sets(train, valid, test, beyond), build_model(config, train.targets.shape[-1]))


@dataclass(frozen=True, eq=False)
class MemoryTask:
    """A machine on an algorithm's sequences (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: Config
    data: Sets
    model: nn.Module

    @property
    def buckets(self) -> tuple[dict, ...]:
        return (self.data.train._asdict(),)

    def init(self, rng):
        return initial(self.model, rng, (1, 1, self.data.train.inputs.shape[-1]))

    def costs(self, params, batch):
        """Each row's cost in nats and its number of wrong bits, [B]."""
        logits, _ = self.model.apply({"params": params}, batch["inputs"])
        targets, mask = batch["targets"].astype(jnp.float32), batch["mask"][..., None].astype(jnp.float32)
        cost = jax.nn.softplus(logits) - targets * logits  # -log p(target) of independent bits
        return (cost * mask).sum((1, 2)), jnp.where((logits > 0) != (targets > 0.5), mask, 0.0).sum((1, 2))

    def look(self, params, batch):
        """(logits, weightings of the heads)."""
        return self.model.apply({"params": params}, batch["inputs"], look=True)

    def loss(self, params, batch, rng):
        """A batch is cut behind its longest sequence."""
        cuts, names = ends(self.data.train.length), ("inputs", "targets", "mask")
        until = lambda end: lambda: self.costs(params, {name: batch[name][:, :end] for name in names})
        nats, wrong = jax.lax.switch(
            jnp.searchsorted(jnp.array(cuts), jnp.max(batch["length"])), [until(end) for end in cuts]
        )
        total, count = (nats * batch["weight"]).sum(), batch["weight"].sum()
        bits, errors = (total / jnp.log(2.0), count), ((wrong * batch["weight"]).sum(), count)
        return total, count, {"bits_per_sequence": bits, "wrong_bits": errors}

    def plan(self, epoch: int, steps_per_call: int) -> list[batches.Chunk]:
        """An epoch takes the next `epoch_sequences` of the training set, from its start again once they are used up."""
        data, train = self.config.data, self.config.train
        rows = [min(data.epoch_sequences, data.sequences)]
        chunks = batches.plan(train.seed, epoch, rows, [train.batch_size], steps_per_call)
        first = epoch * data.epoch_sequences
        return [chunk._replace(indices=(chunk.indices + first) % data.sequences) for chunk in chunks]

    def measure(self, params, sequences: algorithmic.Sequences) -> tuple[np.ndarray, np.ndarray]:
        """Bits and wrong bits of every sequence of a set."""
        nats, wrong = map_batches(self.costs, params, sequences._asdict(), EVALUATED)
        return nats / np.log(2.0), wrong

    def scores(self, params, split: str, sequences: algorithmic.Sequences) -> dict[str, float]:
        """Mean bits and wrong bits of a sequence, for n-grams also the bits above those of the best predictor."""
        bits, wrong = self.measure(params, sequences)
        scores = {f"{split}.bits_per_sequence": float(bits.mean()), f"{split}.wrong_bits": float(wrong.mean())}
        if self.config.data.task == "ngrams":
            scores[f"{split}.bits_over_optimum"] = float(bits.mean() - optimum(sequences).mean())
        return scores

    def evaluate(self, params, full: bool) -> Evaluation:
        """The validation sequences; if `full`, also fresh test sequences and those of sizes beyond training."""
        scores = self.scores(params, "valid", self.data.valid)
        metrics = {"valid.loss": float(scores["valid.bits_per_sequence"] * np.log(2.0))} | scores
        metrics |= self.scores(params, "test", self.data.test) if full else {}
        for name, sequences in self.data.beyond.items() if full else ():
            bits, wrong = self.measure(params, sequences)
            metrics |= {f"test.bits_{name}": float(bits.mean()), f"test.wrong_bits_{name}": float(wrong.sum())}
        if full and self.config.data.task == "copy":
            wrong_bits = [metrics[f"test.wrong_bits_length_{n}"] for n in (10, 20, 30, 50)]
            metrics["test.wrong_bits_to_50"] = sum(wrong_bits)
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        task, beyond = self.config.data.task, self.data.beyond if full else ()
        scores = ["bits_per_sequence", "wrong_bits", *["bits_over_optimum"] * (task == "ngrams")]
        splits = ("valid", "test") if full else ("valid",)
        names = ["valid.loss", *(f"{split}.{score}" for split in splits for score in scores)]
        names += [f"test.{kind}_{name}" for name in beyond for kind in ("bits", "wrong_bits")]
        return names + ["test.wrong_bits_to_50"] * (full and task == "copy")

    def evaluated_with(self) -> dict:
        return {"evaluation": (self.costs, self.data.valid._asdict(), EVALUATED)}

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        task, longest = self.config.data.task, int(self.data.valid.length.argmax())
        figures = [self.draw(params, self.data.valid, longest, directory / f"{task}.png")]
        for name, sequences in list(self.data.beyond.items())[-2:]:
            figures.append(self.draw(params, sequences, 0, directory / f"{task}_{name}.png"))
        return figures

    def draw(self, params, sequences: algorithmic.Sequences, row: int, path: Path) -> Path:
        """Inputs, targets, outputs and weightings of one sequence (figures 4 to 6 of the paper)."""
        steps = int(sequences.length[row])
        logits, weights = map_batches(self.look, params, {"inputs": sequences.inputs[row : row + 1, :steps]}, 1)
        mask = sequences.mask[row, :steps, None]
        panels = {
            "inputs": sequences.inputs[row, :steps],
            "targets": sequences.targets[row, :steps],
            "outputs": mask / (1 + np.exp(-logits[0])),
        }
        return over_time(panels | weight_panels(weights), path)

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """What the machine copies of each text, which is words of bits; the first one is drawn."""
        return [self.copied(params, text, figure if i == 0 else None) for i, text in enumerate(texts)]

    def sequence_of(self, text: str) -> algorithmic.Sequences:
        """The sequence that asks for a copy of a text. Raises InputError where that cannot be."""
        words, width = text.split(), self.data.train.targets.shape[-1]
        are_bits = all(len(word) == width and set(word) <= {"0", "1"} for word in words)
        if self.config.data.task != "copy" or not words or not are_bits:
            raise InputError(
                f"needed are words of {width} bits for a machine that copies, such as '10110010 01101100'; got {text!r}"
            )
        sequences = algorithmic.copy(np.random.default_rng(0), 1, len(words), len(words))
        bits = [[int(bit) for bit in word] for word in words]
        sequences.inputs[0, : len(words), :width] = sequences.targets[0, len(words) + 1 :] = bits
        return sequences

    def copied(self, params, text: str, figure: Path | None) -> str:
        """What the machine copies of one text."""
        sequences = self.sequence_of(text)
        logits, _ = map_batches(self.look, params, {"inputs": sequences.inputs}, 1)
        if figure:
            self.draw(params, sequences, 0, Path(figure))
        return self.words(sequences, 0, logits[0])

    def words(self, sequences: algorithmic.Sequences, row: int, logits: np.ndarray) -> str:
        """What a machine answered where it was asked, as words of bits."""
        asked = logits[sequences.mask[row, : len(logits)] > 0]
        return " ".join("".join("1" if x > 0 else "0" for x in bits) for bits in asked)

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """What the heads write to and read from over time: the longest held-out sequence, and one that is longer than
        any in training; or texts, which are words of bits."""
        if texts:
            chosen = [(text, self.sequence_of(text), 0) for text in texts]
        else:
            chosen = [("the longest held-out sequence", self.data.valid, int(self.data.valid.length.argmax()))]
            fitting = {name: one for name, one in self.data.beyond.items() if one.length[0] <= LONGEST // 2}
            for name, longer in list(fitting.items())[-1:]:
                chosen.append((f"{name.replace('_', ' ')}, longer than in training", longer, 0))
        looked = [self.looked_at(params, *one) for one in chosen]
        return () if None in looked else tuple(looked)

    def looked_at(self, params, title: str, sequences: algorithmic.Sequences, row: int) -> Looked | None:
        """The heads over one sequence; None for a machine without memory."""
        steps = int(sequences.length[row])
        check_length(range(steps), title)
        logits, weights = map_batches(self.look, params, {"inputs": sequences.inputs[row : row + 1, :steps]}, 1)
        if not weights:
            return None
        heads = np.concatenate([weights["write"][0], weights["read"][0]], axis=1).swapaxes(0, 1)  # [H, T, N]
        names = [f"{name} head {i + 1}" for name in ("write", "read") for i in range(weights[name].shape[2])]
        mask = sequences.mask[row, :steps, None]
        channels = {
            "inputs": sequences.inputs[row, :steps],
            "targets": sequences.targets[row, :steps],
            "outputs": mask / (1 + np.exp(-logits[0])),
        }
        times = Side(tuple(f"{t + 1}" for t in range(steps)), channels=channels)
        locations = Side(tuple(f"{n}" for n in range(heads.shape[-1])))
        attention = Attention("memory", heads[None], times, locations, tuple(names))
        return Looked(title, (Answer(self.words(sequences, row, logits[0]), (attention,)),))

    def describe(self) -> dict:
        train = self.data.train
        asked = float(train.mask.sum(1).mean() * train.targets.shape[-1])
        facts = {"sequences": len(train.length), "longest": int(train.length.max()), "bits_asked_for": asked}
        if self.config.data.task == "ngrams":
            bits = optimum(self.data.valid)
            error = float(bits.std() / len(bits) ** 0.5)
            facts |= {"optimum_bits": float(bits.mean()), "optimum_standard_error": error}
        return facts


def weight_panels(weights: dict) -> dict:
    """{title: [T, N]} of the first row's heads, at the locations that some head ever looked at."""
    panels = {}
    if weights:
        used = np.max([heads[0].max((0, 1)) for heads in weights.values()], axis=0) > 0.05
    for name, of_heads in weights.items():
        heads = of_heads[0][:, :, used].swapaxes(0, 1)  # [heads, T, N]
        panels |= {f"{name} weights" + (f" {i}" if len(heads) > 1 else ""): head for i, head in enumerate(heads)}
    return panels


def optimum(sequences: algorithmic.Sequences) -> np.ndarray:
    """The bits that the best predictor of n-grams needs for each sequence."""
    bits = sequences.targets[..., 0]
    best = algorithmic.ngram_optimum(bits)
    return -np.log2(np.where(bits == 1, best, 1 - best)).sum(1)
