"""Pretrained encoders: states, sentence embeddings, masked words, classes, and attention maps.

Texts of all lengths go together; padding changes nothing, so each is as if it were alone.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import MaskedLanguageModelConfig
from attention_jax.data.batches import pad_rows
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange, tensors
from attention_jax.pretrained.interface import (
    FUNCTIONS,
    Pretrained,
    Texts,
    check_ids,
    check_texts,
    read_params,
    refuse_figure,
)
from attention_jax.pretrained.sentence_files import sentences
from attention_jax.pretrained.tokenizer import has_tokenizer, read_tokenizer
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.tasks.attention_maps import token_attention, with_rollout

ROWS, WIDTH = 32, 16
"""Texts of a batch at most, and the smallest number of tokens to which they are padded: batches have sizes that are
powers of two, so that few programs are compiled."""


@dataclass(frozen=True, eq=False, repr=False)
class PretrainedEncoder(Pretrained):
    """An encoder: BERT, RoBERTa, DistilBERT, models of sentence embeddings, and the text encoders of T5 and CLIP."""

    function: str = "softmax"
    """What makes the logits of its classifier its answer."""

    @classmethod
    def of(cls, path: Path, weights: exchange.Weights, options: MaskedLanguageModelConfig) -> "PretrainedEncoder":
        is_bert = options.norm_embedding
        tokenizer = read_tokenizer(path, tensors.config_of(path)) if is_bert or has_tokenizer(path) else None
        model = dataclasses.replace(exchange.module_of(weights), options=options)
        params = read_params(weights, model, np.zeros((1, 2), np.int32), np.array([2], np.int32))
        return cls(path, options, model, params, tokenizer, weights.function)

    @property
    def classes(self) -> tuple[str, ...]:
        count = self.model.classes or 0
        return tensors.class_names(tensors.config_of(self.path), count) or tuple(f"class {i}" for i in range(count))

    def hidden(self, tokens, length=None) -> jax.Array:
        tokens, vocab = _as_array(tokens), self.model.vocab
        if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
            raise InputError(f"hidden takes token ids [B, T], got {tokens.dtype} {[*tokens.shape]}")
        if tokens.min() < 0 or tokens.max() >= vocab:
            raise InputError(
                f"hidden takes tokens from 0 to {vocab - 1}, the vocabulary, got {tokens.min()} to {tokens.max()}"
            )
        count, width = tokens.shape
        length = np.full(count, width) if length is None else _as_array(length)
        is_count = length.shape == (count,) and np.issubdtype(length.dtype, np.integer)
        if not is_count or length.min() < 1 or length.max() > width:
            raise InputError(
                f"hidden takes integers, the length of each text, [{count}], from 1 to {width}, got "
                f"{str(length.tolist())[:40]}: of a mask it is mask.sum(axis=1)"
            )
        return _hidden(self.model, self.params, tokens.astype(np.int32), length.astype(np.int32))

    def embed(self, texts: Texts) -> np.ndarray:
        rows = self._encode_sentences(check_texts(texts, "embed"))
        return np.array(self._over_batches(_embed, rows)).reshape(len(texts), -1)

    def fill_mask(self, texts: Texts, k: int = 5) -> list:
        texts, tokenizer = check_texts(texts, "fill_mask"), self.tokenizer
        if not self.config.word_head or tokenizer.mask is None:
            raise InputError(
                "fill_mask needs a model with a head for masked words and a mask token; this one lacks one"
            )
        if not 1 <= k <= self.model.vocab:
            raise InputError(f"k must be 1 to {self.model.vocab}, the size of the vocabulary, got {k}")
        rows = self._encode(texts)
        places = [[at for at, number in enumerate(row) if number == tokenizer.mask] for row in rows]
        for text, masks in zip(texts, places):
            if not masks:
                raise InputError(f"a text needs {tokenizer.names[tokenizer.mask]} in the place of a word, got {text!r}")
        most = max(map(len, places), default=1)
        padded = np.array([[*masks, *[0] * (most - len(masks))] for masks in places], np.int32)
        predictions = self._over_batches(functools.partial(_words_at, k), rows, padded)
        word = lambda number, p: (tokenizer.decode([number]).strip() or tokenizer.tokens([number])[0], float(p))
        return [
            [[word(*pair) for pair in zip(ids, probabilities)] for ids, probabilities in zip(*of_text)][: len(masks)]
            for of_text, masks in zip(predictions, places)
        ]

    def classify(self, texts: Texts) -> np.ndarray:
        texts = check_texts(texts, "classify")
        if not self.model.classes:
            raise InputError("this encoder has no classifier; train one: launch.py train classify_text --from DIR")
        rows = self._encode(texts) if self.config.pooler != "none" else self._encode_sentences(texts)
        compute = functools.partial(_classify, FUNCTIONS[self.function])
        return np.array(self._over_batches(compute, rows)).reshape(len(texts), -1)

    def attention(self, texts: Texts) -> tuple[AttentionRecord, ...]:
        """The attention maps of each text, under the model's answer to it."""
        texts, records = check_texts(texts, "attention"), []
        width = self.config.projection_dim or self.config.hidden_size
        answers = self._answers(texts) or [f"embedding of {width} numbers"] * len(texts)
        rows = self._encode(texts)
        for text, row, output, answer in zip(texts, rows, self._over_batches(_attention, rows), answers):
            check_length(row, text)
            tokens, output = tuple(self.tokenizer.tokens(row)), jax.tree.map(lambda x: x[None], output)
            attention = token_attention(self.config, "encoder", 0, output, tokens, tokens, {})
            records.append(AttentionRecord(text, (Prediction(answer, (attention,)),)))
        return tuple(records)

    def predict(self, texts: Texts, attention: Path | str | None = None) -> list[str]:
        refuse_figure(attention)
        texts = check_texts(texts, "predict")
        return self._answers(texts) or [" ".join(f"{x:.4f}" for x in row) for row in self.embed(texts)]

    def _answers(self, texts: Texts) -> list[str] | None:
        """The class of each text, or the words in the place of its masks; None if there are neither."""
        if self.model.classes:
            names = self.classes
            class_indices = lambda row: [row.argmax()] if self.function == "softmax" else range(len(row))
            return [", ".join(f"{names[i]} {row[i]:.3f}" for i in class_indices(row)) for row in self.classify(texts)]
        masked = self.config.word_head and all(self.tokenizer.mask in self.tokenizer.encode(text) for text in texts)
        if masked:
            return [", ".join(f"{word} {p:.3f}" for word, p in candidates[0]) for candidates in self.fill_mask(texts)]
        return None

    @property
    def _longest(self) -> int:
        """The most tokens of a text; positions that are no table have no end."""
        return self.config.longest_input or sys.maxsize

    def _encode_sentences(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text as the files of sentence-transformers say, if there are any."""
        how = sentences(self.path if self.path.is_dir() else self.path.parent, self._longest)
        return self._encode([how.preprocess(text) for text in texts], how.most)

    def _encode(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """The tokens of each text, special ones included, at `most` so many; InputError for too many or none."""
        if self.tokenizer is None:
            raise InputError(
                f"{self.path} has no tokenizer.json, which texts need: add it, or give token ids to hidden"
            )
        rows, longest = [self.tokenizer.encode(text) for text in texts], self._longest
        if cut := [number for number, row in enumerate(rows) if most is not None and len(row) > most]:
            print(f"note: of {len(cut)} of {len(texts)} texts the tokens beyond {most} are left out", file=sys.stderr)
            for number in cut:
                plain = self.tokenizer.encode(texts[number], special=False)
                rows[number] = truncate_tokens(rows[number], plain, most)
        for text, row in zip(texts, rows):
            if not 1 <= len(row) <= longest:
                raise InputError(
                    f"a text must have 1 to {longest} tokens, the model's positions; {text[:40]!r}... has {len(row)}: "
                    "shorten or split it"
                )
            check_ids(self.model, row)
        return rows

    def _over_batches(self, compute: Callable, rows: list[list[int]], *extra: np.ndarray) -> list:
        """`compute(model, params, tokens [B, T], length [B], ...)` of each row, in order; texts of like length go
        together."""
        results: list = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for first in range(0, len(rows), ROWS):
            chosen = order[first : first + ROWS]
            whole = [*chosen, *chosen[-1:] * (_power(len(chosen)) - len(chosen))]
            width = min(max(_power(max(len(rows[number]) for number in chosen)), WIDTH), self._longest)
            tokens, length = pad_rows([rows[number] for number in whole], 0, width)
            inputs = (array[np.array(whole)] for array in extra)
            outputs = jax.device_get(compute(self.model, self.params, tokens, length, *inputs))
            for place, number in enumerate(chosen):
                results[number] = jax.tree.map(lambda x, place=place: x[place], outputs)
        return results


def _as_array(values) -> np.ndarray:
    """`values` as a NumPy array; InputError for rows of different lengths, and for arrays that `jax.jit` traces."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(
            "hidden takes arrays, got rows of different lengths: pad the tokens, and give the length of each text, "
            "hidden(tokens, length)"
        ) from error
    except jax.errors.TracerArrayConversionError as error:
        raise InputError(
            "hidden checks the values of its arrays, got traced ones: inside of jax.jit, call "
            'model.model.apply({"params": model.params}, tokens, length, method="hidden")[0]'
        ) from error


