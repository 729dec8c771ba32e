from hypothesis import given, settings
from hypothesis import strategies as st

from attention_jax.data.splits import by_source


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=8, max_size=40), st.integers(0, 3))
def test_no_source_in_two_parts_and_no_pair_twice(pairs, seed):
    sources, targets = zip(*pairs)
    parts = by_source(sources, targets, {"valid": 2, "test": 1}, seed)
    where = {name: [sources[row] for row in rows] for name, rows in parts.items()}
    assert not set(where["train"]) & set(where["valid"]) and not set(where["valid"]) & set(where["test"]) and not set(where["train"]) & set(where["test"])
    assert len(set(where["valid"])) == len(where["valid"]) <= 2
    train = [pairs[row] for row in parts["train"]]
    held_out = set(where["valid"]) | set(where["test"])
    assert len(set(train)) == len(train) and set(train) == {pair for pair in pairs if pair[0] not in held_out}
