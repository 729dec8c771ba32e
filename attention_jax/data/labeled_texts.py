"""Labeled texts from a user's file of two columns; without a file, dates in six languages."""

import functools
import re
import unicodedata
from array import array
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.data import (
    buckets,
    data_summary,
    example_texts,
    pretrained_tokenizer,
    text_files,
    text_tables,
    tokenizers,
)
from attention_jax.data.pairs import Tokenizer, pad_rows
from attention_jax.data.text_keys import comparable, composed
from attention_jax.data.vocabulary import PAD, UNK, Vocabulary
from attention_jax.errors import InputError

Example = tuple[str, str]
"""A label and a text."""
SPLITS = ("train", "valid", "test")
DOUBLE = -1
"""The part of an example whose text occurs before."""


def combining() -> str:
    """Return the characters that belong to the one before them, as a regular expression's class: marks (Unicode's
    category M) such as accents, vowel signs of Hindi and Arabic, and the joiners of letters, as in UAX 29."""
    found = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    found += [0x200C, 0x200D, *range(0xE0100, 0xE01F0)]
    begins = [code for code, before in zip(found, [None, *found]) if before != code - 1]
    ends = [code for code, after in zip(found, [*found[1:], None]) if after != code + 1]
    return "".join(f"{chr(begin)}-{chr(end)}" for begin, end in zip(begins, ends))


MARKS = combining()
WORD = rf"\w[\w{MARKS}]*(?:['\u2019]\w[\w{MARKS}]*)*|[^\w\s][{MARKS}]*"
"""The pattern of a word, or of a punctuation mark or symbol."""


class Labeled(NamedTuple):
    """N texts of one width."""

    tokens: np.ndarray
    """[N, T] int32, padded at the end; `TokenRows` of texts that are streamed"""
    length: np.ndarray
    """[N] int32"""
    label: np.ndarray
    """[N] int32"""


class LabeledTexts(NamedTuple):
    """A dataset of labeled texts, ready for a task."""

    train: tuple[Labeled, ...]
    """Buckets of similar lengths."""
    held_out: dict[str, Labeled]
    """"valid", "test"."""
    texts: dict[str, list[str]]
    """The held-out texts by split."""
    names: tuple[str, ...]
    """The names of the classes."""
    vocabulary: Vocabulary
    tokenizer: Tokenizer
    facts: dict


def read(path: str, damaged: str, columns: tuple[str, str] = ("label", "text")) -> tuple[list[Example], list[str]]:
    """Read the examples of a file of `label TAB text` lines, or of `columns` of a table, and the error messages of
    skipped lines."""
    complaints = []
    return list(each_example(path, damaged, columns, complaints)), complaints


def each_example(path: str, damaged: str, columns: tuple[str, str], complaints: list[str]) -> Iterator[Example]:
    """What `read` returns, one example after the other; adds to `complaints`."""
    parse = functools.partial(_row if text_tables.is_table(path) else _columns, path, columns)
    lines = text_tables.each_line(path, "file of labeled texts", columns)
    for _, (label, text) in text_files.each_parsed(lines, parse, damaged, complaints):
        yield composed(label.strip()), text


def _row(path: str, columns: tuple[str, str], line: bytes, number: int) -> Example:
    return text_tables.fields_of(line, columns, f"{path} line {number}")


def _columns(path: str, columns: tuple[str, str], line: bytes, number: int) -> Example:
    location = f"{path} line {number}"
    found = text_files.decode_line(line, location).split("\t")
    if len(found) != 2 or not all(map(str.strip, found)):
        raise InputError(f"{location}: expected `label TAB text`, got {'    '.join(found)[:60]!r}")
    return tuple(found)


class Selection(NamedTuple):
    """What `select` has found out about N examples."""

    names: tuple[str, ...]
    """The names of the classes."""
    label: np.ndarray
    """[N] int32"""
    part: np.ndarray
    """[N] int8: the number in `SPLITS` of the split that an example belongs to; `DOUBLE` if its text occurs before"""
    of_several_labels: int
    """The number of texts that occur with several labels."""
    fingerprint: str

    def labels(self, split: str) -> np.ndarray:
        """The labels [n] of the examples of a split."""
        return self.label[self.part == SPLITS.index(split)]


