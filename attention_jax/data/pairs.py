"""Pairs of sequences: their preparation, from texts to padded or packed rows of tokens, and what new texts become."""

import functools
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO, NamedTuple

import numpy as np

from attention_jax.config import DataOptions, TextPairs, import_object
from attention_jax.data import batches, data_summary, text_files, tokenizers
from attention_jax.data.splits import split_normalized, text_digests
from attention_jax.data.stored import storable
from attention_jax.data.stream import PackedRows, TokenRows, Tokens, load_tokens
from attention_jax.data.text_files import Rereadable, to_nfc
from attention_jax.data.tokenizers import parse_language
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Tokenizer, Vocabulary
from attention_jax.errors import InputError

Rows = Iterable[list[str]]
OVERLONG = {"truncate": "truncated", "drop": "dropped", "error": "error"}
"""The facts' name for pairs beyond the length limit, by `TextPairs.overlong`."""
SPECIAL = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}


@storable
class Pairs(NamedTuple):
    """N pairs of one shape. Row i is `source[i, :source_length[i]]` -> `target[i, 1:1 + target_length[i]]`."""

    source: np.ndarray
    """[N, S] int32, padded at the end; `TokenRows` of pairs that are streamed"""
    source_length: np.ndarray
    """[N] int32"""
    target: np.ndarray
    """[N, T + 1] int32: starts with bos, ends with eos where the vocabulary has one"""
    target_length: np.ndarray
    """[N] int32: the number of tokens to predict, without bos and including eos"""


@storable
class PackedPairs(NamedTuple):
    """N packed rows, as `Pairs` with one source and one target each, and the pair of each token.

    A row has capacity for as many source tokens as target tokens. Each pair is a segment that attends only to itself
    (ops/masks.py: `segments`), with positions from 0, so the loss equals that of unpacked pairs.
    """

    source: np.ndarray
    """[N, S] int32: concatenated sources with their eos, padded at the end"""
    source_length: np.ndarray
    """[N] int32"""
    target: np.ndarray
    """[N, T + 1] int32: bos, then the targets with their eos; each target is predicted starting from bos"""
    target_length: np.ndarray
    """[N] int32: the tokens to predict"""
    source_segment: np.ndarray
    """[N, S] int32: 0 for the tokens of the first pair, 1 ...; each padding position is a segment by itself"""
    target_segment: np.ndarray
    """[N, T] int32: the same for the tokens to predict"""


@storable
class Texts(NamedTuple):
    """The pairs as plain text, which BLEU compares, in the same order."""

    source: Sequence[str]
    target: Sequence[str]


@storable
class PairData(NamedTuple):
    """A dataset of pairs, ready for a task."""

    train: tuple[Pairs | PackedPairs, ...]
    """buckets: each has its own S and T; the rows of `texts["train"]` are those of the
    first bucket, then the second ..."""
    batch_sizes: tuple[int, ...]
    """sentences in a batch of each bucket"""
    held_out: dict[str, Pairs]
    """"valid", "test", ... by name"""
    texts: dict[str, Texts]
    """by split name; "train" included unless it is streamed"""
    seen: dict[str, np.ndarray]
    """for each held-out split: [N] bool, does this source also occur in train?"""
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    facts: dict
    """numbers for result.json: sizes, overlap, share of padding, truncated pairs"""
    bleu_tokenize: str = "none"
    """sacrebleu's tokenizer for this data: "13a" for plain text, "none" where the references are tokens already"""
    source_bos: bool = False
    """whether sources begin with bos"""


def source_key(text: str, options: TextPairs) -> str:
    """Return what the model reads of a source: those of one key are the same one, which belongs to one split.

    >>> source_key("It is  late!", TextPairs(tokenizer="words")), source_key("It is  LATE", TextPairs(lowercase=True))
    ('it is late !', 'it is late')
    """
    text = text.lower() if options.lowercase else text
    is_words = options.tokenizer == "words"
    return " ".join(tokenizers.words().tokens(text) if is_words else split_normalized(text, options.tokenizer))


