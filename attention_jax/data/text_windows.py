"""Windows of a text for language models, from a user's text file or other sources."""

import bisect
import functools
import io
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, example_texts, text_tables, tokenizers
from attention_jax.data.splits import SPLITS, occurs_in
from attention_jax.data.stored import storable
from attention_jax.data.stream import TokenRows, load_tokens
from attention_jax.data.text_files import Rereadable
from attention_jax.data.vocabulary import UNK, Tokenizer, Vocabulary
from attention_jax.errors import InputError

LARGEST = 2**27
"""Tokens of a text in memory."""
BLOCK = 2**20
"""Characters that are tokenized at a time."""


@storable
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


def read_text(options: settings.TextFile, complaints: list[str] | None = None) -> Iterator[str]:
    """The lines of the text of `options`, one after the other, or of the example; adds to `complaints`."""
    path, columns = options.text_file, (options.column,)
    if not path:
        yield from example_texts.manual().split("\n")
        return
    rows = text_tables.read_rows(path, columns, options.on_bad_record, complaints, usual=(settings.TextFile.column,))
    for _, (text,) in rows:  # str.splitlines would also split at U+2028
        yield from (line.rstrip("\n") for line in io.StringIO(text, None)) if text_tables.is_table(path) else [text]


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


def make_tokenizer(options: settings.TextFile, lines: Rereadable) -> tuple[Tokenizer, Vocabulary]:
    """Return a tokenizer of characters, or of subwords trained on `lines`, with a token for the end of a line, or
    that of a pretrained model."""
    if options.pretrained:
        return tokenizers.model_tokenizer(options.pretrained, None)
    if options.tokenizer == "character":
        tokenizer = tokenizers.character()
        return tokenizer, Vocabulary(sorted({*itertools.chain.from_iterable(lines), "\n"}), unk=UNK)
    model, pieces = tokenizers.sentencepiece(
        Rereadable(lambda: filter(str.strip, lines)), options.vocabulary_size, exact=True
    )
    return tokenizers.line_tokenizer(model), Vocabulary(["\n", *pieces], unk=UNK)


def load(options: settings.TextFile) -> Windows:
    """Load a text as windows, in memory or streamed. Held-out windows are from its end and do not overlap with
    training."""
    paths = [options.text_file] if options.text_file else []
    preparation = settings.replace(options, stream="auto", workers=0, sequence_length=1, overlap=1)
    words = [str(preparation), tokenizers.tokenizer_stamps(options.pretrained)]
    tokens = load_tokens(options.stream, paths, words, functools.partial(write_tokens, options))
    data = tokens.data
    counts = {name: data.facts[f"{name}_tokens"] for name in SPLITS}
    first = dict(zip(SPLITS, itertools.accumulate(counts.values(), initial=0)))
    steps = options.sequence_length
    if min(counts.values()) <= steps:
        raise InputError(
            f"--data.sequence-length {steps} needs more tokens than that in each split; the splits have "
            f"{', '.join(f'{count:,}' for count in counts.values())}: give another text, or change "
            "--data.sequence-length"
        )
    if counts["train"] > LARGEST and not tokens.streamed:
        raise InputError(
            f"a text in memory may have at most {LARGEST:,} tokens for training, got {counts['train']:,}: give "
            "--data.stream always"
        )

    def windows(name: str, stride: int) -> TokenRows | np.ndarray:
        start = np.arange(first[name], first[name] + counts[name] - steps, stride)
        rows = TokenRows(tokens.array, start, steps + 1, steps + 1)
        return rows if tokens.streamed else rows[:]

    return data._replace(
        train=windows("train", max(steps // options.overlap, 1)),
        held_out={name: windows(name, steps) for name in ("valid", "test")},
    )


def write_tokens(options: settings.TextFile, streamed: bool, file: BinaryIO) -> Windows:
    """Write the tokens of a text, split after split, and return the dataset without windows.

    Its lines are in memory, or read a few times: for its length, its splits, the vocabulary and the tokens. Splits end
    between lines if there are enough, else between characters.
    """
    complaints = []
    lines = Rereadable(lambda: read_text(options)) if streamed else list(read_text(options, complaints))
    size = sum(len(line) + 1 for line in lines)
    ends = split_ends(size, options.held_out_fraction)
    within = len({split for split, _ in split_lines(lines, ends, False)}) < len(SPLITS)
    all_lines = lambda: split_lines(lines, ends, within)
    train = Rereadable(lambda: (line for _, line in itertools.takewhile(lambda numbered: not numbered[0], all_lines())))
    tokenizer, vocabulary = make_tokenizer(options, train)
    tokens, characters, lengths, beginnings = Counter(), Counter(), Counter(), {}
    for split, numbered in itertools.groupby(all_lines(), itemgetter(0)):
        for block in blocks(line for _, line in numbered):
            ids = vocabulary.encode_text(tokenizer.tokens("\n".join([*block, ""])))
            file.write(array("i", ids).tobytes())
            tokens[SPLITS[split]] += len(ids)
            characters[SPLITS[split]] += sum(len(line) + 1 for line in block)
            lengths.update(map(len, block))
            if split not in beginnings and any(map(str.strip, block)):
                beginnings[split] = next(filter(str.strip, block))[:40]
    if not beginnings:
        raise InputError(f"{options.text_file} has no text in it, only empty lines")
    fingerprint = data_summary.fingerprint(read_text(options, complaints) if streamed else lines)
    long_lines = (line for split, line in all_lines() if split and len(line.strip()) >= 20)
    facts = {
        "characters": sum(characters.values()),
        "tokens": sum(tokens.values()),
        "vocabulary": len(vocabulary),
        **{f"{name}_tokens": tokens[name] for name in SPLITS},
        "fingerprint": fingerprint,
        "lines": lengths.total(),
        **data_summary.length_facts(np.array([*lengths]), "characters", np.array([*lengths.values()])),
        "held_out_lines_also_in_train": int(occurs_in(long_lines, train).sum()),
        **data_summary.damage_facts(complaints),
    }
    return Windows(
        train=np.zeros((0, 0), np.int32),
        held_out={},
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=facts | ({"streamed": True} if streamed else {}),
        characters_per_token={name: characters[name] / max(tokens[name], 1) for name in SPLITS},
        beginnings=(beginnings.get(1, beginnings.get(0, "")),),
    )


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Group lines to `BLOCK` characters or more."""
    block, size = [], 0
    for line in lines:
        block.append(line)
        size += len(line) + 1
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block
