"""From parallel texts to a `PairData`: tokens, vocabularies, limits, buckets, and the facts
one should know about all that."""

from collections.abc import Mapping, Sequence

import numpy as np

from attention_jax import InputError
from attention_jax.config import TextPairs
from attention_jax.data import buckets as bucketing, tokenizers
from attention_jax.data.pairs import PairData, Pairs, Texts, Tokenizer, make_pairs, occurs_in, padding_share
from attention_jax.data.splits import take
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

Rows = list[list[str]]
SPECIAL = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}


def make_tokenizers(
    options: TextPairs, train: Texts, languages: tuple[str, str], merges: str
) -> tuple[list[Tokenizer], list[list[str] | None]]:
    """Source and target tokenizer as `options.tokenizer` says, and their pieces where training the
    tokenizer makes the vocabulary."""
    if options.tokenizer == "spacy":
        return [tokenizers.spacy(language) for language in languages], [None, None]
    if options.tokenizer == "sentencepiece" and options.joint_vocabulary:
        tokenizer, pieces = tokenizers.sentencepiece([*train.source, *train.target], options.vocabulary_size)
        return [tokenizer] * 2, [pieces] * 2
    if options.tokenizer == "sentencepiece":
        made = [tokenizers.sentencepiece(side, options.vocabulary_size) for side in train]
        return [tokenizer for tokenizer, _ in made], [pieces for _, pieces in made]
    if options.tokenizer == "bpe":
        if not merges:
            raise InputError("the bpe tokenizer needs the file of its merges: --data.merges FILE")
        return [tokenizers.bpe(merges)] * 2, [None, None]
    simple = {"whitespace": tokenizers.whitespace, "character": tokenizers.character, "words": tokenizers.words}
    return [simple[options.tokenizer]()] * 2, [None, None]


def make_vocabularies(
    options: TextPairs, source: Rows, target: Rows, pieces: list[list[str] | None]
) -> list[Vocabulary]:
    """Source and target vocabulary; one and the same object where they are joint."""
    if options.joint_vocabulary:
        joint = (
            Vocabulary(pieces[0], **SPECIAL)
            if pieces[0]
            else Vocabulary.of_sentences([*source, *target], min_frequency=options.min_frequency, **SPECIAL)
        )
        return [joint, joint]
    return [
        Vocabulary(known, **SPECIAL)
        if known
        else Vocabulary.of_sentences(rows, min_frequency=options.min_frequency, **SPECIAL)
        for known, rows in zip(pieces, (source, target))
    ]


def _reversed(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(
        lambda text: tokenizer.tokens(text)[::-1],
        lambda tokens: tokenizer.text(tokens[::-1]),
        lambda texts: [tokens[::-1] for tokens in tokenizer.split(texts)],
    )


def _overlong(split: str, sides: tuple[Rows, Rows], options: TextPairs, lines: np.ndarray | None) -> np.ndarray:
    """[N] bool: pairs with a side longer than the limit, the end mark counted. An error where `options` says so."""
    lengths = np.array([[len(row) + 1 for row in rows] for rows in sides])
    over = (lengths > options.max_length).any(0)
    if over.any() and options.overlong == "error":
        row = int(np.argmax(over))
        side = int(np.argmax(lengths[:, row]))
        place = f"pair {row + 1} of {split}" if lines is None else f"line {int(lines[row]) + 1}"
        raise InputError(
            f"{place}: the {('source', 'target')[side]} has {lengths[side, row]} tokens with its end mark, "
            f"the limit is {options.max_length}; shorten it, raise --data.max-length, "
            "or give --data.overlong truncate (or drop)"
        )
    return over


def _held_out_share(rows: Rows, vocabulary: Vocabulary) -> float:
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
    if options.lowercase:
        splits = {name: Texts(*([text.lower() for text in side] for side in texts)) for name, texts in splits.items()}
    (source_tokenizer, target_tokenizer), pieces = make_tokenizers(options, splits["train"], languages, merges)
    if options.reverse_source:
        source_tokenizer = _reversed(source_tokenizer)
    tokens = {
        name: (source_tokenizer.split(texts.source), target_tokenizer.split(texts.target))
        for name, texts in splits.items()
    }
    over = {name: _overlong(name, sides, options, lines and lines[name]) for name, sides in tokens.items()}
    facts = {
        "overlong_train_pairs": {"truncate": "truncated", "drop": "dropped", "error": "error"}[options.overlong],
        **{f"overlong_{name}": int(rows.sum()) for name, rows in over.items()},
    }
    train_rows = np.flatnonzero(~over["train"]) if options.overlong == "drop" else np.arange(len(over["train"]))
    if not len(train_rows):
        raise InputError(f"no training pair is within --data.max-length {options.max_length}; raise it")

    counted = [[row[: options.max_length] for name in vocabulary_from for row in tokens[name][side]] for side in (0, 1)]
    source_vocabulary, target_vocabulary = vocabularies = make_vocabularies(options, *counted, pieces)
    ids = {
        name: [[vocabulary.encode(row) for row in rows] for vocabulary, rows in zip(vocabularies, sides)]
        for name, sides in tokens.items()
    }

    def pairs(name: str, rows: Sequence[int]) -> Pairs:
        source, target = ([side[row] for row in rows] for side in ids[name])
        widths = [min(options.max_length, max(map(len, side)) + 1) for side in (source, target)]
        return make_pairs(source, target, *vocabularies, source_width=widths[0], target_width=widths[1])

    lengths = [
        np.minimum([len(ids["train"][side][row]) + 1 for row in train_rows], options.max_length) for side in (0, 1)
    ]
    grouped = [train_rows[rows] for rows in bucketing.assign(*lengths, options.max_buckets)]
    train = tuple(pairs("train", rows) for rows in grouped)
    held_out = {name: pairs(name, range(len(texts.source))) for name, texts in splits.items() if name != "train"}
    widths = [max(b.source.shape[1], b.target.shape[1] - 1) for b in train]
    batch_sizes = bucketing.sentences_in_batch(widths, batch_size, options.batch_tokens)
    joined = {name: list(map(" ".join, sides[0])) for name, sides in tokens.items()}
    seen = {name: occurs_in(joined[name], joined["train"]) for name in held_out}
    facts |= {
        "train_pairs": len(train_rows),
        **{f"{name}_pairs": len(part.source) for name, part in held_out.items()},
        "source_vocabulary": len(source_vocabulary),
        "target_vocabulary": len(target_vocabulary),
        "vocabulary_from": "+".join(vocabulary_from),
        "buckets": [
            {"source": b.source.shape[1], "target": b.target.shape[1] - 1, "pairs": len(b.source), "batch": size}
            for b, size in zip(train, batch_sizes)
        ],
        "padding_share": round(padding_share(train), 4),
        **{f"{name}_inputs_also_in_train": int(rows.sum()) for name, rows in seen.items()},
        **{f"{name}_unknown_target_tokens": _held_out_share(tokens[name][1], target_vocabulary) for name in held_out},
    }
    return PairData(
        train=train,
        batch_sizes=batch_sizes,
        held_out=held_out,
        seen=seen,
        texts={**splits, "train": take(splits["train"], np.concatenate(grouped))},
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        facts=facts,
        bleu_tokenize=bleu_tokenize,
    )
