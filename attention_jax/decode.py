"""Greedy decoding and beam search for any model, given `step(tokens [B], cache) -> (logits [B, V], cache)`.

All functions are pure and belong inside a `jax.jit` of the caller (outside of it every call traces the callback again):

    decode = jax.jit(lambda cache: greedy(step, cache, batch_size, bos=1, eos=2, max_length=40))

`cache` is any pytree whose leaves have the batch as their leading axis, so that beam search can tile and reorder it.
Two kinds of parts are not reordered (ops/shared.py): a `BeamInvariant`, which all hypotheses of a sentence have in
common, such as the encoded source, and a `BeamKVCache`. The callback may return logits or log-probabilities, since the
latter are already normalized.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attention_jax.errors import InputError
from attention_jax.ops.meshes import match_step_types, replicate
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.shared import map_per_hypothesis, repeat_for_beams

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
    """Decode greedily: the most probable token at each step, [B, max_length], with `eos` and `pad` after it.

    Args:
      step: `step(tokens [B], cache) -> (logits [B, V], cache)`, one step of a model.
      cache: what the first step reads, a pytree whose leaves begin with the batch, or None.
      batch_size: B.
      bos: the token that the first step reads.
      eos: the token, or tokens, that end a sequence. Decoding stops when all have ended; None takes all steps.
      max_length: the largest number of steps; 0 returns no tokens.
      pad: what follows `eos`.

    Raises:
      InputError: for a negative `max_length`.

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
        # logits [B, V]; a sequence that has ended writes `pad`
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

    check_length(max_length)
    # step t, last tokens [B], which sequences have ended [B], all tokens [B, T]
    start = (
        jnp.int32(0),
        jnp.full((batch_size,), bos, jnp.int32),
        jnp.zeros((batch_size,), bool),
        jnp.full((batch_size, max_length), pad, jnp.int32),
        cache,
    )
    return lax.while_loop(is_running, body, match_step_types(body, start))[3] if max_length else start[3]


def check_length(max_length: int):
    """Raise InputError for a negative length."""
    if max_length < 0:
        raise InputError(f"max_length must be at least 0, got {max_length}")


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

    # first stage: k groups; what is in no such group is at most as great as each of their k maxima
    _, group = lax.top_k(by_platform(maxima, {"cpu": True, "default": False}), k)  # [B, k]
    columns = (group[:, :, None] * GROUP + jnp.arange(GROUP)[None, None, :]).reshape(rows, k * GROUP)
    # second stage: their k * GROUP columns [B, k * GROUP]; those beyond the width are -inf
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

    score = log p(tokens) / penalty(length) (Wu et al. 2016, section 7, without the coverage term). A finished
    hypothesis stays in the beam and competes by its score, as does one cut off at `max_length`. So a beam of 1 is
    `greedy`, and a beam that prunes nothing is exhaustive search. An example is done when no open hypothesis can
    overtake its n best: log p only falls, so log p / penalty(max_length) bounds every continuation.

    Args:
      step, cache, batch_size, bos, max_length: as in `greedy`; the cache is repeated for the hypotheses.
      beam_size: hypotheses of each example.
      eos: the token that ends a hypothesis; None always takes `max_length` steps.
      pad: what follows `eos`.
      length_penalty: "gnmt" is ((5 + n) / 6)^alpha for n tokens (Wu et al. 2016, eq. 14), "simple" n^alpha, "none" 1,
        which returns log-probabilities.
      alpha: the exponent of the penalty, at least 0.
      n_best: how many are returned; those that do not exist have the score -inf.

    Raises:
      InputError: unless 1 <= n_best <= beam_size, and for a negative `max_length` or `alpha`.

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
    check_length(max_length)
    if alpha < 0:
        raise InputError(f"the length penalty's alpha must be at least 0, not {alpha}")

    def score(log_prob, length):
        return log_prob / penalty_divisor(length, length_penalty, alpha)

    def is_running(beams: _Beams):
        scores = score(beams.log_prob, beams.length)
        # go on while an open hypothesis could overtake the n-th best that has ended: log p only falls, and the divisor
        # is largest at max_length, so log p / penalty(max_length) is the best score that it can reach
        nth_ended_score = lax.top_k(jnp.where(beams.ended, scores, -jnp.inf), n_best)[0][:, -1]
        reachable = score(beams.log_prob, jnp.full_like(beams.length, max_length))
        reachable = jnp.where(beams.ended, -jnp.inf, reachable).max(axis=1)
        return (beams.t < max_length) & (reachable > nth_ended_score).any()

    def body(beams: _Beams):
        logits, cache = step(beams.last.reshape(-1), beams.cache)  # [B, K] -> [B K], logits [B K, V]
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
    # [B, K] -> [B, n], and their tokens [B, K, T] -> [B, n, T]
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
    # 1. the best continuations of each hypothesis, log p(token) = logit - log sum exp: [B K, V] -> [B K, best]
    log_p, token = wide_top_k(logits, best)  # [B * K, best]
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_p = jnp.where(jnp.isneginf(log_p), log_p, log_p - total)  # -inf - -inf where no token is allowed is NaN
    # [B K, best] -> [B, K, best]
    log_p = log_p.reshape(batch_size, width, best)
    token = token.astype(jnp.int32).reshape(batch_size, width, best)

    # 2. candidates: log p of a hypothesis and its continuation. One that has ended has a single continuation, `pad`
    # with log-probability 0, and -inf in the other places: it competes once, with the score that it has
    ended = beams.ended[:, :, None]
    stays = jnp.where(jnp.arange(best) == 0, 0.0, -jnp.inf).astype(jnp.float32)[None, None, :]
    log_prob = beams.log_prob[:, :, None] + jnp.where(ended, stays, log_p)  # [B, K, best]
    token = jnp.where(ended, jnp.int32(pad), token)
    length = jnp.broadcast_to(beams.length[:, :, None] + jnp.where(ended, 0, 1), log_prob.shape)

    def pick(x):  # [B, K, best] -> [B, K]
        return jnp.take_along_axis(x.reshape(batch_size, width * best), chosen, axis=1)

    # 3. the best K of the K best candidates of a sentence, [B, K * best] -> [B, K]
    _, chosen = lax.top_k(score(log_prob, length).reshape(batch_size, width * best), beam_size)
    # 4. state of the chosen ones: each goes on from its parent's tokens, end and rows of the cache
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
