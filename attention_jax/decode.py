"""Decoding for any model, given `step(tokens [B], cache) -> (logits [B, V], cache)`: greedy and beam search, sampling;
and `generate`, which continues prompts of different lengths with a language model.

All functions are pure and belong inside a `jax.jit` of the caller (outside of it every call traces the callback again):

    decode = jax.jit(lambda cache: greedy(step, cache, batch_size, bos=1, eos=2, max_length=40))

`cache` is any pytree whose leaves have the batch as their leading axis, so that beam search can tile and reorder it.
Two kinds of parts are not reordered (ops/shared.py): a `BeamInvariant`, which all hypotheses of a sentence have in
common, such as the encoded source, and a `BeamKVCache`. The callback may return logits or log-probabilities, since the
latter are already normalized.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.ops.meshes import match_step_types, replicate
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.precision import accumulator
from attention_jax.ops.shared import map_per_hypothesis, map_rows, repeat_for_beams, where_rows

Cache = Any
Step = Callable[[Array, Cache], tuple[Array, Cache]]
LengthPenalty = Literal["gnmt", "simple", "none"]


def forbid_token(step: Step, token: int | None) -> Step:
    """Return a `step` that never writes a token, such as the unknown one: its logit is -inf. None changes nothing.

    >>> step = forbid_token(lambda tokens, cache: (jnp.array([[0.1, 0.8, 0.1]]), cache), 1)
    >>> step(None, None)[0].tolist()
    [[0.10000000149011612, -inf, 0.10000000149011612]]
    """

    def without(tokens, cache):
        logits, cache = step(tokens, cache)
        return logits.at[:, token].set(-jnp.inf), cache

    return step if token is None else without


def greedy(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    bos: int,
    eos: int | Sequence[int] | None,
    max_length: int,
    pad: int = 0,
) -> Int[Array, "B T"]:
    """Decode greedily: tokens [B, max_length], including `eos`, one token or several, and `pad` after it.

    Stops as soon as every sequence has ended; `eos=None` always takes `max_length` steps.

    >>> chain = jnp.log(jnp.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]]))  # 0 -> 1 -> 2
    >>> greedy(lambda tokens, cache: (chain[tokens], cache), None, 2, bos=0, eos=2, max_length=4).tolist()
    [[1, 2, 0, 0], [1, 2, 0, 0]]
    """

    def is_running(carry):
        t, _, ended, _, _ = carry
        return (t < max_length) & ~ended.all()

    def body(carry):
        t, last, ended, written, cache = carry
        logits, cache = step(last, cache)
        logits = replicate(logits)
        best = lax.top_k(logits, 1)[1][
            :, 0
        ]  # = argmax, and on CPU several times faster than it over a large vocabulary
        token = jnp.where(ended, jnp.int32(pad), best.astype(jnp.int32))
        written = lax.dynamic_update_slice_in_dim(written, token[:, None], t, axis=1)
        if isinstance(eos, Sequence):
            ended = ended | jnp.isin(token, jnp.asarray(eos, jnp.int32))
        elif eos is not None:
            ended = ended | (token == eos)
        return t + 1, token, ended, written, cache

    _check_length(max_length)
    start = (
        jnp.int32(0),
        jnp.full((batch_size,), bos, jnp.int32),
        jnp.zeros((batch_size,), bool),
        jnp.full((batch_size, max_length), pad, jnp.int32),
        cache,
    )
    return lax.while_loop(is_running, body, match_step_types(body, start))[3] if max_length else start[3]


def _check_length(max_length):
    if max_length < 0:
        raise InputError(f"max_length must be at least 0, got {max_length}")


def truncate_logits(logits: Float[Array, "B V"], top_k: int = 0, top_p: float = 1.0) -> Float[Array, "B V"]:
    """Set the logits of tokens outside of the top k and the nucleus to -inf.

    The remaining ones are the `top_k` most probable tokens (0: all), and of them the fewest, most probable first, whose
    probabilities add up to `top_p` (nucleus sampling: Holtzman et al. 2020, eq. 2-3). The most probable one is always
    kept; ties are resolved by the smaller index.

    >>> logits = jnp.log(jnp.array([[0.1, 0.5, 0.15, 0.25]]))
    >>> [jnp.isfinite(x).tolist() for x in (truncate_logits(logits, top_k=2), truncate_logits(logits, top_p=0.8))]
    [[[False, True, False, True]], [[False, True, True, True]]]
    """
    rows, width = logits.shape
    traced = any(isinstance(x, jax.core.Tracer) for x in (top_k, top_p))
    if not traced and (top_k < 0 or top_p <= 0):
        raise InputError(f"top_k must be 0 (all tokens) or more, and top_p above 0; got {top_k} and {top_p}")
    if not traced and not top_k and top_p >= 1:
        return logits
    order = jnp.argsort(-logits, axis=-1, stable=True)
    rank = jnp.zeros_like(order).at[jnp.arange(rows)[:, None], order].set(jnp.arange(width)[None])
    ranked = jnp.take_along_axis(logits, order, axis=-1).astype(accumulator(logits.dtype))
    ranked = jnp.where(jnp.arange(width)[None] < jnp.where(jnp.equal(top_k, 0), width, top_k), ranked, -jnp.inf)
    probability = jax.nn.softmax(ranked, axis=-1)
    mass_before = jnp.cumsum(probability, axis=-1) - probability
    nucleus = (mass_before < jnp.asarray(top_p, mass_before.dtype)) | jnp.greater_equal(top_p, 1)  # mass before < top_p
    is_kept = jnp.take_along_axis(nucleus & (ranked > -jnp.inf), rank, axis=-1)
    return jnp.where(is_kept, logits, -jnp.inf)


def sample(
    step: Step,
    cache: Cache,
    prompt: Int[Array, "B P"],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    rng: Key[Array, ""] | None = None,
    prompt_length: int | Int[Array, ""] | None = None,
) -> Int[Array, "B T"]:
    """Sample `length` tokens after each prompt, with a temperature, top-k and top-p.

    A token is sampled from softmax(logits / temperature), truncated by `top_k` and `top_p`; temperature 0 takes the
    most probable tokens and needs no `rng`. Without `rng` the samples are those of `jax.random.key(0)`. What
    follows the first `prompt_length` tokens of the prompts, if given, is padding. Raises InputError for a prompt
    without tokens or a length below 1.

    >>> chain = jnp.log(jnp.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]]))  # 0 -> 1 -> 2 -> 0
    >>> step = lambda tokens, cache: (chain[tokens], cache)
    >>> sample(step, None, jnp.array([[1, 2], [2, 0]]), 3, temperature=0.0).tolist()
    [[0, 1, 2], [1, 2, 0]]
    >>> sample(step, None, jnp.array([[1, 2]]), 3, top_k=1, rng=jax.random.key(0)).tolist()
    [[0, 1, 2]]
    """

    def sample_step(carry, step_inputs):
        (cache, last), (prompt_token, rng) = carry, step_inputs
        logits, cache = step(jnp.where(prompt_token >= 0, prompt_token, last), cache)
        logits = replicate(logits)
        if isinstance(temperature, jax.core.Tracer) or temperature:
            logits = truncate_logits(_apply_temperature(logits, temperature), top_k, top_p)
            logits = logits + jax.random.gumbel(rng, logits.shape, logits.dtype)  # the argmax is a softmax sample
        token = logits.argmax(-1).astype(jnp.int32)
        return (cache, token), token

    rows, width = prompt.shape
    if width < 1 or length < 1:
        raise InputError(f"sample needs a prompt of at least one token and a length >= 1, got {width} and {length}")
    prompt_length = width if prompt_length is None else prompt_length
    is_given = jnp.arange(width)[:, None] < prompt_length
    prompt_tokens = jnp.concatenate(
        [jnp.where(is_given, prompt.T, -1), jnp.full((length - 1, rows), -1, jnp.int32)]
    )  # [width + length - 1, B]
    rngs = jax.random.split(jax.random.key(0) if rng is None else rng, width + length - 1)
    start = match_step_types(
        lambda carry: sample_step(carry, (prompt_tokens[0], rngs[0]))[0], (cache, jnp.zeros((rows,), jnp.int32))
    )
    _, written = lax.scan(sample_step, start, (prompt_tokens, rngs))
    return lax.dynamic_slice_in_dim(written, prompt_length - 1, length).T


def generate(
    model: Any,
    params: Any,
    prompt: Int[Array, "B P"],
    lengths: Int[Array, "B"],
    length: int,
    *,
    eos: int | Sequence[int] | None = None,
    pad: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    rng: Key[Array, ""] | None = None,
    stream: Callable[[Array], None] | None = None,
) -> Int[Array, "B T"]:
    """Continue prompts of different lengths, padded on the right, with at most `length` tokens each.

    The result is [B, length], with `pad` after `eos`. Decoding stops when every row has ended.

    Args:
      model: a language model with `start` and `step` as in tasks/language.py. Its `prefill(tokens, lengths, max_length)
        -> (logits [B, V], cache)`, if it has one, reads the prompts in one pass; else they are read token by token.
      params: its parameters.
      eos: the token, or tokens, after which a row has ended.
      temperature, top_k, top_p: as in `sample`; temperature 0 takes the most probable tokens.
      repetition_penalty: divides positive logits of tokens of the prompt and of the text so far, and multiplies
        negative ones (Keskar et al. 2019, section 4.1, as transformers has it); 1 changes nothing.
      rng: of the samples; without it they are those of `jax.random.key(0)`.
      stream: called on the host with the tokens [B] of each step, in order.

    Every row has its own positions 0, 1, ..., and its continuation does not depend on other rows (samples depend on its
    index). Raises InputError for prompts without tokens, a length below 1 and numbers out of range.
    """
    rows, width = prompt.shape
    _check_generation(prompt, lengths, length, temperature, repetition_penalty)
    variables, cache_size = {"params": params}, width + length - 1
    # (cache, token) -> (logits, cache), in the order of the model's own method
    step = lambda cache, token: model.apply(variables, cache, token, method="step")[:2]
    if rows > 1:  # each at its own position, which is one scalar to a model
        step = partial(map_rows, lambda cache, token, step=step: _squeeze_batch(*step(cache, token[None])))
    rngs = jax.random.split(jax.random.key(0) if rng is None else rng, length)
    ends = jnp.asarray(() if eos is None else (eos if isinstance(eos, Sequence) else (eos,)), jnp.int32)
    choose = _Choice(temperature, top_k, top_p, repetition_penalty, ends, pad, stream)

    def body(carry):
        t, token, ended, seen_mask, written, cache = carry
        logits, cache = step(cache, token)
        token, ended, seen_mask = choose(logits, ended, seen_mask, rngs[t])
        return (
            t + 1,
            token,
            ended,
            seen_mask,
            lax.dynamic_update_slice_in_dim(written, token[:, None], t, axis=1),
            cache,
        )

    if hasattr(model, "prefill"):
        logits, cache = model.apply(variables, prompt, lengths, cache_size, method="prefill")
    else:
        cache = model.apply(variables, rows, cache_size, method="start")
        logits, cache = _read_prompts(step, cache, prompt, lengths)
    seen_mask = choose.prompt_mask(prompt, lengths, logits.shape)
    token, ended, seen_mask = choose(logits, jnp.zeros((rows,), bool), seen_mask, rngs[0])
    written = jnp.full((rows, length), pad, jnp.int32).at[:, 0].set(token)
    start = (jnp.int32(1), token, ended, seen_mask, written, cache)
    return lax.while_loop(lambda carry: (carry[0] < length) & ~carry[2].all(), body, match_step_types(body, start))[4]


class _Choice(NamedTuple):
    """How `generate` chooses the next tokens."""

    temperature: Any
    top_k: Any
    top_p: Any
    penalty: Any
    ends: Int[Array, "n"]  # the tokens that end a row
    pad: int
    stream: Callable | None

    def __call__(self, logits, ended, seen_mask, rng):
        """Return the next tokens [B], the rows that have ended with them, and the tokens seen so far."""
        logits = replicate(logits)
        logits = logits if seen_mask is None else penalize_repetition(logits, seen_mask, self.penalty)
        if isinstance(self.temperature, jax.core.Tracer) or self.temperature:
            token = _draw_tokens(_apply_temperature(logits, self.temperature), self.top_k, self.top_p, rng)
        else:
            token = lax.top_k(logits, 1)[1][:, 0]
        token = jnp.where(ended, jnp.int32(self.pad), token.astype(jnp.int32))
        if self.stream is not None:
            jax.debug.callback(self.stream, token, ordered=True)
        seen_mask = None if seen_mask is None else seen_mask.at[jnp.arange(len(token)), token].set(True)
        return token, ended | jnp.isin(token, self.ends), seen_mask

    def prompt_mask(self, prompt, lengths, shape):
        """Return the tokens of each prompt as a mask of the given shape [B, V], or None without a penalty."""
        if not isinstance(self.penalty, jax.core.Tracer) and self.penalty == 1:
            return None
        is_token = jnp.arange(prompt.shape[1])[None] < lengths[:, None]
        return jnp.zeros(shape, bool).at[jnp.arange(shape[0])[:, None], prompt].max(is_token)


def _draw_tokens(logits, top_k, top_p, rng):
    """Draw a token of each row from the softmax of its truncated logits. The top k, if that is a known number, are
    found first: sorting a large vocabulary for the nucleus takes as long as a small model."""
    columns = None
    if not isinstance(top_k, jax.core.Tracer) and 0 < top_k < logits.shape[1]:
        (logits, columns), top_k = lax.top_k(logits, top_k), 0
    logits = truncate_logits(logits, top_k, top_p)
    index = lax.top_k(logits + jax.random.gumbel(rng, logits.shape, logits.dtype), 1)[1]  # argmax: a softmax sample
    return (index if columns is None else jnp.take_along_axis(columns, index, axis=1))[:, 0]


def penalize_repetition(
    logits: Float[Array, "B V"], seen_mask: Bool[Array, "B V"], penalty: float | Float[Array, ""]
) -> Float[Array, "B V"]:
    """Divide positive logits of the tokens in `seen_mask` by a penalty, and multiply negative ones.

    >>> penalize_repetition(jnp.array([[2.0, -2.0, 1.0]]), jnp.array([[True, True, False]]), 2.0).tolist()
    [[1.0, -4.0, 1.0]]
    """
    penalty = jnp.asarray(penalty, logits.dtype)
    return jnp.where(seen_mask, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def _read_prompts(step, cache, prompt, lengths):
    """Read prompts token by token: return the logits after the last token of each, and the cache there."""

    def read_step(carry, step_inputs):
        t, tokens = step_inputs
        logits, cache = step(carry[1], tokens)
        is_prompt = t < lengths
        return where_rows(is_prompt, (logits, cache), carry), None

    logits = jax.eval_shape(step, cache, prompt[:, 0])[0]
    start = (jnp.zeros(logits.shape, logits.dtype), cache)
    return lax.scan(read_step, start, (jnp.arange(prompt.shape[1]), prompt.T))[0]


def _squeeze_batch(logits, cache):
    return logits[0], cache


def _check_generation(prompt, lengths, length, temperature, repetition_penalty):
    """Raise InputError for what `generate` does not take, as far as it is known."""
    width = prompt.shape[1]
    if width < 1 or length < 1:
        raise InputError(f"generate needs prompts of at least one token and a length >= 1, got {width} and {length}")
    if jnp.shape(lengths) != prompt.shape[:1]:
        raise InputError(f"generate needs one length for each of {len(prompt)} prompts, got shape {jnp.shape(lengths)}")
    is_known = lambda x: not isinstance(x, jax.core.Tracer)
    if is_known(lengths) and not all(1 <= prompt_length <= width for prompt_length in np.asarray(lengths).tolist()):
        raise InputError(f"the lengths of prompts must be in 1..{width}, got {np.asarray(lengths).tolist()}")
    if is_known(temperature) and not temperature >= 0:
        raise InputError(f"temperature must be at least 0, got {temperature}")
    if is_known(repetition_penalty) and not repetition_penalty > 0:
        raise InputError(f"repetition_penalty must be above 0, got {repetition_penalty}")


def _apply_temperature(logits, temperature):
    """Return (logits - their maximum) / temperature, in float32 at least; of temperature 0, the limit."""
    logits = logits.astype(accumulator(logits.dtype))
    below = logits - logits.max(axis=-1, keepdims=True)
    temperature = jnp.asarray(temperature, logits.dtype)
    return jnp.where(below == 0, 0.0, below / jnp.where(temperature > 0, temperature, jnp.finfo(logits.dtype).tiny))


def penalty_divisor(length: Int[Array, "*n"], kind: LengthPenalty, alpha: float) -> Float[Array, "*n"]:
    """Return the divisor of a hypothesis' log-probability; `length` is the number of predicted tokens, including eos.

    gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14); simple: length^alpha; none: 1.

    >>> penalty_divisor(jnp.array([1, 7]), "gnmt", 1.0).tolist()
    [1.0, 2.0]
    """
    length = jnp.asarray(length).astype(jnp.float32)
    if kind == "gnmt":
        return ((5.0 + length) / 6.0) ** alpha
    if kind == "simple":
        return jnp.maximum(length, 1.0) ** alpha
    if kind == "none":
        return jnp.ones_like(length)
    raise InputError(f"the length penalty must be gnmt, simple or none, not {kind!r}")


GROUP = 64
"""Columns of a group in `wide_top_k`."""


def wide_top_k(x: Float[Array, "B V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """`lax.top_k`, for wide rows in two stages: the k groups of columns with the greatest
    maxima hold the k greatest values.

    A maximum is fast and a sort is not: three times as fast for [500, 9716] and k = 5 on CPU. (Which of
    equal values is taken may differ.)

    >>> values, columns = wide_top_k(jnp.arange(3000.0)[None], 2)
    >>> values.tolist(), columns.tolist()
    ([[2999.0, 2998.0]], [[2999, 2998]])
    """
    rows, width = x.shape
    groups = -(-width // GROUP)
    if groups <= 4 * k:
        return lax.top_k(x, k)
    padding = (0, groups * GROUP - width)

    def maxima(windows: bool):  # [B, groups]
        if windows:
            return lax.reduce_window(x, -jnp.inf, lax.max, (1, GROUP), (1, GROUP), ((0, 0), padding))
        padded = jnp.pad(x, ((0, 0), padding), constant_values=-jnp.inf)
        return padded.reshape(rows, groups, GROUP).max(axis=-1)

    _, group = lax.top_k(by_platform(maxima, {"cpu": True, "default": False}), k)  # [B, k]
    columns = (group[:, :, None] * GROUP + jnp.arange(GROUP)[None, None, :]).reshape(rows, k * GROUP)
    candidates = jnp.take_along_axis(x, jnp.minimum(columns, width - 1), axis=1)
    values, index = lax.top_k(jnp.where(columns < width, candidates, -jnp.inf), k)
    return values, jnp.take_along_axis(columns, index, axis=1)


class _Beams(NamedTuple):
    """The search's state: per example K hypotheses, best first."""

    t: Int[Array, ""]
    tokens: Int[Array, "B K T"]
    log_prob: Float[Array, "B K"]  # log-probability so far; -inf marks an empty slot
    length: Int[Array, "B K"]  # predicted tokens, eos included
    ended: Bool[Array, "B K"]
    last: Int[Array, "B K"]  # input of the next step
    cache: Cache  # leaves lead with B * K, shared and written ones with B


