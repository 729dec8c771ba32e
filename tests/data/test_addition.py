import pytest

from attention_jax.config import Addition
from attention_jax.data import addition
from attention_jax.data.pairs import decode_targets
from attention_jax.errors import InputError


def test_sums_are_right_and_occur_once():
    texts = addition.generate(3_000)
    pairs = set()
    for source, target in zip(*texts):
        a, b = map(int, source.split("+"))
        assert len(source) == 7 and len(target) == 4 and a + b == int(target) and max(a, b) <= 999
        pairs.add(frozenset((a, b)) if a != b else (a, b))
    assert len(pairs) == 3_000
    digits = [tuple(sorted(map(len, source.strip().split("+")))) for source in texts.source]
    assert digits.count((1, 1)) <= 55  # all sums of two digits, and no more
    assert addition.generate(20) == addition.generate(20)


def test_load():
    data = addition.load(Addition(examples=300))
    assert len(data.source_vocabulary) == 13 and data.target_vocabulary.bos_id == data.source_vocabulary.encode("_")[0]
    assert data.train[0].source.shape == (270, 7) and data.train[0].target.shape == (270, 5)
    assert not data.seen["test"].any()
    assert decode_targets(data, data.held_out["test"].target[:4, 1:]) == [
        text.strip() for text in data.texts["test"].target[:4]
    ]
    with pytest.raises(InputError, match="between 10 and 200000"):
        addition.load(Addition(examples=400_000))
