"""Decoding with encoder-decoder models, greedily or by beam search."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float, Int

from attention_jax.config import Decode
from attention_jax.decode import beam_search, forbid_token, greedy


def generate(
    model,
    params,
    batch: dict,
    options: Decode,
    *,
    bos: int,
    eos: int | None,
    pad: int,
    max_length: int,
    forbidden: int | None = None,
) -> Int[Array, "B T"]:
    """Generate tokens [B, max_length] for the sources of `batch`, greedily or as the best of a beam; never `forbidden`.

    The hypotheses of a sentence share the encoder memory in the model's cache; a beam search does not copy it.
    """
    ends = {"bos": bos, "eos": eos, "pad": pad, "max_length": max_length}
    if options.beam_size == 1:
        step, cache = start_decoding(model, params, batch, max_length)
        return greedy(forbid_token(step, forbidden), cache, batch["source"].shape[0], **ends)
    return hypotheses(model, params, batch, options, n_best=1, forbidden=forbidden, **ends)[0][:, 0]


def hypotheses(
    model, params, batch: dict, options: Decode, *, n_best: int, max_length: int, forbidden: int | None = None, **ends
) -> tuple[Int[Array, "B N T"], Float[Array, "B N"]]:
    """Return the `n_best` hypotheses of a beam search for the sources of `batch`, best first, and their scores."""
    step, cache = start_decoding(model, params, batch, max_length)
    penalty = {"length_penalty": options.length_penalty, "alpha": options.alpha}
    beam = {"beam_size": options.beam_size, "n_best": n_best}
    step = forbid_token(step, forbidden)
    return beam_search(step, cache, batch["source"].shape[0], **beam, **penalty, max_length=max_length, **ends)


def start_decoding(model, params, batch: dict, max_length: int) -> tuple[Callable, Any]:
    """Return the `step(tokens, cache)` of `attention_jax.decode`, and the cache before the first token."""

    def begin(module):
        return module.start(module.encode(batch["source"], batch["source_length"]), max_length)

    def step(tokens, cache):
        logits, cache, _ = model.apply({"params": params}, cache, tokens, method="step")
        return logits, cache

    return step, model.apply({"params": params}, method=begin)
