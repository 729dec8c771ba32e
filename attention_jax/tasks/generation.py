"""What an encoder-decoder writes by itself."""

from jaxtyping import Array, Int

from attention_jax.config import Decode
from attention_jax.decode import beam_search, greedy


def generate(
    model, params, batch: dict, options: Decode, *, bos: int, eos: int | None, pad: int, max_length: int
) -> Int[Array, "B T"]:
    """The tokens [B, max_length] that a model writes for the sources of `batch`, greedily or as the best of a beam.

    All hypotheses of a sentence read what the model's cache holds as `Shared`: a beam search has nothing to copy there.
    """

    def begin(module):
        return module.start(module.encode(batch["source"], batch["source_length"]), max_length)

    def step(tokens, cache):
        logits, cache, _ = model.apply({"params": params}, cache, tokens, method="step")
        return logits, cache

    cache, rows = model.apply({"params": params}, method=begin), batch["source"].shape[0]
    ends = {"bos": bos, "eos": eos, "pad": pad, "max_length": max_length}
    if options.beam_size == 1:
        return greedy(step, cache, rows, **ends)
    penalty = {"length_penalty": options.length_penalty, "alpha": options.alpha}
    tokens, _ = beam_search(step, cache, rows, beam_size=options.beam_size, **penalty, **ends)
    return tokens[:, 0]
