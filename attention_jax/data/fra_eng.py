"""English-French sentence pairs of tatoeba.org (fra.txt through manythings.org/anki, CC BY 2.0),
167,130 in the edition that d2l uses.

split "d2l" is the book's (11.4, 10.5): the first 512 pairs train and the next 128 validate, vocabularies from all 640.
"d2l-641" has the 129 that its reader takes, of which the last is a batch of its own, and vocabularies from all 641.
split "full" is seeded: 2,000 sources validate and 2,000 test, each with the first of its translations; no source
(lower-cased, spaced as d2l does) is in two parts and no pair occurs twice.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from attention_jax import config as settings
from attention_jax.data import pair_files, splits as splitting, store, text_files, tokenizers
from attention_jax.data.download import digest, download
from attention_jax.data.pairs import PairData, Pairs, Texts
from attention_jax.data.text_keys import to_nfc
from attention_jax.errors import InputError

URL = "http://d2l-data.s3-accelerate.amazonaws.com/fra-eng.zip"
SHA1 = "94646ad1522d915e7b0f9296181140edcf86a4f5"
"""The file as published by d2l."""
TRAIN, VALID = 512, {"d2l": 128, "d2l-641": 129}
HELD_OUT = 2_000


def find_file(path: str) -> str:
    """Return the path of fra.txt, or of an archive with it, at `path` or in the directory `path`."""
    if not os.path.isdir(path):
        return path
    for name in ("fra.txt", *(f"fra.txt{suffix}" for suffix in text_files.PACKED), "fra-eng.zip"):
        if os.path.isfile(os.path.join(path, name)):
            return os.path.join(path, name)
    raise InputError(f"{path} holds neither fra.txt nor fra-eng.zip")


@dataclass(kw_only=True)
class FraEngConfig(tfds.core.BuilderConfig):
    """TFDS builder configuration with the directory of the file, or "" for generated data."""

    path: str = ""


class FraEng(tfds.core.GeneratorBasedBuilder):
    """All pairs in the file's order (short ones first), in one split."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [FraEngConfig(name="d2l")]

    def _info(self):
        return store.text_features(
            self, "English-French sentence pairs of tatoeba.org.", homepage="https://www.manythings.org/anki/"
        )

    def _split_generators(self, dl_manager):
        path = self.builder_config.path or download(
            URL, os.path.join(store.data_home(), "downloads", "fra-eng.zip"), "sha1:" + SHA1
        )
        texts = text_files.read_columns(text_files.read_bytes(path, "file of sentence pairs", "fra.txt"), path)
        return {"train": self._generate_examples(texts)}

    def _generate_examples(self, texts):
        for number, (source, target) in enumerate(zip(*texts)):
            yield number, {"source": source, "target": target}


def load(config: settings.FraEng, batch_size: int = 128) -> PairData:
    """Load the dataset of `config` from the file at `config.path`, or download it."""
    corpus = "d2l"
    if config.path:
        path = find_file(config.path)
        if not os.path.isfile(path):
            raise InputError(
                f"--data.path needs a file of sentence pairs; there is none at {path}: "
                "correct the path, or leave it out"
            )
        corpus = FraEngConfig(name=f"file_{store.fingerprint([digest(path)])}", path=os.path.abspath(path))
    builder = store.prepare_builder(FraEng, corpus)
    if config.split in VALID:
        count, needed = builder.info.splits["train"].num_examples, TRAIN + VALID[config.split]
        if count < needed:
            raise InputError(f"d2l's split needs {needed} pairs, {config.path or URL} has {count}")
        texts = Texts(**store.read_rows(builder, [f"train[:{needed}]"]).popitem()[1])
        rows = {"train": np.arange(TRAIN), "valid": np.arange(TRAIN, needed)}
        vocabulary_splits = ("train", "valid")
    else:
        texts = Texts(**store.read_rows(builder, ["train"])["train"])
        keys = [[to_nfc(" ".join(row)) for row in tokenizers.words().split(side)] for side in texts]
        if len(texts.source) < 20:
            raise InputError(
                f"a split of sentence pairs needs at least 20, {config.path or URL} has {len(texts.source)}"
            )
        held_out = min(HELD_OUT, len(texts.source) // 20)
        rows = splitting.split_by_source(*keys, {"valid": held_out, "test": held_out}, seed=0)
        vocabulary_splits = ("train",)
    splits = {name: splitting.take_rows(texts, numbers) for name, numbers in rows.items()}
    plain = config.tokenizer in ("sentencepiece", "character")
    data = pair_files.assemble(
        splits,
        config,
        batch_size,
        languages=("en", "fr"),
        vocabulary_from=vocabulary_splits,
        bleu_tokenize="13a" if plain else "none",
    )
    if config.predict_padding:
        data = _map_pairs(data, lambda pairs: with_padding(pairs, config.max_length, data.target_vocabulary.pad_id))
    if config.pad_source:
        data = _map_pairs(data, lambda pairs: wider_source(pairs, config.max_length, data.source_vocabulary.pad_id))
    return data


def _map_pairs(data: PairData, change: Callable[[Pairs], Pairs]) -> PairData:
    """The data with every bucket and held-out split changed."""
    return data._replace(
        train=tuple(map(change, data.train)), held_out={name: change(pairs) for name, pairs in data.held_out.items()}
    )


def wider_source(pairs: Pairs, width: int, pad: int) -> Pairs:
    """Return the pairs with sources of `width` tokens, including padding; their lengths stay.

    >>> rows = Pairs(np.array([[5, 2]]), np.array([2]), np.array([[1, 7, 2]]), np.array([2]))
    >>> wider_source(rows, 4, pad=0).source.tolist(), wider_source(rows, 4, pad=0).source_length.tolist()
    ([[5, 2, 0, 0]], [2])
    """
    pad_widths = [(0, 0), (0, width - pairs.source.shape[1])]  # [N, S] -> [N, width]
    return pairs._replace(source=np.pad(pairs.source, pad_widths, constant_values=pad))


def with_padding(pairs: Pairs, width: int, pad: int) -> Pairs:
    """Return the pairs with `width` tokens to predict in every target, including padding.

    >>> rows = Pairs(np.array([[5]]), np.array([1]), np.array([[1, 7, 2]]), np.array([2]))
    >>> with_padding(rows, 4, pad=0).target.tolist(), with_padding(rows, 4, pad=0).target_length.tolist()
    ([[1, 7, 2, 0, 0]], [4])
    """
    target = np.pad(pairs.target, [(0, 0), (0, width + 1 - pairs.target.shape[1])], constant_values=pad)
    return pairs._replace(target=target, target_length=np.full_like(pairs.target_length, width))
