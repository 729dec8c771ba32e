from itertools import combinations

from hypothesis import given, settings, strategies as st

from attention_jax.data.pairs import Texts
from attention_jax.data.splits import concatenate_pairs, split_by_source


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=8, max_size=40), st.integers(0, 3)
)
def test_splits_share_no_source(pairs, seed):
    sources, targets = zip(*pairs)
    splits = split_by_source(sources, targets, {"valid": 2, "test": 1}, seed)
    where = {name: [sources[row] for row in rows] for name, rows in splits.items()}
    for first, second in combinations(where.values(), 2):
        assert not set(first) & set(second)
    assert len(set(where["valid"])) == len(where["valid"]) <= 2
    train = [pairs[row] for row in splits["train"]]
    held_out = set(where["valid"]) | set(where["test"])
    assert len(set(train)) == len(train) and set(train) == {pair for pair in pairs if pair[0] not in held_out}


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(2, 5), st.integers(0, 3))
def test_concatenation_uses_every_pair_once(count, most, seed):
    texts = Texts([f"s{i}" for i in range(count)], [f"t{i}" for i in range(count)])
    both = concatenate_pairs(texts, most, seed)
    assert both.source[:count] == texts.source and both.target[:count] == texts.target
    assert [source.replace("s", "t") for source in both.source] == both.target
    rows = [source.split() for source in both.source[count:]]
    assert sorted(word for row in rows for word in row) == sorted(texts.source)
    assert all(2 <= len(row) <= most for row in rows[:-1]) and all(len(row) <= most for row in rows)
