"""The five tasks of the Neural Turing Machine paper (Graves et al. 2014, section 4) as arrays, generated from a seed.

Each generator is a function of its arguments and returns `Sequences`. The bits come first in the input channels, then
the flags. Where the machine must answer, its input is zero and `mask` is one.
"""

from typing import NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.data.stored import storable
from attention_jax.errors import InputError


@storable
class Sequences(NamedTuple):
    """N sequences of at most T steps; rows shorter than T are followed by zeros."""

    inputs: np.ndarray
    """[N, T, I] float32"""
    targets: np.ndarray
    """[N, T, O] uint8: bits"""
    mask: np.ndarray
    """[N, T] uint8: 1 where the target counts"""
    length: np.ndarray
    """[N] int32: steps of each row"""


@storable
class SequenceSets(NamedTuple):
    """Sequences to train on, to choose the best epoch on, to test on, and, by name, of sizes that do not occur in
    training."""

    train: Sequences
    valid: Sequences
    test: Sequences
    beyond: dict[str, Sequences]


def _empty(rows: int, steps: int, inputs: int, outputs: int) -> Sequences:
    zeros = (
        np.zeros((rows, steps, inputs), np.float32),
        np.zeros((rows, steps, outputs), np.uint8),
        np.zeros((rows, steps), np.uint8),
    )
    return Sequences(*zeros, np.zeros(rows, np.int32))


def copy(rng: np.random.Generator, rows: int, shortest: int = 1, longest: int = 20, bits: int = 8) -> Sequences:
    """Section 4.1: random bit vectors, a delimiter, then the same vectors again.

    >>> data = copy(np.random.default_rng(0), 1, shortest=2, longest=2, bits=1)
    >>> data.inputs[0].T.astype(int).tolist()  # the bits, the delimiter
    [[1, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
    >>> data.targets[0, :, 0].tolist(), data.mask[0].tolist()
    ([0, 0, 0, 1, 1], [0, 0, 0, 1, 1])
    """
    data = _empty(rows, 2 * longest + 1, bits + 1, bits)
    for row, n in enumerate(rng.integers(shortest, longest + 1, rows)):
        pattern = rng.integers(0, 2, (n, bits))
        data.inputs[row, :n, :bits] = pattern
        data.inputs[row, n, bits] = 1
        data.targets[row, n + 1 : 2 * n + 1] = pattern
        data.mask[row, n + 1 : 2 * n + 1] = 1
        data.length[row] = 2 * n + 1
    return data


def repeat_copy(
    rng: np.random.Generator,
    rows: int,
    longest: int = 10,
    most: int = 10,
    shortest: int = 1,
    fewest: int = 1,
    bits: int = 8,
) -> Sequences:
    """Section 4.2: copy a sequence a given number of times, then raise an end marker.

    The number of copies comes as a scalar on a separate channel, scaled as if uniform on 1 .. 10 to mean 0 and
    variance 1. The output has one more channel than bits, the marker.

    >>> data = repeat_copy(np.random.default_rng(0), 1, shortest=1, longest=1, fewest=2, most=2, bits=1)
    >>> data.targets[0].T.tolist(), data.length.tolist()
    ([[0, 0, 1, 1, 0], [0, 0, 0, 0, 1]], [5])
    """
    data = _empty(rows, longest * (most + 1) + 2, bits + 1, bits + 1)
    mean, deviation = 5.5, np.sqrt((10**2 - 1) / 12)
    for row, (n, times) in enumerate(
        zip(rng.integers(shortest, longest + 1, rows), rng.integers(fewest, most + 1, rows))
    ):
        pattern, end = rng.integers(0, 2, (n, bits)), n * (times + 1) + 1
        data.inputs[row, :n, :bits] = pattern
        data.inputs[row, n, bits] = (times - mean) / deviation
        data.targets[row, n + 1 : end, :bits] = np.tile(pattern, (times, 1))
        data.targets[row, end, bits] = 1
        data.mask[row, n + 1 : end + 1] = 1
        data.length[row] = end + 1
    return data


def associative_recall(
    rng: np.random.Generator, rows: int, fewest: int = 2, most: int = 6, vectors: int = 3, bits: int = 6
) -> Sequences:
    """Section 4.3: items of `vectors` bit vectors, each behind a delimiter; then one of them between query
    delimiters: the answer is the item after it.

    >>> data = associative_recall(np.random.default_rng(0), 1, fewest=2, most=2, vectors=1, bits=1)
    >>> data.inputs[0, :, 1:].T.astype(int).tolist()  # the item and the query delimiter
    [[1, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1, 0]]
    """
    data = _empty(rows, (most + 1) * (vectors + 1) + 1 + vectors, bits + 2, bits)
    for row, n in enumerate(rng.integers(fewest, most + 1, rows)):
        items = rng.integers(0, 2, (n, vectors, bits))
        query = rng.integers(0, n - 1)
        for i, item in enumerate([*items, items[query]]):
            at = i * (vectors + 1)
            data.inputs[row, at, bits if i < n else bits + 1] = 1
            data.inputs[row, at + 1 : at + 1 + vectors, :bits] = item
        end = (n + 1) * (vectors + 1)
        data.inputs[row, end, bits + 1] = 1
        data.targets[row, end + 1 : end + 1 + vectors] = items[query + 1]
        data.mask[row, end + 1 : end + 1 + vectors] = 1
        data.length[row] = end + 1 + vectors
    return data


