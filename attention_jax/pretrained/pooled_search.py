"""Decoding of encoder-decoder models as transformers does it: beam search with a pool of finished hypotheses, and the
rules of a generation_config.json, which change logits step by step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attention_jax.decode import Cache, Step, check_length, wide_top_k
from attention_jax.ops.meshes import match_step_types, replicate
from attention_jax.ops.shared import map_per_hypothesis, repeat_for_beams
from attention_jax.sampling import penalize_repetition


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
    """Return a step and a cache for decoding under `rules` (generation_config.py), which are applied as by
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

    check_length(max_length)
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
