"""The tasks of the NTM paper: each row of each task obeys the rule that defines it."""

import itertools

import numpy as np
import pytest

from attention_jax import config as settings
from attention_jax.data import algorithmic
from attention_jax.errors import InputError


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", ["sequences", "epoch_sequences", "valid_sequences"])
def test_no_sequences_are_one_line(name):
    with pytest.raises(InputError, match="--data.sequences, .* must be at least 1; got"):
        algorithmic.load(settings.Algorithmic(**{name: 0}))


def answer(data, row):
    return data.targets[row][data.mask[row] == 1]


def test_copy_answers_with_what_was_shown():
    data = algorithmic.copy(rng(), 50)
    assert set(data.length) == set(range(3, 43, 2)) & set(data.length) and data.length.max() <= 41
    for row in range(50):
        n = (data.length[row] - 1) // 2
        np.testing.assert_array_equal(answer(data, row), data.inputs[row, :n, :8])
        np.testing.assert_array_equal(data.inputs[row, :, 8].nonzero()[0], [n])
        assert (
            data.inputs[row, n + 1 :].sum() == 0
            and data.mask[row].sum() == n
            and data.mask[row, data.length[row] :].sum() == 0
        )


def test_repeat_copy_repeats_as_often_as_asked():
    data = algorithmic.repeat_copy(rng(), 50)
    for row in range(50):
        out = answer(data, row)
        n = data.length[row] - len(out) - 1
        times = round(float(data.inputs[row, n, 8]) * np.sqrt(99 / 12) + 5.5)
        np.testing.assert_array_equal(out[:-1, :8], np.tile(data.inputs[row, :n, :8], (times, 1)))
        assert out[:-1, 8].sum() == 0 and out[-1].tolist() == [0] * 8 + [1]
    scalars = (np.arange(1, 11) - 5.5) / np.sqrt(99 / 12)
    np.testing.assert_allclose((scalars.mean(), scalars.var()), (0, 1), atol=1e-9)


def test_associative_recall_answers_with_the_next_item():
    data = algorithmic.associative_recall(rng(), 50)
    for row in range(50):
        starts, (first, last) = data.inputs[row, :, 6].nonzero()[0], data.inputs[row, :, 7].nonzero()[0]
        items = [data.inputs[row, s + 1 : s + 4, :6] for s in starts]
        query = data.inputs[row, first + 1 : last, :6]
        assert 2 <= len(items) <= 6 and len(query) == 3
        assert any((query == a).all() and (answer(data, row) == b).all() for a, b in itertools.pairwise(items))


def test_ngrams_follow_one_table_per_sequence():
    data = algorithmic.ngrams(rng(), 200)
    bits = data.targets[..., 0]
    np.testing.assert_array_equal(data.inputs[:, 1:, 0], bits[:, :-1])
    optimum = algorithmic.ngram_optimum(bits)
    cost = -np.log2(np.where(bits == 1, optimum, 1 - optimum)).sum(1)
    assert abs(cost.mean() - 132.98) < 3 * cost.std() / np.sqrt(200) and np.all(
        cost[:3] > 0
    )  # the design's value, 200 sequences
    np.testing.assert_allclose(-np.log2(np.where(bits == 1, optimum, 1 - optimum))[:, :5], 1.0)


def test_priority_sort_sorts():
    data = algorithmic.priority_sort(rng(), 20)
    for row in range(20):
        order = sorted(range(20), key=lambda i: -data.inputs[row, i, 8])[:16]
        np.testing.assert_array_equal(answer(data, row), data.inputs[row, order, :8])


@pytest.mark.parametrize("task", sorted(algorithmic.GENERATORS))
def test_every_task_loads_reproducibly_and_splits_differ(task):
    config = settings.Algorithmic(task=task, sequences=8, valid_sequences=4)
    splits = algorithmic.load(config)
    again = algorithmic.load(config)
    assert all(np.array_equal(a, b) for first, second in zip(splits, again) for a, b in zip(first, second))
    assert [len(split.length) for split in splits] == [8, 4, 4]
    assert len({str(split.inputs[:4, :5].tolist()) for split in splits}) == 3
    train = splits[0]
    assert train.mask.sum() > 0 and set(np.unique(train.targets)) <= {0, 1}


def test_test_sequences_have_a_separate_stream():
    """Training and validation sequences are those of the first two streams: recorded runs keep their data."""
    train, valid, _ = algorithmic.load(settings.Algorithmic("copy", sequences=8, valid_sequences=4), seed=3)
    streams = np.random.SeedSequence([3, sorted(algorithmic.GENERATORS).index("copy")]).spawn(2)
    for split, stream, rows in zip((train, valid), streams, (8, 4)):
        expected = algorithmic.copy(np.random.default_rng(stream), rows)
        assert all(np.array_equal(a, b) for a, b in zip(split, expected))
