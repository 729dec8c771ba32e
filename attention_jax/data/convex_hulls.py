"""Points of the unit square and their convex hulls, generated from a seed (Vinyals et al. 2015, section 3.1).

The inputs are an end symbol (0, 0, 1) at position 0, followed by the points (x, y, 0). The target is a sequence of
positions: the hull counterclockwise from its point of lowest number, that point again, and 0.
"""

from typing import NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.errors import InputError

ROWS = 2_000
"""Sets of points at once: their triples take memory."""


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


def load(options: settings.ConvexHulls) -> tuple[Hulls, Hulls, dict[str, Hulls]]:
    """Return training and validation sets, and {number of points: test set} for the fewest and the most points."""
    fewest, most = options.min_points, options.max_points
    if fewest > most:
        raise InputError(f"--data.min-points must be at most --data.max-points, got {fewest} and {most}")
    draw = lambda seed, rows, *counts: generate(np.random.default_rng(seed), rows, *counts)
    tests = {str(n): draw(2 + n, options.held_out, n, n) for n in dict.fromkeys((fewest, most))}
    return draw(0, options.examples, fewest, most), draw(1, options.held_out, fewest, most), tests
