"""Cutting gradients short on The Time Machine: full, truncated and randomised backpropagation through time.

Chapter: training theory
Source: Dive into Deep Learning 9.7.1.4: in practice truncation works as well as the full gradient,
  randomised truncation no better
Data: The Time Machine; `--data.path timemachine.txt.gz` reads the published file
Command: python launch.py reproduce time_machine_truncation
Cost: half a minute on 2 cores for each of 3 variants and 3 seeds

`time_machine_rnn` with gradients over all 32 steps of a window, cut every 8, and cut at random every 8 on average. The
program runs the same steps in all three (a cut multiplies by zero), so seconds differ little; what truncation saves is
memory in streams without end. The two orders became claims after the first seed had run (2026-11-20).
"""

from attention_jax.config import Claim, Config, replace
from experiments import time_machine_rnn

SEEDS = 3
SOURCE = "d2l 9.7.1.4"


def config() -> Config:
    return replace(time_machine_rnn.config(), **{"name": "time_machine_truncation"})


def variants() -> dict[str, Config]:
    return {kind: replace(config(), **{"model.truncation": kind}) for kind in ("full", "truncated", "randomised")}


def smoke() -> Config:
    return replace(time_machine_rnn.smoke(), **{"name": "time_machine_truncation", "model.truncation": "randomised"})


def sweep() -> dict[str, str]:
    return {"model.truncation_length": "2,4,8,16", "model.truncation": "truncated,randomised"}


CLAIMS = (
    Claim("perplexity, full", "valid.perplexity", None, SOURCE, variant="full"),
    Claim("perplexity, cut every 8 steps", "valid.perplexity", None, SOURCE, variant="truncated"),
    Claim("perplexity, cut every 8 steps on average", "valid.perplexity", None, SOURCE, variant="randomised"),
    Claim(
        "perplexity, cut less full", "valid.perplexity", None, SOURCE, variant="truncated", minus="full", at_most=0.1
    ),
    Claim(
        "perplexity, cut at random less cut",
        "valid.perplexity",
        None,
        SOURCE,
        variant="randomised",
        minus="truncated",
        at_least=0.0,
    ),
)
