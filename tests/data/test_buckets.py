from itertools import combinations

import numpy as np
from hypothesis import given, settings, strategies as st

from attention_jax.data import buckets


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
    limits = buckets.boundaries(source, target, most)
    assert len(limits) <= most and limits[-1] == values[-1] and limits == sorted(limits)
    best = min(
        cost(source, target, [*inner, values[-1]])
        for n in range(min(most, len(values)))
        for inner in combinations(values[:-1], n)
    )
    assert cost(source, target, limits) == best


def test_every_row_is_in_one_bucket():
    source, target = np.random.default_rng(0).integers(1, 30, (2, 200))
    groups = buckets.assign(source, target, 4)
    assert sorted(np.concatenate(groups).tolist()) == list(range(200)) and len(groups) == 4
    tops = [np.maximum(source, target)[rows].max() for rows in groups]
    assert tops == sorted(tops)


def test_batches_by_tokens_hold_at_most_so_many():
    assert buckets.sentences_in_batch([12, 15, 52], 128, 8192) == (680, 544, 152)
    assert buckets.sentences_in_batch([500], 128, 1000) == (2,)
    assert buckets.sentences_in_batch([5000], 128, 1000) == (1,)