def ngrams(rng: np.random.Generator, rows: int, steps: int = 200, order: int = 6) -> Sequences:
    """Section 4.4: predict each next bit, sampled from a table of 2^(order-1) probabilities
    by the order-1 bits before it.

    The table is new for every sequence, each probability from Beta(1/2, 1/2). The first order-1 bits are fair coins.
    Step t's input is bit t-1 (0 before the first), its target bit t.
    """
    data = _empty(rows, steps, 1, 1)
    context = order - 1
    table = rng.beta(0.5, 0.5, (rows, 2**context))
    bits = np.zeros((rows, steps), np.uint8)
    bits[:, :context] = rng.integers(0, 2, (rows, context))
    place = 2 ** np.arange(context)
    for t in range(context, steps):
        bits[:, t] = rng.random(rows) < table[np.arange(rows), bits[:, t - context : t] @ place]
    data.inputs[:, 1:, 0] = bits[:, :-1]
    data.targets[..., 0] = bits
    data.mask[:], data.length[:] = 1, steps
    return data


def ngram_optimum(targets: np.ndarray, order: int = 6) -> np.ndarray:
    """The Bayes-optimal probability of a 1 at each step, equation (10): (N1 + 1/2) / (N1 + N0 + 1)
    of the current context; [N, T].

    >>> ngram_optimum(np.array([[1, 1, 1, 0, 1]]), order=1).round(3).tolist()
    [[0.5, 0.75, 0.833, 0.875, 0.7]]
    """
    rows, steps = targets.shape
    context = order - 1
    counts = np.full((rows, 2**context, 2), 0.5)
    place, row_index = 2 ** np.arange(context), np.arange(rows)
    probability = np.full((rows, steps), 0.5)
    for t in range(context, steps):
        at = targets[:, t - context : t].astype(int) @ place if context else np.zeros(rows, int)
        zeros_and_ones = counts[row_index, at]
        probability[:, t] = zeros_and_ones[:, 1] / zeros_and_ones.sum(1)
        counts[row_index, at, targets[:, t].astype(int)] += 1
    return probability


def priority_sort(rng: np.random.Generator, rows: int, items: int = 20, highest: int = 16, bits: int = 8) -> Sequences:
    """Section 4.5: `items` bit vectors with priorities uniform in [-1, 1]; after a delimiter, the answer is
    the `highest` of highest priority in order.

    Channels: the bits, the priority, the delimiter.
    """
    steps = items + 1 + highest
    data = _empty(rows, steps, bits + 2, bits)
    patterns = rng.integers(0, 2, (rows, items, bits))
    priority = rng.uniform(-1, 1, (rows, items))
    best = np.argsort(-priority, axis=1)[:, :highest]
    data.inputs[:, :items, :bits] = patterns
    data.inputs[:, :items, bits] = priority
    data.inputs[:, items, bits + 1] = 1
    data.targets[:, items + 1 :] = np.take_along_axis(patterns, best[:, :, None], axis=1)
    data.mask[:, items + 1 :] = 1
    data.length[:] = steps
    return data


GENERATORS = {task.__name__: task for task in (copy, repeat_copy, associative_recall, ngrams, priority_sort)}


def load(config: settings.Algorithmic, seed: int = 0) -> tuple[Sequences, Sequences, Sequences]:
    """Return (train, valid, test) of a configuration, a pure function. Each has a separate stream of random numbers;
    there are as many test as validation sequences.

    Raises InputError unless every set has a sequence.
    """
    sizes = config.sequences, config.valid_sequences, config.valid_sequences
    if min(*sizes, config.epoch_sequences) < 1:
        raise InputError(
            "--data.sequences, --data.epoch-sequences and --data.valid-sequences must be at least 1; "
            f"got {config.sequences}, {config.epoch_sequences} and {config.valid_sequences}"
        )
    streams = np.random.SeedSequence([seed, sorted(GENERATORS).index(config.task)]).spawn(3)
    generate = GENERATORS[config.task]
    return tuple(generate(np.random.default_rng(stream), size) for stream, size in zip(streams, sizes))