def beam_search(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    beam_size: int,
    bos: int,
    eos: int | None,
    pad: int,
    max_length: int,
    length_penalty: LengthPenalty = "gnmt",
    alpha: float = 0.6,
    n_best: int = 1,
) -> tuple[Int[Array, "B N T"], Float[Array, "B N"]]:
    """Return the `n_best` hypotheses of a beam search, best first: tokens [B, n_best, max_length], scores [B, n_best].

    score = log p(tokens) / penalty(length), so `length_penalty="none"` returns the model's log-probabilities. A
    finished hypothesis stays in the beam and competes by its score, as does one truncated at `max_length`. Hence a beam
    of 1 is `greedy`, and a beam wide enough to prune nothing is exhaustive search. An example is done once no open
    hypothesis can overtake its n best: log p only decreases, so log p / penalty(max_length) bounds every continuation.
    Missing hypotheses (fewer sequences than `n_best`) have the score -inf.

    >>> logits = jnp.log(jnp.array([0.0, 0.25, 0.75]))  # of the tokens 0 (end), 1 and 2, always the same
    >>> step = lambda token, cache: (jnp.broadcast_to(logits, (token.shape[0], 3)), cache)
    >>> tokens, scores = beam_search(
    ...     step, (), 1, beam_size=2, n_best=2, bos=1, eos=0, pad=0, max_length=2, length_penalty="none"
    ... )
    >>> tokens.tolist(), jnp.exp(scores).round(4).tolist()
    ([[[2, 2], [2, 1]]], [[0.5625, 0.1875]])
    """
    if beam_size < 1 or not 1 <= n_best <= beam_size:
        raise InputError(f"beam search needs 1 <= n_best <= beam_size, not n_best {n_best} and beam_size {beam_size}")
    _check_length(max_length)
    if alpha < 0:
        raise InputError(f"the length penalty's alpha must be at least 0, not {alpha}")

    def score(log_prob, length):
        return log_prob / penalty_divisor(length, length_penalty, alpha)

    def is_running(beams: _Beams):
        scores = score(beams.log_prob, beams.length)
        nth_ended_score = lax.top_k(jnp.where(beams.ended, scores, -jnp.inf), n_best)[0][:, -1]
        reachable = score(beams.log_prob, jnp.full_like(beams.length, max_length))
        reachable = jnp.where(beams.ended, -jnp.inf, reachable).max(axis=1)
        return (beams.t < max_length) & (reachable > nth_ended_score).any()

    def body(beams: _Beams):
        logits, cache = step(beams.last.reshape(-1), beams.cache)
        return _extend(beams, replicate(logits), cache, score, beam_size, eos, pad)

    shape = (batch_size, beam_size)
    beams = _Beams(
        t=jnp.int32(0),
        tokens=jnp.full((*shape, max_length), pad, jnp.int32),
        log_prob=jnp.full(shape, -jnp.inf, jnp.float32)
        .at[:, 0]
        .set(0.0),  # one root; the other slots are filled in the first step
        length=jnp.zeros(shape, jnp.int32),
        ended=jnp.zeros(shape, bool),
        last=jnp.full(shape, bos, jnp.int32),
        cache=repeat_for_beams(jax.tree.map(replicate, cache), beam_size),
    )
    beams = lax.while_loop(is_running, body, match_step_types(body, beams)) if max_length else beams
    scores, order = lax.top_k(score(beams.log_prob, beams.length), n_best)
    return jnp.take_along_axis(beams.tokens, order[:, :, None], axis=1), scores


