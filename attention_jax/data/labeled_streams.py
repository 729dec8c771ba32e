"""Labeled texts in memory, or streamed: the training texts are rows of a file of tokens."""

import functools
import itertools
from array import array
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from attention_jax import config as settings
from attention_jax.data import buckets, labeled_texts
from attention_jax.data.labeled_texts import (
    DOUBLE,
    SPLITS,
    Example,
    Labeled,
    LabeledTexts,
    each_example,
    encode,
    encode_text,
    make_tokenizer,
    select,
)
from attention_jax.data.streams import are_texts_streamed
from attention_jax.data.token_files import TokenRows, kind_of, sampled, token_file

BLOCK = 1024
"""Texts that are tokenized at a time."""


def load(options: settings.LabeledFile, batch_size: int) -> LabeledTexts:
    """Load labeled texts as arrays, or if they are streamed, the training texts as `TokenRows`."""
    if not (options.tsv_file and are_texts_streamed(options.stream, [options.tsv_file])):
        return labeled_texts.load(options, batch_size)
    of_tokens = settings.replace(options, stream="auto", workers=0, max_buckets=1)
    path, data = token_file(options.tsv_file, of_tokens, functools.partial(write, options))
    [rows] = data.train
    start, vocabulary = rows.tokens, data.vocabulary

    def bucket(group: np.ndarray) -> Labeled:
        length = rows.length[group]
        tokens = TokenRows(path, kind_of(vocabulary), start[group], int(length.max()), length, vocabulary.pad_id or 0)
        return Labeled(tokens, length, rows.label[group])

    groups = buckets.assign(rows.length, rows.length, options.max_buckets)
    return data._replace(train=tuple(map(bucket, groups)))


def write(options: settings.LabeledFile, file: BinaryIO) -> LabeledTexts:
    """Write the tokens of the training texts, and return the dataset with their positions in the place of tokens.

    The file is read three times, a line at a time: for the labels, the vocabulary and the tokens.
    """
    complaints, characters = [], 0
    read = lambda complaints: each_example(options.tsv_file, options.on_bad_record, options.columns, complaints)

    def measured() -> Iterator[Example]:
        nonlocal characters
        for label, text in read(complaints):
            characters += len(text)
            yield label, text

    selection = select(measured(), options.held_out_fraction)
    kept = lambda: ((part, text) for part, (_, text) in zip(selection.part.tolist(), read([])) if part != DOUBLE)
    train = (text for part, text in kept() if SPLITS[part] == "train")
    if options.tokenizer == "sentencepiece":
        train = sampled(train, characters)
    tokenizer, vocabulary = make_tokenizer(options, train)
    start, length, uncut = array("q", [0]), array("i"), array("i")
    texts, rows = ({name: [] for name in ("valid", "test")} for _ in range(2))
    examples = kept()
    while block := list(itertools.islice(examples, BLOCK)):
        for (part, text), tokens in zip(block, tokenizer.split([text for _, text in block])):
            uncut.append(len(tokens))
            if SPLITS[part] == "train":
                ids = encode_text(tokens, vocabulary, options.max_length)
                file.write(np.array(ids, kind_of(vocabulary)).tobytes())
                start.append(start[-1] + len(ids))
                length.append(len(ids))
            else:
                texts[SPLITS[part]].append(text)
                rows[SPLITS[part]].append(tokens)
    train = Labeled(np.array(start[:-1], np.int64), np.array(length, np.int32), selection.labels("train"))
    coded = {name: encode(part, vocabulary, options.max_length) for name, part in rows.items()}
    facts = labeled_texts.described(options, selection, np.array(uncut), vocabulary, complaints)
    return LabeledTexts(
        train=(train,),
        held_out={name: Labeled(*part, selection.labels(name)) for name, part in coded.items()},
        texts=texts,
        names=selection.names,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=facts | {"streamed": True},
    )
