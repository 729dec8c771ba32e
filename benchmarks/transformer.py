"""`python launch.py bench transformer`: training and beam search of a Transformer, ours and PyTorch's (eager, SDPA).

Training: 128 sentence pairs of 32 + 32 tokens with random lengths, dropout on every sub-layer's output, Adam; 4+4
layers of width 128 with one shared vocabulary of 9,716 and label smoothing (Transformer-tiny), and 3+3 layers of width
256 with vocabularies of 7,853 and 5,893 (bentrevett's). Decoding: 1,000 sentences with a beam of 5 in batches of 100,
30 tokens each, both with a key/value cache. Training steps are measured again with products in bfloat16: ours with
--train.matmul-precision bfloat16, theirs under torch.autocast. With the weights carried over both compute the same
scores: tests/bench/test_transformer.py.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config
from attention_jax.config import Optim
from attention_jax.decode import beam_search
from attention_jax.models.transformer import Transformer
from attention_jax.ops.losses import linear_cross_entropy
from attention_jax.train.optimizer import optimizer
from benchmarks import _torch_transformer as torch_transformer
from benchmarks._rounds import alternate, compare, import_torch, training


class Sizes(NamedTuple):
    """The sizes of a measurement."""

    name: str
    source_vocabulary: int
    target_vocabulary: int
    width: int
    heads: int
    ffn: int
    layers: int
    dropout: float
    tied: bool
    smoothing: float


TINY = Sizes("Transformer-tiny", 9716, 9716, 128, 4, 256, 4, 0.3, True, 0.1)
D256 = Sizes("d 256", 7853, 5893, 256, 8, 512, 3, 0.1, False, 0.0)
BATCH, LENGTH = 128, 32
SENTENCES, TOGETHER, BEAM, WRITTEN = 1_000, 100, 5, 30
STEPS = 4
"""Training steps per call."""


def draw(sizes: Sizes, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source [rows, 32], its lengths, target [rows, 33]."""
    rng = np.random.default_rng(0)
    source = rng.integers(4, sizes.source_vocabulary, (rows, LENGTH)).astype(np.int32)
    length = rng.integers(LENGTH // 2, LENGTH + 1, rows).astype(np.int32)
    return source, length, rng.integers(4, sizes.target_vocabulary, (rows, LENGTH + 1)).astype(np.int32)


def our_model(sizes: Sizes) -> Transformer:
    """The Flax module."""
    options = config.TransformerConfig(
        sizes.layers,
        sizes.layers,
        sizes.width,
        sizes.heads,
        sizes.ffn,
        dropout=sizes.dropout,
        tied_embeddings="all" if sizes.tied else "none",
        output_bias=not sizes.tied,
    )
    return Transformer(options, sizes.source_vocabulary, sizes.target_vocabulary)


def our_training(sizes: Sizes, matmul_precision: str = "default"):
    """A function that makes STEPS training steps and waits for them."""
    model = our_model(sizes)
    source, length, target = draw(sizes, BATCH)
    data = jax.device_put({"source": source, "length": length, "target": target})

    def loss(params, batch, rng):
        def teacher_forced(module):
            memory = module.encode(batch["source"], batch["length"], train=True)
            return module.decode(memory, batch["target"][:, :-1], train=True)[0], module.output()

        hidden, output = model.apply(params, method=teacher_forced, rngs={"dropout": rng})
        hidden, target = hidden.reshape(-1, sizes.width), batch["target"][:, 1:].reshape(-1)
        total, count = linear_cross_entropy(hidden, *output, target, jnp.ones(target.shape, bool), sizes.smoothing)
        return total, count, {}

    adam = optimizer(Optim(), 1)
    init = jax.jit(lambda rng: model.init(rng, source[:1], length[:1], target[:1, :-1]))
    loss_flops = 6 * BATCH * LENGTH * sizes.width * sizes.target_vocabulary  # logits, and both factors' gradients
    return training(loss, adam, init, data, np.arange(BATCH), STEPS, matmul_precision, loss_flops)


def their_training(torch, sizes: Sizes, rounded: bool = False):
    """The same steps with autograd, cross_entropy and torch.optim.Adam; `rounded` is
    torch's mixed precision, bfloat16."""
    model = torch_transformer.build(torch, *sizes[1:9])
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    source, length, target = (torch.from_numpy(x).long() for x in draw(sizes, BATCH))
    real = (torch.arange(LENGTH)[None] < length[:, None])[:, None, None]

    def run():
        for _ in range(STEPS):
            adam.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                logits = model(source, real, target[:, :-1]).flatten(0, 1)
            torch.nn.functional.cross_entropy(
                logits.float(), target[:, 1:].flatten(), label_smoothing=sizes.smoothing
            ).backward()
            adam.step()

    return run


def our_beam(sizes: Sizes, params=None):
    """(function that decodes SENTENCES sentences, function of one batch): both return tokens and scores."""
    model = our_model(sizes)
    source, length, target = draw(sizes, SENTENCES)
    if params is None:
        params = jax.jit(model.init)(jax.random.key(0), source[:1], length[:1], target[:1])

    @functools.partial(jax.jit, static_argnames="written")
    def batch(params, source, length, written=WRITTEN):
        def step(tokens, cache):
            logits, cache, _ = model.apply(params, cache, tokens, method="step")
            return logits, cache

        cache = model.apply(params, model.apply(params, source, length, method="encode"), written, method="start")
        options = {"bos": 1, "eos": None, "pad": 0, "max_length": written, "length_penalty": "none"}
        return beam_search(step, cache, source.shape[0], beam_size=BEAM, **options)

    def run():
        for i in range(0, SENTENCES, TOGETHER):
            jax.block_until_ready(batch(params, source[i : i + TOGETHER], length[i : i + TOGETHER]))

    return run, functools.partial(batch, params)


def their_beam(torch, sizes: Sizes, together: int = TOGETHER, sentences: int = SENTENCES):
    """The same in PyTorch: a Python loop over tokens."""
    model = torch_transformer.build(torch, *sizes[1:9]).eval()
    source, length, _ = (torch.from_numpy(x).long() for x in draw(sizes, SENTENCES))
    real = (torch.arange(LENGTH)[None] < length[:, None])[:, None, None]

    def run():
        for i in range(0, sentences, together):
            model.beam(source[i : i + together], real[i : i + together], BEAM, WRITTEN, 1)

    return run


def main(anyway: bool = False) -> dict[str, dict[str, list[float]]]:
    """Measure, print the tables, and return the seconds of every round.

    Args:
        anyway: Print ratios even where other processes or the spread of the rounds make them meaningless.
    """
    torch = import_torch()
    name, seconds = f"torch {torch.__version__.split('+')[0]}", {}
    for sizes in (TINY, D256):
        programs = {name: their_training(torch, sizes), "attention_jax": our_training(sizes)}
        programs |= {
            "torch, bfloat16": their_training(torch, sizes, True),
            "ours, bfloat16": our_training(sizes, "bfloat16"),
        }
        title = f"{sizes.name}: one training step of {BATCH} pairs of {LENGTH} + {LENGTH} tokens"
        counted = 2 * BATCH * LENGTH, "tokens"
        seconds[sizes.name] = compare(title, programs, *counted, steps=STEPS, rounds=6, anyway=anyway)
        print()
    programs = {name: their_beam(torch, TINY), "attention_jax": our_beam(TINY)[0]}
    title = f"{TINY.name}: beam {BEAM}, {SENTENCES} sentences of {WRITTEN} tokens in batches of {TOGETHER}"
    seconds["beam"] = compare(title, programs, SENTENCES, "sentences", rounds=5, anyway=anyway)
    alone = alternate({"alone": their_beam(torch, TINY, 1, 20)}, rounds=3, calls=1)["alone"]
    print(f"PyTorch's loop over one sentence at a time: {1e3 * np.median(alone) / 20:.1f} ms a sentence")
    seconds["beam alone"] = {f"{name} alone": [t * SENTENCES / 20 for t in alone]}
    return seconds
