"""Preparation of parallel texts as a `PairData`: tokens, vocabularies, length limits, buckets, and summary facts."""

from collections.abc import Mapping, Sequence

import numpy as np

from attention_jax.config import TextPairs
from attention_jax.data import buckets as bucketing, data_summary, text_files, tokenizers
from attention_jax.data.languages import parse_language
from attention_jax.data.pairs import (
    PairData,
    Pairs,
    Texts,
    Tokenizer,
    make_pairs,
    occurs_in,
    padding_share,
    prepend_bos,
)
from attention_jax.data.splits import take_rows
from attention_jax.data.text_keys import text_key
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from attention_jax.errors import InputError

Rows = list[list[str]]
Ids = list[list[int]]
OVERLONG = {"truncate": "truncated", "drop": "dropped", "error": "error"}
"""The facts' name for pairs beyond the length limit, by `TextPairs.overlong`."""
SPECIAL = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}


def apply_case(text: str, options: TextPairs) -> str:
    """Lower-case a text if `options` require it."""
    return text.lower() if options.lowercase else text


def source_key(text: str, options: TextPairs) -> str:
    """Return what decides whether two sources are the same one, which belongs to one split."""
    return text_key(apply_case(text, options))


def read_vocabulary(path: str) -> list[str]:
    """Return the tokens in a file, one per line; InputError if a line has counts or anything else."""
    tokens = text_files.read_lines(path, "vocabulary")
    for number, token in enumerate(tokens, 1):
        if len(token.split()) > 1:
            raise InputError(
                f"{path} line {number}: expected one token, got {token[:60]!r}; "
                "if these are counts, keep the first column alone"
            )
    return tokens


def make_tokenizers(
    options: TextPairs, train: Texts, languages: tuple[str, str], merges: str
) -> tuple[list[Tokenizer], list[list[str] | None]]:
    """Return source and target tokenizer, and their subwords if training a tokenizer makes the vocabulary."""
    (source, target), pieces = _forward_tokenizers(options, train, languages, merges)
    source = lowercase_tokenizer(source) if options.lowercase else source
    return [reverse_tokenizer(source) if options.reverse_source else source, target], pieces


def _forward_tokenizers(
    options: TextPairs, train: Texts, languages: tuple[str, str], merges: str
) -> tuple[list[Tokenizer], list[list[str] | None]]:
    """Source and target words in their original order, without `reverse_source`."""
    if options.keep_whitespace and options.tokenizer != "spacy":
        raise InputError(f"--data.keep-whitespace needs --data.tokenizer spacy, got {options.tokenizer}")
    paths = text_files.parse_paths(options.vocabulary_file)
    if len(paths) > 2:
        raise InputError(f"--data.vocabulary-file is one file or source,target; got {options.vocabulary_file}")
    if options.tokenizer == "sentencepiece" and paths:
        models = [tokenizers.sentencepiece_model(path) for path in paths] * (3 - len(paths))
        return [tokenizer for tokenizer, _ in models], [pieces for _, pieces in models]
    pieces = [read_vocabulary(path) for path in paths] * (3 - len(paths)) or [None, None]
    if options.tokenizer == "spacy":
        return [tokenizers.spacy(parse_language(code), options.keep_whitespace) for code in languages], pieces
    if options.tokenizer == "sentencepiece" and options.joint_vocabulary:
        tokenizer, pieces = tokenizers.sentencepiece([*train.source, *train.target], options.vocabulary_size)
        return [tokenizer] * 2, [pieces] * 2
    if options.tokenizer == "sentencepiece":
        models = [tokenizers.sentencepiece(side, options.vocabulary_size) for side in train]
        return [tokenizer for tokenizer, _ in models], [pieces for _, pieces in models]
    if options.tokenizer == "bpe":
        if not merges:
            raise InputError("the bpe tokenizer needs the file of its merges: --data.merges FILE")
        return [tokenizers.bpe(merges)] * 2, pieces
    simple = {"whitespace": tokenizers.whitespace, "character": tokenizers.character, "words": tokenizers.words}
    return [simple[options.tokenizer]()] * 2, pieces