def _extend(
    beams: _Beams, logits: Array, cache: Cache, score: Callable, beam_size: int, eos: int | None, pad: int
) -> _Beams:
    """Extend every open hypothesis by every token, and keep the best `beam_size` of these and the finished ones.

    All continuations of a hypothesis have the same length, so the order by logit is the order by score, and its best
    min(K, V) continuations suffice: the K x V matrix of log-probabilities is never computed.
    """
    batch_size, width = beams.ended.shape
    logits = logits.astype(jnp.float32)
    best = min(beam_size, logits.shape[-1])
    log_p, token = wide_top_k(logits, best)  # [B * K, best]
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_p = jnp.where(jnp.isneginf(log_p), log_p, log_p - total)  # -inf - -inf where no token is allowed is NaN
    log_p = log_p.reshape(batch_size, width, best)
    token = token.astype(jnp.int32).reshape(batch_size, width, best)

    ended = beams.ended[:, :, None]
    stays = jnp.where(jnp.arange(best) == 0, 0.0, -jnp.inf).astype(jnp.float32)[None, None, :]
    log_prob = beams.log_prob[:, :, None] + jnp.where(ended, stays, log_p)  # [B, K, best]
    token = jnp.where(ended, jnp.int32(pad), token)
    length = jnp.broadcast_to(beams.length[:, :, None] + jnp.where(ended, 0, 1), log_prob.shape)

    def pick(x):  # [B, K, best] -> [B, K]
        return jnp.take_along_axis(x.reshape(batch_size, width * best), chosen, axis=1)

    _, chosen = lax.top_k(score(log_prob, length).reshape(batch_size, width * best), beam_size)
    parent = chosen // best  # [B, K]
    last, was_ended = pick(token), jnp.take_along_axis(beams.ended, parent, axis=1)
    tokens = jnp.take_along_axis(beams.tokens, parent[:, :, None], axis=1)
    tokens = lax.dynamic_update_slice_in_dim(tokens, last[:, :, None], beams.t, axis=2)
    rows = (parent + width * jnp.arange(batch_size)[:, None]).reshape(-1)  # into the leading axis B * K of the cache
    return _Beams(
        t=beams.t + 1,
        tokens=tokens,
        log_prob=pick(log_prob),
        length=pick(length),
        ended=was_ended if eos is None else was_ended | (last == eos),
        last=last,
        cache=map_per_hypothesis(lambda leaf: replicate(leaf)[rows], cache),
    )