def truncate_tokens(row: list[int], plain: list[int], most: int) -> list[int]:
    """Drop the last tokens of a text, so that at most `most` are left; `plain` are its tokens without special tokens.

    >>> truncate_tokens([1, 7, 8, 9, 2], [7, 8, 9], 4)
    [1, 7, 8, 2]
    """
    special = len(row) - len(plain)
    num_leading = next(at for at in range(special + 1) if row[at : at + len(plain)] == plain)
    return row[: num_leading + most - special] + row[num_leading + len(plain) :]


def _power(number: int) -> int:
    """The smallest power of two that is not smaller.

    >>> [_power(number) for number in (1, 3, 4, 5)]
    [1, 4, 4, 8]
    """
    return 1 << (number - 1).bit_length()


def _states(model, params, tokens, length):
    return model.apply({"params": params}, tokens, length, method="hidden")[0]


_hidden = jax.jit(_states, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _embed(model, params, tokens, length):
    states = _states(model, params, tokens, length)
    return model.apply({"params": params}, states, length, method="embed")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _words_at(k, model, params, tokens, length, places):
    states = jnp.take_along_axis(_states(model, params, tokens, length), places[..., None], axis=1)  # [B, M, D]
    logits = model.apply({"params": params}, states, method="words")
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), k)
    return ids, probabilities


@functools.partial(jax.jit, static_argnums=(0, 1))
def _classify(function, model, params, tokens, length):
    return function(model.apply({"params": params}, tokens, length)[0])


@functools.partial(jax.jit, static_argnums=0)
def _attention(model, params, tokens, length):
    weights = model.apply({"params": params}, tokens, length, return_weights=True, method="hidden")[1]
    return with_rollout(weights)
