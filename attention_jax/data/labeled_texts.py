"""Labeled texts from a user's file of two columns; without a file, dates in six languages."""

import functools
import itertools
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.data import batches, data_summary, example_texts, text_tables, tokenizers
from attention_jax.data.splits import SPLITS, split_by_label, split_normalized, text_digest
from attention_jax.data.stored import storable
from attention_jax.data.stream import TokenRows, load_tokens
from attention_jax.data.text_files import Rereadable
from attention_jax.data.vocabulary import PAD, UNK, Tokenizer, Vocabulary
from attention_jax.errors import InputError

Example = tuple[str, str]
"""A label and a text."""
DUPLICATE = -1
"""The part of an example whose text occurs before."""


@storable
class Labeled(NamedTuple):
    """N texts of one width."""

    tokens: np.ndarray
    """[N, T] int32, padded at the end; `TokenRows` of texts that are streamed"""
    length: np.ndarray
    """[N] int32"""
    label: np.ndarray
    """[N] int32"""


@storable
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
    options: settings.LabeledFile, complaints: list[str] | None = None, damaged: str | None = None
) -> Iterator[Example]:
    """Yield the examples of the file in `options`, one after the other, or generated ones; `damaged` of
    `text_tables.read_rows` is by default what they say."""
    if not options.tsv_file:
        yield from example_texts.dates_by_language(options.examples)
        return
    usual = settings.LabeledFile.columns
    damaged = options.on_bad_record if damaged is None else damaged
    rows = text_tables.read_rows(options.tsv_file, options.columns, damaged, complaints, usual=usual)
    for _, (label, text) in rows:
        yield label.strip(), text


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


def texts_as_read(options: settings.LabeledFile) -> Callable[[list[str]], list[str]]:
    """Return a function that gives what the model reads of texts: texts of one reading belong to one split.

    >>> texts_as_read(settings.LabeledFile(max_length=2))(["Hello, world", "hello ,"])
    ['hello ,', 'hello ,']
    """
    split = lambda texts: (split_normalized(text, options.tokenizer) for text in texts)
    if options.pretrained:
        split = tokenizers.model_tokenizer(options.pretrained, options.max_length)[0].split
    elif options.tokenizer == "words":
        split = tokenizers.words_and_marks().split
    return lambda texts: [" ".join(row[: options.max_length]) for row in split(texts)]


def select(examples: Iterable[Example], fraction: float, as_read: Callable = list) -> Selection:
    """Divide examples into splits without common texts by a fixed seed; valid and test have this `fraction` each.

    Texts are the same if `as_read` gives the same for them; the first of them is kept. They are compared by 64 bits of
    a digest. Raises InputError if the labels are none.

    >>> select([(label, f"{label} {n}") for label in "ab" for n in range(3)] + [("b", "a 0")], 0.1).split_index.tolist()
    [2, 0, 1, 0, 2, 1, -1]
    """
    numbers, labels, digests = {}, array("i"), array("Q")

    def scan_examples() -> Iterator[str]:
        for block in text_tables.chunks(examples):
            labels.extend(numbers.setdefault(label, len(numbers)) for label, _ in block)
            digests.extend(map(text_digest, as_read([text for _, text in block])))
            yield from itertools.chain.from_iterable(block)

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


def make_tokenizer(options: settings.LabeledFile, train: Iterable[str]) -> tuple[Tokenizer, Vocabulary]:
    """Return the tokenizer of `options`, trained on the training texts if necessary, and its vocabulary."""
    if options.pretrained:
        return tokenizers.model_tokenizer(options.pretrained, options.max_length)
    special = {"pad": PAD, "unk": UNK}
    if options.tokenizer == "sentencepiece":
        tokenizer, pieces = tokenizers.sentencepiece(train, options.vocabulary_size)
        return tokenizer, Vocabulary(pieces, **special)
    tokenizer = tokenizers.words_and_marks() if options.tokenizer == "words" else tokenizers.character()
    rows = map(tokenizer.tokens, train)
    return tokenizer, Vocabulary.of_sentences(rows, min_frequency=options.min_frequency, **special)