def select(examples: Iterable[Example], fraction: float) -> Selection:
    """Divide examples into splits without common texts, of which two have this `fraction` each, by a fixed seed.

    Texts are the same also in another Unicode form or spacing; the first of them is kept. They are compared by 64 bits
    of a digest. Raises InputError if the labels are none.

    >>> select([(label, f"{label} {n}") for label in "ab" for n in range(3)] + [("b", "a 0")], 0.1).part.tolist()
    [2, 0, 1, 0, 2, 1, -1]
    """
    numbers, labels, digests = {}, array("i"), array("Q")

    def noted() -> Iterator[str]:
        for example in examples:
            labels.append(numbers.setdefault(example[0], len(numbers)))
            digests.append(int.from_bytes(blake2b(comparable(example[1]).encode(), digest_size=8).digest()))
            yield from example

    fingerprint = data_summary.fingerprint(noted())
    check_labels(numbers, len(labels))
    label = np.array(labels, np.int32)
    _, first, text = np.unique(np.array(digests, np.uint64), return_index=True, return_inverse=True)
    of_several_labels = len(np.unique(text[label != label[first][text]]))
    first.sort()
    found = list(numbers)
    names = tuple(sorted(found[number] for number in np.unique(label[first])))
    numbers = {name: number for number, name in enumerate(names)}
    label = np.array([numbers.get(name, DOUBLE) for name in found], np.int32)[label]
    if np.bincount(label[first]).max() < 3:
        raise InputError("labeled texts need a class with at least 3 of them: to train, to validate and to test")
    part = np.full(len(label), DOUBLE, np.int8)
    for name, rows in split(label[first], fraction).items():
        part[first[rows]] = SPLITS.index(name)
    return Selection(names, label, part, of_several_labels, fingerprint)


