"""Laws of attention: what theory says exactly, measured in seconds, with bounds that a broken mechanism misses.

Chapter: theory of attention
Source: the claims name a paper and an equation each
Data: none; random arrays, and one head that is trained on a generated task
Command: python launch.py reproduce laws
Cost: 0.56 minutes

The functions are in experiments/papers/theorems.py, one for each number, of a few lines over `attend`; docs/laws.md has
the equations, and tests/papers/test_theorems.py breaks each of them. `python launch.py check mine:attention` measures
three of them for an attention function of your own. Related claims are in other experiments: the rate of kernel
regression on random inputs (`nadaraya_watson`), the capacity of softmax memories (`hopfield_retrieval`), the Jacobian
of the softmax and its Lipschitz constant (`exact_identities`).

Bounds follow from the theorems, with a margin for rounding and random arrays. Before they were committed, the code was
tried with seeds 77 and 3, which are not recorded; where that was at full size, the claim says so.
"""

from pathlib import Path

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

SEEDS = 3


def config() -> Config:
    return Config("laws", Samples(2_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 200})


def study(config: Config, directory: Path) -> dict:
    from experiments.papers import theorems

    seed, words = config.train.seed, config.data.samples
    theorems.plot_panels(directory / "figures" / "panels.png", seed)
    extra = {"memory.parity_positive": {"words": words}, "memory.parity_negative": {"words": words}}
    return {name: measure(subject, seed, **extra.get(name, {})) for name, (measure, subject) in theorems.LAWS.items()}
