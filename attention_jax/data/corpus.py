"""Sentence pairs from user files: two files with one sentence per line, or one file of two columns, or several such.

Files that fit in memory are read whole (plain or .gz) and never cached; larger ones are streamed while training.
"""

import functools
import itertools
from typing import Literal

import numpy as np

from attention_jax import config as settings
from attention_jax.data import (
    buckets,
    data_summary,
    example_texts,
    languages,
    pair_files,
    splits as splitting,
    text_files,
    text_tables,
    tokenizers,
)
from attention_jax.data.derived import checksum
from attention_jax.data.line_index import PairLines, index_pairs
from attention_jax.data.packing import Packing, packing_padding
from attention_jax.data.pair_streams import WINDOW_BATCHES, Buckets, PairEncoder, PairStream, permute_records
from attention_jax.data.pairs import PairData, Texts
from attention_jax.data.streams import are_texts_streamed
from attention_jax.errors import InputError

MOST_HELD_OUT = 2_000
SAMPLE, VOCABULARY_SAMPLE = 10_000, 200_000
"""Pairs of a streamed corpus from which bucket widths are estimated, and a vocabulary is built unless one is given."""


def file_pairs(config: settings.Corpus) -> list[tuple[str, ...]]:
    """Return the files of `config`: (source, target), or (both,) for a file of two columns."""
    source, target, both = map(text_files.parse_paths, (config.source_file, config.target_file, config.tsv_file))
    if len(source) != len(target) or bool(source) == bool(both):
        raise InputError(
            "a corpus is --data.source-file FILE and --data.target-file FILE, or --data.tsv-file FILE; "
            "several files with commas between them, as many of both sides"
        )
    if any(map(text_tables.is_table, (*source, *target))):
        raise InputError("a JSON Lines or Parquet file has both sides: give it as --data.tsv-file FILE")
    return [(path,) for path in both] or list(zip(source, target))


def read_pairs(
    files: list[tuple[str, ...]],
    damaged: Literal["error", "skip"] = "error",
    columns: tuple[str, str] = ("source", "target"),
) -> tuple[Texts, list, list[str]]:
    """Read all pairs in the order of the lines, of tables those in `columns`; return them, the number of each line
    (from 0), and an error message for every line that was skipped."""
    texts, numbers, complaints = Texts([], []), [], []
    for paths in files:
        sides = [list(text_tables.each_line(path, "file of sentence pairs", columns)) for path in paths]
        text_files.check_equal(paths, map(len, sides))
        parsed = text_files.parse_lines(list(zip(*sides)), functools.partial(parse_pair, paths, columns), damaged)
        for side, column in zip(texts, zip(*parsed.values)):
            side.extend(column)
        numbers += parsed.numbers
        complaints += parsed.complaints
    return texts, numbers, complaints


def parse_pair(
    paths: tuple[str, ...], columns: tuple[str, str], lines: tuple[bytes, ...], number: int
) -> tuple[str, str]:
    """Parse a pair from a line of one file, or from a line of two files."""
    if text_tables.is_table(paths[0]):
        return text_tables.parse_pair(lines[0], columns, f"{paths[0]} line {number}")
    decoded = [text_files.decode_line(line, f"{path} line {number}") for path, line in zip(paths, lines)]
    if len(paths) == 1:
        return text_files.two_columns(decoded[0], f"{paths[0]} line {number}")
    for path, line in zip(paths, decoded):
        if not line.strip():
            raise InputError(f"{path} line {number} is empty; remove the pair from both files")
    return tuple(decoded)


def load(config: settings.Corpus, batch_size: int = 128) -> PairData:
    """Load the corpus of `config`, split by a fixed seed into train, valid and test with disjoint source sentences."""
    check_options(config)
    if config.examples and not (config.source_file or config.target_file or config.tsv_file):
        texts, numbers, complaints = example_texts.dates_to_translate(config.examples), range(config.examples), []
    else:
        files = file_pairs(config)
        if config.packing or are_texts_streamed(config.stream, itertools.chain.from_iterable(files)):
            return load_streamed(config, index_pairs(files, config.columns), batch_size)
        texts, numbers, complaints = read_pairs(files, config.on_bad_record, config.columns)
    keys = [[pair_files.source_key(text, config) for text in side] for side in texts]
    sources = set(keys[0])
    held_out = min(MOST_HELD_OUT, max(1, int(len(sources) * config.held_out_fraction)))
    if len(sources) < 3:
        raise InputError(f"a corpus needs at least 3 different sources, got {len(sources)}")
    rows = splitting.split_by_source(*keys, {"valid": held_out, "test": held_out}, seed=0)
    splits = {name: splitting.take_rows(texts, chosen) for name, chosen in rows.items()}
    lines = {name: np.array(numbers, np.int64)[chosen] for name, chosen in rows.items()}
    data = assemble_corpus(config, splits, lines, batch_size)
    duplicates = len(texts.source) - sum(map(len, rows.values()))
    facts = {"pairs_left_out": duplicates, "fingerprint": data_summary.fingerprint([*texts.source, *texts.target])}
    return data._replace(facts=data.facts | facts | corpus_facts(data) | data_summary.damage_facts(complaints))