def split(label: np.ndarray, fraction: float) -> dict[str, np.ndarray]:
    """Return indices of "train", "valid" and "test"; the latter two have this fraction of every class: at least one
    each of classes with three texts, and always one for training.

    >>> {name: len(rows) for name, rows in split(np.array([0] * 20 + [1] * 3 + [2]), 0.1).items()}
    {'train': 18, 'valid': 3, 'test': 3}
    """
    rng, parts = np.random.default_rng(0), {"train": [], "valid": [], "test": []}
    for number in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == number))
        held = min(max(round(len(rows) * fraction), 1), (len(rows) - 1) // 2)
        parts["valid"].append(rows[:held])
        parts["test"].append(rows[held : 2 * held])
        parts["train"].append(rows[2 * held :])
    return {name: np.sort(np.concatenate(rows)) for name, rows in parts.items()}


def words(text: str) -> list[str]:
    """Split into lower-case words and punctuation marks.

    >>> words("It's late: go!"), words("\\u0130stanbul")
    (["it's", 'late', ':', 'go', '!'], ['i̇stanbul'])
    """
    return re.findall(WORD, text.lower())


def words_and_marks() -> Tokenizer:
    """Return the tokenizer of `words`."""
    return Tokenizer(words, " ".join, recipe=("words and marks",))


def make_tokenizer(options: settings.LabeledFile, train: Iterable[str]) -> tuple[Tokenizer, Vocabulary]:
    """Return the tokenizer of `options`, trained on the training texts if necessary, and its vocabulary."""
    if options.pretrained:
        return pretrained_tokenizer.of_directory(options.pretrained, options.max_length)
    special = {"pad": PAD, "unk": UNK}
    if options.tokenizer == "sentencepiece":
        tokenizer, pieces = tokenizers.sentencepiece(train, options.vocabulary_size)
        return tokenizer, Vocabulary(pieces, **special)
    tokenizer = words_and_marks() if options.tokenizer == "words" else tokenizers.character()
    rows = map(tokenizer.tokens, train)
    return tokenizer, Vocabulary.of_sentences(rows, min_frequency=options.min_frequency, **special)


def encode(rows: list[list[str]], vocabulary: Vocabulary, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode the tokens of N texts as indices [N, T] and lengths [N] (`encode_text`)."""
    return pad_rows([encode_text(row, vocabulary, most) for row in rows], vocabulary.pad_id)


def encode_text(tokens: list[str], vocabulary: Vocabulary, most: int) -> list[int]:
    """Encode the tokens of a text, truncated after `most`; an empty text has one unknown token."""
    return vocabulary.encode_text(tokens[:most]) or [vocabulary.unk_id or 0]


def check_labels(names: Collection[str], count: int):
    """Raise InputError for fewer than two classes, for 1 and 1.0 as two labels, or if the columns of `count` texts seem
    to be swapped."""
    spelled = {}
    for name in filter(is_number, names):
        if (other := spelled.setdefault(float(name), name)) != name:
            raise InputError(f"the labels {other} and {name} are one number, spelled in two ways: spell it in one")
    if len(names) < 2:
        raise InputError(f"labeled texts need at least 2 classes, got {len(names)}: {', '.join(names)[:60] or 'none'}")
    if len(names) > max(count // 2, 2):
        raise InputError(
            f"the first column has {len(names):,} different labels in {count:,} texts; "
            "a line is `label TAB text`: are the columns the other way round?"
        )


def is_number(label: str) -> bool:
    """Whether a label is a number as programs write one; 1.10 may be a version, and 007 a name.

    >>> [label for label in ("1", "1.0", "-2.5", "1e-07", "1.10", "007", "one") if is_number(label)]
    ['1', '1.0', '-2.5', '1e-07']
    """
    try:
        value = float(label)
    except ValueError:
        return False
    return label == repr(value) or (value.is_integer() and label == str(int(value)))


def load(options: settings.LabeledFile, batch_size: int) -> LabeledTexts:
    """Load the texts of `options` in memory."""
    if options.tsv_file:
        found, complaints = read(options.tsv_file, options.on_bad_record, options.columns)
    else:
        found, complaints = example_texts.dates_by_language(options.examples), []
    selection = select(found, options.held_out_fraction)
    texts = {name: [] for name in SPLITS}
    for (_, text), part in zip(found, selection.part.tolist()):
        if part != DOUBLE:
            texts[SPLITS[part]].append(text)
    tokenizer, vocabulary = make_tokenizer(options, texts["train"])
    tokens = {name: tokenizer.split(part) for name, part in texts.items()}
    coded = {name: encode(part, vocabulary, options.max_length) for name, part in tokens.items()}
    whole = {name: Labeled(*coded[name], selection.labels(name)) for name in SPLITS}
    train = whole.pop("train")
    groups = buckets.assign(train.length, train.length, options.max_buckets)
    length = np.array([len(row) for part in tokens.values() for row in part])
    return LabeledTexts(
        train=tuple(Labeled(*(_cut(column[group], train.length[group]) for column in train)) for group in groups),
        held_out=whole,
        texts=texts,
        names=selection.names,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=described(options, selection, length, vocabulary, complaints),
    )


def _cut(column: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Trim padding to the longest of the given rows."""
    return column[:, : length.max()] if column.ndim == 2 else column


def described(options, selection: Selection, length: np.ndarray, vocabulary, complaints: list[str]) -> dict:
    """Return facts: the numbers of texts, of duplicates and of damaged lines, the classes, and the lengths."""
    kept = selection.part != DOUBLE
    return {
        **{f"{name}_texts": len(selection.labels(name)) for name in SPLITS},
        "vocabulary": len(vocabulary),
        **data_summary.classes(selection.names, selection.label[kept]),
        "texts_left_out": int((~kept).sum()),
        "texts_of_several_labels": selection.of_several_labels,
        "texts_cut": int((length > options.max_length).sum()),
        **data_summary.lengths(length),
        **data_summary.damaged(complaints),
        "fingerprint": selection.fingerprint,
    }
