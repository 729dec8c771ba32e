"""Tiny Shakespeare: nine tenths train, the rest validates, on a text of our own; the published file where it is."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from attention_jax.config import Shakespeare
from attention_jax.data import shakespeare
from attention_jax.errors import InputError

TEXT = "".join(f"Citizen {n}:\nBefore we proceed {n * n}, hear me speak.\n\n" for n in range(40))
PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tinyshakespeare" / "input.txt.gz"


@pytest.fixture
def path(tmp_path):
    with gzip.open(tmp_path / "input.txt.gz", "wt") as file:
        file.write(TEXT)
    return str(tmp_path)


def test_windows_are_the_text(path):
    data = shakespeare.load(Shakespeare(path, sequence_length=16, overlap=4))
    read = lambda row: "".join(data.vocabulary.decode(row))
    border = int(0.9 * len(TEXT))
    for i in (0, 1, 7, len(data.train) - 1):
        assert read(data.train[i]) == TEXT[4 * i : 4 * i + 17]
    assert 4 * len(data.train) + 17 <= border + 4 and 4 * (len(data.train) - 1) + 17 <= border
    held_out = data.held_out["valid"]
    assert read(held_out[:, 1:].ravel()) == TEXT[border + 1 : border + 1 + 16 * len(held_out)]
    assert len(TEXT) - border - 1 - 16 * len(held_out) < 16  # what is left of the end


def test_what_cannot_be_is_one_line(path, tmp_path):
    with pytest.raises(InputError, match="no text of Shakespeare at"):
        shakespeare.load(Shakespeare(str(tmp_path / "missing")))
    with pytest.raises(InputError, match="--data.sequence-length .* 203 characters"):
        shakespeare.load(Shakespeare(path, sequence_length=500))
    with pytest.raises(InputError, match="must be at least 1"):
        Shakespeare(path, overlap=0)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published text is not here")
def test_the_published_text():
    text = shakespeare.read_text(str(PUBLISHED))
    assert hashlib.sha256(text.encode()).hexdigest() == shakespeare.SHA256
    assert (len(text), len(set(text))) == (shakespeare.CHARACTERS, shakespeare.DISTINCT)
    data = shakespeare.assemble(text, Shakespeare())
    assert data.train.dtype == np.int32 and data.facts["train_characters"] == 1_003_854  # nanoGPT's prepare.py says so
    rows = {"train": len(data.train), "valid": len(data.held_out["valid"])}
    assert rows == shakespeare.count_windows(shakespeare.CHARACTERS, Shakespeare())  # what is compiled without the text
