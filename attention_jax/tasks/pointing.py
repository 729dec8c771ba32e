"""Pointing at places of the input: Pointer Networks on convex hulls."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.config import Config, named
from attention_jax.data import batches
from attention_jax.data.convex_hulls import Hulls
from attention_jax.decode import greedy
from attention_jax.report.attended import Answer, Attention, Looked, Side, check_length
from attention_jax.report.figures import show_heatmaps
from attention_jax.tasks import Evaluation, build_model, load_once
from attention_jax.train.placement import map_batches

EVALUATED = 1_000
"""Sets a batch when evaluating."""
DRAWN = 2
"""Sets in a figure."""


class Sets(NamedTuple):
    """Sets of points to train on, to validate on, and by the name of a test to test on."""

    train: Hulls
    valid: Hulls
    tests: dict[str, Hulls]


def build(config: Config) -> "PointingTask":
    """The task of a pointer network on the sets that its data name."""
    data = Sets(*load_once(named(config.data.loader), config.data))
    return PointingTask(config, data, build_model(config, data.train.inputs.shape[-1]))


def before(target):
    """What each step comes after: the target one step later, 0 at first; [B, T] -> [B, T]."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)))


def first(sets: Hulls, count: int) -> Hulls:
    """The first few of them."""
    return Hulls(*(array[:count] for array in sets))


def ended(target: np.ndarray) -> np.ndarray:
    """The length of each row of places [N, T] with the 0 that ends it.

    >>> ended(np.array([[1, 2, 0, 0], [3, 1, 2, 1]])).tolist()
    [3, 4]
    """
    return np.minimum((target > 0).sum(1) + 1, target.shape[1]).astype(np.int32)


def polygon(row: np.ndarray) -> tuple[int, ...]:
    """The corners of a row of places up to the 0 that ends it, from the lowest on; () where nothing ends it.

    >>> polygon(np.array([3, 1, 2, 3, 0])), polygon(np.array([1, 2, 3, 0, 0])), polygon(np.array([3, 1, 2]))
    ((1, 2, 3), (1, 2, 3), ())
    """
    walk = row.tolist()
    corners = walk[: walk.index(0)] if 0 in walk else []
    corners = corners[:-1] if corners[:1] == corners[-1:] else corners
    at = corners.index(min(corners)) if corners else 0
    return tuple(corners[at:] + corners[:at])


@dataclass(frozen=True, eq=False)
class PointingTask:
    """A network that points at corners of a hull (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: Config
    data: Sets
    model: nn.Module

    @property
    def buckets(self) -> tuple[dict, ...]:
        return (self.data.train._asdict(),)

    def init(self, rng):
        rows = [array[:1] for array in self.data.train]
        return self.model.init(rng, rows[0], rows[1], rows[2])["params"]

    def look(self, params, batch):
        """The weights [B, T, S] of every step, teacher forced."""
        return jnp.exp(self.log_p(params, batch))

    def log_p(self, params, batch):
        """The logarithms of `look`, -inf for padding."""
        return self.model.apply({"params": params}, batch["inputs"], batch["length"], before(batch["target"]))

    def costs(self, params, batch):
        """The nats [B] of each row's places."""
        log_p = jnp.take_along_axis(self.log_p(params, batch), batch["target"][:, :, None], axis=2)[:, :, 0]
        real = jnp.arange(log_p.shape[1])[None, :] < batch["target_length"][:, None]
        return -jnp.where(real, log_p, 0.0).sum(1)

    def loss(self, params, batch, rng):
        places = jnp.where(batch["weight"] > 0, batch["target_length"], 0)
        return (self.costs(params, batch) * batch["weight"]).sum(), places.sum().astype(jnp.float32), {}

    def plan(self, epoch: int, steps_per_call: int) -> list[batches.Chunk]:
        train = self.config.train
        return batches.plan(train.seed, epoch, [len(self.data.train.inputs)], [train.batch_size], steps_per_call)

    def write(self, params, batch):
        """The places [B, T] that the network points at by itself, the most probable one at each step."""
        apply = lambda *arguments, method: self.model.apply({"params": params}, *arguments, method=method)
        cache = apply(apply(batch["inputs"], batch["length"], method="encode"), method="start")
        step = lambda places, cache: apply(cache, places, method="step")
        rows, most = batch["target"].shape
        return greedy(step, cache, rows, bos=0, eos=0, max_length=most)

    def accuracy(self, params, sets: Hulls) -> float:
        """The share of sets whose hull is written and ended: the same polygon, from whichever corner."""
        rows = zip(map_batches(self.write, params, sets._asdict(), EVALUATED), sets.target, strict=True)
        return float(np.mean([polygon(written) == polygon(target) for written, target in rows]))

    def evaluate(self, params, full: bool) -> Evaluation:
        valid = self.data.valid
        nats = map_batches(self.costs, params, valid._asdict(), EVALUATED).sum(dtype=np.float64)
        metrics = {"valid.loss": float(nats / valid.target_length.sum())}
        metrics["valid.accuracy"] = self.accuracy(params, valid)
        for name, sets in self.data.tests.items() if full else ():
            metrics[f"test.accuracy_{name}"] = self.accuracy(params, sets)
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        tests = self.data.tests if full else ()
        return ["valid.loss", "valid.accuracy", *(f"test.accuracy_{name}" for name in tests)]

    def evaluated_with(self) -> dict:
        arrays = self.data.valid._asdict()
        return {"evaluation": (self.costs, arrays, EVALUATED), "decoding": (self.write, arrays, EVALUATED)}

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        return [self.draw(params, first(self.data.valid, DRAWN), directory / "pointers.png")]

    def draw(self, params, sets: Hulls, path: Path) -> Path:
        """Where each step points on the way to the target, a panel a set."""
        weights = map_batches(self.look, params, sets._asdict(), EVALUATED)
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

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        """The numbers of the corners of each text's hull, counted from 1, the first one again at the end."""
        sets = self.written(params, self.sets_of(texts))
        if figure is not None:
            self.draw(params, first(sets, DRAWN), figure)
        return [" ".join(str(place) for place in row if place) for row in sets.target]

    def written(self, params, sets: Hulls) -> Hulls:
        """The same sets with what the network writes as their targets."""
        target = map_batches(self.write, params, sets._asdict(), EVALUATED)
        return sets._replace(target=target, target_length=ended(target))

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where each step points, in texts or in a few held-out sets."""
        sets = self.written(params, self.sets_of(texts) if texts else first(self.data.valid, DRAWN))
        weights = map_batches(self.look, params, sets._asdict(), EVALUATED)
        looked = []
        for row, (corners, places) in enumerate(zip(sets.target_length, sets.length, strict=True)):
            points = [f"{place}: {x:.2f},{y:.2f}" for place, (x, y, _) in enumerate(sets.inputs[row, :places]) if place]
            check_length(points, "a set of points")
            target = [f"{place}" for place in sets.target[row, :corners]]
            own = weights[row, None, None, :corners, :places]
            attention = Attention("cross", own, Side(tuple(target)), Side(("0: end", *points)))
            looked.append(Looked("; ".join(points), (Answer(" ".join(target), (attention,)),)))
        return tuple(looked)

    def describe(self) -> dict:
        return {"longest_hull": int(self.data.train.target_length.max())}
