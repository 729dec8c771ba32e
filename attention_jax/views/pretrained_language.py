"""What pretrained decoder-only models say of texts: logits, losses, attention maps, perplexity of a long text.

A text is padded at its end to a power of two, so that few programs are compiled; a causal model does not see it.
`tokenizer` is that of the model (weights/tokenizer.py).
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.data.pairs import pad_rows
from attention_jax.errors import InputError
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.views.attention_maps import token_attention, with_rollout

WIDTH = 16
"""The smallest number of tokens to which a text is padded."""
CONTEXT = 512
"""Tokens of a window of a long text."""


def encoded(model: nn.Module, tokenizer, texts: Sequence[str], least: int = 1, more: int = 0) -> list[list[int]]:
    """The tokens of each text; InputError for fewer than `least`, or too many for `more` to follow."""
    rows, longest = [tokenizer.encode(text) for text in texts], model.options.longest_input
    for text, row in zip(texts, rows):
        if len(row) < least or (longest is not None and len(row) + more > longest):
            limits = f"at least {least}" if longest is None else f"{least} to {longest - more}"
            raise InputError(f"a text must have {limits} tokens, {text[:40]!r} has {len(row)}")
        check_ids(model, row)
    return rows


def check_ids(model: nn.Module, row: Sequence[int]):
    """Raise InputError for a token that the model does not have."""
    if max(row) >= model.vocab:
        raise InputError(f"the tokenizer has token {max(row)}, the model {model.vocab}: are they of one model?")


def padded(model: nn.Module, row: Sequence[int]) -> np.ndarray:
    """Tokens [1, T] of one text, followed by zeros up to a power of two, or to the number of positions."""
    width, longest = max(1 << (len(row) - 1).bit_length(), WIDTH), model.options.longest_input
    return pad_rows([row], 0, width if longest is None else min(width, longest))[0]


def logits(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The logits [T, V] after each of the T tokens of each text."""
    rows = encoded(model, tokenizer, texts)
    return [np.asarray(_logits(model, params, padded(model, row))[0, : len(row)]) for row in rows]


def losses(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> np.ndarray:
    """The loss of each text [N] in nats per token, of all tokens but the first."""
    rows = encoded(model, tokenizer, texts, least=2)
    nats = [_nats(model, params, padded(model, row))[0, : len(row) - 1] for row in rows]
    return np.array([np.asarray(one, np.float64).mean() for one in nats])


def attention(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The attention weights [layers, H, T, T] of each text of T tokens."""
    rows = encoded(model, tokenizer, texts)
    found = [_attention(model, params, padded(model, row))["weights"]["decoder_attention"] for row in rows]
    return [np.asarray(one[0, :, :, : len(row), : len(row)]) for one, row in zip(found, rows)]


def attention_maps(model: nn.Module, params, tokenizer, texts: Sequence[str]) -> tuple[AttentionRecord, ...]:
    """The attention maps of each text as a page shows them, under the text and the most probable token after it."""
    records = []
    for text, row in zip(texts, encoded(model, tokenizer, texts, least=2)):
        check_length(row, text)
        tokens, batch = tuple(tokenizer.tokens(row)), padded(model, row)
        found = jax.device_get(_attention(model, params, batch))
        shown = token_attention(model.options, "decoder", 0, found, tokens, tokens, {})
        after = int(np.asarray(_logits(model, params, batch)[0, len(row) - 1]).argmax())
        records.append(AttentionRecord(text, (Prediction(f"then {tokenizer.decode([after])!r}", (shown,)),)))
    return tuple(records)


def perplexity(model: nn.Module, params, tokenizer, text: str) -> dict[str, float]:
    """Loss in nats per token, perplexity and bits per character of a text, in windows of `CONTEXT` tokens.

    A window begins with what the tokenizer adds before a text; the first token of the others is given, not predicted.
    """
    row = tokenizer.encode(text, special=False)
    before = [number for number in tokenizer.encode("")[:1] if number == tokenizer.bos]
    longest = min(CONTEXT, model.options.longest_input or CONTEXT) - len(before)
    windows = [[*before, *row[first : first + longest]] for first in range(0, len(row), longest)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise InputError(f"a text to evaluate needs at least two tokens; this one has {len(row)}")
    nats = 0.0
    for window in windows:
        check_ids(model, window)
        nats += float(np.asarray(_nats(model, params, padded(model, window))[0, : len(window) - 1], np.float64).sum())
    count = sum(len(window) - 1 for window in windows)
    per_token = nats / count
    return {
        "tokens": count,
        "loss": per_token,
        "perplexity": float(np.exp(min(per_token, 50.0))),
        "bits_per_character": per_token * len(row) / max(len(text), 1) / float(np.log(2.0)),
    }


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, tokens):
    return model.apply({"params": params}, tokens)[0]


@functools.partial(jax.jit, static_argnums=0)
def _nats(model, params, tokens):
    log_p = jax.nn.log_softmax(model.apply({"params": params}, tokens[:, :-1])[0].astype(jnp.float32))
    return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=0)
def _attention(model, params, tokens):
    return with_rollout(model.apply({"params": params}, tokens, return_weights=True)[1])
