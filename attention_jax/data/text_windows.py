"""Windows of a text for language models, from a user's text file or other sources."""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, example_texts, pretrained_tokenizer, text_files, text_tables, tokenizers
from attention_jax.data.pairs import Tokenizer
from attention_jax.data.text_keys import to_nfc
from attention_jax.data.vocabulary import UNK, Vocabulary
from attention_jax.errors import InputError

LARGEST = 2**27
"""Tokens of a text in memory."""
SPLITS = ("train", "valid", "test")


class Windows(NamedTuple):
    """Windows of tokens for a language model."""

    train: np.ndarray
    """[N, T + 1] int32: reads [:, :-1], predicts [:, 1:]; `TokenRows` of text that is streamed"""
    held_out: dict[str, np.ndarray]
    """"valid": the same"""
    vocabulary: Vocabulary
    tokenizer: Tokenizer
    facts: dict
    characters_per_token: dict[str, float] | None = None
    """Characters per token of each split; None if bits per character are not reported"""
    beginnings: tuple[str, ...] = ("it has", "time traveller")
    """Prompts that a report continues."""
    sampling: settings.Sampling = settings.Sampling(length=20, temperature=0.0)
    """The default sampling options of `predict`; d2l adds 20 characters"""
    known: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """{"valid": {name: nats per token}} of known baselines, which are subtracted from a model's loss"""


def cut_windows(text: np.ndarray, first: int, count: int, steps: int, stride: int) -> np.ndarray:
    """`count` windows of steps + 1 tokens, the i-th starting at (first + i) * stride.

    >>> cut_windows(np.arange(9), first=1, count=2, steps=2, stride=3).tolist()
    [[3, 4, 5], [6, 7, 8]]
    """
    starts = (first + np.arange(count)) * stride
    return text[starts[:, None] + np.arange(steps + 1)[None, :]].astype(np.int32)


def read_text_lines(options: settings.TextFile) -> tuple[list[str], list[str]]:
    """The lines of the text, and the complaints about lines that were left out."""
    if not options.text_file:
        return example_texts.manual().split("\n"), []
    complaints = []
    return list(each_line(options, complaints)), complaints


def each_line(options: settings.TextFile, complaints: list[str]) -> Iterator[str]:
    """The lines of the user's text, one after the other; adds to `complaints`."""
    path, columns = options.text_file, (options.column,)
    is_table = text_tables.is_table(path)

    def lines_of(line: bytes, number: int) -> list[str]:
        if is_table:
            return text_tables.parse_fields(line, columns, f"{path} line {number}")[0].splitlines()
        return [text_files.decode_line(line, f"{path} line {number}")]

    raw = text_tables.each_line(path, "text file", columns)
    for _, lines in text_files.each_parsed(raw, lines_of, options.on_bad_record, complaints):
        yield from lines


def split_ends(characters: int, share: float) -> tuple[int, int]:
    """Where the parts of a text end: its beginning trains, the first half of the rest validates, the second half tests.

    >>> split_ends(100, 0.2)
    (80, 90)
    """
    return round(characters * (1 - share)), round(characters * (1 - share / 2))


def split_lines(lines: Iterable[str], ends: Sequence[int], within: bool) -> Iterator[tuple[int, str]]:
    """Yield (index of the split, line) of a text whose splits end at the characters `ends`, between or `within` lines.

    >>> [*split_lines(["ab", "cd"], (3,), False)], [*split_lines(["ab", "cd"], (4,), True)]
    ([(0, 'ab'), (1, 'cd')], [(0, 'ab'), (0, 'c'), (1, 'd')])
    """
    split, start = 0, 0
    for line in lines:
        end = start + len(line) + 1
        if not within:
            split = bisect.bisect_left(ends, end)
        while within and split < len(ends) and ends[split] < end:
            cut = ends[split] - start
            yield split, line[:cut]
            line, start, split = line[cut:], ends[split], split + 1
        yield split, line
        start = end
    if within:
        yield from ((late, "") for late in range(split + 1, len(ends) + 1))


def split_text(lines: list[str], share: float) -> dict[str, list[str]]:
    """Divide a text (`split_ends`) between lines if there are enough, else between characters.

    >>> split_text(["a", "b", "c", "d"], 0.5)
    {'train': ['a', 'b'], 'valid': ['c'], 'test': ['d']}
    """
    ends = split_ends(sum(len(line) + 1 for line in lines), share)
    for within in (False, True):
        splits = [[] for _ in SPLITS]
        for split, line in split_lines(lines, ends, within):
            splits[split].append(line)
        if all(splits):
            break
    return dict(zip(SPLITS, splits))


