"""Datasets of sequence pairs in memory, with vocabularies, tokenizers and texts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from attention_jax.config import DataOptions, import_object
from attention_jax.data.streams import Stream
from attention_jax.data.text_keys import to_nfc
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError


class Pairs(NamedTuple):
    """N pairs of one shape. Row i is `source[i, :source_length[i]]` -> `target[i, 1:1 + target_length[i]]`."""

    source: np.ndarray
    """[N, S] int32, padded at the end"""
    source_length: np.ndarray
    """[N] int32"""
    target: np.ndarray
    """[N, T + 1] int32: starts with bos, ends with eos where the vocabulary has one"""
    target_length: np.ndarray
    """[N] int32: the number of tokens to predict, without bos and including eos"""


class Texts(NamedTuple):
    """The pairs as plain text, which BLEU compares, in the same order."""

    source: list[str]
    target: list[str]


class Tokenizer(NamedTuple):
    """Functions text -> tokens and tokens -> text, and an optional batched texts -> tokens."""

    tokens: Callable[[str], list[str]]
    text: Callable[[Sequence[str]], str]
    all_tokens: Callable[[Sequence[str]], list[list[str]]] | None = None
    recipe: tuple = ()
    """Its stored form: a name in `stored.TOKENIZERS` and the arguments of the function there; () if it cannot."""

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """The tokens of each text."""
        return [self.tokens(text) for text in texts] if self.all_tokens is None else self.all_tokens(texts)


class PairData(NamedTuple):
    """A dataset of pairs, ready for a task."""

    train: tuple[Pairs, ...]
    """buckets: each has its own S and T; the rows of `texts["train"]` are those of the
    first bucket, then the second ..."""
    batch_sizes: tuple[int, ...]
    """sentences in a batch of each bucket"""
    held_out: dict[str, Pairs]
    """"valid", "test", ... by name"""
    texts: dict[str, Texts]
    """by split name, "train" included"""
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
    stream: Stream | None = None
    """the streamed training data; `train` is a sample of it then"""
    source_bos: bool = False
    """whether sources begin with bos"""


def pad_rows(rows: Sequence[Sequence[int]], pad: int | None, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers as one array [N, width] int32 and their lengths [N] int32; longer rows are cut.

    >>> pad_rows([[5, 6, 7], [8]], 0)
    (array([[5, 6, 7],
           [8, 0, 0]], dtype=int32), array([3, 1], dtype=int32))
    """
    lengths = np.fromiter((len(row) for row in rows), np.int32, len(rows))
    width = int(lengths.max(initial=1)) if width is None else width
    array = np.full((len(rows), width), 0 if pad is None else pad, np.int32)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row[:width]
    return array, np.minimum(lengths, np.int32(width))


def prepend_bos(rows: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[list[int]]:
    """The rows of token indices with bos before each.

    >>> prepend_bos([[2, 3], []], Vocabulary(["a"], bos="<s>", unk="?"))
    [[0, 2, 3], [0]]
    """
    return [[vocabulary.bos_id, *row] for row in rows]


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
    source_rows, source_length = pad_rows(
        [[*row, *source_end] for row in source], source_vocabulary.pad_id, source_width
    )
    target_rows, target_length = pad_rows(
        [[bos, *row, *target_end] for row in target],
        target_vocabulary.pad_id,
        None if target_width is None else target_width + 1,
    )
    return Pairs(source_rows, source_length, target_rows, target_length - np.int32(1))


def padding_share(buckets: Sequence[Pairs]) -> float:
    """Return the fraction of padding over sources and targets."""
    positions = sum(b.source.size + b.target[:, 1:].size for b in buckets)
    return 1.0 - sum(int(b.source_length.sum()) + int(b.target_length.sum()) for b in buckets) / max(positions, 1)


def occurs_in(texts: Sequence[str], corpus: Sequence[str]) -> np.ndarray:
    """Return which of the texts [N] also occur among the others, in the same or another of Unicode's normal forms."""
    corpus = set(map(to_nfc, corpus))
    return np.fromiter((to_nfc(text) in corpus for text in texts), bool, len(texts))


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
    rows = prepend_bos(rows, vocabulary) if data.source_bos else rows
    for text, row in zip(texts, rows):
        if limit is not None and len(row) > limit:
            raise InputError(
                f"a source may have at most {limit} tokens (bos and eos included), but {text[:40]!r}... has "
                f"{len(row)}; shorten or split it"
            )
    return pad_rows(rows, vocabulary.pad_id, max(width, *map(len, rows)) if rows else None)


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
