"""Decoder-only pretrained models: continuations, logits, losses, attention maps, perplexity of a long text.

A text is padded at its end to a power of two, so that few programs are compiled; a causal model does not see it.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax import interpret
from attention_jax.config import Generation, LanguageModelConfig
from attention_jax.data.batches import length_bucket, pad_rows
from attention_jax.errors import InputError
from attention_jax.interpret import Batch, decoding_edits
from attention_jax.interpret.edits import has_positions
from attention_jax.pretrained import exchange, generation_config, tensors
from attention_jax.pretrained.chat import Conversation, chat_template, render_chat, special_texts
from attention_jax.pretrained.interface import (
    Pretrained,
    Replacements,
    Texts,
    check_ids,
    check_texts,
    read_params,
    refuse_figure,
)
from attention_jax.pretrained.tokenizer import read_tokenizer
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.sampling import generate
from attention_jax.tasks import text_metrics
from attention_jax.tasks.attention_maps import token_attention, top_by_layer, with_readings, with_rollout

CONTEXT = 512
"""Tokens of a window of a long text."""


class PretrainedLanguageModel(Pretrained):
    """A decoder-only model: GPT-2, Llama, Mistral, Qwen, Gemma."""

    @classmethod
    def of(cls, path: Path, weights: exchange.Weights, options: LanguageModelConfig) -> "PretrainedLanguageModel":
        tokenizer = read_tokenizer(path, tensors.config_of(path))
        model = dataclasses.replace(exchange.module_of(weights), options=options)
        params = read_params(weights, model, np.zeros((1, 2), np.int32))
        return cls(path, options, model, params, tokenizer)

    def batch(self, texts: Texts) -> Batch:
        rows = self._encode(check_texts(texts, "batch"))
        return Batch(jnp.asarray(self._pad(*rows)), jnp.array([len(row) for row in rows]))

    def logits(self, texts: Texts, set: Replacements = None) -> list[np.ndarray]:
        rows = self._encode(check_texts(texts, "logits"))
        return [np.asarray(self._logits(row, set)[: len(row)]) for row in rows]

    def loss(self, texts: Texts, set: Replacements = None) -> np.ndarray:
        rows = self._encode(check_texts(texts, "loss"), least=2)
        if set:
            nats = [_nats_of_logits(self._logits(row, set)[: len(row) - 1], jnp.asarray(row[1:])) for row in rows]
        else:
            nats = [_nats(self.model, self.params, self._pad(row))[0, : len(row) - 1] for row in rows]
        return np.array([np.asarray(row, np.float64).mean() for row in nats])

    def _logits(self, row: list[int], set: Replacements):
        """The logits [T, V] of a text padded at its end; not padded if what is `set` differs by position."""
        if not set:
            return _logits(self.model, self.params, self._pad(row))[0]
        tokens = np.array([row], np.int32) if has_positions(set) else self._pad(row)
        batch = Batch(jnp.asarray(tokens), jnp.array([len(row)]))
        return interpret.run(self.model, self.params, batch, set=set)[0][0]

    def perplexity(self, text: str) -> dict[str, float]:
        row = self.tokenizer.encode(text, special=False)
        prefix = [number for number in self.tokenizer.encode("")[:1] if number == self.tokenizer.special.get("bos")]
        longest = min(CONTEXT, self.config.longest_input or CONTEXT) - len(prefix)
        windows = [[*prefix, *row[first : first + longest]] for first in range(0, len(row), longest)]
        windows = [window for window in windows if len(window) > 1]
        if not windows:
            raise InputError(f"a text to evaluate needs at least two tokens; this one has {len(row)}")
        total = 0.0
        for window in windows:
            check_ids(self.model, window)
            nats = _nats(self.model, self.params, self._pad(window))[0, : len(window) - 1]
            total += float(np.asarray(nats, np.float64).sum())
        count = sum(len(window) - 1 for window in windows)
        return text_metrics(total, count, longest, len(row), max(len(text), 1))

    def attention(self, texts: Texts) -> tuple[AttentionRecord, ...]:
        """The attention maps of each text, under the text and the most probable token after it."""
        texts = check_texts(texts, "attention")
        return tuple(self._record(*pair) for pair in zip(texts, self._encode(texts, least=2)))

    def _record(self, text: str, row: list[int]) -> AttentionRecord:
        check_length(row, text)
        tokens = tuple(self.tokenizer.tokens(row))
        read, outputs = jax.device_get(_attention(self.model, self.params, self._pad(row)))
        attention = token_attention(self.config, "decoder", 0, outputs, tokens, tokens, {})
        attention = with_readings(attention, row, read[0], self.tokenizer.tokens)
        next_token = self.tokenizer.decode([int(read[0, -1, len(row) - 1])])  # what the last layer reads is the model's
        return AttentionRecord(text, (Prediction(f"then {next_token!r}", (attention,)),))

    def predict(self, texts: Texts, attention: Path | str | None = None, **sampling: Any) -> list[str]:
        refuse_figure(attention)
        texts = check_texts(texts, "predict")
        return [text + written for text, written in zip(texts, self.generate(texts, **sampling))]

    def generate(
        self,
        texts: Texts,
        stream: Callable[[str], None] | None = None,
        set: Replacements = None,
        **sampling: Any,
    ) -> list[str]:
        return self._continue(check_texts(texts, "generate"), stream, set, sampling, special=True)

    def chat(
        self,
        conversations: Sequence[Conversation],
        stream: Callable[[str], None] | None = None,
        set: Replacements = None,
        **sampling: Any,
    ) -> list[str]:
        if isinstance(conversations, str | Mapping) or any(isinstance(c, Mapping) for c in conversations):
            raise InputError("chat takes a list of conversations: chat([text]), or chat([[message, message]])")
        template = chat_template(self.path)
        if template is None:
            raise InputError(f"{self.path} has no chat template: use generate, which continues a text")
        special = special_texts(self.tokenizer)
        texts = [render_chat(template, conversation, special) for conversation in conversations]
        return self._continue(texts, stream, set, sampling, special=False)

    def _continue(
        self,
        texts: Sequence[str],
        stream: Callable[[str], None] | None,
        set: Replacements,
        sampling: dict[str, Any],
        special: bool,
    ) -> list[str]:
        """What the model writes after each text, to which the tokenizer adds `special` tokens."""
        options, total = self.generation_options(sampling)
        if not texts:
            return []
        rows = self._encode(texts, num_new=options.length if total is None else 1, special=special)
        limits = self._continuation_limits(rows, options.length, total)
        lengths, prompts = np.array([len(row) for row in rows], np.int32), self._pad(*rows, num_new=max(limits))
        pieces, ends = None if stream is None else Pieces(self.tokenizer, stream, limits[0]), self.tokenizer.ends
        written = _generate(
            self.model,
            self.params,
            prompts,
            lengths,
            max(limits),
            eos=ends,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            repetition_penalty=options.repetition_penalty,
            rng=jax.random.key(options.seed),
            stream=pieces,
            edits=None if not set else decoding_edits(self.model, self.params, prompts, lengths, max(limits), set),
        )
        written = np.asarray(written)
        if pieces is not None:
            jax.effects_barrier()
            pieces.end()
        if special and any(row[0] in ends for row in written):
            hint = "; it has a chat template, for chat and predict --chat" if chat_template(self.path) else ""
            print(f"note: the model wrote an end token first{hint}", file=sys.stderr)
        return [self.tokenizer.decode(through_end(row.tolist()[:most], ends)) for row, most in zip(written, limits)]

    def generation_options(self, sampling: dict[str, Any]) -> tuple[Generation, int | None]:
        """The options of the model's files and, before them, of the caller; and the number of tokens to which the files
        limit a text with its continuation, or None, also where the options have a length."""
        options = generation_config.sampling_in(self.path) | sampling
        total = options.pop("total", None)
        return Generation(**options), None if "length" in options else total

    def _continuation_limits(self, rows: list[list[int]], length: int, total: int | None) -> list[int]:
        """The largest number of tokens after each text."""
        if total is None:
            return [length] * len(rows)
        most = min(total, self.config.longest_input or total)
        limits = [most - len(row) for row in rows]
        if min(limits) < 1:
            raise InputError(
                f"the model's files limit texts to {most} tokens with their continuation (max_length), and one has "
                f"{max(map(len, rows))}: give a length"
            )
        return limits

    def _encode(self, texts: Sequence[str], least: int = 1, num_new: int = 0, special: bool = True) -> list[list[int]]:
        """The tokens of each text; InputError for fewer than `least`, or too many for `num_new` to follow."""
        rows, longest = [self.tokenizer.encode(text, special) for text in texts], self.config.longest_input
        for text, row in zip(texts, rows):
            if len(row) < least or (longest is not None and len(row) + num_new > longest):
                limits = f"at least {least}" if longest is None else f"{least} to {longest - num_new}"
                raise InputError(f"a text must have {limits} tokens, {text[:40]!r} has {len(row)}")
            check_ids(self.model, row)
        return rows

    def _pad(self, *rows: Sequence[int], num_new: int = 0) -> np.ndarray:
        """Tokens [B, T] of texts, followed by zeros up to a power of two, or to all positions but `num_new`."""
        longest = self.config.longest_input
        limit = None if longest is None else longest - num_new
        return pad_rows(rows, 0, length_bucket(max(map(len, rows)), limit))[0]


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


GENERATION = ("model", "length", "eos", "temperature", "top_k", "top_p", "repetition_penalty", "stream")
_generate = jax.jit(generate, static_argnames=GENERATION)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, tokens):
    return model.apply({"params": params}, tokens)[0]


@functools.partial(jax.jit, static_argnums=0)
def _nats(model, params, tokens):
    return _nats_of_logits(model.apply({"params": params}, tokens[:, :-1])[0], tokens[:, 1:])


def _nats_of_logits(logits: Float[Array, "... V"], tokens: Int[Array, "..."]) -> Float[Array, "..."]:
    """Minus the log-probability of each token."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=0)
def _attention(model, params, tokens):
    """The token that each layer would write [B, L, T], and the attention maps, of tokens [B, T]."""
    weights = model.apply({"params": params}, tokens, return_weights=True)[1]
    return top_by_layer(model, params, tokens), with_rollout(weights)
