"""`python launch.py bench variants`: a training step of every variant of `attention_variants`, in alternating rounds.

The speed column of docs/attention_variants.md, whose runs are trained at different times.
"""

import numpy as np

from attention_jax import tasks
from attention_jax.config import replace
from attention_jax.errors import InputError
from attention_jax.train.optimizer import optimizer
from benchmarks._rounds import compare, training
from experiments import attention_variants

STEPS = 5
"""Training steps per call."""


def main(
    rounds: int = 5, data: str = "", variants: tuple[str, ...] = (), steps: int = STEPS, anyway: bool = False
) -> dict[str, list[float]]:
    """Measure the variants side by side.

    Args:
        rounds: Alternating rounds.
        data: The file of tiny Shakespeare; otherwise it is downloaded once.
        variants: Names; all of them by default, softmax first.
        steps: Training steps in a call.
        anyway: Print ratios even where they mean nothing.
    """
    configs = attention_variants.variants()
    if unknown := set(variants) - configs.keys():
        raise InputError(f"--variants knows {', '.join(configs)}, got {', '.join(sorted(unknown))}")
    programs = {}
    for name in dict.fromkeys(("softmax", *(variants or configs))):
        config = replace(configs[name], **{"data.path": data} if data else {})
        task = tasks.build(config)
        rows = np.arange(steps * config.train.batch_size).reshape(steps, -1)  # [K, B]
        update = optimizer(config.optim, config.train.max_steps)
        programs[name] = training(task.loss, update, task.init, task.buckets[0], rows, steps)
        programs[name].flops = 0  # unknown: attention by blocks is a loop
    characters = config.train.batch_size * config.data.sequence_length
    title = f"training step of {config.train.batch_size} windows of {config.data.sequence_length} characters"
    return compare(title, programs, characters, "characters", steps=steps, rounds=rounds, anyway=anyway)
