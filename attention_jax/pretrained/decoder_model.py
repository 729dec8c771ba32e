"""What pretrained decoder-only models say of texts: logits, losses, attention maps, perplexity of a long text.

A text is padded at its end to a power of two, so that few programs are compiled; a causal model does not see it.
`tokenizer` is that of the model (pretrained/tokenizer.py).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import decode
from attention_jax.config import Generation
from attention_jax.data.pairs import pad_rows
from attention_jax.errors import InputError
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.tasks import mean_perplexity
from attention_jax.views.attention_maps import token_attention, top_by_layer, with_readings, with_rollout

WIDTH = 16
"""The smallest number of tokens to which a text is padded."""
CONTEXT = 512
"""Tokens of a window of a long text."""


def encode_texts(
    model: nn.Module, tokenizer, texts: Sequence[str], least: int = 1, num_new: int = 0
) -> list[list[int]]:
    """The tokens of each text; InputError for fewer than `least`, or too many for `num_new` to follow."""
    rows, longest = [tokenizer.encode(text) for text in texts], model.options.longest_input
    for text, row in zip(texts, rows):
        if len(row) < least or (longest is not None and len(row) + num_new > longest):
            limits = f"at least {least}" if longest is None else f"{least} to {longest - num_new}"
            raise InputError(f"a text must have {limits} tokens, {text[:40]!r} has {len(row)}")
        check_ids(model, row)
    return rows


def check_ids(model: nn.Module, row: Sequence[int]):
    """Raise InputError for a token that the model does not have."""
    if max(row) >= model.vocab:
        raise InputError(f"the tokenizer has token {max(row)}, the model {model.vocab}: are they of one model?")


def pad_texts(model: nn.Module, *rows: Sequence[int], num_new: int = 0) -> np.ndarray:
    """Tokens [B, T] of texts, followed by zeros up to a power of two, or to all positions but `num_new`."""
    width, longest = max(1 << (max(map(len, rows)) - 1).bit_length(), WIDTH), model.options.longest_input
    return pad_rows(rows, 0, width if longest is None else min(width, longest - num_new))[0]


def continuations(
    model: nn.Module,
    params,
    tokenizer,
    texts: Sequence[str],
    sampling: Generation,
    stream: Callable[[str], None] | None = None,
    total: int | None = None,
) -> list[str]:
    """What the model writes after each text, up to an end-of-text token. `stream` is called with each piece of the
    first text's continuation as it is written. With `total`, texts have so many tokens with their continuation."""
    rows = encode_texts(model, tokenizer, texts, num_new=sampling.length if total is None else 1)
    limits = [sampling.length] * len(rows)
    if total is not None:
        most = min(total, model.options.longest_input or total)
        limits = [most - len(row) for row in rows]
        if min(limits) < 1:
            raise InputError(
                f"the model's files limit texts to {most} tokens with their continuation (max_length), and one has "
                f"{max(map(len, rows))}: give a length"
            )
        sampling = dataclasses.replace(sampling, length=max(limits))
    lengths, prompts = np.array([len(row) for row in rows], np.int32), pad_texts(model, *rows, num_new=sampling.length)
    pieces = None if stream is None else Pieces(tokenizer, stream, limits[0])
    written = np.asarray(_generate(model, sampling, tokenizer.ends, pieces, params, prompts, lengths))
    if pieces is not None:
        jax.effects_barrier()
        pieces.end()
    return [tokenizer.decode(through_end(row.tolist()[:most], tokenizer.ends)) for row, most in zip(written, limits)]


def through_end(ids: list[int], ends: Sequence[int]) -> list[int]:
    """The tokens up to the first one that ends a text; that one is no text where it is a special token.

    >>> through_end([5, 6, 2, 0], (2, 3)), through_end([5], ())
    ([5, 6, 2], [5])
    """
    return ids[: next((at for at, number in enumerate(ids, 1) if number in ends), len(ids))]


