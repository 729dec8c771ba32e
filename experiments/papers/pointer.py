"""Pointer Networks (Vinyals, Fortunato, Jaitly 2015): the attention weights are the output distribution over inputs.

The data are points of the unit square and their convex hulls, generated from a seed (section 3.1). The inputs are an
end symbol (0, 0, 1) at position 0, followed by the points (x, y, 0). The target is a sequence of positions: the hull
counterclockwise from its point of lowest number, that point again, and 0.
"""

from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.config import Config
from attention_jax.data.stored import storable
from attention_jax.decode import greedy
from attention_jax.errors import InputError
from attention_jax.models.named_scores import make_score
from attention_jax.models.recurrent import Layer
from attention_jax.models.taps import tap
from attention_jax.ops.recurrent import cells
from attention_jax.report.attention_data import Attention, AttentionRecord, Axis, Prediction, check_length
from attention_jax.report.heatmaps import Heatmap, show_heatmaps
from attention_jax.tasks import Evaluation, Task, build_model, loader_of
from attention_jax.train.placement import map_batches
from experiments.papers.options import ConvexHulls, PointerNetworkConfig

ROWS = 2_000
"""Sets of points at once: their triples take memory."""
EVALUATED = 1_000
"""Sets per batch in evaluation."""
DRAWN = 2
"""The number of point sets in a figure."""


# --- data


@storable
class Hulls(NamedTuple):
    """N sets of points and their hulls; rows shorter than S and T are followed by zeros."""

    inputs: np.ndarray
    """[N, S, 3] float32"""
    length: np.ndarray
    """[N] int32: the number of points plus 1"""
    target: np.ndarray
    """[N, T] int32: positions"""
    target_length: np.ndarray
    """[N] int32: the number of corners of the hull plus 2"""


@storable
class HullSets(NamedTuple):
    """Sets of points to train on, to validate on, and by the name of a test to test on."""

    train: Hulls
    valid: Hulls
    tests: dict[str, Hulls]


