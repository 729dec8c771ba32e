import gzip

import numpy as np
import pytest

from attention_jax.data import fixed_width
from attention_jax.data.pairs import Texts
from attention_jax.errors import InputError

LINES = ["1/2/70  _1970", "5/6/71  _1971"]


def test_plain_and_gzipped_files_say_the_same(tmp_path):
    (tmp_path / "date.txt").write_text("\n".join(LINES) + "\n")
    with gzip.open(tmp_path / "date.txt.gz", "wt") as file:
        file.write("\n".join(LINES) + "\n")
    plain, packed = (fixed_width.read_file(str(tmp_path / name), "date") for name in ("date.txt", "date.txt.gz"))
    assert plain == packed == Texts(["1/2/70  ", "5/6/71  "], ["1970", "1971"])


@pytest.mark.parametrize(
    "third, complaint",
    [
        (b"7/8/72  1972", "line 3: expected `source_target`, got '7/8/72  1972'"),
        (b"7/8/72 _1972", "line 3: expected 8 characters, '_' and 4 more as in line 1, got 7 and 4"),
        (b"", "line 3: expected `source_target`"),
        (b"7/8/\xff2  _1972", "line 3: not valid UTF-8"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, third, complaint):
    path = tmp_path / "date.txt"
    path.write_bytes("\n".join(LINES).encode() + b"\n" + third + b"\n")
    with pytest.raises(InputError) as caught:
        fixed_width.read_file(str(path), "date")
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_missing_empty_and_damaged_files(tmp_path):
    with pytest.raises(InputError, match="no date file at"):
        fixed_width.read_file(str(tmp_path / "nowhere.txt"), "date")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="has 0 lines"):
        fixed_width.read_file(str(tmp_path / "empty.txt"), "date")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(InputError, match="cannot read"):
        fixed_width.read_file(str(tmp_path / "broken.gz"), "date")


def test_the_split_is_the_books():
    """np.random.seed(1984); np.random.shuffle(arange); the last tenth tests."""
    texts = Texts([str(i) for i in range(100)], [str(-i) for i in range(100)])
    order = np.arange(100)
    np.random.seed(1984)
    np.random.shuffle(order)
    splits = fixed_width.split(texts)
    assert splits["train"].source == [str(i) for i in order[:90]] and splits["test"].target == [
        str(-i) for i in order[90:]
    ]


def test_assembled_rows_by_hand():
    splits = {"train": Texts(["1+1 ", "1+0 "], ["2 ", "1 "]), "test": Texts(["1+1 ", "0+2 "], ["2 ", "2 "])}
    data = fixed_width.assemble(splits, "", reverse_source=False, batch_size=7)
    assert (
        data.source_vocabulary.tokens == [" ", "+", "0", "1", "2", "_"]
        and data.source_vocabulary is data.target_vocabulary
    )
    np.testing.assert_array_equal(data.train[0].source, [[3, 1, 3, 0], [3, 1, 2, 0]])
    np.testing.assert_array_equal(data.train[0].target, [[5, 4, 0], [5, 3, 0]])
    assert data.train[0].source_length.tolist() == [4, 4] and data.train[0].target_length.tolist() == [2, 2]
    assert data.seen["test"].tolist() == [True, False] and data.facts["test_inputs_also_in_train"] == 1
    assert data.batch_sizes == (7,)
    backwards = fixed_width.assemble(splits, "", reverse_source=True, batch_size=7)
    np.testing.assert_array_equal(backwards.train[0].source, data.train[0].source[:, ::-1])
    np.testing.assert_array_equal(backwards.train[0].target, data.train[0].target)
    assert backwards.source_tokenizer.tokens("1+0") == [" ", "0", "+", "1"]
    with pytest.raises(InputError, match="at most 4 characters, but '1\\+0  ' has 5"):
        data.source_tokenizer.tokens("1+0  ")


def test_too_few_pairs_are_one_line():
    texts = Texts(["1"] * 9, ["2"] * 9)
    with pytest.raises(InputError, match="at least 10 pairs are needed, .* got 9"):
        fixed_width.split(texts)


@pytest.mark.parametrize("count, tests", [(10, 1), (19, 1), (20, 2)])
def test_a_tenth_tests_rounded_down(count, tests):
    splits = fixed_width.split(Texts([str(i) for i in range(count)], ["x"] * count))
    assert (len(splits["train"].source), len(splits["test"].source)) == (count - tests, tests)
