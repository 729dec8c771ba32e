"""The text of a language model in memory, or streamed: windows of a file of its tokens."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import BinaryIO

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, text_windows
from attention_jax.data.streams import are_texts_streamed
from attention_jax.data.text_windows import SPLITS, Windows, each_line
from attention_jax.data.token_files import TokenRows, subsample_texts, token_dtype, token_file
from attention_jax.errors import InputError

BLOCK = 2**20
"""Characters that are tokenized at a time."""


def load(options: settings.TextFile) -> Windows:
    """Load a text as windows: of arrays, or of a file if it is streamed."""
    if not (options.text_file and are_texts_streamed(options.stream, [options.text_file])):
        return text_windows.load(options)
    token_options = settings.replace(options, stream="auto", workers=0, sequence_length=1, overlap=1)
    path, data = token_file(options.text_file, token_options, functools.partial(write_tokens, options))
    tokens = {name: data.facts[f"{name}_tokens"] for name in SPLITS}
    first = dict(zip(SPLITS, itertools.accumulate(tokens.values(), initial=0)))
    steps, stride = options.sequence_length, text_windows.stride_of(options, tokens)

    def windows(name: str, stride: int) -> TokenRows:
        start = range(first[name], first[name] + tokens[name] - steps, stride)
        return TokenRows(path, token_dtype(data.vocabulary), start, steps + 1)

    held_out = {name: windows(name, steps) for name in ("valid", "test")}
    return data._replace(train=windows("train", stride), held_out=held_out)


def write_tokens(options: settings.TextFile, file: BinaryIO) -> Windows:
    """Write the tokens of a text, split after split, and return the dataset without windows.

    The text is read four times, a line at a time: for its length, its parts, the vocabulary and the tokens.
    """
    complaints, size = [], 0

    def count_characters() -> Iterator[str]:
        nonlocal size
        for line in each_line(options, complaints):
            size += len(line) + 1
            yield line

    fingerprint = data_summary.fingerprint(count_characters())
    ends = text_windows.split_ends(size, options.held_out_fraction)
    split_lines = lambda within: text_windows.split_lines(each_line(options, []), ends, within)
    within = len({split for split, _ in split_lines(False)}) < len(SPLITS)
    train = (line for _, line in itertools.takewhile(lambda numbered: numbered[0] == 0, split_lines(within)))
    if options.tokenizer == "sentencepiece":
        train = subsample_texts(train, ends[0])
    tokenizer, vocabulary = text_windows.make_tokenizer(options, train)
    tokens, characters, lengths, beginnings = Counter(), Counter(), Counter(), {}
    for split, lines in itertools.groupby(split_lines(within), itemgetter(0)):
        for block in blocks(line for _, line in lines):
            ids = vocabulary.encode_text(tokenizer.tokens("\n".join([*block, ""])))
            file.write(np.array(ids, token_dtype(vocabulary)).tobytes())
            tokens[SPLITS[split]] += len(ids)
            characters[SPLITS[split]] += sum(len(line) + 1 for line in block)
            lengths.update(map(len, block))
            if split not in beginnings and any(map(str.strip, block)):
                beginnings[split] = next(filter(str.strip, block))[:40]
    if not beginnings:
        raise InputError(f"{options.text_file} has no text in it, only empty lines")
    facts = {
        **text_windows.size_facts(tokens, characters, vocabulary),
        "fingerprint": fingerprint,
        "lines": lengths.total(),
        **data_summary.length_facts(np.array([*lengths]), "characters", np.array([*lengths.values()])),
        **data_summary.damage_facts(complaints),
        "streamed": True,
    }
    return Windows(
        train=np.zeros((0, 0), np.int32),
        held_out={},
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=facts,
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