def successors(points: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the successor of each point on the hull of its set, counterclockwise: [N, P, 2] -> [N, P], -1 inside.

    j follows i if all other points are to the left of the line from i to j.

    >>> square = np.array([[[0, 0], [1, 1], [1, 0], [0, 1], [0.5, 0.4]]])
    >>> successors(square, np.array([5])).tolist()
    [[2, 3, 1, 0, -1]]
    """
    positions = np.arange(points.shape[1])
    offsets = points[:, None, :, :] - points[:, :, None, :]  # [N, i, j, 2]: from i to j
    left = (
        offsets[:, :, :, None, 0] * offsets[:, :, None, :, 1] - offsets[:, :, :, None, 1] * offsets[:, :, None, :, 0]
        > 0
    )
    real = positions[None, :] < count[:, None]  # [N, P]
    same = (positions[:, None, None] == positions) | (positions[None, :, None] == positions)  # k is i or j
    follows = (left | same | ~real[:, None, None, :]).all(-1)  # [N, i, j]
    follows &= real[:, :, None] & real[:, None, :] & (positions[:, None] != positions[None, :])
    return np.where(follows.any(-1), follows.argmax(-1), -1)


def hulls(points: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute targets [N, P + 2] of sets [N, P, 2] of `count` points each, and their lengths.

    >>> hulls(np.array([[[0, 0], [1, 1], [1, 0], [0, 1], [0.5, 0.4]]]), np.array([5]))[0].tolist()
    [[1, 3, 2, 4, 1, 0, 0]]
    """
    next_point, rows = successors(points, count), np.arange(len(points))
    target = np.zeros((len(points), points.shape[1] + 2), np.int32)
    first = current = (next_point >= 0).argmax(1)
    active = np.ones(len(points), bool)
    for step in range(target.shape[1]):
        target[active, step] = current[active] + 1
        active &= (current != first) | (step == 0)
        current = next_point[rows, current]
    return target, (target > 0).sum(1).astype(np.int32) + 1


def generate(rng: np.random.Generator, rows: int, fewest: int, most: int) -> Hulls:
    """Sample sets of `fewest` to `most` points, uniform in the unit square."""
    count = rng.integers(fewest, most + 1, rows)
    real = np.arange(most) < count[:, None]
    points = np.where(real[:, :, None], rng.random((rows, most, 2)), 0.0)
    pieces = [hulls(points[at : at + ROWS], count[at : at + ROWS]) for at in range(0, rows, ROWS)]
    inputs = np.zeros((rows, most + 1, 3), np.float32)
    inputs[:, 0, 2], inputs[:, 1:, :2] = 1.0, points
    target, length = (np.concatenate(arrays) for arrays in zip(*pieces))
    return Hulls(inputs, (count + 1).astype(np.int32), target, length)


def load(options: ConvexHulls) -> tuple[Hulls, Hulls, dict[str, Hulls]]:
    """Return training and validation sets, and {number of points: test set} for the fewest and the most points."""
    fewest, most = options.min_points, options.max_points
    if fewest > most:
        raise InputError(f"--data.min-points must be at most --data.max-points, got {fewest} and {most}")
    draw = lambda seed, rows, *counts: generate(np.random.default_rng(seed), rows, *counts)
    tests = {str(n): draw(2 + n, options.held_out, n, n) for n in dict.fromkeys((fewest, most))}
    return draw(0, options.examples, fewest, most), draw(1, options.held_out, fewest, most), tests


# --- the model


class Memory(NamedTuple):
    """The encoder's output."""

    inputs: Float[Array, "B S F"]
    length: Int[Array, " B"]
    states: Float[Array, "B S H"]  # e_j
    last: cells.State


class Cache(NamedTuple):
    """The decoder between two steps."""

    memory: Memory
    state: cells.State


class PointerNetwork(nn.Module):
    """An LSTM encodes the inputs, and another one selects from them; each step's input is the one selected before.

    The first input is the symbol that begins an output, and selecting it ends the output. Attention does not feed the
    recurrence, so in training the decoder runs first and the attention of all steps is computed at once. An input may
    be selected repeatedly, as in the paper, which excludes that only for tours.
    """

    options: PointerNetworkConfig
    features: int

    def setup(self):
        size = self.options.hidden_size
        self.encoder, self.decoder = Layer((self.features,), size), Layer((self.features,), size)
        self.score = make_score(self, "additive", size, size, size)

    def encode(self, inputs: Float[Array, "B S F"], length: Int[Array, " B"]) -> Memory:
        """Encode the inputs in the given order."""
        hidden, cell = self.encoder.scan(
            self.encoder.project(inputs.swapaxes(0, 1)), self.encoder.zero_state(len(inputs))
        )
        last = cells.at_length(hidden, length), cells.at_length(cell, length)
        states = tap(self, "encoder.states", hidden.swapaxes(0, 1))  # [B, S, H]
        return Memory(inputs, length, states, last)

    def point(self, memory: Memory, states: Float[Array, "B T H"]) -> Float[Array, "B T S"]:
        """log p(C_i | C_1, ..., C_{i-1}, P), p = softmax_j v . tanh(W_1 e_j + W_2 d_i) (equation 3); -inf for padding.

        In logarithms a probability that underflows has a finite loss.
        """

        def log_probabilities(d, e, length):
            return jax.nn.log_softmax(self.score(d, e), where=jnp.arange(len(e)) < length)

        return jax.vmap(log_probabilities)(states, memory.states, memory.length)  # [B, T, S]

    def decode(self, memory: Memory, previous: Int[Array, "B T"]) -> Float[Array, "B T S"]:
        """Teacher forced: log p of every step, where `previous` is the index selected before it, 0 at first."""
        selected = jnp.take_along_axis(memory.inputs, previous[:, :, None], axis=1).swapaxes(0, 1)  # [T, B, F]
        hidden, _ = self.decoder.scan(self.decoder.project(selected), memory.last)
        states = tap(self, "decoder.states", hidden.swapaxes(0, 1))  # [B, T, H]
        return tap(self, "logits", self.point(memory, states))

    def start(self, memory: Memory) -> Cache:
        """The cache before the first step."""
        return Cache(memory, memory.last)

    def step(self, cache: Cache, previous: Int[Array, " B"]) -> tuple[Float[Array, "B S"], Cache]:
        """Run one step: log p [B, S] of each input, and the next cache."""
        selected = jnp.take_along_axis(cache.memory.inputs, previous[:, None, None], axis=1)[:, 0]  # [B, F]
        state = cells.lstm_step(self.decoder.project(selected), self.decoder.recurrent_kernel, cache.state)
        return self.point(cache.memory, state[0][:, None])[:, 0], cache._replace(state=state)

    def __call__(self, inputs, length, previous):
        """Return log p [B, T, S] of every step, with teacher forcing."""
        return self.decode(self.encode(inputs, length), previous)


# --- training


def shift_right(target):
    """Shift targets [B, T] right by one step, 0 first: the decoder's inputs with teacher forcing."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)))


def polygon(row: np.ndarray) -> tuple[int, ...]:
    """Return the corners of a sequence of positions that ends with 0, starting from the lowest; () without a 0.

    >>> polygon(np.array([3, 1, 2, 3, 0])), polygon(np.array([1, 2, 3, 0, 0])), polygon(np.array([3, 1, 2]))
    ((1, 2, 3), (1, 2, 3), ())
    """
    walk = row.tolist()
    corners = walk[: walk.index(0)] if 0 in walk else []
    corners = corners[:-1] if corners[:1] == corners[-1:] else corners
    at = corners.index(min(corners)) if corners else 0
    return tuple(corners[at:] + corners[:at])


class PointingTask(Task):
    """A network that points at the corners of a convex hull; `data` are `HullSets`."""

    @classmethod
    def load(cls, config: Config) -> HullSets:
        return HullSets(*loader_of(config.data.loader)(config.data))

    @classmethod
    def make_model(cls, config: Config, data: HullSets):
        return build_model(config, data.train.inputs.shape[-1])

    def init(self, rng):
        rows = [array[:1] for array in self.data.train]
        return self.model.init(rng, rows[0], rows[1], rows[2])["params"]

    def log_p(self, params, batch):
        """Return log-probabilities [B, T, S] of the input positions, -inf for padding."""
        return self.model.apply({"params": params}, batch["inputs"], batch["length"], shift_right(batch["target"]))

    def nll(self, params, batch):
        """Return the negative log-likelihood of each hull in nats [B]."""
        log_p = jnp.take_along_axis(self.log_p(params, batch), batch["target"][:, :, None], axis=2)[:, :, 0]
        real = jnp.arange(log_p.shape[1])[None, :] < batch["target_length"][:, None]
        return -jnp.where(real, log_p, 0.0).sum(1)

    def loss(self, params, batch, rng):
        count = jnp.where(batch["weight"] > 0, batch["target_length"], 0)
        return (self.nll(params, batch) * batch["weight"]).sum(), count.sum().astype(jnp.float32), {}

    def generate(self, params, batch):
        """Decode positions [B, T] greedily."""
        apply = lambda *arguments, method: self.model.apply({"params": params}, *arguments, method=method)
        cache = apply(apply(batch["inputs"], batch["length"], method="encode"), method="start")
        step = lambda positions, cache: apply(cache, positions, method="step")
        rows, most = batch["target"].shape
        return greedy(step, cache, rows, bos=0, eos=0, max_length=most)

    def accuracy(self, params, sets: Hulls) -> float:
        """Return the fraction of point sets whose decoded sequence is the hull, from any starting corner."""
        rows = zip(map_batches(self.generate, params, sets._asdict(), EVALUATED), sets.target, strict=True)
        return float(np.mean([polygon(written) == polygon(target) for written, target in rows]))

    def evaluate(self, params, full: bool) -> Evaluation:
        valid = self.data.valid
        nats = map_batches(self.nll, params, valid._asdict(), EVALUATED).sum(dtype=np.float64)
        metrics = {"valid.loss": float(nats / valid.target_length.sum())}
        metrics["valid.accuracy"] = self.accuracy(params, valid)
        for name, sets in self.data.tests.items() if full else ():
            metrics[f"test.accuracy_{name}"] = self.accuracy(params, sets)
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        tests = self.data.tests if full else ()
        return ["valid.loss", "valid.accuracy", *(f"test.accuracy_{name}" for name in tests)]

    def describe(self) -> dict:
        return {"longest_hull": int(self.data.train.target_length.max())}

    def attention(self, params, batch):
        """Return the weights [B, T, S] of every step, with teacher forcing."""
        return jnp.exp(self.log_p(params, batch))

    def excerpt(self) -> HullSets:
        """Return one training set, for its shape, and the validation sets of `attention_maps`."""
        return HullSets(first(self.data.train, 1), first(self.data.valid, DRAWN), {})

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        return [self.draw(params, first(self.data.valid, DRAWN), directory / "pointers.png")]

    def draw(self, params, sets: Hulls, path: Path) -> Path:
        """Plot the weights of each step with teacher forcing, one panel for each set."""
        weights = map_batches(self.attention, params, sets._asdict(), EVALUATED)
        sizes = list(zip(sets.target_length, sets.length, strict=True))
        panels = []
        for row, (corners, points) in enumerate(sizes):
            steps = [f"{position}" for position in sets.target[row, :corners]]
            panels.append(Heatmap(weights[row, :corners, :points], steps, [f"{point}" for point in range(points)]))
        return show_heatmaps([panels], path, xlabel="point", ylabel="corner of the hull")

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
        target = map_batches(self.generate, params, sets._asdict(), EVALUATED)
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


def first(sets: Hulls, count: int) -> Hulls:
    """Return the first `count` sets."""
    return Hulls(*(array[:count] for array in sets))


def lengths(target: np.ndarray) -> np.ndarray:
    """Return the length of each sequence of positions [N, T], including the 0 that ends it.

    >>> lengths(np.array([[1, 2, 0, 0], [3, 1, 2, 1]])).tolist()
    [3, 4]
    """
    return np.minimum((target > 0).sum(1) + 1, target.shape[1]).astype(np.int32)
