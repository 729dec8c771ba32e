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
from attention_jax.data.text_keys import text_key, to_nfc
from attention_jax.data.vocabulary import PAD, UNK, Vocabulary
from attention_jax.errors import InputError

Example = tuple[str, str]
"""A label and a text."""
SPLITS = ("train", "valid", "test")
DUPLICATE = -1
"""The part of an example whose text occurs before."""


def combining_characters() -> str:
    """Return the characters that belong to the one before them, as a regular expression's class: marks (Unicode's
    category M) such as accents, vowel signs of Hindi and Arabic, and the joiners of letters, as in UAX 29."""
    codes = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    codes += [0x200C, 0x200D, *range(0xE0100, 0xE01F0)]
    begins = [code for code, previous in zip(codes, [None, *codes]) if previous != code - 1]
    ends = [code for code, following in zip(codes, [*codes[1:], None]) if following != code + 1]
    return "".join(f"{chr(begin)}-{chr(end)}" for begin, end in zip(begins, ends))


MARKS = combining_characters()
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


def read_examples(
    path: str, damaged: str, columns: tuple[str, str] = ("label", "text")
) -> tuple[list[Example], list[str]]:
    """Read the examples of a file of `label TAB text` lines, or of `columns` of a table, and the error messages of
    skipped lines."""
    complaints = []
    return list(each_example(path, damaged, columns, complaints)), complaints


def each_example(path: str, damaged: str, columns: tuple[str, str], complaints: list[str]) -> Iterator[Example]:
    """What `read_examples` returns, one example after the other; adds to `complaints`."""
    parse = functools.partial(_parse_row if text_tables.is_table(path) else _parse_columns, path, columns)
    lines = text_tables.each_line(path, "file of labeled texts", columns)
    for _, (label, text) in text_files.each_parsed(lines, parse, damaged, complaints):
        yield to_nfc(label.strip()), text


def _parse_row(path: str, columns: tuple[str, str], line: bytes, number: int) -> Example:
    return text_tables.parse_fields(line, columns, f"{path} line {number}")


def _parse_columns(path: str, columns: tuple[str, str], line: bytes, number: int) -> Example:
    location = f"{path} line {number}"
    fields = text_files.decode_line(line, location).split("\t")
    if len(fields) != 2 or not all(map(str.strip, fields)):
        raise InputError(f"{location}: expected `label TAB text`, got {'    '.join(fields)[:60]!r}")
    return tuple(fields)


class Selection(NamedTuple):
    """What `select` has found out about N examples."""

    names: tuple[str, ...]
    """The names of the classes."""
    label: np.ndarray
    """[N] int32"""
    split_index: np.ndarray
    """[N] int8: the index in `SPLITS` of the split of an example; `DUPLICATE` if its text occurs before"""
    num_ambiguous: int
    """The number of texts that occur with several labels."""
    fingerprint: str

    def labels(self, split: str) -> np.ndarray:
        """The labels [n] of the examples of a split."""
        return self.label[self.split_index == SPLITS.index(split)]


def select(examples: Iterable[Example], fraction: float) -> Selection:
    """Divide examples into splits without common texts by a fixed seed; valid and test have this `fraction` each.

    Texts are the same also in another Unicode form or spacing; the first of them is kept. They are compared by 64 bits
    of a digest. Raises InputError if the labels are none.

    >>> select([(label, f"{label} {n}") for label in "ab" for n in range(3)] + [("b", "a 0")], 0.1).split_index.tolist()
    [2, 0, 1, 0, 2, 1, -1]
    """
    numbers, labels, digests = {}, array("i"), array("Q")

    def scan_examples() -> Iterator[str]:
        for example in examples:
            labels.append(numbers.setdefault(example[0], len(numbers)))
            digests.append(int.from_bytes(blake2b(text_key(example[1]).encode(), digest_size=8).digest()))
            yield from example

    fingerprint = data_summary.fingerprint(scan_examples())
    check_labels(numbers, len(labels))
    label = np.array(labels, np.int32)
    _, first, text = np.unique(np.array(digests, np.uint64), return_index=True, return_inverse=True)
    num_ambiguous = len(np.unique(text[label != label[first][text]]))
    first.sort()
    raw_names = list(numbers)
    names = tuple(sorted(raw_names[number] for number in np.unique(label[first])))
    numbers = {name: number for number, name in enumerate(names)}
    label = np.array([numbers.get(name, DUPLICATE) for name in raw_names], np.int32)[label]
    if np.bincount(label[first]).max() < 3:
        raise InputError("labeled texts need a class with at least 3 of them: to train, to validate and to test")
    split_index = np.full(len(label), DUPLICATE, np.int8)
    for name, rows in split_by_label(label[first], fraction).items():
        split_index[first[rows]] = SPLITS.index(name)
    return Selection(names, label, split_index, num_ambiguous, fingerprint)