def make_vocabularies(
    options: TextPairs, source: Rows, target: Rows, pieces: list[list[str] | None]
) -> list[Vocabulary]:
    """Return source and target vocabulary; the same object if they are joint."""

    def vocabulary(pieces: list[str] | None, rows: Rows) -> Vocabulary:
        if pieces:
            return Vocabulary(pieces, **SPECIAL)
        return Vocabulary.of_sentences(rows, min_frequency=options.min_frequency, **SPECIAL)

    if options.joint_vocabulary:
        return [vocabulary(pieces[0], [*source, *target])] * 2
    return [vocabulary(pieces[0], source), vocabulary(pieces[1], target)]


def _encode_tokens(
    tokens: Mapping[str, tuple[Rows, Rows]],
    options: TextPairs,
    vocabulary_from: Sequence[str],
    pieces: list[list[str] | None],
) -> tuple[dict[str, tuple[Ids, Ids]], list[Vocabulary]]:
    """All tokens as numbers, and the vocabularies: of the tokens within the limit in the splits `vocabulary_from`."""
    vocabulary_rows = [
        [row[: options.max_length] for name in vocabulary_from for row in tokens[name][side]] for side in (0, 1)
    ]
    vocabularies = make_vocabularies(options, *vocabulary_rows, pieces)
    ids = {}
    for name, sides in tokens.items():
        source, target = (
            [vocabulary.encode_text(row) for row in rows] for vocabulary, rows in zip(vocabularies, sides)
        )
        ids[name] = prepend_bos(source, vocabularies[0]) if options.source_bos else source, target
    return ids, vocabularies


def lowercase_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer of lower-cased text. It is for new texts: the texts of the dataset are lower-cased already."""
    return Tokenizer(
        lambda text: tokenizer.tokens(text.lower()),
        tokenizer.text,
        lambda texts: tokenizer.split([text.lower() for text in texts]),
        ("lowercased", tokenizer),
    )


def reverse_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose tokens are in reverse order."""
    return Tokenizer(
        lambda text: tokenizer.tokens(text)[::-1],
        lambda tokens: tokenizer.text(tokens[::-1]),
        lambda texts: [tokens[::-1] for tokens in tokenizer.split(texts)],
        ("reversed", tokenizer),
    )


def _is_overlong(split: str, sides: tuple[Rows, Rows], options: TextPairs, lines: np.ndarray | None) -> np.ndarray:
    """Return which pairs [N] are longer than the limit, including eos (and bos), on either side; InputError if
    `options` refuse them."""
    marks = (1 + options.source_bos, 1)
    lengths = np.array([[len(row) + num_marks for row in rows] for rows, num_marks in zip(sides, marks)])
    is_over = (lengths > options.max_length).any(0)
    if is_over.any() and options.overlong == "error":
        row = int(np.argmax(is_over))
        side = int(np.argmax(lengths[:, row]))
        place = f"pair {row + 1} of {split}" if lines is None else f"line {int(lines[row]) + 1}"
        raise InputError(
            f"{place}: the {('source', 'target')[side]} has {lengths[side, row]} tokens with its end mark, "
            f"the limit is {options.max_length}; shorten it, raise --data.max-length, "
            "or give --data.overlong truncate (or drop)"
        )
    return is_over


def _within_limit(overlong: np.ndarray, options: TextPairs) -> np.ndarray:
    """Return the indices of the training pairs: all, or those within the limit if the others are dropped."""
    rows = np.flatnonzero(~overlong) if options.overlong == "drop" else np.arange(len(overlong))
    if not len(rows):
        raise InputError(f"no training pair is within --data.max-length {options.max_length}; raise it")
    return rows


def _group_rows(sides: tuple[Ids, Ids], rows: np.ndarray, options: TextPairs) -> list[np.ndarray]:
    """`rows` divided into buckets of similar lengths (the end mark counted)."""
    source_lengths, target_lengths = (
        np.minimum([len(side[row]) + 1 for row in rows], options.max_length) for side in sides
    )
    return [rows[group] for group in bucketing.assign(source_lengths, target_lengths, options.max_buckets)]


def _make_arrays(
    sides: tuple[Ids, Ids], rows: Sequence[int], vocabularies: Sequence[Vocabulary], max_length: int
) -> Pairs:
    """The pairs of these rows, as wide as the longest of them or as the limit."""
    source, target = ([side[row] for row in rows] for side in sides)
    source_width, target_width = (min(max_length, max(map(len, side)) + 1) for side in (source, target))
    return make_pairs(source, target, *vocabularies, source_width=source_width, target_width=target_width)


