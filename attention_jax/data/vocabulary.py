"""Tokenizers as pairs of functions, and vocabularies: tokens with indices, including pad, bos, eos and unk."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from attention_jax.errors import InputError

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"


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


class Vocabulary:
    """A list of tokens; a token's id is its index.

    Special tokens are given by their strings, None for those that the vocabulary does not have. Those that are not in
    `tokens` are prepended in the order pad, bos, eos, unk.

    >>> v = Vocabulary("_ab", bos="_")
    >>> v.encode("ab"), v.bos_id, v.eos_id, len(v)
    ([1, 2], 0, None, 3)
    >>> v = Vocabulary(["hello"], pad=PAD, bos=BOS, eos=EOS, unk=UNK)
    >>> v.encode(["hello", "world"]), v.sentence([1, 4, 2, 0, 0])
    ([4, 3], ['hello'])
    """

    def __init__(
        self,
        tokens: Iterable[str],
        *,
        pad: str | None = None,
        bos: str | None = None,
        eos: str | None = None,
        unk: str | None = None,
    ):
        tokens = list(tokens)
        present = set(tokens)
        self.tokens = [token for token in (pad, bos, eos, unk) if token is not None and token not in present] + tokens
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self._ids) != len(self.tokens):
            duplicate = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise InputError(f"a vocabulary needs distinct tokens, but {duplicate!r} occurs more than once")
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (
            None if token is None else self._ids[token] for token in (pad, bos, eos, unk)
        )
        self._words = {token: number for token, number in self._ids.items() if token not in (pad, bos, eos)}

    @classmethod
    def of_sentences(
        cls, sentences: Iterable[Sequence[str]], *, min_frequency: int = 1, **special: str | None
    ) -> "Vocabulary":
        """Return the tokens that occur at least `min_frequency` times, most frequent first (ties alphabetically).

        >>> Vocabulary.of_sentences([["b", "a"], ["b"]], unk="?").tokens
        ['?', 'b', 'a']
        """
        counts = Counter(token for sentence in sentences for token in sentence)
        special_tokens = {token for token in special.values() if token is not None}
        frequent = [token for token, count in counts.items() if count >= min_frequency and token not in special_tokens]
        return cls(sorted(frequent, key=lambda token: (-counts[token], token)), **special)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens)"

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: str) -> bool:
        """Whether a text may have this token; pad, bos and eos are none of a text."""
        return token in self._words

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the indices of tokens, special ones included; unknown tokens become unk, or raise InputError without
        one."""
        return self._indices(tokens, self._ids)

    def encode_text(self, tokens: Iterable[str]) -> list[int]:
        """Return the indices of the tokens of a text, in which those that are spelled like pad, bos or eos are unknown:
        a text with the word "<eos>" does not end there.

        >>> Vocabulary(["a"], eos=EOS, unk=UNK).encode_text(["a", "<eos>", "a"])
        [2, 1, 2]
        """
        return self._indices(tokens, self._words)

    def _indices(self, tokens: Iterable[str], ids: dict[str, int]) -> list[int]:
        if self.unk_id is not None:
            return [ids.get(token, self.unk_id) for token in tokens]
        tokens = list(tokens)
        unknown = sorted({token for token in tokens if token not in ids})
        if unknown:
            raise InputError(
                f"{' '.join(map(repr, unknown))} not in the vocabulary of {len(self)}; it knows: "
                f"{' '.join(map(repr, list(ids)[:100]))}"
            )
        return [ids[token] for token in tokens]

    def indices_in(self, other: "Vocabulary") -> np.ndarray:
        """Return the index in `other` of each token, -1 for one that is not there; special tokens go by their roles.

        >>> Vocabulary("ab", eos="$").indices_in(Vocabulary("cb", eos="."))
        array([ 0, -1,  2])
        """
        indices = np.array([other._words.get(token, -1) for token in self.tokens])
        for role in ("unk_id", "eos_id", "pad_id", "bos_id"):
            if (index := getattr(self, role)) is not None and getattr(other, role) is not None:
                indices[index] = getattr(other, role)
        return indices

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of the given ids, including special tokens."""
        return [self.tokens[number] for number in np.asarray(ids, np.int64).tolist()]

    def sentence(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens up to the first eos, without pad and bos."""
        until_eos = itertools.takewhile(lambda number: number != self.eos_id, np.asarray(ids, np.int64).tolist())
        return [self.tokens[number] for number in until_eos if number not in (self.pad_id, self.bos_id)]
