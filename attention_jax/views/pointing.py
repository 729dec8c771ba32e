"""Pointer Networks: hulls of new sets of points, and the input position of each step."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from attention_jax.data.convex_hulls import Hulls, HullSets
from attention_jax.errors import InputError
from attention_jax.report.attention_data import Attention, AttentionRecord, Axis, Prediction, check_length
from attention_jax.report.heatmaps import show_heatmaps
from attention_jax.tasks import Evaluation
from attention_jax.tasks.pointing import EVALUATED
from attention_jax.train.placement import map_batches
from attention_jax.views import View

DRAWN = 2
"""The number of point sets in a figure."""


def first(sets: Hulls, count: int) -> Hulls:
    """Return the first `count` sets."""
    return Hulls(*(array[:count] for array in sets))


def lengths(target: np.ndarray) -> np.ndarray:
    """Return the length of each sequence of positions [N, T], including the 0 that ends it.

    >>> lengths(np.array([[1, 2, 0, 0], [3, 1, 2, 1]])).tolist()
    [3, 4]
    """
    return np.minimum((target > 0).sum(1) + 1, target.shape[1]).astype(np.int32)


class PointingView(View):
    """Decoded hulls, and the points that each step attends to."""

    def attention(self, params, batch):
        """Return the weights [B, T, S] of every step, with teacher forcing."""
        return jnp.exp(self.task.log_p(params, batch))

    def excerpt(self) -> HullSets:
        """Return one training set, for its shape, and the validation sets of `attention_maps`."""
        return HullSets(first(self.data.train, 1), first(self.data.valid, DRAWN), {})

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        return [self.draw(params, first(self.data.valid, DRAWN), directory / "pointers.png")]

    def draw(self, params, sets: Hulls, path: Path) -> Path:
        """Plot the weights of each step with teacher forcing, one panel for each set."""
        weights = map_batches(self.attention, params, sets._asdict(), EVALUATED)
        sizes = list(zip(sets.target_length, sets.length, strict=True))
        panels = [weights[row, :corners, :points] for row, (corners, points) in enumerate(sizes)]
        steps = [[f"{position}" for position in sets.target[row, :corners]] for row, (corners, _) in enumerate(sizes)]
        positions = [[f"{position}" for position in range(points)] for _, points in sizes]
        return show_heatmaps([panels], [steps], [positions], path, xlabel="point", ylabel="corner of the hull")

    def sets_of(self, texts: list[str]) -> Hulls:
        """Parse sets of points such as "0.1,0.2 0.5,0.9 0.8,0.3"; InputError for other texts."""
        most, longest = self.data.train.inputs.shape[1] - 1, self.data.train.target.shape[1]
        inputs = np.zeros((len(texts), most + 1, 3), np.float32)
        inputs[:, 0, 2] = 1.0
        for row, text in zip(inputs, texts, strict=True):
            try:
                points = np.array([[float(x) for x in word.split(",")] for word in text.split()])
                row[1 : len(points) + 1, :2] = points.reshape(-1, 2)
            except ValueError:
                points = np.zeros((0, 2))
            if not 3 <= len(points) <= most:
                raise InputError(f"expected 3 to {most} points such as '0.1,0.2 0.5,0.9 0.8,0.3'; got {text!r}")
        length = np.array([len(text.split()) + 1 for text in texts], np.int32)
        target = np.zeros((len(texts), longest), np.int32)
        return Hulls(inputs, length, target, np.full(len(texts), longest, np.int32))

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return the numbers of the corners of each hull, counted from 1, with the first one again at the end."""
        sets = self.decode_hulls(params, self.sets_of(texts))
        if figure is not None:
            self.draw(params, first(sets, DRAWN), figure)
        return [" ".join(str(position) for position in row if position) for row in sets.target]

    def decode_hulls(self, params, sets: Hulls) -> Hulls:
        """Return the same sets with the decoded hulls as targets."""
        target = map_batches(self.task.generate, params, sets._asdict(), EVALUATED)
        return sets._replace(target=target, target_length=lengths(target))

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the attention of each step to the points, for texts or for some held-out sets."""
        sets = self.decode_hulls(params, self.sets_of(texts) if texts else first(self.data.valid, DRAWN))
        weights = map_batches(self.attention, params, sets._asdict(), EVALUATED)
        records = []
        for row, (corners, size) in enumerate(zip(sets.target_length, sets.length, strict=True)):
            points = [f"{i}: {x:.2f},{y:.2f}" for i, (x, y, _) in enumerate(sets.inputs[row, :size]) if i]
            check_length(points, "a set of points")
            target = [f"{position}" for position in sets.target[row, :corners]]
            attention = weights[row, None, None, :corners, :size]
            attention = Attention("cross", attention, Axis(tuple(target)), Axis(("0: end", *points)))
            records.append(AttentionRecord("; ".join(points), (Prediction(" ".join(target), (attention,)),)))
        return tuple(records)