def apply_generation_rules(
    step: Step,
    cache: Cache,
    batch_size: int,
    rules: Any,
    *,
    bos: int,
    ends: Sequence[int],
    max_length: int,
    beams: bool,
) -> tuple[Step, Cache]:
    """Return a step and a cache for decoding under `rules` (pretrained/generation_config.py), which are applied as by
    transformers' logits processors: to logits or, for `beams`, to log-probabilities, which are not normalized again.

    The cache has the tokens of each row besides, [B, max_length + 1] with `bos`, so that a beam search reorders them.
    """
    width = max_length + 1
    ends = jnp.asarray(ends, jnp.int32)

    def with_rules(token, carried):
        inner, history, count = carried  # [B, width], [B]: tokens so far, of which this one is the last
        rows = jnp.arange(len(token))
        history = history.at[rows, count].set(token)
        count = count + 1
        logits, inner = step(token, inner)
        scores = logits.astype(jnp.float32)
        scores = jax.nn.log_softmax(scores) if beams else scores
        is_filled = jnp.arange(width)[None] < count[:, None]
        if rules.repetition_penalty != 1:
            seen_mask = jnp.zeros(scores.shape, bool).at[rows[:, None], history].max(is_filled)
            scores = penalize_repetition(scores, seen_mask, rules.repetition_penalty)
        if rules.no_repeat_ngram_size:
            banned = _completing(history, count, rules.no_repeat_ngram_size)
            scores = scores.at[rows[:, None], jnp.where(banned, history, scores.shape[1])].set(-jnp.inf, mode="drop")
        for *prefix, last in rules.banned:
            places = count[:, None] - len(prefix) + jnp.arange(len(prefix))[None]
            tail = jnp.take_along_axis(history, places, axis=1)
            is_match = (count >= len(prefix)) & (tail == jnp.asarray([prefix], jnp.int32)).all(1)
            scores = scores.at[:, last].set(jnp.where(is_match, -jnp.inf, scores[:, last]))
        written = (count - 1)[:, None]  # [B, 1]: tokens without `bos`
        number = jnp.arange(scores.shape[1])[None]  # [1, V]
        if rules.shortest:
            scores = jnp.where((written < rules.shortest) & jnp.isin(number, ends), -jnp.inf, scores)
        if rules.first is not None:
            scores = jnp.where(written == 0, jnp.where(number == rules.first, 0.0, -jnp.inf), scores)
        if rules.last is not None:
            scores = jnp.where(written == max_length - 1, jnp.where(number == rules.last, 0.0, -jnp.inf), scores)
        if rules.suppressed:
            scores = scores.at[:, jnp.asarray(rules.suppressed)].set(-jnp.inf)
        if rules.suppressed_first:
            begin = written == int(rules.first is not None)
            scores = jnp.where(begin & jnp.isin(number, jnp.asarray(rules.suppressed_first)), -jnp.inf, scores)
        return scores, (inner, history, count)

    start = jnp.full((batch_size, width), bos, jnp.int32), jnp.zeros((batch_size,), jnp.int32)
    return with_rules, (cache, *start)


