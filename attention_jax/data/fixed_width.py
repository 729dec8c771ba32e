"""Character pairs of fixed width, the format of "Deep Learning from Scratch 2" (Saito 2018), chapters 7 and 8:
one line per pair, a source padded with spaces to one length, then "_" and a target of one length."""

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from attention_jax.data import data_summary, store, text_files, tokenizers
from attention_jax.data.pairs import PairData, Pairs, Texts, occurs_in
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError

START = "_"
SPLIT_SEED = 1984
"""The book's seed: with its file, train and test are exactly the book's."""


def read_file(path: str, kind: str) -> Texts:
    """Read a published file, plain or packed; InputError with the line number for a malformed line."""
    if not os.path.isfile(path):
        raise InputError(
            f"no {kind} file at {path}; give the path of a published file, or leave the option out to generate the data"
        )
    lines = text_files.read_lines(path, f"{kind} file") if os.path.getsize(path) else []
    if len(lines) < 2:
        raise InputError(f"{path} has {len(lines)} lines; a {kind} file has at least 2, one pair a line")
    sources, targets = [], []
    for number, line in enumerate(lines, start=1):
        source, start, target = line.partition(START)
        if not (start and source.strip() and target.strip()):
            raise InputError(f"{path} line {number}: expected `source_target`, got {line[:60]!r}")
        if sources and (len(source), len(target)) != (len(sources[0]), len(targets[0])):
            raise InputError(
                f"{path} line {number}: expected {len(sources[0])} characters, {START!r} and {len(targets[0])} more "
                f"as in line 1, got {len(source)} and {len(target)}"
            )
        sources.append(source)
        targets.append(target)
    return Texts(sources, targets)


def split(texts: Texts) -> dict[str, Texts]:
    """Split 9:1 into train and test, permuted as in the book (NumPy's legacy generator, seed 1984)."""
    if len(texts.source) < 10:
        raise InputError(f"at least 10 pairs are needed, so that one is for testing; got {len(texts.source)}")
    order = np.arange(len(texts.source))
    np.random.RandomState(SPLIT_SEED).shuffle(order)
    train_rows = len(order) - len(order) // 10
    take = lambda rows: Texts([texts.source[i] for i in rows], [texts.target[i] for i in rows])
    return {"train": take(order[:train_rows]), "test": take(order[train_rows:])}


def with_validation(splits: dict[str, Texts], count: int) -> dict[str, Texts]:
    """Move the last `count` training pairs to the split "valid"; 0 changes nothing.

    Raises InputError unless some pairs are left to train on.

    >>> with_validation({"train": Texts(list("abc"), list("xyz")), "test": Texts(["d"], ["w"])}, 1)["valid"]
    Texts(source=['c'], target=['z'])
    """
    train = splits["train"]
    size = len(train.source) - count
    if size < 1:
        raise InputError(
            f"--data.validation must be less than the number of training pairs, {len(train.source)}; got {count}"
        )
    if not count:
        return splits
    begin, end = (Texts(*(side[rows] for side in train)) for rows in (slice(size), slice(size, None)))
    return {"train": begin, "valid": end, "test": splits["test"]}


@dataclass(kw_only=True)
class GeneratedConfig(tfds.core.BuilderConfig):
    """TFDS builder configuration with the number of generated pairs."""

    examples: int = 50_000


class GeneratedPairs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A generated dataset, split 9 : 1. A subclass has a `DESCRIPTION` and `generate(examples) -> Texts`."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [GeneratedConfig(name="generated_50000")]
    DESCRIPTION: str

    @staticmethod
    def generate(examples: int) -> Texts:
        """Generate the pairs, deterministically."""
        raise NotImplementedError

    def _info(self):
        return store.text_features(self, self.DESCRIPTION)

    def _split_generators(self, dl_manager):
        return {
            name: self._generate_examples(texts)
            for name, texts in split(self.generate(self.builder_config.examples)).items()
        }

    def _generate_examples(self, texts):
        for number, (source, target) in enumerate(zip(*texts)):
            yield number, {"source": source, "target": target}


def load_generated(builder: type[GeneratedPairs], examples: int, max_examples: int) -> dict[str, Texts]:
    """Return the splits of a generated dataset, from its cache if there is one."""
    if not 10 <= examples <= max_examples:
        raise InputError(f"--data.examples must be between 10 and {max_examples}, got {examples}")
    name = f"generated_{examples}"
    config = name if name in builder.builder_configs else GeneratedConfig(name=name, examples=examples)
    rows = store.read_rows(store.prepare_builder(builder, config), ("train", "test"))
    return {name: Texts(**columns) for name, columns in rows.items()}


def _characters(texts: list[str], vocabulary: Vocabulary, start: str = "") -> np.ndarray:
    """Encode texts as [N, width] int32 with one table look-up for all characters."""
    width = len(start) + len(texts[0])
    codes = np.array([ord(character) for character in "".join(start + text for text in texts)])
    table = np.zeros(max(codes.max(), max(map(ord, vocabulary.tokens))) + 1, np.int32)
    for number, character in enumerate(vocabulary.tokens):
        table[ord(character)] = number
    return table[codes].reshape(len(texts), width)


def assemble(splits: dict[str, Texts], alphabet: str, reverse_source: bool, batch_size: int) -> PairData:
    """The dataset: one character vocabulary for both sides, bos = "_", no eos; spaces are ordinary
    characters, so nothing is padding.

    The vocabulary has the characters of `alphabet` and all others that occur.
    """
    characters = {
        character for split_pairs in splits.values() for texts in split_pairs for character in set("".join(texts))
    }
    vocabulary = Vocabulary(sorted(characters | set(alphabet) | {START}), bos=START)
    step = -1 if reverse_source else 1
    pairs = {}
    for name, texts in splits.items():
        count = len(texts.source)
        source, target = _characters(texts.source, vocabulary)[:, ::step], _characters(texts.target, vocabulary, START)
        pairs[name] = Pairs(
            np.ascontiguousarray(source),
            np.full(count, source.shape[1], np.int32),
            target,
            np.full(count, target.shape[1] - 1, np.int32),
        )
    held_out = {name: split_pairs for name, split_pairs in pairs.items() if name != "train"}
    in_train = {name: occurs_in(splits[name].source, splits["train"].source) for name in held_out}
    width = pairs["train"].source.shape[1]

    facts = {f"{name}_pairs": len(split_pairs.source) for name, split_pairs in splits.items()}
    facts |= {
        "vocabulary": len(vocabulary),
        "test_inputs_also_in_train": int(in_train["test"].sum()),
        "share_of_test_inputs_also_in_train": round(float(in_train["test"].mean()), 4),
        "fingerprint": data_summary.fingerprint(data_summary.contents(splits)),
    }
    return PairData(
        train=(pairs["train"],),
        batch_sizes=(batch_size,),
        held_out=held_out,
        texts=splits,
        seen=in_train,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        source_tokenizer=tokenizers.fixed_width_tokenizer(width, step),
        target_tokenizer=tokenizers.stripping_tokenizer(),
        facts=facts,
    )
