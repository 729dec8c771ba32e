import numpy as np
from hypothesis import given, settings, strategies as st

from attention_jax.data.batches import plan

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
