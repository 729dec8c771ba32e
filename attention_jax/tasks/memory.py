"""Algorithm learning: Neural Turing Machines and LSTMs on the tasks of `data/algorithmic.py` (Graves et al. 2014)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config
from attention_jax.data import algorithmic, batches
from attention_jax.data.algorithmic import SequenceSets
from attention_jax.errors import InputError
from attention_jax.report.attention_data import LONGEST, Attention, AttentionRecord, Axis, Prediction, check_length
from attention_jax.report.panels import over_time
from attention_jax.tasks import Evaluation, Task, build_model, initial
from attention_jax.train.placement import map_batches

SHOWN = 20
"""The number of sequences in each set that measures length generalization."""
EVALUATED = 200
"""Sequences per batch in evaluation."""
BEYOND = {  # task -> {name of a set: arguments of its generator}; sizes that training does not contain
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


def cut_lengths(length: np.ndarray) -> tuple[int, ...]:
    """Return the lengths to which batches may be truncated: quarters of the longest sequence.

    One program is compiled for each, and at most a quarter of the longest sequence is padding.

    >>> cut_lengths(np.array([3, 41, 11])), cut_lengths(np.array([200, 200]))
    ((11, 21, 31, 41), (200,))
    """
    longest = int(length.max())
    cuts = (-(-longest * quarter // 4) for quarter in (1, 2, 3, 4))
    return tuple(cut for cut in cuts if cut >= length.min())


class MemoryTask(Task):
    """A network that learns an algorithm from sequences; `data` are `SequenceSets`."""

    @classmethod
    def load(cls, config: Config) -> SequenceSets:
        train, valid, test = algorithmic.load(config.data, config.train.seed)
        rng, generate = np.random.default_rng([config.train.seed, 1]), algorithmic.GENERATORS[config.data.task]
        beyond = {name: generate(rng, SHOWN, **arguments) for name, arguments in BEYOND[config.data.task].items()}
        return SequenceSets(train, valid, test, beyond)

    @classmethod
    def make_model(cls, config: Config, data: SequenceSets):
        return build_model(config, data.train.targets.shape[-1])

    def init(self, rng):
        return initial(self.model, rng, (1, 1, self.data.train.inputs.shape[-1]))

    def nll(self, params, batch):
        """Return the negative log-likelihood of each sequence in nats [B], and its number of wrong bits [B]."""
        logits, _ = self.model.apply({"params": params}, batch["inputs"])
        targets, mask = batch["targets"].astype(jnp.float32), batch["mask"][..., None].astype(jnp.float32)
        cost = jax.nn.softplus(logits) - targets * logits  # -log p(target) of independent bits
        return (cost * mask).sum((1, 2)), jnp.where((logits > 0) != (targets > 0.5), mask, 0.0).sum((1, 2))

    def loss(self, params, batch, rng):
        """Computed up to the `cut_lengths` of the longest sequence of the batch."""
        cuts, names = cut_lengths(self.data.train.length), ("inputs", "targets", "mask")
        until = lambda end: lambda: self.nll(params, {name: batch[name][:, :end] for name in names})
        nats, wrong = jax.lax.switch(
            jnp.searchsorted(jnp.array(cuts), jnp.max(batch["length"])), [until(end) for end in cuts]
        )
        total, count = (nats * batch["weight"]).sum(), batch["weight"].sum()
        bits, errors = (total / jnp.log(2.0), count), ((wrong * batch["weight"]).sum(), count)
        return total, count, {"bits_per_sequence": bits, "wrong_bits": errors}

    def plan(self, epoch: int, steps_per_call: int) -> list[batches.Chunk]:
        """Plan an epoch: the next `epoch_sequences` of the training set, which starts again at its end."""
        data, train = self.config.data, self.config.train
        rows = [min(data.epoch_sequences, data.sequences)]
        chunks = batches.plan(train.seed, epoch, rows, [train.batch_size], steps_per_call)
        first = epoch * data.epoch_sequences
        return [chunk._replace(indices=(chunk.indices + first) % data.sequences) for chunk in chunks]

    def measure(self, params, sequences: algorithmic.Sequences) -> tuple[np.ndarray, np.ndarray]:
        """Return the negative log-likelihood in bits, [N], and the number of wrong bits, [N], of each sequence."""
        nats, wrong = map_batches(self.nll, params, sequences._asdict(), EVALUATED)
        return nats / np.log(2.0), wrong

    def scores(self, params, split: str, sequences: algorithmic.Sequences) -> dict[str, float]:
        """Return mean bits and wrong bits per sequence, for n-grams also the bits above the optimal predictor's."""
        bits, wrong = self.measure(params, sequences)
        scores = {f"{split}.bits_per_sequence": float(bits.mean()), f"{split}.wrong_bits": float(wrong.mean())}
        if self.config.data.task == "ngrams":
            scores[f"{split}.bits_over_optimum"] = float(bits.mean() - optimum(sequences).mean())
        return scores

    def evaluate(self, params, full: bool) -> Evaluation:
        """Evaluate the validation set; in `full` also the test set and sequences longer than in training."""
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

    def describe(self) -> dict:
        train = self.data.train
        bits = float(train.mask.sum(1).mean() * train.targets.shape[-1])
        facts = {"sequences": len(train.length), "longest": int(train.length.max()), "bits_asked_for": bits}
        if self.config.data.task == "ngrams":
            bits = optimum(self.data.valid)
            error = float(bits.std() / len(bits) ** 0.5)
            facts |= {"optimum_bits": float(bits.mean()), "optimum_standard_error": error}
        return facts

    def attention(self, params, batch):
        """Return (logits, address weightings of the heads)."""
        return self.model.apply({"params": params}, batch["inputs"], return_weights=True)

    def excerpt(self) -> SequenceSets:
        """Return example sequences: one of training, the longest of validation, and one of each test length."""
        take_row = lambda sequences, row=0: type(sequences)(*(column[[row]] for column in sequences))
        train, valid, test, beyond = self.data
        longest = take_row(valid, int(valid.length.argmax()))
        return SequenceSets(
            take_row(train), longest, take_row(test), {name: take_row(sequences) for name, sequences in beyond.items()}
        )

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        task, longest = self.config.data.task, int(self.data.valid.length.argmax())
        figures = [self.draw(params, self.data.valid, longest, directory / f"{task}.png")]
        for name, sequences in list(self.data.beyond.items())[-2:]:
            figures.append(self.draw(params, sequences, 0, directory / f"{task}_{name}.png"))
        return figures

    def draw(self, params, sequences: algorithmic.Sequences, row: int, path: Path) -> Path:
        """Plot inputs, targets, outputs and weightings of one sequence (Graves et al. 2014, figures 4 to 6)."""
        steps = int(sequences.length[row])
        logits, weights = map_batches(self.attention, params, {"inputs": sequences.inputs[row : row + 1, :steps]}, 1)
        return over_time(channels_of(sequences, row, logits[0]) | weight_panels(weights), path)

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return the machine's copy of each text, which consists of words of bits; `figure` shows the first one."""
        return [self.copy_text(params, text, figure if i == 0 else None) for i, text in enumerate(texts)]

    def sequence_of(self, text: str) -> algorithmic.Sequences:
        """Return the input sequence of the copy task for a text; InputError unless it consists of words of bits."""
        words, width = text.split(), self.data.train.targets.shape[-1]
        are_bits = all(len(word) == width and set(word) <= {"0", "1"} for word in words)
        if self.config.data.task != "copy" or not words or not are_bits:
            raise InputError(
                f"expected words of {width} bits for a machine that copies, such as '10110010 01101100'; got {text!r}"
            )
        sequences = algorithmic.copy(np.random.default_rng(0), 1, len(words), len(words))
        bits = [[int(bit) for bit in word] for word in words]
        sequences.inputs[0, : len(words), :width] = sequences.targets[0, len(words) + 1 :] = bits
        return sequences

    def copy_text(self, params, text: str, figure: Path | None) -> str:
        """Return the machine's copy of one text."""
        sequences = self.sequence_of(text)
        logits, _ = map_batches(self.attention, params, {"inputs": sequences.inputs}, 1)
        if figure:
            self.draw(params, sequences, 0, Path(figure))
        return self.words(sequences, 0, logits[0])

    def words(self, sequences: algorithmic.Sequences, row: int, logits: np.ndarray) -> str:
        """Return the outputs [T, C] of the steps with a target as words of bits."""
        outputs = logits[sequences.mask[row, : len(logits)] > 0]
        return " ".join("".join("1" if x > 0 else "0" for x in bits) for bits in outputs)

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the addressing over time for texts of words of bits, or for the longest held-out sequence and one that
        is longer than any in training."""
        if texts:
            chosen = [(text, self.sequence_of(text), 0) for text in texts]
        else:
            chosen = [("the longest held-out sequence", self.data.valid, int(self.data.valid.length.argmax()))]
            fitting = {name: entry for name, entry in self.data.beyond.items() if entry.length[0] <= LONGEST // 2}
            for name, longer in list(fitting.items())[-1:]:
                chosen.append((f"{name.replace('_', ' ')}, longer than in training", longer, 0))
        records = [self.attention_map(params, *arguments) for arguments in chosen]
        return () if None in records else tuple(records)

    def attention_map(self, params, title: str, sequences: algorithmic.Sequences, row: int) -> AttentionRecord | None:
        """Return the addressing of all heads over one sequence; None for a machine without memory."""
        steps = int(sequences.length[row])
        check_length(range(steps), title)
        logits, weights = map_batches(self.attention, params, {"inputs": sequences.inputs[row : row + 1, :steps]}, 1)
        if not weights:
            return None
        heads = np.concatenate([weights["write"][0], weights["read"][0]], axis=1).swapaxes(0, 1)  # [H, T, N]
        names = [f"{name} head {i + 1}" for name in ("write", "read") for i in range(weights[name].shape[2])]
        times = Axis(tuple(f"{t + 1}" for t in range(steps)), channels=channels_of(sequences, row, logits[0]))
        locations = Axis(tuple(f"{n}" for n in range(heads.shape[-1])))
        attention = Attention("memory", heads[None], times, locations, tuple(names))
        return AttentionRecord(title, (Prediction(self.words(sequences, row, logits[0]), (attention,)),))


def optimum(sequences: algorithmic.Sequences) -> np.ndarray:
    """Return the bits [N] that the optimal predictor of n-grams needs for each sequence."""
    bits = sequences.targets[..., 0]
    best = algorithmic.ngram_optimum(bits)
    return -np.log2(np.where(bits == 1, best, 1 - best)).sum(1)


def channels_of(sequences: algorithmic.Sequences, row: int, logits: np.ndarray) -> dict[str, np.ndarray]:
    """Return inputs, targets and outputs [T, C] of one sequence, from the logits [T, C] of its steps."""
    inputs, targets, mask = (
        array[row, : len(logits)] for array in (sequences.inputs, sequences.targets, sequences.mask)
    )
    return {"inputs": inputs, "targets": targets, "outputs": mask[:, None] / (1 + np.exp(-logits))}


def weight_panels(weights: dict) -> dict:
    """Return {title: weights [T, N]} of the heads for the first sequence, at locations with a weight above 0.05."""
    panels = {}
    if weights:
        used = np.max([heads[0].max((0, 1)) for heads in weights.values()], axis=0) > 0.05
    for name, of_heads in weights.items():
        heads = of_heads[0][:, :, used].swapaxes(0, 1)  # [heads, T, N]
        panels |= {f"{name} weights" + (f" {i}" if len(heads) > 1 else ""): head for i, head in enumerate(heads)}
    return panels