class Pieces:
    """Passes on the text of one token after the other, at `most` so many; a character of several tokens when it is
    whole."""

    def __init__(self, tokenizer, stream: Callable[[str], None], most: int):
        self.tokenizer, self.stream, self.most, self.ids, self.shown = tokenizer, stream, most, [], ""

    def __call__(self, tokens):
        self.ids += [int(tokens[0])] * (len(self.ids) < self.most)
        if not self.text.endswith("\ufffd"):
            self.end()

    @property
    def text(self) -> str:
        return self.tokenizer.decode(through_end(self.ids, self.tokenizer.ends))

    def end(self):
        """Pass on what is left."""
        if remaining := self.text[len(self.shown) :]:
            self.stream(remaining)
            self.shown += remaining


def logits(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The logits [T, V] after each of the T tokens of each text."""
    rows = encode_texts(model, tokenizer, texts)
    return [np.asarray(_logits(model, params, pad_texts(model, row))[0, : len(row)]) for row in rows]


def losses(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> np.ndarray:
    """The loss of each text [N] in nats per token, of all tokens but the first."""
    rows = encode_texts(model, tokenizer, texts, least=2)
    nats = [_nats(model, params, pad_texts(model, row))[0, : len(row) - 1] for row in rows]
    return np.array([np.asarray(row, np.float64).mean() for row in nats])


def attention_maps(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> tuple[AttentionRecord, ...]:
    """The attention maps of each text as a page shows them, under the text and the most probable token after it."""
    records = []
    for text, row in zip(texts, encode_texts(model, tokenizer, texts, least=2)):
        check_length(row, text)
        tokens = tuple(tokenizer.tokens(row))
        read, outputs = jax.device_get(_attention(model, params, pad_texts(model, row)))
        attention = token_attention(model.options, "decoder", 0, outputs, tokens, tokens, {})
        attention = with_readings(attention, row, read[0], tokenizer.tokens)
        next_token = tokenizer.decode([int(read[0, -1, len(row) - 1])])  # the reading of the last layer is the model's
        records.append(AttentionRecord(text, (Prediction(f"then {next_token!r}", (attention,)),)))
    return tuple(records)


def perplexity(model: nn.Module, params, tokenizer, text: str) -> dict[str, float]:
    """Loss in nats per token, perplexity and bits per character of a text, in windows of `CONTEXT` tokens.

    A window begins with what the tokenizer adds before a text; the first token of the others is given, not predicted.
    """
    row = tokenizer.encode(text, special=False)
    prefix = [number for number in tokenizer.encode("")[:1] if number == tokenizer.bos]
    longest = min(CONTEXT, model.options.longest_input or CONTEXT) - len(prefix)
    windows = [[*prefix, *row[first : first + longest]] for first in range(0, len(row), longest)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise InputError(f"a text to evaluate needs at least two tokens; this one has {len(row)}")
    nats = 0.0
    for window in windows:
        check_ids(model, window)
        nats += float(
            np.asarray(_nats(model, params, pad_texts(model, window))[0, : len(window) - 1], np.float64).sum()
        )
    count = sum(len(window) - 1 for window in windows)
    per_token = nats / count
    return {
        "tokens": count,
        "loss": per_token,
        "perplexity": mean_perplexity([per_token]),
        "bits_per_character": per_token * len(row) / max(len(text), 1) / float(np.log(2.0)),
    }


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _generate(model, sampling, ends, stream, params, prompts, lengths):
    options = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "repetition_penalty")}
    rng = jax.random.key(sampling.seed)
    inputs = params, prompts, lengths, sampling.length
    return decode.generate(model, *inputs, eos=ends, rng=rng, stream=stream, **options)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, tokens):
    return model.apply({"params": params}, tokens)[0]


@functools.partial(jax.jit, static_argnums=0)
def _nats(model, params, tokens):
    log_p = jax.nn.log_softmax(model.apply({"params": params}, tokens[:, :-1])[0].astype(jnp.float32))
    return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=0)
def _attention(model, params, tokens):
    """The token that each layer would write [B, L, T], and the attention maps, of tokens [B, T]."""
    weights = model.apply({"params": params}, tokens, return_weights=True)[1]
    return top_by_layer(model, params, tokens), with_rollout(weights)
