"""Neural Turing Machines: copies of new bit sequences, and the addressing of the memory by the heads."""

from pathlib import Path

import numpy as np

from attention_jax.data import algorithmic
from attention_jax.data.algorithmic import SequenceSets
from attention_jax.errors import InputError
from attention_jax.report.attention_data import LONGEST, Attention, AttentionRecord, Axis, Prediction, check_length
from attention_jax.report.panels import over_time
from attention_jax.tasks import Evaluation
from attention_jax.train.placement import map_batches
from attention_jax.views import View


class MemoryView(View):
    """Outputs of a machine, and the memory locations that its heads attend to."""

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
        task, longest = self.task.config.data.task, int(self.data.valid.length.argmax())
        figures = [self.draw(params, self.data.valid, longest, directory / f"{task}.png")]
        for name, sequences in list(self.data.beyond.items())[-2:]:
            figures.append(self.draw(params, sequences, 0, directory / f"{task}_{name}.png"))
        return figures

    def draw(self, params, sequences: algorithmic.Sequences, row: int, path: Path) -> Path:
        """Plot inputs, targets, outputs and weightings of one sequence (Graves et al. 2014, figures 4 to 6)."""
        steps = int(sequences.length[row])
        logits, weights = map_batches(self.attention, params, {"inputs": sequences.inputs[row : row + 1, :steps]}, 1)
        mask = sequences.mask[row, :steps, None]
        panels = {
            "inputs": sequences.inputs[row, :steps],
            "targets": sequences.targets[row, :steps],
            "outputs": mask / (1 + np.exp(-logits[0])),
        }
        return over_time(panels | weight_panels(weights), path)

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return the machine's copy of each text, which consists of words of bits; `figure` shows the first one."""
        return [self.copy_text(params, text, figure if i == 0 else None) for i, text in enumerate(texts)]

    def sequence_of(self, text: str) -> algorithmic.Sequences:
        """Return the input sequence of the copy task for a text; InputError unless it consists of words of bits."""
        words, width = text.split(), self.data.train.targets.shape[-1]
        are_bits = all(len(word) == width and set(word) <= {"0", "1"} for word in words)
        if self.task.config.data.task != "copy" or not words or not are_bits:
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
        mask = sequences.mask[row, :steps, None]
        channels = {
            "inputs": sequences.inputs[row, :steps],
            "targets": sequences.targets[row, :steps],
            "outputs": mask / (1 + np.exp(-logits[0])),
        }
        times = Axis(tuple(f"{t + 1}" for t in range(steps)), channels=channels)
        locations = Axis(tuple(f"{n}" for n in range(heads.shape[-1])))
        attention = Attention("memory", heads[None], times, locations, tuple(names))
        return AttentionRecord(title, (Prediction(self.words(sequences, row, logits[0]), (attention,)),))


def weight_panels(weights: dict) -> dict:
    """Return {title: weights [T, N]} of the heads for the first sequence, at locations with a weight above 0.05."""
    panels = {}
    if weights:
        used = np.max([heads[0].max((0, 1)) for heads in weights.values()], axis=0) > 0.05
    for name, of_heads in weights.items():
        heads = of_heads[0][:, :, used].swapaxes(0, 1)  # [heads, T, N]
        panels |= {f"{name} weights" + (f" {i}" if len(heads) > 1 else ""): head for i, head in enumerate(heads)}
    return panels
