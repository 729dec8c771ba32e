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
    DUPLICATE,
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
from attention_jax.data.token_files import TokenRows, subsample_texts, token_dtype, token_file

BLOCK = 1024
"""Texts that are tokenized at a time."""


def load(options: settings.LabeledFile, batch_size: int) -> LabeledTexts:
    """Load labeled texts as arrays, or if they are streamed, the training texts as `TokenRows`."""
    if not (options.tsv_file and are_texts_streamed(options.stream, [options.tsv_file])):
        return labeled_texts.load(options, batch_size)
    token_options = settings.replace(options, stream="auto", workers=0, max_buckets=1)
    path, data = token_file(options.tsv_file, token_options, functools.partial(write_tokens, options))
    [rows] = data.train
    start, vocabulary = rows.tokens, data.vocabulary

    def bucket(group: np.ndarray) -> Labeled:
        length = rows.length[group]
        tokens = TokenRows(
            path, token_dtype(vocabulary), start[group], int(length.max()), length, vocabulary.pad_id or 0
        )
        return Labeled(tokens, length, rows.label[group])

    groups = buckets.assign(rows.length, rows.length, options.max_buckets)
    return data._replace(train=tuple(map(bucket, groups)))


def write_tokens(options: settings.LabeledFile, file: BinaryIO) -> LabeledTexts:
    """Write the tokens of the training texts, and return the dataset with their positions in the place of tokens.

    The file is read three times, a line at a time: for the labels, the vocabulary and the tokens.
    """
    complaints, characters = [], 0
    read = lambda complaints: each_example(options.tsv_file, options.on_bad_record, options.columns, complaints)

    def count_characters() -> Iterator[Example]:
        nonlocal characters
        for label, text in read(complaints):
            characters += len(text)
            yield label, text

    selection = select(count_characters(), options.held_out_fraction)
    each_text = lambda: (
        (split, text) for split, (_, text) in zip(selection.split_index.tolist(), read([])) if split != DUPLICATE
    )
    train = (text for split, text in each_text() if SPLITS[split] == "train")
    if options.tokenizer == "sentencepiece":
        train = subsample_texts(train, characters)
    tokenizer, vocabulary = make_tokenizer(options, train)
    start, length, full_lengths = array("q", [0]), array("i"), array("i")
    texts, rows = ({name: [] for name in ("valid", "test")} for _ in range(2))
    examples = each_text()
    while block := list(itertools.islice(examples, BLOCK)):
        for (split, text), tokens in zip(block, tokenizer.split([text for _, text in block])):
            full_lengths.append(len(tokens))
            if SPLITS[split] == "train":
                ids = encode_text(tokens, vocabulary, options.max_length)
                file.write(np.array(ids, token_dtype(vocabulary)).tobytes())
                start.append(start[-1] + len(ids))
                length.append(len(ids))
            else:
                texts[SPLITS[split]].append(text)
                rows[SPLITS[split]].append(tokens)
    train = Labeled(np.array(start[:-1], np.int64), np.array(length, np.int32), selection.labels("train"))
    coded = {name: encode(split, vocabulary, options.max_length) for name, split in rows.items()}
    facts = labeled_texts.text_facts(options, selection, np.array(full_lengths), vocabulary, complaints)
    return LabeledTexts(
        train=(train,),
        held_out={name: Labeled(*split, selection.labels(name)) for name, split in coded.items()},
        texts=texts,
        names=selection.names,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts=facts | {"streamed": True},
    )