def encode(rows: list[list[str]], vocabulary: Vocabulary, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode the tokens of N texts as indices [N, T] and lengths [N] (`encode_text`)."""
    return batches.pad_rows([encode_text(row, vocabulary, max_length) for row in rows], vocabulary.pad_id)


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
    """Load labeled texts as arrays, or if they are streamed, the training texts as `TokenRows`."""
    paths = [options.tsv_file] if options.tsv_file else []
    preparation = settings.replace(options, stream="auto", workers=0, max_buckets=1)
    words = [str(preparation), tokenizers.tokenizer_stamps(options.pretrained)]
    tokens = load_tokens(options.stream, paths, words, functools.partial(write_tokens, options))
    data = tokens.data
    [lengths], pad = data.train, data.vocabulary.pad_id or 0
    start = np.cumsum(lengths.length, dtype=np.int64) - lengths.length

    def bucket(group: np.ndarray) -> Labeled:
        length = lengths.length[group]
        rows = TokenRows(tokens.array, start[group], length, int(length.max()), pad)
        return Labeled(rows if tokens.streamed else rows[:], length, lengths.label[group])

    groups = batches.assign(lengths.length, lengths.length, options.max_buckets)
    return data._replace(train=tuple(map(bucket, groups)))


def write_tokens(options: settings.LabeledFile, streamed: bool, file: BinaryIO) -> LabeledTexts:
    """Write the tokens of the training texts, and return the dataset without them.

    The examples are in memory, or read three times: for the labels, the vocabulary and the tokens.
    """
    complaints = []
    examples = Rereadable(lambda: read_examples(options))
    examples = examples if streamed else list(read_examples(options, complaints))
    first_pass = read_examples(options, complaints) if streamed else examples
    selection = select(first_pass, options.held_out_fraction, texts_as_read(options))
    numbers = selection.split_index.tolist()
    read_split = lambda number: (text for (_, text), split in zip(examples, numbers) if split == number)
    texts = {name: Rereadable(functools.partial(read_split, number)) for number, name in enumerate(SPLITS)}
    tokenizer, vocabulary = make_tokenizer(options, texts["train"])
    full_lengths, length, ids = array("i"), array("i"), {"valid": [], "test": []}
    whole, num_special = tokenizer, 0
    if options.pretrained:  # which cuts texts itself
        whole, num_special = tokenizers.model_tokenizer(options.pretrained, None)[0], len(tokenizer.tokens(""))
    for split, block in ((name, block) for name in SPLITS for block in text_tables.chunks(texts[name])):
        rows = tokenizer.split(block)
        full_lengths.extend(len(row) + num_special for row in (whole.split(block) if options.pretrained else rows))
        for tokens in rows:
            row = encode_text(tokens, vocabulary, options.max_length)
            if split == "train":
                file.write(array("i", row).tobytes())
                length.append(len(row))
            else:
                ids[split].append(row)
    held_out = {
        name: Labeled(*batches.pad_rows(rows, vocabulary.pad_id), selection.labels(name)) for name, rows in ids.items()
    }
    train = Labeled(np.zeros((len(length), 0), np.int32), np.array(length, np.int32), selection.labels("train"))
    is_unique, lengths = selection.split_index != DUPLICATE, np.array(full_lengths)
    facts = {
        **{f"{name}_texts": len(selection.labels(name)) for name in SPLITS},
        "vocabulary": len(vocabulary),
        **data_summary.class_facts(selection.names, selection.label[is_unique]),
        "texts_left_out": int((~is_unique).sum()),
        "texts_of_several_labels": selection.num_ambiguous,
        "texts_cut": int((lengths > options.max_length).sum()),
        **data_summary.length_facts(lengths),
        **data_summary.damage_facts(complaints),
        "fingerprint": selection.fingerprint,
    }
    return LabeledTexts(
        train=(train,),
        held_out=held_out,
        texts={split: list(texts[split]) for split in held_out},
        names=selection.names,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=facts | ({"streamed": True} if streamed else {}),
    )
