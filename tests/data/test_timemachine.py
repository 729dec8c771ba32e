"""The Time Machine: d2l's preprocessing and windows, on a text of our own."""

import gzip
import hashlib

import numpy as np
import pytest

from attention_jax.config import TimeMachine
from attention_jax.data import timemachine, tokenizers
from attention_jax.errors import InputError

TEXT = "The Time Machine, by H. G. Wells [1898]\n\n\nI\n\n" + "The Time Traveller (for so it will be convenient)\n" * 8


@pytest.fixture
def path(tmp_path):
    with gzip.open(tmp_path / "timemachine.txt.gz", "wt") as file:
        file.write(TEXT)
    return str(tmp_path)


def test_windows_predict_the_next_character(path):
    data = timemachine.load(TimeMachine(path=path, sequence_length=10, train_windows=20, valid_windows=5))
    assert len(data.vocabulary) == 28 and data.train.shape == (20, 11) and data.held_out["valid"].shape == (5, 11)
    read = lambda row: "".join(data.vocabulary.decode(row))
    plain = "".join(tokenizers.letters().tokens(TEXT.rstrip("\n")))
    assert plain.startswith("the time machine by h g wells i the time traveller")
    for i in range(20):
        assert read(data.train[i]) == plain[i : i + 11]
    assert read(data.held_out["valid"][0]) == plain[20:31]
    assert data.facts["characters"] == len(plain)


def test_stride(path):
    data = timemachine.load(TimeMachine(path=path, sequence_length=4, train_windows=3, valid_windows=2, stride=5))
    np.testing.assert_array_equal(
        data.train[1:, 0],
        [
            row[5]
            for row in timemachine.load(
                TimeMachine(path=path, sequence_length=9, train_windows=3, valid_windows=2, stride=5)
            ).train[:2]
        ],
    )


def test_too_many_windows_is_one_line(path):
    with pytest.raises(InputError, match="fit at most .* windows") as error:
        timemachine.load(TimeMachine(path=path, train_windows=10_000))
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="no text of The Time Machine"):
        timemachine.load(TimeMachine(path=path + "/missing"))


def test_the_published_digest_is_of_the_published_length():
    assert len(timemachine.SHA1) == len(hashlib.sha1().hexdigest())
