"""Masks against their definitions, pair by pair, and their promises about blocks against themselves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attention_jax import attend
from attention_jax.errors import InputError
from attention_jax.ops.masks import causal, dense, lengths, segments, sliding_window, split_mask, window

Q, K = 6, 9
TABLE = np.random.default_rng(0).random((Q, K)) < 0.5


QUERY_IDS, KEY_IDS = np.array([0, 0, 1, 3, 3, 3], np.int32), np.array([0, 0, 0, 1, 2, 3, 3, 5, 5], np.int32)
SEGMENTS = segments(jnp.asarray(QUERY_IDS), jnp.asarray(KEY_IDS))


def rules():
    """(mask, the same rule for one pair) at random, nested."""
    leaves = st.one_of(
        st.just((causal(), lambda q, k: k <= q)),
        st.integers(0, K).map(lambda n: (lengths(n), lambda q, k: k < n)),
        st.integers(0, 4).map(lambda w: (window(w), lambda q, k: abs(q - k) <= w)),
        st.just((SEGMENTS, lambda q, k: bool(QUERY_IDS[q] == KEY_IDS[k]))),
        st.just((dense(jnp.asarray(TABLE)), lambda q, k: bool(TABLE[q, k]))),
    )
    both = lambda a, b: (a[0] & b[0], lambda q, k: a[1](q, k) and b[1](q, k))
    either = lambda a, b: (a[0] | b[0], lambda q, k: a[1](q, k) or b[1](q, k))
    return st.recursive(
        leaves, lambda inner: st.builds(both, inner, inner) | st.builds(either, inner, inner), max_leaves=3
    )


@settings(max_examples=25, deadline=None)
@given(rules(), st.integers(0, Q - 1), st.integers(0, Q - 1))
def test_masks_keep_their_promises(rule, first, last):
    mask, allowed = rule
    first, last = min(first, last), max(first, last)
    expected = np.array([[allowed(q, k) for k in range(K)] for q in range(Q)])
    np.testing.assert_array_equal(mask(jnp.arange(Q), jnp.arange(K)), expected)
    rows = expected[first : last + 1]
    low, high = (int(x) for x in mask.key_range(first, last))
    assert not rows[:, : max(low, 0)].any() and not rows[:, max(high, 0) :].any()  # nothing outside of the reach
    low, high = (int(x) for x in mask.unmasked_range(first, last))
    assert rows[:, max(low, 0) : max(high, 0)].all()  # everything inside of the open part


def test_segments_reach_no_further_than_they_have_to():
    """Blocks of other segments are skipped, and blocks inside of one are not masked."""
    positions = lambda interval: np.arange(max(int(interval[0]), 0), int(interval[1])).tolist()
    assert positions(SEGMENTS.key_range(0, 1)) == positions(SEGMENTS.unmasked_range(0, 1)) == [0, 1, 2]
    assert positions(SEGMENTS.key_range(2, 4)) == [3, 4, 5, 6] and positions(SEGMENTS.unmasked_range(2, 4)) == []
    assert positions(SEGMENTS.unmasked_range(3, 5)) == [5, 6]
    low, high = SEGMENTS.key_range(jnp.array([0, 3]), jnp.array([2, 5]))
    assert (low.tolist(), high.tolist()) == ([0, 5], [4, 7])


TRACED = {
    "segments": (
        lambda x: segments(x["queries"], x["keys"]),
        lambda x, q, k: at(x["queries"], q, -9) == at(x["keys"], k, -8),
    ),
    "packed": (
        lambda x: causal() & segments(x["queries"], x["queries"]),
        lambda x, q, k: (k <= q) & (at(x["queries"], q, -9) == at(x["queries"], k, -8)),
    ),
    "padded": (
        lambda x: lengths(x["length"]) & (segments(x["queries"], x["keys"]) | window(1)),
        lambda x, q, k: (
            (k < x["length"]) & ((at(x["queries"], q, -9) == at(x["keys"], k, -8)) | (abs(q.astype(float) - k) <= 1))
        ),
    ),
    "a table": (
        lambda x: (causal() | lengths(x["length"])) & dense(x["table"]),
        lambda x, q, k: ((k <= q) | (k < x["length"])) & ((q >= 0) & (q < 21)) & x["table"][np.clip(q, 0, 20), k],
    ),
}
"""(the mask of traced arguments, whether it allows a pair)."""
NUM_QUERIES, NUM_KEYS = 21, 27


def at(ids, positions, outside):
    inside = (positions >= 0) & (positions < len(ids))
    return np.where(inside, ids[np.clip(positions, 0, len(ids) - 1)], outside)


def draw_arguments(seed):
    """Ids in any order, those of packers that write padding as 0 first, and lengths and offsets of any size."""
    draw = np.random.default_rng(seed)
    packed = np.repeat([1, 2, 0], [8, 7, 6]), np.repeat([1, 2, 0], [9, 8, 10])
    ids = [
        draw.permutation(5)[np.sort(draw.integers(0, 5, n))] if seed % 2 else draw.integers(-2, 2, n) for n in (21, 27)
    ]
    queries, keys = ids if seed else packed
    return {
        "queries": queries.astype(np.int32),
        "keys": keys.astype(np.int32),
        "length": np.int32(draw.integers(-3, NUM_KEYS + 4)),
        "table": draw.random((NUM_QUERIES, NUM_KEYS)) < 0.5,
        "offset": np.int32(0 if seed < 2 else draw.integers(-6, NUM_KEYS)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_traced_arguments_of_any_values(name):
    """In blocks as with the boolean array, outputs and gradients: bounds may not rely on what is checked outside of
    `jax.jit`."""
    make, allows = TRACED[name]
    x = np.random.default_rng(0).normal(size=(NUM_KEYS, 4)).astype(np.float32)
    blocks = {"implementation": "fused", "block_q": 4, "block_k": 4}

    def both(x, mask, **call):
        loss = lambda x: (attend(x[:NUM_QUERIES], x, x, mask=mask, **call) ** 2).sum()
        return jax.value_and_grad(loss)(x)

    fused = jax.jit(lambda x, arguments: both(x, make(arguments), query_offset=arguments["offset"], **blocks))
    plain = jax.jit(lambda x, allowed: both(x, allowed, implementation="plain"))
    for seed in range(8):
        arguments = draw_arguments(seed)
        query, key = arguments["offset"] + np.arange(NUM_QUERIES), np.arange(NUM_KEYS)
        allowed = np.broadcast_to(allows(arguments, query[:, None], key[None]), (NUM_QUERIES, NUM_KEYS))
        for actual, expected in zip(fused(x, arguments), plain(x, allowed), strict=True):
            np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("ids", [[1, 1, 2, 2, 0, 0], [3, 3, 3, -1, -1, 7], [9, 8, 8, 4, 4, 4]])
def test_segments_in_any_order(ids):
    """Their bounds are right for any queries, and exact within a segment."""
    ids = np.array(ids, np.int8)
    mask, allowed = segments(ids, ids), ids[:, None] == ids[None]
    for first, last in itertools.combinations_with_replacement(range(6), 2):
        rows, (low, high) = allowed[first : last + 1], map(int, mask.key_range(first, last))
        assert not rows[:, :low].any() and not rows[:, high:].any()
        open_low, open_high = map(int, mask.unmasked_range(first, last))
        assert rows[:, open_low:open_high].all()
        if len(set(ids[first : last + 1])) == 1:
            assert np.flatnonzero(rows[0]).tolist() == list(range(low, high)) == list(range(open_low, open_high))


def test_lengths_are_vmapped():
    masks = jax.vmap(lambda n: lengths(n)(jnp.arange(2), jnp.arange(3)))(jnp.array([0, 3]))
    np.testing.assert_array_equal(masks, [[[False] * 3] * 2, [[True] * 3] * 2])


def test_masks_combine_with_plain_functions_from_either_side():
    even = lambda query, key: jnp.broadcast_to(key % 2 == 0, (query.size, key.size))
    positions, both = jnp.arange(4), [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]]
    either = [[1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    for combined, expected in (
        (causal() & even, both),
        (even & causal(), both),
        (causal() | even, either),
        (even | causal(), either),
    ):
        assert combined(positions, positions).astype(int).tolist() == expected


def test_outside_of_a_dense_mask_nothing_is_allowed():
    assert not dense(jnp.ones((2, 2), bool))(jnp.array([1, 2]), jnp.array([1, 2]))[1:].any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: window(-1),
        lambda: window(1.5),
        lambda: segments(jnp.ones(2), jnp.ones(2)),
        lambda: dense(jnp.ones((2, 2))),
        lambda: dense(jnp.ones(2, bool)),
    ],
)
def test_errors(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize(
    "mask",
    [causal(), lengths(4), window(0), window(2), SEGMENTS, causal() & window(1)],
    ids=lambda mask: type(mask).__name__,
)
def test_the_promises_of_every_block_of_queries(mask):
    """All blocks instead of some at random: an interval that is wrong by one is wrong for few of them."""
    allowed = np.asarray(mask(jnp.arange(Q), jnp.arange(K)))
    for first, last in itertools.combinations_with_replacement(range(Q), 2):
        rows = allowed[first : last + 1]
        low, high = (max(int(x), 0) for x in mask.key_range(first, last))
        assert not rows[:, :low].any() and not rows[:, high:].any()
        low, high = (max(int(x), 0) for x in mask.unmasked_range(first, last))
        assert rows[:, low:high].all()


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_query_attends_to_last_n_positions(size):
    query, key = np.mgrid[:7, :7]
    actual = sliding_window(size)(jnp.arange(7), jnp.arange(7))
    np.testing.assert_array_equal(actual, (key <= query) & (key > query - size))


def test_it_is_the_mask_that_kernels_know():
    assert list(map(type, split_mask(sliding_window(4)))) == list(map(type, split_mask(causal() & window(3))))


@pytest.mark.parametrize("size", [0, -1, 1.5, "3"])
def test_fewer_than_one_key_is_refused(size):
    with pytest.raises(InputError, match=f"sliding_window needs .*{size}"):
        sliding_window(size)