def check_options(config: settings.Corpus):
    """Raise InputError if options contradict each other, or a language code is unknown."""
    for code in config.languages:
        languages.parse_language(code)
    if config.packing and config.packing < config.max_length:
        raise InputError(
            "--data.packing is the number of tokens of a packed row, at least as many as the longest sentence has, "
            f"--data.max-length {config.max_length}; got {config.packing}: raise it, or give 0 for one pair per row"
        )
    if config.packing and config.stream == "never":
        raise InputError("--data.packing needs streamed data: leave --data.stream never out, or give --data.packing 0")


def corpus_facts(data: PairData) -> dict:
    """Summarize the sentence lengths on both sides."""
    all_pairs, facts = [*data.train, *data.held_out.values()], {}
    for side in Texts._fields:
        tokens = np.concatenate([getattr(pairs, f"{side}_length") - 1 for pairs in all_pairs])
        facts |= {f"{side}_{name}": value for name, value in data_summary.length_facts(tokens).items()}
    return facts


def assemble_corpus(
    config: settings.Corpus, splits: dict[str, Texts], rows: dict[str, np.ndarray], batch_size
) -> PairData:
    """Build the corpus from splits under `config`; `rows` are their line numbers."""
    plain = config.tokenizer in ("sentencepiece", "character")
    return pair_files.assemble(
        splits,
        config,
        batch_size,
        languages=config.languages,
        merges=config.merges,
        lines=rows,
        bleu_tokenize=languages.bleu_tokens(config.languages[1]) if plain else "none",
    )


def load_streamed(config: settings.Corpus, lines: PairLines, batch_size: int) -> PairData:
    """Load a streamed corpus: held-out pairs, vocabulary and bucket widths come from a sample of it."""
    total = lines.ends[-1]
    held_out = min(MOST_HELD_OUT, max(1, int(total * config.held_out_fraction)))
    size = 2 * held_out + (SAMPLE if config.vocabulary_file else VOCABULARY_SAMPLE)
    splits, rows = sample_pairs(lines, size, held_out, config)
    if config.tokenizer == "sentencepiece" and not config.vocabulary_file:
        train = splits["train"]
        sides = [[*train.source, *train.target]] if config.joint_vocabulary else list(train)
        models = [tokenizers.train_sentencepiece(side, config.vocabulary_size) for side in sides]
        config = settings.replace(config, vocabulary_file=",".join(models))
    data = assemble_corpus(config, splits, rows, batch_size)
    vocabularies = (data.source_vocabulary, data.target_vocabulary)
    widths = (max(pairs.source.shape[1], pairs.target.shape[1] - 1) for pairs in data.train)
    limits = (*(width for width in widths if width < config.max_length), config.max_length)
    batch_sizes = buckets.sentences_in_batch(limits, batch_size, config.batch_tokens)
    group, packed = Buckets(limits, batch_sizes, vocabularies), {}
    if config.packing:
        group, packed = packing(config, data, batch_size)
    stream = PairStream(
        lines,
        PairEncoder(config, config.languages, config.merges),
        vocabularies,
        frozenset(
            pair_files.source_key(source, config) for name in ("valid", "test") for source in splits[name].source
        ),
        group,
        seed=0,
        window=min(total, WINDOW_BATCHES * max(batch_sizes)),
        workers=config.workers,
        damaged=config.on_bad_record,
    )
    facts = {
        **data.facts,
        **packed,
        "train_pairs": total - 2 * held_out,
        "sampled_pairs": len(splits["train"].source),
        "streamed": True,
        "fingerprint": data_summary.fingerprint(text for pairs in splits.values() for side in pairs for text in side),
        "files_fingerprint": checksum(lambda: (side.path for sides in lines.files for side in sides), "the corpus"),
    }
    return data._replace(stream=stream, facts=facts)


def packing(config: settings.Corpus, data: PairData, batch_size: int) -> tuple[Packing, dict]:
    """Return the packing of a corpus, and the fraction of padding estimated from a sample of it, `data` (it was
    "padding_share")."""
    [rows] = buckets.sentences_in_batch([config.packing], batch_size, config.batch_tokens)
    lengths = np.concatenate([np.stack([pairs.source_length, pairs.target_length], axis=1) for pairs in data.train])
    lengths = np.random.default_rng(0).permutation(lengths)[:SAMPLE].astype(np.int64)
    packer = Packing(config.packing, rows, config.max_length, (data.source_vocabulary, data.target_vocabulary))
    return packer, {"packed_padding_share": round(packing_padding(lengths, config.packing), 4)}


def sample_pairs(
    lines: PairLines, size: int, held_out: int, config: settings.Corpus
) -> tuple[dict[str, Texts], dict[str, np.ndarray]]:
    """Sample about `size` pairs and their records; "valid" and "test" have disjoint sources, the rest is "train"."""
    first_records = {}  # the first record of each source
    for record in permute_records(np.arange(min(size, lines.ends[-1])), lines.ends[-1], 0).tolist():
        try:
            pair = lines.read(record)
        except InputError:
            if config.on_bad_record != "skip":
                raise
            continue
        first_records.setdefault(pair_files.source_key(pair[0], config), (record, pair))
    pairs = list(first_records.values())
    if len(pairs) < 2 * held_out + 1:
        raise InputError(f"a corpus needs at least 3 different sources, and more than are held out; got {len(pairs)}")
    splits = {"valid": pairs[:held_out], "test": pairs[held_out : 2 * held_out], "train": pairs[2 * held_out :]}
    texts = {name: Texts(*map(list, zip(*(pair for _, pair in chosen)))) for name, chosen in splits.items()}
    return texts, {name: np.array([record for record, _ in chosen]) for name, chosen in splits.items()}