def read_vocabulary(path: str) -> list[str]:
    """Return the tokens in a file, one per line; InputError if a line has counts or anything else."""
    tokens = [to_nfc(line) for line in text_files.read_lines(path, "vocabulary")]
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
    source = tokenizers.lowercase_tokenizer(source) if options.lowercase else source
    return [tokenizers.reverse_tokenizer(source) if options.reverse_source else source, target], pieces


def _forward_tokenizers(
    options: TextPairs, train: Texts, languages: tuple[str, str], merges: str
) -> tuple[list[Tokenizer], list[list[str] | None]]:
    """Source and target words in their original order, without `reverse_source`."""
    if options.keep_whitespace and options.tokenizer != "spacy":
        raise InputError(f"--data.keep-whitespace needs --data.tokenizer spacy, got {options.tokenizer}")
    paths = text_files.parse_paths(options.vocabulary_file)
    if len(paths) > 2:
        raise InputError(f"--data.vocabulary-file is one file or source,target; got {options.vocabulary_file}")
    if options.tokenizer == "sentencepiece":
        sides = [Rereadable(lambda: itertools.chain(*train))] if options.joint_vocabulary else train
        models = [tokenizers.sentencepiece_model(path) for path in paths] or [
            tokenizers.sentencepiece(side, options.vocabulary_size) for side in sides
        ]
        return tuple(map(list, zip(*models * (3 - len(models)))))
    pieces = [read_vocabulary(path) for path in paths] * (3 - len(paths)) or [None, None]
    if options.tokenizer == "spacy":
        return [tokenizers.spacy(parse_language(code), options.keep_whitespace) for code in languages], pieces
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
        return [vocabulary(pieces[0], itertools.chain(source, target))] * 2
    return [vocabulary(pieces[0], source), vocabulary(pieces[1], target)]


def write_tokens(
    splits: Mapping[str, Texts],
    options: TextPairs,
    file: BinaryIO,
    *,
    bleu_tokenize: str,
    languages: tuple[str, str] = ("xx", "xx"),
    merges: str = "",
    vocabulary_from: Sequence[str] = ("train",),
    lines: Mapping[str, np.ndarray] | None = None,
) -> PairData:
    """Write the tokens of each source, and bos and those of its target, both with eos, and return the dataset with the
    lengths [N, 2] of sources and targets in the place of pairs; overlong ones are cut in the file.

    `lines` gives rows their line numbers (from 0) in the user's files, for errors; `vocabulary_from` names the
    splits whose tokens make the vocabularies.
    """
    if options.lowercase:
        reread = lambda side: Rereadable(functools.partial(map, str.lower, side))
        lower = lambda side: list(reread(side)) if isinstance(side, list) else reread(side)
        splits = {name: Texts(*map(lower, texts)) for name, texts in splits.items()}
    tokenizer_pair, pieces = make_tokenizers(options, splits["train"], languages, merges)
    tokens = {name: [] for name in splits}
    for name, texts in splits.items():
        for tokenizer, side in zip(tokenizer_pair, texts):  # of texts in a file again each time that they are needed
            in_memory = isinstance(side, list)
            read = functools.partial(map, tokenizer.tokens, side)
            tokens[name].append(tokenizer.split(side) if in_memory else Rereadable(read))
    cut = lambda side: (row[: options.max_length] for name in vocabulary_from for row in tokens[name][side])
    vocabularies = make_vocabularies(options, cut(0), cut(1), pieces)
    lengths = {name: _write_pairs(sides, vocabularies, options, file) for name, sides in tokens.items()}
    for name, split_lengths in lengths.items():
        _check_lengths(name, split_lengths, options, lines and lines[name])
    digests = {name: text_digests(" ".join(row) for row in sides[0]) for name, sides in tokens.items()}
    held_out = [name for name in splits if name != "train"]
    seen = {name: np.isin(digests[name], digests["train"]) for name in held_out}
    overlong = {name: int((split_lengths > options.max_length).any(1).sum()) for name, split_lengths in lengths.items()}
    facts = {
        "overlong_train_pairs": OVERLONG[options.overlong],
        **{f"overlong_{name}": count for name, count in overlong.items()},
        **{f"{name}_pairs": len(lengths[name]) for name in splits},
        "source_vocabulary": len(vocabularies[0]),
        "target_vocabulary": len(vocabularies[1]),
        "vocabulary_from": "+".join(vocabulary_from),
        **{f"{name}_inputs_also_in_train": int(rows.sum()) for name, rows in seen.items()},
        **{f"{name}_unknown_target_tokens": _unknown_share(tokens[name][1], vocabularies[1]) for name in held_out},
    }
    return PairData(
        train=(lengths["train"],),
        batch_sizes=(),
        held_out={name: lengths[name] for name in held_out},
        seen=seen,
        texts={name: texts for name, texts in splits.items() if isinstance(texts.source, list)},
        source_vocabulary=vocabularies[0],
        target_vocabulary=vocabularies[1],
        source_tokenizer=tokenizer_pair[0],
        target_tokenizer=tokenizer_pair[1],
        facts=facts,
        bleu_tokenize=bleu_tokenize,
        source_bos=options.source_bos,
    )


