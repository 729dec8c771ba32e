"""Sentence pairs from user files: two files with one sentence per line, or one file of two columns, or several such."""

import functools
import itertools
import os
from typing import BinaryIO

import numpy as np

from attention_jax import config as settings
from attention_jax.data import (
    data_summary,
    example_texts,
    pairs,
    splits as splitting,
    text_files,
    text_tables,
    tokenizers,
)
from attention_jax.data.cache import file_stamp
from attention_jax.data.pairs import PairData, Texts
from attention_jax.data.stream import load_tokens
from attention_jax.data.text_files import Rereadable
from attention_jax.errors import InputError

MOST_HELD_OUT = 2_000
File = str | tuple[str, str]
"""A file of two columns, or a source and a target file."""


def corpus_files(config: settings.Corpus) -> list[File]:
    """Return the files of `config`; none for generated dates."""
    source, target, both = map(text_files.parse_paths, (config.source_file, config.target_file, config.tsv_file))
    if config.examples and not (source or target or both):
        return []
    if len(source) != len(target) or bool(source) == bool(both):
        raise InputError(
            "a corpus is --data.source-file FILE and --data.target-file FILE, or --data.tsv-file FILE; "
            "several files with commas between them, as many of both sides"
        )
    if source and config.columns != settings.Corpus.columns:
        raise InputError(
            "--data.columns are of a --data.tsv-file; a source and a target file have no columns: leave it"
        )
    if any(text_tables.is_table(path) and text_tables.form_of(path) != text_tables.TSV for path in (*source, *target)):
        raise InputError("a file with named columns has both sides: give it as --data.tsv-file FILE")
    return both or list(zip(source, target))


def load(config: settings.Corpus, batch_size: int = 128) -> PairData:
    """Load the corpus of `config`, split by a fixed seed into train, valid and test with disjoint source sentences."""
    check_options(config)
    files = corpus_files(config)
    paths = [path for file in files for path in ([file] if isinstance(file, str) else file)]
    preparation = settings.replace(config, stream="auto", workers=0, batch_tokens=0, max_buckets=1, packing=0)
    models = (*text_files.parse_paths(config.vocabulary_file), config.merges)
    stamps = [file_stamp(path) for path in models if os.path.isfile(path)]

    def write(streamed: bool, file: BinaryIO) -> PairData:
        splits, lines, facts = read_splits(config, files, streamed)
        plain = config.tokenizer in ("sentencepiece", "character")
        data = pairs.write_tokens(
            splits,
            config,
            file,
            languages=config.languages,
            merges=config.merges,
            lines=lines,
            bleu_tokenize=tokenizers.bleu_tokens(config.languages[1]) if plain else "none",
        )
        return data._replace(facts=data.facts | facts | length_facts(data, config))

    tokens = load_tokens(config.stream, paths, [str(preparation), *stamps], write)
    return pairs.arrange_pairs(tokens, config, batch_size, config.packing)


def check_options(config: settings.Corpus):
    """Raise InputError if options contradict each other, or a language code is unknown."""
    for code in config.languages:
        tokenizers.parse_language(code)
    if config.merges and config.tokenizer != "bpe":
        raise InputError(
            f"--data.merges needs --data.tokenizer bpe, got {config.tokenizer}: leave it out, or change that"
        )
    if config.packing and config.packing < config.max_length:
        raise InputError(
            "--data.packing is the number of tokens of a packed row, at least as many as the longest sentence has, "
            f"--data.max-length {config.max_length}; got {config.packing}: raise it, or give 0 for one pair per row"
        )


def read_splits(
    config: settings.Corpus, files: list[File], streamed: bool
) -> tuple[dict[str, Texts], dict[str, np.ndarray], dict]:
    """Return the splits of a corpus, the line numbers of their pairs, and facts. The texts are in memory, or if they
    are `streamed`, read from the files each time that they are needed."""
    complaints, damaged = [], config.on_bad_record
    read = functools.partial(
        text_tables.read_rows, columns=config.columns, usual=settings.Corpus.columns, sentences=True
    )
    chain = itertools.chain.from_iterable
    read_all = lambda damage=None: chain(read(file, damaged=damaged, complaints=damage) for file in files)
    if not files:
        texts = Texts(*example_texts.format_dates(("en", "de"), config.examples))
        numbers = np.arange(config.examples)
    elif streamed:
        texts = Texts(*(Rereadable(lambda side=side: (pair[side] for _, pair in read_all())) for side in (0, 1)))
        numbers = np.fromiter((number for number, _ in read_all(complaints)), np.int64)
    else:
        rows = list(read_all(complaints))
        texts = Texts(*([pair[side] for _, pair in rows] for side in (0, 1)))
        numbers = np.array([number for number, _ in rows], np.int64)
    keys = [splitting.text_digests(pairs.source_key(text, config) for text in side) for side in texts]
    num_sources = len(np.unique(keys[0]))
    held_out = min(MOST_HELD_OUT, max(1, int(num_sources * config.held_out_fraction)))
    if num_sources < 3:
        raise InputError(f"a corpus needs at least 3 different sources, got {num_sources}")
    rows_of = splitting.split_by_source(*keys, {"valid": held_out, "test": held_out}, seed=0)
    splits = {name: choose_texts(texts, chosen, streamed and name == "train") for name, chosen in rows_of.items()}
    facts = {
        "pairs_left_out": len(numbers) - sum(map(len, rows_of.values())),
        "fingerprint": data_summary.fingerprint(itertools.chain(*texts)),
        **data_summary.damage_facts(complaints),
    }
    return splits, {name: numbers[chosen] for name, chosen in rows_of.items()}, facts


def choose_texts(texts: Texts, rows: np.ndarray, streamed: bool) -> Texts:
    """Return the pairs of these rows, in memory or `streamed`, then in their order in the files."""
    if isinstance(texts.source, list):
        return pairs.take_rows(texts, rows)
    is_chosen = np.isin(np.arange(rows.max() + 1), rows).tolist()
    chosen = Texts(*(Rereadable(lambda side=side: itertools.compress(side, is_chosen)) for side in texts))
    return chosen if streamed else pairs.take_rows(Texts(*map(list, chosen)), np.argsort(np.argsort(rows)))


def length_facts(data: PairData, config: settings.Corpus) -> dict:
    """Summarize the lengths of the sentences that train or are held out, on both sides."""
    train, facts = data.train[0], {}
    lengths = np.concatenate([train[pairs.training_rows(train, config)], *data.held_out.values()])
    for side, tokens in zip(Texts._fields, (np.minimum(lengths, config.max_length) - 1).T):
        facts |= {f"{side}_{name}": value for name, value in data_summary.length_facts(tokens).items()}
    return facts
