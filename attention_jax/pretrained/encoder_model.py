"""What pretrained encoders say of texts: sentence embeddings, masked words, classes, and attention maps.

Texts of all lengths go together; padding changes nothing, so each is as if it were alone. `tokenizer` is that of the
model (pretrained/tokenizer.py).
"""

import functools
import sys
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.data.pairs import pad_rows
from attention_jax.errors import InputError
from attention_jax.pretrained.decoder_model import check_ids
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.views import FUNCTIONS
from attention_jax.views.attention_maps import token_attention, with_rollout

ROWS, WIDTH = 32, 16
"""Texts of a batch at most, and the smallest number of tokens to which they are padded: batches have sizes that are
powers of two, so that few programs are compiled."""


def embed(model: nn.Module, params, tokenizer, texts: Sequence[str], most: int | None = None) -> np.ndarray:
    """The sentence embeddings [N, D] of N texts, as the files of sentence-transformers say, otherwise the mean; with
    `most` texts lose the tokens beyond so many."""
    rows = encode_texts(model, tokenizer, texts, most)
    return np.array(_over_batches(functools.partial(_embed, model), params, rows)).reshape(len(texts), -1)


def fill_mask(model: nn.Module, params, tokenizer, texts: Sequence[str], k: int = 5) -> list:
    """For each text and each mask in it the k most probable words, [(word, probability), ...].

    Raises InputError for a model without a head for masked words, and for a text without a mask.
    """
    if not model.options.word_head or tokenizer.mask is None:
        raise InputError("fill_mask needs a model with a head for masked words and a mask token; this one lacks one")
    if not 1 <= k <= model.vocab:
        raise InputError(f"k must be 1 to {model.vocab}, the size of the vocabulary, got {k}")
    rows = encode_texts(model, tokenizer, texts)
    places = [[at for at, number in enumerate(row) if number == tokenizer.mask] for row in rows]
    for text, masks in zip(texts, places):
        if not masks:
            raise InputError(f"a text needs {tokenizer.names[tokenizer.mask]} in the place of a word, got {text!r}")
    most = max(map(len, places), default=1)
    padded = np.array([[*masks, *[0] * (most - len(masks))] for masks in places], np.int32)
    predictions = _over_batches(functools.partial(_words_at, model, k), params, rows, padded)
    word = lambda number, p: (tokenizer.decode([number]).strip() or tokenizer.tokens([number])[0], float(p))
    return [
        [[word(*pair) for pair in zip(ids, probabilities)] for ids, probabilities in zip(*of_text)][: len(masks)]
        for of_text, masks in zip(predictions, places)
    ]


def classify(model: nn.Module, params, tokenizer, texts: Sequence[str], function: str = "softmax") -> np.ndarray:
    """The probabilities [N, classes] of N texts, or the outputs of a regression (`function` is one of FUNCTIONS);
    InputError for a model without a classifier."""
    if not model.classes:
        raise InputError("this encoder has no classifier; train one: launch.py train classify_text --from DIR")
    rows = encode_texts(model, tokenizer, texts)
    return np.array(_over_batches(functools.partial(_classify, model, FUNCTIONS[function]), params, rows)).reshape(
        len(texts), -1
    )


def attention_maps(
    model: nn.Module, params, tokenizer, texts: Sequence[str], answers: Sequence[str]
) -> tuple[AttentionRecord, ...]:
    """The attention maps of each text as a page shows them, under the model's answer to it."""
    rows, records = encode_texts(model, tokenizer, texts), []
    outputs = _over_batches(functools.partial(_attention, model), params, rows)
    for text, row, output, answer in zip(texts, rows, outputs, answers):
        check_length(row, text)
        tokens, output = tuple(tokenizer.tokens(row)), jax.tree.map(lambda x: x[None], output)
        attention = token_attention(model.options, "encoder", 0, output, tokens, tokens, {})
        records.append(AttentionRecord(text, (Prediction(answer, (attention,)),)))
    return tuple(records)


def encode_texts(model: nn.Module, tokenizer, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
    """The tokens of each text, special ones included, at `most` so many; InputError for too many or none."""
    rows = [tokenizer.encode(text) for text in texts]
    if cut := [number for number, row in enumerate(rows) if most is not None and len(row) > most]:
        print(f"note: of {len(cut)} of {len(texts)} texts the tokens beyond {most} are left out", file=sys.stderr)
        for number in cut:
            rows[number] = truncate_tokens(rows[number], tokenizer.encode(texts[number], special=False), most)
    for text, row in zip(texts, rows):
        if not 1 <= len(row) <= model.options.max_length:
            raise InputError(
                f"a text must have 1 to {model.options.max_length} tokens, the model's positions; {text[:40]!r}... has "
                f"{len(row)}: shorten or split it"
            )
        check_ids(model, row)
    return rows


def truncate_tokens(row: list[int], plain: list[int], most: int) -> list[int]:
    """Drop the last tokens of a text, so that at most `most` are left; `plain` are its tokens without special tokens.

    >>> truncate_tokens([1, 7, 8, 9, 2], [7, 8, 9], 4)
    [1, 7, 8, 2]
    """
    special = len(row) - len(plain)
    num_leading = next(at for at in range(special + 1) if row[at : at + len(plain)] == plain)
    return row[: num_leading + most - special] + row[num_leading + len(plain) :]


def _over_batches(compute: Callable, params, rows: list[list[int]], *extra: np.ndarray) -> list:
    """`compute(params, tokens [B, T], length [B], ...)` of each row, in order: texts of like length go together."""
    results: list = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for first in range(0, len(rows), ROWS):
        chosen = order[first : first + ROWS]
        whole = [*chosen, *chosen[-1:] * (_power(len(chosen)) - len(chosen))]
        width = max(_power(max(len(rows[number]) for number in chosen)), WIDTH)
        tokens, length = pad_rows([rows[number] for number in whole], 0, min(width, compute.args[0].options.max_length))
        outputs = jax.device_get(compute(params, tokens, length, *(array[np.array(whole)] for array in extra)))
        for place, number in enumerate(chosen):
            results[number] = jax.tree.map(lambda x, place=place: x[place], outputs)
    return results


def _power(number: int) -> int:
    """The smallest power of two that is not smaller.

    >>> [_power(number) for number in (1, 3, 4, 5)]
    [1, 4, 4, 8]
    """
    return 1 << (number - 1).bit_length()


def _states(model, params, tokens, length):
    return model.apply({"params": params}, tokens, length, method="hidden")[0]


@functools.partial(jax.jit, static_argnums=0)
def _embed(model, params, tokens, length):
    states = _states(model, params, tokens, length)
    return model.apply({"params": params}, states, length, method="embed")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _words_at(model, k, params, tokens, length, places):
    states = jnp.take_along_axis(_states(model, params, tokens, length), places[..., None], axis=1)  # [B, M, D]
    logits = model.apply({"params": params}, states, method="words")
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), k)
    return ids, probabilities


@functools.partial(jax.jit, static_argnums=(0, 1))
def _classify(model, function, params, tokens, length):
    return function(model.apply({"params": params}, tokens, length)[0])


@functools.partial(jax.jit, static_argnums=0)
def _attention(model, params, tokens, length):
    weights = model.apply({"params": params}, tokens, length, return_weights=True, method="hidden")[1]
    return with_rollout(weights)