def _write_pairs(
    sides: Sequence[Rows], vocabularies: Sequence[Vocabulary], options: TextPairs, file: BinaryIO
) -> np.ndarray:
    """Write the tokens of pairs, and return the lengths [N, 2] of source and target, with eos, before they are cut."""
    (source_begin, source_end), (begin, end) = (([v.bos_id], [v.eos_id]) for v in vocabularies)
    source_begin, limit, lengths = source_begin if options.source_bos else [], options.max_length, array("i")
    for rows in zip(*sides):
        source, target = (vocabulary.encode_text(row) for vocabulary, row in zip(vocabularies, rows))
        source, target = [*source_begin, *source, *source_end], [*target, *end]
        lengths.extend((len(source), len(target)))
        file.write(array("i", [*source[:limit], *begin, *target[:limit]]).tobytes())
    return np.array(lengths, np.int32).reshape(-1, 2)


def _check_lengths(split: str, lengths: np.ndarray, options: TextPairs, lines: np.ndarray | None):
    """Raise InputError if `options` refuse pairs that are longer than the limit, including eos (and bos), on either
    side."""
    is_over = (lengths > options.max_length).any(1)
    if is_over.any() and options.overlong == "error":
        row = int(np.argmax(is_over))
        side = int(np.argmax(lengths[row]))
        place = f"pair {row + 1} of {split}" if lines is None else f"line {int(lines[row]) + 1}"
        raise InputError(
            f"{place}: the {('source', 'target')[side]} has {lengths[row, side]} tokens with its end mark, "
            f"the limit is {options.max_length}; shorten it, raise --data.max-length, "
            "or give --data.overlong truncate (or drop)"
        )


def training_rows(lengths: np.ndarray, options: TextPairs) -> np.ndarray:
    """Return the indices of the training pairs of `lengths` [N, 2]: all, or those within the limit if the others are
    dropped."""
    is_over = (lengths > options.max_length).any(1)
    rows = np.flatnonzero(~is_over) if options.overlong == "drop" else np.arange(len(lengths))
    if not len(rows):
        raise InputError(f"no training pair is within --data.max-length {options.max_length}; raise it")
    return rows


