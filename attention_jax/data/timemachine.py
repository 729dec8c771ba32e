"""The Time Machine (H. G. Wells 1898) as characters: a-z and space, the text of d2l's chapters 9 and 10.

As in d2l everything that is not a letter becomes a space, letters are lower-cased, and the vocabulary is the
27 characters and an unknown one. Windows overlap: window i reads characters i * stride ... and predicts those
one later. Validation windows start where the training windows stop to start; the first of them still overlap
the last training window's text.
"""

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from attention_jax import config as settings
from attention_jax.data import data_summary, store, text_files, tokenizers
from attention_jax.data.download import digest, download
from attention_jax.data.text_windows import Windows, cut_windows
from attention_jax.data.vocabulary import UNK, Vocabulary
from attention_jax.errors import InputError

URL = "http://d2l-data.s3-accelerate.amazonaws.com/timemachine.txt"
SHA1 = "090b5e7e70c295757f55df93cb0a180b9691891a"
"""The file as published by d2l."""
CHARACTERS = " abcdefghijklmnopqrstuvwxyz"


@dataclass(kw_only=True)
class TimeMachineConfig(tfds.core.BuilderConfig):
    """TFDS builder configuration with the path of the text."""

    path: str = ""


class TimeMachine(tfds.core.GeneratorBasedBuilder):
    """The book, with one example per line."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [TimeMachineConfig(name="d2l")]

    def _info(self):
        return store.text_features(
            self, "The Time Machine, by H. G. Wells.", names=("text",), homepage="https://www.gutenberg.org/ebooks/35"
        )

    def _split_generators(self, dl_manager):
        path = self.builder_config.path or download(
            URL, os.path.join(store.data_home(), "downloads", "timemachine.txt"), "sha1:" + SHA1
        )
        return {"train": self._generate_examples(text_files.read_lines(path, "text of The Time Machine"))}

    def _generate_examples(self, lines):
        for number, line in enumerate(lines):
            yield number, {"text": line}


def find_file(path: str) -> str:
    """Return the path of timemachine.txt or timemachine.txt.gz, at `path` or in the directory `path`."""
    return text_files.existing_path(
        os.path.join(path, "timemachine.txt") if os.path.isdir(path) else path, "text of The Time Machine"
    )


def read_text(path: str) -> str:
    """The text at `path`, a file or the directory of timemachine.txt (.gz, too); downloaded if `path` is empty."""
    corpus = "d2l"
    if path:
        path = find_file(path)
        corpus = TimeMachineConfig(name=f"file_{store.fingerprint([digest(path)])}", path=os.path.abspath(path))
    return "\n".join(store.read_rows(store.prepare_builder(TimeMachine, corpus), ["train"])["train"]["text"])


def load(config: settings.TimeMachine) -> Windows:
    """Load the windows of `config` from the file at `config.path`, or download it."""
    vocabulary, tokenizer = Vocabulary(CHARACTERS, unk=UNK), tokenizers.letters()
    text = np.array(vocabulary.encode(tokenizer.tokens(read_text(config.path))), np.int32)
    capacity = (len(text) - config.sequence_length - 1) // config.stride + 1
    total = config.train_windows + config.valid_windows
    if total > capacity:
        raise InputError(
            f"the text's {len(text)} characters fit at most {max(capacity, 0)} windows of {config.sequence_length} + 1 "
            f"at stride {config.stride}; got {config.train_windows} + {config.valid_windows}: change "
            "--data.train-windows or --data.sequence-length"
        )
    cut = lambda first, count: cut_windows(text, first, count, config.sequence_length, config.stride)
    held_out = {"valid": cut(config.train_windows, config.valid_windows)}
    facts = {
        "characters": len(text),
        "vocabulary": len(vocabulary),
        "train_windows": config.train_windows,
        "valid_windows": config.valid_windows,
        "fingerprint": data_summary.fingerprint([text]),
    }
    return Windows(cut(0, config.train_windows), held_out, vocabulary, tokenizer, facts)
