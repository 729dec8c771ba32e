"""A data home that cannot be written: one line that names it and the variable that moves it, whoever writes there."""

from functools import partial

import pytest

from attention_jax.data import images, record_images, tokenizers
from attention_jax.data.derived import derive_file
from attention_jax.data.download import download
from attention_jax.errors import InputError
from attention_jax.files import explain_home_errors

WRITERS = {
    "derived": lambda path: derive_file(str(path), "tokens", ".tokens", lambda to: to.write_text("made")),
    "download": lambda path: download("http://localhost", str(path / "home" / "downloads" / "a.txt"), "sha1:0"),
    "images": lambda path: images._load_published("cifar10", ""),
    "labels": lambda path: record_images.load_split("", "train"),
    "sentencepiece": lambda path: tokenizers.train_sentencepiece(["a text", "another text"], 12),
    "tokens": lambda path: tokenizers._tokenize_once("words", ["a b"], str.split),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_data_home_below_file_is_one_line(writer, tmp_path, monkeypatch):
    place = tmp_path / "file"
    place.write_text("it is in the way")
    monkeypatch.setenv("TFDS_DATA_DIR", str(place / "home"))
    monkeypatch.setattr(images, "_decode_dataset", lambda name, path: {})
    monkeypatch.setattr(record_images, "open_split", lambda directory, split: [{"label": 0}])
    monkeypatch.setattr(record_images, "paths_of", lambda directory, split: [])
    with pytest.raises(InputError, match=r"cannot write to .*file/home.*\(Not a directory\); set TFDS_DATA_DIR$"):
        WRITERS[writer](place)


def test_a_directory_that_the_system_does_not_make(monkeypatch, tmp_path):
    """Such as one in /proc, which is said to be missing; an error about a file elsewhere stays what it is."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    raising = partial(FileNotFoundError, 2, "No such file or directory")
    for inside in (tmp_path, tmp_path / "home", tmp_path / "home" / "attention_jax" / "x"):
        with pytest.raises(InputError, match=r"TFDS_DATA_DIR"), explain_home_errors():
            raise raising(str(inside))
    for outside in (tmp_path / "homes", tmp_path / "text.txt"):
        with pytest.raises(FileNotFoundError), explain_home_errors():
            raise raising(str(outside))
    with pytest.raises(BrokenPipeError), explain_home_errors():
        raise BrokenPipeError(32, "Broken pipe")