def _also_in_train(sources: Rows, train: Rows) -> np.ndarray:
    return occurs_in(list(map(" ".join, sources)), list(map(" ".join, train)))


def _bucket_facts(bucket: Pairs, batch_size: int) -> dict[str, int]:
    source_width, target_width = bucket.source.shape[1], bucket.target.shape[1] - 1
    return {"source": source_width, "target": target_width, "pairs": len(bucket.source), "batch": batch_size}


def _unknown_share(rows: Rows, vocabulary: Vocabulary) -> float:
    tokens = [token for row in rows for token in row]
    return round(sum(token not in vocabulary for token in tokens) / max(len(tokens), 1), 5)


def assemble(
    splits: Mapping[str, Texts],
    options: TextPairs,
    batch_size: int,
    *,
    bleu_tokenize: str,
    languages: tuple[str, str] = ("xx", "xx"),
    merges: str = "",
    vocabulary_from: Sequence[str] = ("train",),
    lines: Mapping[str, np.ndarray] | None = None,
) -> PairData:
    """The dataset of these splits ("train" and any number of held-out ones) under `options`.

    `lines` gives rows their line numbers (from 0) in the user's files, for errors; `vocabulary_from` names the
    splits whose tokens make the vocabularies. Held-out pairs longer than the limit are cut in `held_out`
    (never dropped), and whole in `texts`.
    """
    splits = {
        name: Texts(*([apply_case(text, options) for text in side] for side in texts)) for name, texts in splits.items()
    }
    (source_tokenizer, target_tokenizer), pieces = make_tokenizers(options, splits["train"], languages, merges)
    split = lambda texts: (source_tokenizer.split(texts.source), target_tokenizer.split(texts.target))
    tokens = {name: split(texts) for name, texts in splits.items()}
    overlong = {name: _is_overlong(name, sides, options, lines and lines[name]) for name, sides in tokens.items()}
    train_rows = _within_limit(overlong["train"], options)
    ids, vocabularies = _encode_tokens(tokens, options, vocabulary_from, pieces)
    arrays = lambda name, rows: _make_arrays(ids[name], rows, vocabularies, options.max_length)
    groups = _group_rows(ids["train"], train_rows, options)
    train = tuple(arrays("train", rows) for rows in groups)
    held_out = {name: arrays(name, range(len(texts.source))) for name, texts in splits.items() if name != "train"}
    widths = [max(bucket.source.shape[1], bucket.target.shape[1] - 1) for bucket in train]
    batch_sizes = bucketing.sentences_in_batch(widths, batch_size, options.batch_tokens)
    in_train = {name: _also_in_train(tokens[name][0], tokens["train"][0]) for name in held_out}
    facts = {
        "overlong_train_pairs": OVERLONG[options.overlong],
        **{f"overlong_{name}": int(rows.sum()) for name, rows in overlong.items()},
        "train_pairs": len(train_rows),
        **{f"{name}_pairs": len(pairs.source) for name, pairs in held_out.items()},
        "source_vocabulary": len(vocabularies[0]),
        "target_vocabulary": len(vocabularies[1]),
        "vocabulary_from": "+".join(vocabulary_from),
        "buckets": list(map(_bucket_facts, train, batch_sizes)),
        "padding_share": round(padding_share(train), 4),
        **{f"{name}_inputs_also_in_train": int(rows.sum()) for name, rows in in_train.items()},
        **{f"{name}_unknown_target_tokens": _unknown_share(tokens[name][1], vocabularies[1]) for name in held_out},
        "fingerprint": data_summary.fingerprint(data_summary.contents(splits)),
    }
    return PairData(
        train=train,
        batch_sizes=batch_sizes,
        held_out=held_out,
        seen=in_train,
        texts={**splits, "train": take_rows(splits["train"], np.concatenate(groups))},
        source_vocabulary=vocabularies[0],
        target_vocabulary=vocabularies[1],
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        facts=facts,
        bleu_tokenize=bleu_tokenize,
        source_bos=options.source_bos,
    )