def arrange_pairs(tokens: Tokens, options: TextPairs, batch_size: int, packing: int = 0) -> PairData:
    """Return the dataset of `write_tokens` with its pairs, rows of the tokens, in buckets of similar lengths; with
    `packing`, several pairs in rows of this many tokens.

    Held-out pairs longer than the limit are cut in `held_out` (never dropped), and whole in `texts`.
    """
    data = tokens.data
    splits = {"train": data.train[0], **data.held_out}
    lengths = {name: np.minimum(of_split, options.max_length) + np.int32([0, 1]) for name, of_split in splits.items()}
    flat = np.concatenate([of_split.reshape(-1) for of_split in lengths.values()]).astype(np.int64)
    ends = np.cumsum([2 * len(of_split) for of_split in lengths.values()])
    starts = dict(zip(lengths, np.split(np.cumsum(flat) - flat, ends[:-1])))
    pads = [vocabulary.pad_id for vocabulary in (data.source_vocabulary, data.target_vocabulary)]

    def pairs_of(name: str, rows: np.ndarray) -> Pairs:
        start, length = starts[name].reshape(-1, 2)[rows].T.copy(), lengths[name][rows].T.copy()
        sides = (
            TokenRows(tokens.array, at, count, int(count.max()), pad) for at, count, pad in zip(start, length, pads)
        )
        source, target = sides
        return Pairs(source, length[0], target, length[1] - np.int32(1))

    rows = training_rows(splits["train"], options)
    source_length, target_length = (lengths["train"][rows] - np.int32([0, 1])).T
    groups = [rows[group] for group in batches.assign(source_length, target_length, options.max_buckets)]
    train, packed = tuple(pairs_of("train", group) for group in groups), {}
    widths = [max(bucket.source.shape[1], bucket.target.shape[1] - 1) for bucket in train]
    batch_sizes = batches.sentences_in_batch(widths, batch_size, options.batch_tokens)
    facts = {
        "train_pairs": len(rows),
        "buckets": [
            {"source": b.source.shape[1], "target": b.target.shape[1] - 1, "pairs": len(b.source), "batch": batch_size}
            for b, batch_size in zip(train, batch_sizes)
        ],
        "padding_share": round(padding_share(train), 4),
    }
    if packing:
        train = (pack_pairs(pairs_of("train", rows), packing, data.target_vocabulary.bos_id),)
        batch_sizes = batches.sentences_in_batch([packing], batch_size, options.batch_tokens)
        packed = {"packed_padding_share": round(padding_share(train), 4)}
    whole = lambda pairs: type(pairs)(*(column[:] for column in pairs))
    texts = data.texts
    if "train" in texts:
        texts = {**texts, "train": take_rows(texts["train"], np.concatenate(groups))}
    return data._replace(
        train=train if tokens.streamed else tuple(map(whole, train)),
        batch_sizes=batch_sizes,
        held_out={name: whole(pairs_of(name, np.arange(len(splits[name])))) for name in data.held_out},
        texts=texts,
        facts=data.facts | facts | packed | ({"streamed": True} if tokens.streamed else {}),
    )


def pack_pairs(pairs: Pairs, capacity: int, begin: int) -> PackedPairs:
    """Return rows that hold several of the pairs each, in `capacity` source tokens and as many target tokens."""
    groups = batches.pack(np.stack([pairs.source_length, pairs.target_length], axis=1), capacity)
    targets = replace(pairs.target, start=pairs.target.start + 1, length=pairs.target.length - 1)  # without bos
    total = lambda lengths: np.array([lengths[group].sum() for group in groups], np.int32)
    return PackedPairs(
        PackedRows(pairs.source, groups, capacity),
        total(pairs.source_length),
        PackedRows(targets, groups, capacity + 1, begin=(begin,)),
        total(pairs.target_length),
        PackedRows(pairs.source, groups, capacity, segments=True),
        PackedRows(targets, groups, capacity, segments=True),
    )


def _unknown_share(rows: Rows, vocabulary: Vocabulary) -> float:
    tokens = [token for row in rows for token in row]
    return round(sum(token not in vocabulary for token in tokens) / max(len(tokens), 1), 5)


def assemble(splits: Mapping[str, Texts], options: TextPairs, batch_size: int, **preparation) -> PairData:
    """Return the dataset of these splits ("train" and any number of held-out ones) in memory; `preparation` is that of
    `write_tokens`."""

    def write(_, file: BinaryIO) -> PairData:
        data = write_tokens(splits, options, file, **preparation)
        fingerprint = data_summary.fingerprint(data_summary.contents(data.texts))
        return data._replace(facts=data.facts | {"fingerprint": fingerprint})

    return arrange_pairs(load_tokens("never", (), (), write), options, batch_size)


def take_rows(texts: Texts, rows: np.ndarray) -> Texts:
    """The pairs of these rows."""
    return Texts([texts.source[row] for row in rows], [texts.target[row] for row in rows])