def _completing(history, count, size):
    """Whether each token of a history [B, T] with `count` [B] tokens has followed its last `size` - 1 tokens before."""
    width = history.shape[1]
    place = jnp.arange(width)[None]  # [1, T]: of the token that completed an n-gram
    matches = (place >= size - 1) & (place < count[:, None])
    for back in range(1, size):
        last = jnp.take_along_axis(history, (count - back)[:, None], axis=1)  # [B, 1]
        matches &= jnp.roll(history, back, axis=1) == last
    return matches & (count >= size - 1)[:, None]


class _Pool(NamedTuple):
    """The state of `pooled_beam_search`: per example K open hypotheses and K finished ones, both best first."""

    t: Int[Array, ""]
    tokens: Int[Array, "B K T"]
    log_prob: Float[Array, "B K"]
    finished: Int[Array, "B K T"]
    scores: Float[Array, "B K"]  # of the finished ones; -inf where there is none
    improving: Bool[Array, "B"]
    stopped: Bool[Array, ""]
    cache: Cache


def pooled_beam_search(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    beam_size: int,
    bos: int,
    ends: Sequence[int],
    pad: int,
    max_length: int,
    alpha: float = 1.0,
    early_stopping: bool | str = False,
    normalize: bool = True,
    n_best: int = 1,
) -> tuple[Int[Array, "B N T"], Float[Array, "B N"]]:
    """Return the `n_best` hypotheses of the beam search of transformers, best first: tokens [B, n_best, max_length],
    scores [B, n_best].

    Unlike in `beam_search`, finished hypotheses leave the beam for a pool of the `beam_size` best ones by
    log p / n^alpha, so that the beam always has `beam_size` open ones. An example is done when no open one can overtake
    the worst of a full pool; its score is estimated at the present length, or for early_stopping "never" at the
    greatest; with early_stopping True it is done when the pool is full. `normalize` is False for a step that returns
    log-probabilities.

    >>> logits = jnp.log(jnp.array([0.1, 0.3, 0.6]))  # of the tokens 0 (end), 1 and 2, always the same
    >>> step = lambda token, cache: (jnp.broadcast_to(logits, (len(token), 3)), cache)
    >>> pooled_beam_search(step, (), 1, beam_size=2, bos=1, ends=(0,), pad=0, max_length=2)[0].tolist()
    [[[2, 2]]]
    """
    keep = max(2, 1 + len(ends)) * beam_size  # so many that as many as in the beam do not end

    def body(pool: _Pool) -> _Pool:
        last = lax.dynamic_index_in_dim(pool.tokens, pool.t - 1, axis=2, keepdims=False)
        last = jnp.where(pool.t == 0, jnp.int32(bos), last)
        logits, cache = step(last.reshape(-1), pool.cache)
        logits = replicate(logits).astype(jnp.float32)
        log_p = jax.nn.log_softmax(logits) if normalize else logits
        return _extend_pool(
            pool._replace(cache=cache), log_p, jnp.asarray(ends, jnp.int32), keep, alpha, early_stopping
        )

    _check_length(max_length)
    shape = (batch_size, beam_size)
    empty = jnp.full((*shape, max_length), pad, jnp.int32)
    pool = _Pool(
        jnp.int32(0),
        empty,
        jnp.full(shape, -jnp.inf, jnp.float32).at[:, 0].set(0.0),  # one root
        empty,
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.ones((batch_size,), bool),
        jnp.zeros((), bool),
        repeat_for_beams(jax.tree.map(replicate, cache), beam_size),
    )
    pool = lax.while_loop(lambda pool: (pool.t < max_length) & ~pool.stopped, body, match_step_types(body, pool))
    return pool.finished[:, :n_best], pool.scores[:, :n_best]


