import numpy as np
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


def test_a_file_is_divided_as_in_the_book(tmp_path):
    """`load_data` of its dataset/sequence.py: the same rows in the same order, and no other characters."""
    texts = addition.generate(57)
    (tmp_path / "addition.txt").write_text("".join(f"{q}_{a}\n" for q, a in zip(*texts)))
    x, t = (np.array([list(text) for text in side]) for side in (texts.source, ["_" + a for a in texts.target]))
    indices = np.arange(len(x))
    np.random.seed(1984)
    np.random.shuffle(indices)
    x, t, split_at = x[indices], t[indices], len(x) - len(x) // 10
    data = addition.load(Addition(path=str(tmp_path / "addition.txt"), reverse_source=True))
    characters = np.array(data.source_vocabulary.tokens)
    assert set(characters) == set(" +_0123456789")
    for pairs, rows in ((data.train[0], slice(split_at)), (data.held_out["test"], slice(split_at, None))):
        np.testing.assert_array_equal(characters[pairs.source], x[rows, ::-1])
        np.testing.assert_array_equal(characters[pairs.target], t[rows])
