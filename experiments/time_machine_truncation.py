"""Cutting gradients short on The Time Machine: full, truncated and randomized backpropagation through time.

Chapter: training theory
Source: Dive into Deep Learning 9.7.1: in practice truncation works quite well (9.7.1.2), and randomized truncation not
  much better (9.7.1.4); it has no numbers for this
Data: The Time Machine; `--data.path timemachine.txt.gz` reads the published file
Command: python launch.py reproduce time_machine_truncation
Cost: 4.4 minutes

The model is that of `time_machine_rnn`. Its gradients go back over all 32 steps of a window, are cut every 8 steps, or
are cut at random every 8 steps on average. In the book the windows of its experiments are the regular truncation
already, and full gradients would go back over the whole text; here they are those of a window, which the cuts shorten.
The program runs the same steps in all three (a cut multiplies by zero), so seconds differ little; truncation saves
memory in streams without end. Truncated gradients are better than full ones with all six seeds, by 0.05 to 0.34 of
perplexity; randomized ones are better with seeds 0 to 2 and worse with 1001 to 1003, by 0.01 to 0.30. The full ones are
the computation of `time_machine_rnn`, with equal results for seeds 1001 to 1003. The two orders became claims after the
first seed had run (2026-11-20).
"""

from attention_jax.config import Config, Grid, replace
from experiments import time_machine_rnn

SEEDS = 3


def config() -> Config:
    return replace(time_machine_rnn.config(), **{"name": "time_machine_truncation"})


def variants() -> dict[str, Config]:
    return {kind: replace(config(), **{"model.truncation": kind}) for kind in ("full", "truncated", "randomised")}


def smoke() -> Config:
    return replace(time_machine_rnn.smoke(), **{"name": "time_machine_truncation", "model.truncation": "randomised"})


def sweep() -> dict[str, str]:
    return {"model.truncation_length": "2,4,8,16", "model.truncation": "truncated,randomised"}


GRIDS = (Grid("Validation perplexity, last epoch", {"perplexity": "valid.perplexity"}, tuple(variants())),)