def concatenate_pairs(texts: Texts, max_pairs: int, seed: int) -> Texts:
    """Return every pair, followed by concatenations of 2 to `max_pairs` randomly chosen pairs with each pair once: long
    sentences for a corpus that has few.

    >>> concatenate_pairs(Texts(["a", "b"], ["A", "B"]), max_pairs=2, seed=0)
    Texts(source=['a', 'b', 'a b'], target=['A', 'B', 'A B'])
    """
    rng = np.random.default_rng(seed)
    order, joined = rng.permutation(len(texts.source)), []
    while len(order):
        count = int(rng.integers(2, max_pairs + 1))
        joined.append(order[:count])
        order = order[count:]
    return Texts(*(side + [" ".join(side[row] for row in rows) for rows in joined] for side in texts))


def make_pairs(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    *,
    source_width: int | None = None,
    target_width: int | None = None,
) -> Pairs:
    """Return padded pairs: eos is appended to source and target (if the vocabulary has one), and bos prepended to the
    target.

    `source_width` and `target_width` are S and T, by default those of the longest pair. A truncated sequence loses its
    eos, as in d2l.
    """
    bos, eos = target_vocabulary.bos_id, target_vocabulary.eos_id
    if bos is None:
        raise ValueError("the target vocabulary needs a bos token")
    source_end = [] if source_vocabulary.eos_id is None else [source_vocabulary.eos_id]
    target_end = [] if eos is None else [eos]
    source_rows, source_length = batches.pad_rows(
        [[*row, *source_end] for row in source], source_vocabulary.pad_id, source_width
    )
    target_rows, target_length = batches.pad_rows(
        [[bos, *row, *target_end] for row in target],
        target_vocabulary.pad_id,
        None if target_width is None else target_width + 1,
    )
    return Pairs(source_rows, source_length, target_rows, target_length - np.int32(1))


def padding_share(buckets: Sequence[Pairs]) -> float:
    """Return the fraction of padding over sources and targets."""
    positions = sum(len(b.source_length) * (b.source.shape[1] + b.target.shape[1] - 1) for b in buckets)
    return 1.0 - sum(int(b.source_length.sum()) + int(b.target_length.sum()) for b in buckets) / max(positions, 1)


def encode_sources(
    data: PairData, texts: Sequence[str], limit: int | None = None, width: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Encode new texts as (source [N, S], source_length [N]) with the dataset's tokenizer and vocabulary.

    S is that of the longest text, or `width` if this is larger.

    Raises:
      InputError: a text has more than `limit` tokens, or characters outside a vocabulary without unk.
    """
    vocabulary = data.source_vocabulary
    end = [] if vocabulary.eos_id is None else [vocabulary.eos_id]
    rows = [[*vocabulary.encode_text(data.source_tokenizer.tokens(text)), *end] for text in texts]
    rows = [[vocabulary.bos_id, *row] for row in rows] if data.source_bos else rows
    for text, row in zip(texts, rows):
        if limit is not None and len(row) > limit:
            raise InputError(
                f"a source may have at most {limit} tokens (bos and eos included), but {text[:40]!r}... has "
                f"{len(row)}; shorten or split it"
            )
    return batches.pad_rows(rows, vocabulary.pad_id, max(width, *map(len, rows)) if rows else None)


def references(data: PairData, split: str) -> list[str]:
    """Return the references for BLEU: plain text, or with `bleu_tokenize` "none" the target's tokens joined by spaces.

    They are not truncated like the training targets.
    """
    texts = data.texts[split].target
    tokenizer = data.target_tokenizer
    return (
        list(texts) if data.bleu_tokenize != "none" else [tokenizer.text(tokens) for tokens in tokenizer.split(texts)]
    )


def decode_targets(data: PairData, rows: np.ndarray) -> list[str]:
    """Predicted rows [N, T] (without bos) as texts."""
    return [data.target_tokenizer.text(data.target_vocabulary.sentence(row)) for row in rows]


def load_pairs(options: DataOptions, batch_size: int = 128) -> PairData:
    """Load the dataset that `options` describe; `batch_size` is in sentences."""
    return import_object(options.loader)(options, batch_size)