def split_by_label(label: np.ndarray, fraction: float) -> dict[str, np.ndarray]:
    """Return indices of "train", "valid" and "test"; the latter two have this fraction of every class: at least one
    each of classes with three texts, and always one for training.

    >>> {name: len(rows) for name, rows in split_by_label(np.array([0] * 20 + [1] * 3 + [2]), 0.1).items()}
    {'train': 18, 'valid': 3, 'test': 3}
    """
    rng, splits = np.random.default_rng(0), {"train": [], "valid": [], "test": []}
    for number in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == number))
        num_held_out = min(max(round(len(rows) * fraction), 1), (len(rows) - 1) // 2)
        splits["valid"].append(rows[:num_held_out])
        splits["test"].append(rows[num_held_out : 2 * num_held_out])
        splits["train"].append(rows[2 * num_held_out :])
    return {name: np.sort(np.concatenate(rows)) for name, rows in splits.items()}


def split_words(text: str) -> list[str]:
    """Split into lower-case words and punctuation marks.

    >>> split_words("It's late: go!"), split_words("\\u0130stanbul")
    (["it's", 'late', ':', 'go', '!'], ['i̇stanbul'])
    """
    return re.findall(WORD, text.lower())


def words_and_marks() -> Tokenizer:
    """Return the tokenizer of `split_words`."""
    return Tokenizer(split_words, " ".join, recipe=("words and marks",))


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


def encode(rows: list[list[str]], vocabulary: Vocabulary, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode the tokens of N texts as indices [N, T] and lengths [N] (`encode_text`)."""
    return pad_rows([encode_text(row, vocabulary, max_length) for row in rows], vocabulary.pad_id)


def encode_text(tokens: list[str], vocabulary: Vocabulary, max_length: int) -> list[int]:
    """Encode the tokens of a text, truncated after `max_length`; an empty text has one unknown token."""
    return vocabulary.encode_text(tokens[:max_length]) or [vocabulary.unk_id or 0]


def check_labels(names: Collection[str], count: int):
    """Raise InputError for fewer than two classes, for 1 and 1.0 as two labels, or if the columns of `count` texts seem
    to be swapped."""
    first_spelling = {}
    for name in filter(is_number, names):
        if (previous := first_spelling.setdefault(float(name), name)) != name:
            raise InputError(f"the labels {previous} and {name} are one number, spelled in two ways: spell it in one")
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
        examples, complaints = read_examples(options.tsv_file, options.on_bad_record, options.columns)
    else:
        examples, complaints = example_texts.dates_by_language(options.examples), []
    selection = select(examples, options.held_out_fraction)
    texts = {name: [] for name in SPLITS}
    for (_, text), split in zip(examples, selection.split_index.tolist()):
        if split != DUPLICATE:
            texts[SPLITS[split]].append(text)
    tokenizer, vocabulary = make_tokenizer(options, texts["train"])
    tokens = {name: tokenizer.split(split) for name, split in texts.items()}
    coded = {name: encode(split, vocabulary, options.max_length) for name, split in tokens.items()}
    whole = {name: Labeled(*coded[name], selection.labels(name)) for name in SPLITS}
    train = whole.pop("train")
    groups = buckets.assign(train.length, train.length, options.max_buckets)
    length = np.array([len(row) for split in tokens.values() for row in split])
    return LabeledTexts(
        train=tuple(Labeled(*(_trim(column[group], train.length[group]) for column in train)) for group in groups),
        held_out=whole,
        texts=texts,
        names=selection.names,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=text_facts(options, selection, length, vocabulary, complaints),
    )


def _trim(column: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Trim padding to the longest of the given rows."""
    return column[:, : length.max()] if column.ndim == 2 else column


def text_facts(options, selection: Selection, length: np.ndarray, vocabulary, complaints: list[str]) -> dict:
    """Return facts: the numbers of texts, of duplicates and of damaged lines, the classes, and the lengths."""
    is_unique = selection.split_index != DUPLICATE
    return {
        **{f"{name}_texts": len(selection.labels(name)) for name in SPLITS},
        "vocabulary": len(vocabulary),
        **data_summary.class_facts(selection.names, selection.label[is_unique]),
        "texts_left_out": int((~is_unique).sum()),
        "texts_of_several_labels": selection.num_ambiguous,
        "texts_cut": int((length > options.max_length).sum()),
        **data_summary.length_facts(length),
        **data_summary.damage_facts(complaints),
        "fingerprint": selection.fingerprint,
    }