def _extend_pool(pool: _Pool, log_p: Array, ends: Array, keep: int, alpha: float, early_stopping: bool | str) -> _Pool:
    """Extend the open hypotheses with the `keep` best tokens by log-probabilities [B * K, V], and put those of the K
    best ones that end into the pool of finished ones."""
    batch_size, beam_size, max_length = pool.tokens.shape
    width = min(keep, log_p.shape[-1])
    log_p, token = wide_top_k(log_p, width)  # [B * K, width]
    log_p = (pool.log_prob[:, :, None] + log_p.reshape(batch_size, beam_size, width)).reshape(batch_size, -1)
    log_p, chosen = lax.top_k(log_p, min(keep, log_p.shape[1]))  # [B, keep]
    parent = chosen // width
    token = jnp.take_along_axis(token.reshape(batch_size, -1).astype(jnp.int32), chosen, axis=1)
    tokens = jnp.take_along_axis(pool.tokens, parent[:, :, None], axis=1)
    tokens = lax.dynamic_update_slice_in_dim(tokens, token[:, :, None], pool.t, axis=2)  # [B, keep, T]
    t = pool.t + 1
    ended = jnp.isin(token, ends) | (t >= max_length)

    log_prob, best = lax.top_k(jnp.where(ended, -jnp.inf, log_p), beam_size)
    of_best = jnp.take_along_axis(parent, best, axis=1)
    rows = (of_best + beam_size * jnp.arange(batch_size)[:, None]).reshape(-1)

    full = jnp.isfinite(pool.scores).all(1)
    may = pool.improving & ~(full & (early_stopping is True))
    among_best = (jnp.arange(ended.shape[1]) < beam_size)[None]
    score = jnp.where(ended & among_best & may[:, None], log_p / t.astype(jnp.float32) ** alpha, -jnp.inf)
    scores, order = lax.top_k(jnp.concatenate([pool.scores, score], axis=1), beam_size)
    finished = jnp.take_along_axis(jnp.concatenate([pool.finished, tokens], axis=1), order[:, :, None], axis=1)

    full = jnp.isfinite(scores).all(1)
    at_most = jnp.float32(max_length) if early_stopping == "never" and alpha > 0 else t.astype(jnp.float32)
    improving = pool.improving & (log_prob[:, 0] / at_most**alpha > jnp.where(full, scores[:, -1], -1e9))
    stopped = ~improving.any() | (full.all() & (early_stopping is True)) | ended.all()
    open_ones = jnp.take_along_axis(tokens, best[:, :, None], axis=1)
    cache = map_per_hypothesis(lambda leaf: replicate(leaf)[rows], pool.cache)
    return _Pool(t, open_ones, log_prob, finished, scores, improving, stopped, cache)
