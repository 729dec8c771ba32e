"""What a language model writes: `sample` after prompts of one length, with any `step(tokens [B], cache) -> (logits
[B, V], cache)`, and `generate` after prompts of different lengths; temperature, top-k, nucleus, repetition penalty.

As in `attention_jax.decode`, all functions are pure and belong inside a `jax.jit` of the caller, and `cache` is any
pytree whose leaves have the batch as their leading axis.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax.decode import Cache, Step
from attention_jax.errors import InputError
from attention_jax.ops.meshes import match_step_types, replicate
from attention_jax.ops.precision import accumulator
from attention_jax.ops.shared import map_rows, where_rows


def truncate_logits(logits: Float[Array, "B V"], top_k: int = 0, top_p: float = 1.0) -> Float[Array, "B V"]:
    """Set the logits of tokens outside of the top k and the nucleus to -inf.

    The remaining ones are the `top_k` most probable tokens (0: all), and of them the fewest, most probable first, whose
    probabilities add up to `top_p` (nucleus sampling: Holtzman et al. 2020, eq. 2-3). The most probable one is always
    kept, also if a traced `top_k` is negative or a traced `top_p` is not above 0, which raise an InputError if they are
    known; ties are resolved by the smaller index.

    >>> logits = jnp.log(jnp.array([[0.1, 0.5, 0.15, 0.25]]))
    >>> [jnp.isfinite(x).tolist() for x in (truncate_logits(logits, top_k=2), truncate_logits(logits, top_p=0.8))]
    [[[False, True, False, True]], [[False, True, True, True]]]
    """
    rows, width = logits.shape
    is_known = lambda x: not isinstance(x, jax.core.Tracer)
    if (is_known(top_k) and top_k < 0) or (is_known(top_p) and top_p <= 0):
        raise InputError(f"top_k must be 0 (all tokens) or more, and top_p above 0; got {top_k} and {top_p}")
    if is_known(top_k) and is_known(top_p) and not top_k and top_p >= 1:
        return logits
    order = jnp.argsort(-logits, axis=-1, stable=True)
    rank = jnp.zeros_like(order).at[jnp.arange(rows)[:, None], order].set(jnp.arange(width)[None])
    ranked = jnp.take_along_axis(logits, order, axis=-1).astype(accumulator(logits.dtype))
    most = jnp.where(jnp.equal(top_k, 0), width, jnp.maximum(top_k, 1))
    ranked = jnp.where(jnp.arange(width)[None] < most, ranked, -jnp.inf)
    probability = jax.nn.softmax(ranked, axis=-1)
    mass_before = jnp.cumsum(probability, axis=-1) - probability
    nucleus = (mass_before < jnp.asarray(top_p, mass_before.dtype)) | jnp.greater_equal(top_p, 1)  # mass before < top_p
    nucleus = nucleus | (jnp.arange(width) == 0)[None]  # of a traced top_p that is not above 0
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
    """Sample `length` tokens after each prompt, with a temperature, top-k and top-p: [B, length].

    Args:
      step: `step(tokens [B], cache) -> (logits [B, V], cache)`, one step of a model.
      cache: what the first step reads, a pytree whose leaves begin with the batch, or None.
      prompt: tokens [B, P], of one length.
      length: how many tokens are sampled.
      temperature: a token is sampled from softmax(logits / temperature); 0 takes the most probable one.
      top_k: sample from the k most probable tokens only (Fan et al. 2018); 0 is all.
      top_p: sample from the fewest most probable tokens whose probabilities add up to p (Holtzman et al. 2020).
      rng: of the samples, by default `jax.random.key(0)`.
      prompt_length: the prompts are their first tokens, so many; the others are padding.

    Raises:
      InputError: for a prompt without tokens and a length below 1.

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
    is_prompt = jnp.arange(width)[:, None] < prompt_length
    prompt_tokens = jnp.concatenate(
        [jnp.where(is_prompt, prompt.T, -1), jnp.full((length - 1, rows), -1, jnp.int32)]
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
    edits: Any = None,
) -> Int[Array, "B T"]:
    """Continue prompts of different lengths, with at most `length` tokens each: [B, length].

    Every row has its own positions 0, 1, ..., and its continuation does not depend on other rows (samples depend on its
    index). Decoding stops when every row has ended.

    Args:
      model: a language model with `start` and `step` as in tasks/language.py. Its `prefill(tokens, lengths, max_length)
        -> (logits [B, V], cache)`, if it has one, reads the prompts in one pass; else they are read token by token.
      params: its parameters.
      prompt, lengths: tokens [B, P], padded on the right, and the number of tokens of each prompt, [B].
      length: the largest number of tokens to write.
      pad: what follows `eos`.
      eos: the token, or tokens, after which a row has ended.
      temperature, top_k, top_p: as in `sample`; temperature 0 takes the most probable tokens.
      repetition_penalty: divides positive logits of tokens of the prompt and of the text so far, and multiplies
        negative ones (Keskar et al. 2019, section 4.1, as transformers has it); 1 changes nothing.
      rng: of the samples, by default `jax.random.key(0)`.
      stream: called on the host with the tokens [B] of each step, in order.
      edits: what replaces activations of the model, of `interpret.decoding_edits`.

    Raises:
      InputError: for prompts without tokens, a length below 1 and numbers out of range, as far as they are known. Of
        traced `lengths` out of range the closest is taken, and a traced penalty that is not above 0 is 1.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, prompt = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3], [4, 5, 0]])
    >>> params = jax.jit(model.init)(jax.random.key(0), prompt)["params"]
    >>> write = jax.jit(lambda params, prompt: generate(model, params, prompt, jnp.array([3, 2]), 4, temperature=0.0))
    >>> write(params, prompt).shape
    (2, 4)
    """
    rows, width = prompt.shape
    lengths = _check_generation(prompt, lengths, length, temperature, repetition_penalty)
    variables, cache_size = {"params": params}, width + length - 1

    def step_row(cache, token, row):
        new = {} if edits is None else edits.of_step(cache.position[0], cache_size, row)
        logits, cache, _ = model.apply(variables | new, cache, token[None], method="step")
        return logits[0], cache

    def step(cache, token):
        """(logits [B, V], cache) after one more token of each row; each is at its own position, a scalar to a model."""
        if rows != 1:
            return map_rows(step_row, cache, token, jnp.arange(rows))
        logits, cache = step_row(cache, token[0], 0)
        return logits[None], cache

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
        new = {} if edits is None else edits.of_prompt(width)
        logits, cache = model.apply(variables | new, prompt, lengths, cache_size, method="prefill")
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
    penalty = jnp.where(jnp.greater(penalty, 0), jnp.asarray(penalty, logits.dtype), jnp.ones((), logits.dtype))
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


def _check_generation(prompt, lengths, length, temperature, repetition_penalty):
    """Return the lengths [B], traced ones in their range; InputError for what `generate` does not take, if known."""
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
    return jnp.clip(lengths, 1, width)


def _apply_temperature(logits, temperature):
    """Return (logits - their maximum) / temperature, in float32 at least; of temperature 0, the limit."""
    logits = logits.astype(accumulator(logits.dtype))
    below = logits - logits.max(axis=-1, keepdims=True)
    temperature = jnp.asarray(temperature, logits.dtype)
    return jnp.where(below == 0, 0.0, below / jnp.where(temperature > 0, temperature, jnp.finfo(logits.dtype).tiny))
