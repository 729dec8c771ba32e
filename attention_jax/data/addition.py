"""Addition as text, "16+75  " -> "_91  ": the task of "Deep Learning from Scratch 2", chapter 7 (after Zaremba
and Sutskever 2014, "Learning to execute").

Each operand is 1, 2 or 3 random digits, read as a number ("007" is 7). A sum occurs once, whichever operand comes first
(the rule of Keras's addition_rnn example, which the book's file follows: short sums are used up early, and its last
lines have two and three digits). So no test input occurs in train, not even swapped.
"""

import string

import numpy as np

from attention_jax import config as settings
from attention_jax.data import fixed_width
from attention_jax.data.pairs import PairData, Texts

SOURCE_WIDTH, TARGET_WIDTH = 7, 4
ALPHABET = " +_" + string.digits
MOST = 200_000
"""The maximum number of examples: there are 500,500 different sums, and rejection sampling of nearly all is slow."""


def generate(examples: int, seed: int = 1984) -> Texts:
    """Generate `examples` different additions, deterministically."""
    rng = np.random.default_rng(seed)
    used, sources, targets = set(), [], []
    while len(sources) < examples:
        digits = rng.integers(1, 4, (examples, 2))
        for a, b in rng.integers(0, 10**digits).tolist():
            key = (min(a, b), max(a, b))
            if key not in used and len(sources) < examples:
                used.add(key)
                sources.append(f"{a}+{b}".ljust(SOURCE_WIDTH))
                targets.append(str(a + b).ljust(TARGET_WIDTH))
    return Texts(sources, targets)


class AdditionText(fixed_width.GeneratedPairs):
    """Generated additions."""

    DESCRIPTION = "Sums of two numbers of up to three digits, as text."
    generate = staticmethod(generate)


def load(config: settings.Addition, batch_size: int = 128) -> PairData:
    """Load the dataset of `config`: the book's file at `config.path`, or generated pairs, which are cached."""
    if config.path:
        splits = fixed_width.split(fixed_width.read_file(config.path, "addition"))
    else:
        splits = fixed_width.load_generated(AdditionText, config.examples, max_examples=MOST)
    return fixed_width.assemble(splits, ALPHABET, config.reverse_source, batch_size)