def make_tokenizer(options: settings.TextFile, lines: Iterable[str]) -> tuple[Tokenizer, Vocabulary]:
    """Return a tokenizer of characters, or of subwords trained on `lines`, with a token for the end of a line, or
    that of a pretrained model."""
    if options.pretrained:
        return pretrained_tokenizer.of_directory(options.pretrained, None)
    if options.tokenizer == "character":
        tokenizer = tokenizers.character()
        return tokenizer, Vocabulary(sorted({*itertools.chain.from_iterable(lines), "\n"}), unk=UNK)
    model, pieces = tokenizers.sentencepiece(list(filter(str.strip, lines)), options.vocabulary_size, exact=True)
    return line_tokenizer(model), Vocabulary(["\n", *pieces], unk=UNK)


def line_tokenizer(model: Tokenizer) -> Tokenizer:
    """The tokens of each line by a tokenizer, with a token for the end of a line."""

    def tokens(text: str) -> list[str]:
        first, *tail = text.split("\n")
        return model.tokens(first) + [token for line in tail for token in ("\n", *model.tokens(line))]

    def text(tokens: Sequence[str]) -> str:
        lines = [[]]
        for token in tokens:
            lines.append([]) if token == "\n" else lines[-1].append(token)
        return "\n".join(map(model.text, lines))

    return Tokenizer(tokens, text, recipe=("lines", model))


def load(options: settings.TextFile) -> Windows:
    """Load a text as windows in memory. Held-out windows are from its end and do not overlap with training."""
    lines, complaints = read_text_lines(options)
    if not any(map(str.strip, lines)):
        raise InputError(f"{options.text_file} has no text in it, only empty lines")
    splits = split_text(lines, options.held_out_fraction)
    tokenizer, vocabulary = make_tokenizer(options, splits["train"])
    coded = {name: _encode_lines(split, tokenizer, vocabulary) for name, split in splits.items()}
    tokens = {name: len(split) for name, split in coded.items()}
    steps, stride = options.sequence_length, stride_of(options, tokens)
    if tokens["train"] > LARGEST:
        raise InputError(
            f"a text in memory may have at most {LARGEST:,} tokens for training, got {tokens['train']:,}: give "
            "--data.stream always"
        )
    cut = lambda split, stride: cut_windows(split, 0, (len(split) - steps - 1) // stride + 1, steps, stride)
    characters = {name: sum(len(line) + 1 for line in split) for name, split in splits.items()}
    facts = {
        **size_facts(tokens, characters, vocabulary),
        "fingerprint": data_summary.fingerprint(lines),
        **line_facts(splits, complaints),
    }
    beginning = next(line for line in [*splits["valid"], *splits["train"]] if line.strip())[:40]
    return Windows(
        train=cut(coded["train"], stride),
        held_out={name: cut(coded[name], steps) for name in ("valid", "test")},
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=facts,
        characters_per_token={name: characters[name] / tokens[name] for name in SPLITS},
        beginnings=(beginning,),
    )


def stride_of(options: settings.TextFile, tokens: Mapping[str, int]) -> int:
    """Return the tokens from one training window to the next; InputError if a split has too few for one window."""
    steps = options.sequence_length
    if min(tokens.values()) <= steps:
        raise InputError(
            f"--data.sequence-length {steps} needs more tokens than that in each split; the splits have "
            f"{', '.join(f'{count:,}' for count in tokens.values())}: give another text, or change "
            "--data.sequence-length"
        )
    return max(steps // options.overlap, 1)


def size_facts(tokens: Mapping[str, int], characters: Mapping[str, int], vocabulary: Vocabulary) -> dict[str, int]:
    """The sizes of a text and of its splits."""
    return {
        "characters": sum(characters.values()),
        "tokens": sum(tokens.values()),
        "vocabulary": len(vocabulary),
        **{f"{name}_tokens": tokens[name] for name in SPLITS},
    }


def _encode_lines(lines: list[str], tokenizer: Tokenizer, vocabulary: Vocabulary) -> np.ndarray:
    return np.array(vocabulary.encode_text(tokenizer.tokens("\n".join([*lines, ""]))), np.int32)


def line_facts(splits: dict[str, list[str]], complaints: list[str]) -> dict:
    """The lengths of the lines, and how many held-out ones of 20 characters or more are in the training part, too."""
    length = np.array([len(line) for split in splits.values() for line in split])
    held_out = [line for name in ("valid", "test") for line in splits[name] if len(line.strip()) >= 20]
    train_lines = set(map(to_nfc, splits["train"]))
    return {
        "lines": len(length),
        **data_summary.length_facts(length, "characters"),
        "held_out_lines_also_in_train": sum(to_nfc(line) in train_lines for line in held_out),
        **data_summary.damage_facts(complaints),
    }
