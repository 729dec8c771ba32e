"""Streamed sentence pairs: read, tokenized and batched while a model trains.

An epoch is a random order of all records, divided into windows. `group` batches the pairs of a window into calls of the
training step, so that a position in an epoch is (window, call).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_jax.config import TextPairs
from attention_jax.data import pair_files
from attention_jax.data.line_index import PairLines
from attention_jax.data.pairs import Texts, make_pairs, prepend_bos
from attention_jax.data.streams import Call, Share, Stream
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError

ROUNDS = 6
"""Rounds of the Feistel network."""
WINDOW_BATCHES = 32
"""Batches of the narrowest bucket that a window's pairs would make."""


def permute_records(indices: np.ndarray, total: int, *draws: int) -> np.ndarray:
    """Return the records at `indices` of a pseudorandom order of `total` records, computed without storing it.

    A Feistel network permutes 2^(2h) numbers; outputs beyond `total` are permuted again until they are below (cycle
    walking: Black & Rogaway 2002, "Ciphers with arbitrary finite domains").

    >>> sorted(permute_records(np.arange(10), 10, 3, 0).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, (int(total - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.default_rng(draws).integers(0, 2**63, ROUNDS, np.uint64)
    records, outside = indices.astype(np.uint64), np.ones(len(indices), bool)
    while outside.any():
        left, right = records[outside] >> half, records[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix_bits(right + key) & mask)
        records[outside] = (left << half) | right
        outside = records >= np.uint64(total)
    return records.astype(np.int64)


def _mix_bits(x: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer (Steele, Lea and Flood 2014), uint64 to uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Examples(NamedTuple):
    """The encoded pairs of a window, without bos and eos, and an error message for each unreadable record."""

    source: list[list[int]]
    target: list[list[int]]
    damaged: tuple[str, ...]


class Batch(NamedTuple):
    """The batch of one step: arrays [B, ...] by name, and weights [B]."""

    rows: dict[str, np.ndarray]
    weight: np.ndarray


@dataclass(frozen=True)
class PairEncoder:
    """Encoder of texts as token indices; pickled to worker processes, which create the tokenizers."""

    options: TextPairs
    languages: tuple[str, str]
    merges: str

    def __call__(self, texts: Texts, vocabularies: Sequence[Vocabulary]) -> tuple[list[list[int]], list[list[int]]]:
        rows = (tokenizer.split(side) for tokenizer, side in zip(_tokenizers(self), texts))
        source, target = ([v.encode_text(row) for row in side] for v, side in zip(vocabularies, rows))
        return prepend_bos(source, vocabularies[0]) if self.options.source_bos else source, target


@functools.lru_cache(maxsize=2)
def _tokenizers(encoder: PairEncoder):
    """Return tokenizers without a cache on disk, since no window is read twice."""
    tokenizers = pair_files.make_tokenizers(encoder.options, Texts([], []), encoder.languages, encoder.merges)[0]
    return [tokenizer._replace(all_tokens=None) for tokenizer in tokenizers]


@dataclass(frozen=True, eq=False)
class PairStream(Stream):
    """Pairs of files, without those whose source is held out."""

    lines: PairLines
    encoder: PairEncoder
    vocabularies: tuple[Vocabulary, Vocabulary]
    held_out: frozenset[str]
    """The keys (`pair_files.source_key`) of held-out sources, which are left out of training."""
    group: Callable[[Examples, np.random.Generator], list[Batch]]
    """The steps that a window's examples make, in the order in which they are trained on."""
    seed: int
    window: int
    """Records in one."""
    workers: int = 0
    damaged: str = "error"

    epoch_steps = None  # known only when an epoch has been read

    @property
    def records(self) -> int:
        return self.lines.ends[-1]

    @property
    def windows(self) -> int:
        return -(-self.records // self.window)

    def examples(self, epoch: int, window: int) -> Examples:
        """The pairs of a window of an epoch, tokenized."""
        indices = np.arange(window * self.window, min((window + 1) * self.window, self.records))
        source, target, where, damaged, options = [], [], [], [], self.encoder.options
        for record in permute_records(indices, self.records, self.seed, epoch).tolist():
            try:
                pair = self.lines.read(record)
            except InputError as error:
                if self.damaged != "skip":
                    raise
                damaged.append(str(error))
                continue
            if pair_files.source_key(pair[0], options) not in self.held_out:
                source.append(pair_files.apply_case(pair[0], options))
                target.append(pair_files.apply_case(pair[1], options))
                where.append(record)
        ids = self.encoder(Texts(source, target), self.vocabularies)
        is_over = [max(len(a), len(b)) >= options.max_length for a, b in zip(*ids)]
        if options.overlong == "error" and any(is_over):
            record = where[is_over.index(True)]
            raise InputError(
                f"{self.lines.location(record)}: a sentence has more tokens than --data.max-length "
                f"{options.max_length}, including its end token; raise it, or give --data.overlong truncate (or drop)"
            )
        if options.overlong == "drop":
            ids = ([row for row, long in zip(side, is_over) if not long] for side in ids)
        return Examples(*ids, tuple(damaged))

    def calls(self, epoch: int, window: int, share: Share) -> list[Call]:
        examples = self.examples(epoch, window)
        calls = []
        for rows, weight in self.group(examples, np.random.default_rng([self.seed, epoch, window])):
            local_rows = share.cut(np.arange(len(weight))[None]).reshape(share.here, -1)
            bucket = {name: array[local_rows] for name, array in rows.items()}
            calls.append(Call(bucket, weight[None].astype(np.float32), examples.damaged if not calls else ()))
        return calls


@dataclass(frozen=True)
class Buckets:
    """Pairs of similar length in a batch: one shape for each limit, of the longer side, its end mark counted."""

    limits: tuple[int, ...]
    """The lengths of the buckets in tokens, ascending; the last is the length limit."""
    batch_sizes: tuple[int, ...]
    vocabularies: tuple[Vocabulary, Vocabulary]

    def __call__(self, examples: Examples, rng: np.random.Generator) -> list[Batch]:
        """Batch the examples by bucket; the rest moves to the next wider bucket, so only the last batch is padded."""
        longest = np.array([max(len(a), len(b)) + 1 for a, b in zip(examples.source, examples.target)], np.int64)
        bucket = np.searchsorted(self.limits[:-1], longest)
        batches, leftover = [], np.zeros(0, np.int64)
        for number, (limit, size) in enumerate(zip(self.limits, self.batch_sizes)):
            rows = np.concatenate([leftover, np.flatnonzero(bucket == number)])
            whole = len(rows) // size * size
            last = number + 1 == len(self.limits)
            batches += [self._batch(examples, batch_rows, limit, size) for batch_rows in rows[:whole].reshape(-1, size)]
            leftover = rows[whole:]
            if last and (len(leftover) or not batches):
                batches.append(self._batch(examples, leftover, limit, size))
        return [batches[number] for number in rng.permutation(len(batches))]

    def _batch(self, examples: Examples, rows: np.ndarray, limit: int, size: int) -> Batch:
        source, target = ([side[row] for row in rows] for side in (examples.source, examples.target))
        fill = [[]] * (size - len(rows))
        pairs = make_pairs(source + fill, target + fill, *self.vocabularies, source_width=limit, target_width=limit)
        return Batch(pairs._asdict(), (np.arange(size) < len(rows)).astype(np.float32))
