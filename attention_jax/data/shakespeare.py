"""Tiny Shakespeare: 40,000 lines of the plays (Karpathy 2015, char-rnn), character by character.

The first nine tenths train and the last tenth validates, as in nanoGPT; validation windows follow one another, so that
each of its characters but the first is predicted once.
"""

import os

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, store, text_files, tokenizers
from attention_jax.data.download import download
from attention_jax.data.text_windows import Windows, cut_windows
from attention_jax.data.vocabulary import UNK, Vocabulary
from attention_jax.errors import InputError

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""Measured on a copy of 2026."""
CHARACTERS, DISTINCT = 1_115_394, 65
"""Sizes of the published text."""
TRAINS = 0.9


def read_text(path: str) -> str:
    """The text at `path`, a file or the directory of input.txt (.gz, too); downloaded if `path` is empty."""
    if not path:
        path = download(URL, os.path.join(store.data_home(), "downloads", "tinyshakespeare.txt"), "sha256:" + SHA256)
    description = "text of Shakespeare"
    path = text_files.existing_path(os.path.join(path, "input.txt") if os.path.isdir(path) else path, description)
    content = text_files.read_bytes(path, description)
    return "\n".join(text_files.decode_lines(content, path)) + "\n" * content.endswith(b"\n")


def count_windows(characters: int, options: settings.Shakespeare) -> dict[str, int]:
    """Return the number of windows of each split for a text of `characters`; InputError if a split has none."""
    border = int(TRAINS * characters)
    spans = {"train": (border, options.stride), "valid": (characters - border, options.sequence_length)}
    windows = {name: (length - options.sequence_length - 1) // stride + 1 for name, (length, stride) in spans.items()}
    if min(windows.values()) < 1:
        raise InputError(
            f"--data.sequence-length must be less than a tenth of the text, {characters - border} characters"
        )
    return windows


def assemble(text: str, options: settings.Shakespeare) -> Windows:
    """The windows of a text."""
    count, border, steps = count_windows(len(text), options), int(TRAINS * len(text)), options.sequence_length
    vocabulary = Vocabulary(sorted(set(text)), unk=UNK)
    coded = np.array(vocabulary.encode(text), np.int32)
    return Windows(
        cut_windows(coded[:border], 0, count["train"], steps, options.stride),
        {"valid": cut_windows(coded[border:], 0, count["valid"], steps, steps)},
        vocabulary,
        tokenizers.character(),
        {
            "characters": len(text),
            "train_characters": border,
            "vocabulary": len(vocabulary),
            "fingerprint": data_summary.fingerprint([text]),
        },
        beginnings=("ROMEO:\n", "First Citizen:\n"),
        sampling=settings.Sampling(length=max(steps - 16, 1), temperature=0.8),  # learned positions end with a window
    )


def load(options: settings.Shakespeare) -> Windows:
    """The windows of tiny Shakespeare."""
    return assemble(read_text(options.path), options)
