"""Pointing at positions of the input: hulls of new sets of points, and where each step points."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.data.convex_hulls import Hulls, HullSets
from attention_jax.report.attended import Answer, Attention, Looked, Side, check_length
from attention_jax.report.figures import show_heatmaps
from attention_jax.tasks import Evaluation
from attention_jax.tasks.pointing import EVALUATED
from attention_jax.train.placement import map_batches
from attention_jax.views import View

DRAWN = 2
"""Sets in a figure."""


def first(sets: Hulls, count: int) -> Hulls:
    """The first few of them."""
    return Hulls(*(array[:count] for array in sets))


def ended(target: np.ndarray) -> np.ndarray:
    """The length of each row of places [N, T] with the 0 that ends it.

    >>> ended(np.array([[1, 2, 0, 0], [3, 1, 2, 1]])).tolist()
    [3, 4]
    """
    return np.minimum((target > 0).sum(1) + 1, target.shape[1]).astype(np.int32)


class PointingView(View):
    """The hulls that a network writes, and the points that each step attends to."""

    def attention(self, params, batch):
        """The weights [B, T, S] of every step, teacher forced."""
        return jnp.exp(self.task.log_p(params, batch))

    def excerpt(self) -> HullSets:
        """One training set, for its shape, and the validation sets that `attention_maps` shows."""
        return HullSets(first(self.data.train, 1), first(self.data.valid, DRAWN), {})

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        return [self.draw(params, first(self.data.valid, DRAWN), directory / "pointers.png")]

    def draw(self, params, sets: Hulls, path: Path) -> Path:
        """Where each step points on the way to the target, a panel a set."""
        weights = map_batches(self.attention, params, sets._asdict(), EVALUATED)
        sizes = list(zip(sets.target_length, sets.length, strict=True))
        panels = [weights[row, :corners, :places] for row, (corners, places) in enumerate(sizes)]
        steps = [[f"{place}" for place in sets.target[row, :corners]] for row, (corners, _) in enumerate(sizes)]
        places = [[f"{place}" for place in range(places)] for _, places in sizes]
        return show_heatmaps([panels], [steps], [places], path, xlabel="place", ylabel="corner of the hull")

    def sets_of(self, texts: list[str]) -> Hulls:
        """Sets of points from texts such as "0.1,0.2 0.5,0.9 0.8,0.3". Raises InputError where one is none."""
        most, room = self.data.train.inputs.shape[1] - 1, self.data.train.target.shape[1]
        inputs = np.zeros((len(texts), most + 1, 3), np.float32)
        inputs[:, 0, 2] = 1.0
        for row, text in zip(inputs, texts, strict=True):
            try:
                points = np.array([[float(x) for x in word.split(",")] for word in text.split()])
                row[1 : len(points) + 1, :2] = points.reshape(-1, 2)
            except ValueError:
                points = np.zeros((0, 2))
            if not 3 <= len(points) <= most:
                raise InputError(f"needed are 3 to {most} points such as '0.1,0.2 0.5,0.9 0.8,0.3'; got {text!r}")
        length = np.array([len(text.split()) + 1 for text in texts], np.int32)
        return Hulls(inputs, length, np.zeros((len(texts), room), np.int32), np.full(len(texts), room, np.int32))

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """The numbers of the corners of each text's hull, counted from 1, the first one again at the end."""
        sets = self.written(params, self.sets_of(texts))
        if figure is not None:
            self.draw(params, first(sets, DRAWN), figure)
        return [" ".join(str(place) for place in row if place) for row in sets.target]

    def written(self, params, sets: Hulls) -> Hulls:
        """The same sets with what the network writes as their targets."""
        target = map_batches(self.task.generate, params, sets._asdict(), EVALUATED)
        return sets._replace(target=target, target_length=ended(target))

    def attention_maps(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where each step points, in texts or in a few held-out sets."""
        sets = self.written(params, self.sets_of(texts) if texts else first(self.data.valid, DRAWN))
        weights = map_batches(self.attention, params, sets._asdict(), EVALUATED)
        looked = []
        for row, (corners, places) in enumerate(zip(sets.target_length, sets.length, strict=True)):
            points = [f"{place}: {x:.2f},{y:.2f}" for place, (x, y, _) in enumerate(sets.inputs[row, :places]) if place]
            check_length(points, "a set of points")
            target = [f"{place}" for place in sets.target[row, :corners]]
            own = weights[row, None, None, :corners, :places]
            attention = Attention("cross", own, Side(tuple(target)), Side(("0: end", *points)))
            looked.append(Looked("; ".join(points), (Answer(" ".join(target), (attention,)),)))
        return tuple(looked)
