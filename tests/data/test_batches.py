"""What is batched together: every row once an epoch, buckets with the least padding, packed rows with every pair."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attention_jax.data import batches
from attention_jax.data.batches import pack, plan

SIZES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(SIZES, st.integers(1, 7), st.integers(0, 5))
def test_plan_has_every_row_once_per_bucket(buckets, steps_per_call, epoch):
    sizes, batch_sizes = zip(*buckets)
    chunks = plan(3, epoch, sizes, batch_sizes, steps_per_call)
    updates = 0
    for bucket, (rows, batch_size) in enumerate(buckets):
        mine = [chunk for chunk in chunks if chunk.bucket == bucket]
        indices = [chunk.indices[chunk.weight == 1] for chunk in mine]
        assert sorted(np.concatenate(indices).tolist() if indices else []) == list(range(rows))
        assert len({chunk.indices.shape for chunk in mine}) <= 1
        for chunk in mine:
            assert (
                chunk.indices.shape == chunk.weight.shape == (min(steps_per_call, -(-rows // batch_size)), batch_size)
            )
            assert chunk.indices.dtype == np.int32 and chunk.weight.dtype == np.float32
            assert set(np.unique(chunk.weight)) <= {0.0, 1.0}
            updates += int(chunk.weight.any(1).sum())
    assert updates == sum(-(-rows // batch_size) for rows, batch_size in buckets)


def test_plan_depends_on_seed_and_epoch_alone():
    first, again = plan(0, 1, [50, 20], [4, 4], 3), plan(0, 1, [50, 20], [4, 4], 3)
    for a, b in zip(first, again, strict=True):
        assert a.bucket == b.bucket
        np.testing.assert_array_equal(a.indices, b.indices)
    rows = [
        np.concatenate([chunk.indices.ravel() for chunk in plan(seed, epoch, [50], [4], 3)]).tolist()
        for seed, epoch in ((0, 1), (0, 2), (1, 1))
    ]
    assert rows[0] != rows[1] and rows[0] != rows[2]


def test_chunks_of_different_buckets_are_mixed():
    order = [chunk.bucket for chunk in plan(0, 0, [100, 100], [2, 2], 5)]
    assert order != sorted(order)


def cost(source, target, limits) -> int:
    """Positions of all padded rows, counted bucket by bucket."""
    size, total, previous_limit = np.maximum(source, target), 0, 0
    for limit in limits:
        inside = (size > previous_limit) & (size <= limit)
        if inside.any():
            total += inside.sum() * (source[inside].max() + target[inside].max())
        previous_limit = limit
    return int(total)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=15), st.integers(1, 4))
def test_no_division_pads_less(lengths, most):
    source, target = np.array(lengths).T
    values = np.unique(np.maximum(source, target))
    limits = batches.boundaries(source, target, most)
    assert len(limits) <= most and limits[-1] == values[-1] and limits == sorted(limits)
    best = min(
        cost(source, target, [*inner, values[-1]])
        for n in range(min(most, len(values)))
        for inner in combinations(values[:-1], n)
    )
    assert cost(source, target, limits) == best


def test_every_row_is_in_one_bucket():
    source, target = np.random.default_rng(0).integers(1, 30, (2, 200))
    groups = batches.assign(source, target, 4)
    assert sorted(np.concatenate(groups).tolist()) == list(range(200)) and len(groups) == 4
    tops = [np.maximum(source, target)[rows].max() for rows in groups]
    assert tops == sorted(tops)


def test_batches_by_tokens_hold_at_most_so_many():
    assert batches.sentences_in_batch([12, 15, 52], 128, 8192) == (680, 544, 152)
    assert batches.sentences_in_batch([500], 128, 1000) == (2,)
    assert batches.sentences_in_batch([5000], 128, 1000) == (1,)


def wmt_like(pairs: int = 4000) -> np.ndarray:
    """Lengths [N, 2], end mark counted: sources log-normal with a mean of 25 tokens, targets 25 % longer or shorter."""
    rng = np.random.default_rng(0)
    source = rng.lognormal(np.log(25) - 0.7**2 / 2, 0.7, pairs)
    target = source * rng.lognormal(0.0, 0.25, pairs)
    return np.clip(np.stack([source, target], axis=1).round().astype(int) + 1, 2, 100)


def test_wmt_like_lengths_leave_little_padding():
    lengths = wmt_like()
    assert 1 - lengths.sum() / (2 * 256 * len(pack(lengths, 256))) < 0.05
    grouped = batches.assign(*lengths.T, 4)
    assert 1 - lengths.sum() / sum(len(rows) * lengths[rows].max(0).sum() for rows in grouped) > 0.25


@pytest.mark.parametrize("together", [3, 2**13])
@pytest.mark.parametrize("lengths", [np.zeros((0, 2), int), np.full((5, 2), 10), wmt_like(200)])
def test_every_pair_is_in_one_fitting_row(lengths, together, monkeypatch):
    monkeypatch.setattr(batches, "PACKED_TOGETHER", together)
    capacity = int(lengths.max(initial=10))
    rows = pack(lengths, capacity)
    assert sorted(pair for row in rows for pair in row) == list(range(len(lengths)))
    assert all((lengths[row].sum(0) <= capacity).all() for row in rows)
