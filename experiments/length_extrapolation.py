"""Language models on texts longer than any in training: ALiBi, T5's bias, rotary and sinusoidal positions.

Chapter: Transformer
Source: Press et al. 2022, figure 1: perplexity against the length of the input, models trained with 512 tokens
Data: tiny Shakespeare, 1,115,394 characters; `--data.path input.txt` reads the published file
Command: python launch.py reproduce length_extrapolation
Cost: 16 minutes

The model and its training are those of `shakespeare`, with 3 layers of width 96, windows of 128 characters, 8 of them a
step, and 1,000 steps; the variants differ in their positions alone. Each is then evaluated on the last tenth of the
text, cut into windows of 128, 256, 512 and 1,024 characters that do not overlap, as in the paper's figure. A longer
window gives most characters more context, so that a model that can use it has a lower loss.

The paper's models read words and have 16 layers of width 1,024. Its models with T5's bias are trained with four times
the distance beyond which all keys share a number, 128. Here this distance is the length of training, and 16 of the 128
positions see the last bucket.

What was found: the order of the paper holds but for T5's bias, which is worse than rotary positions at 2 and 4 times
the length and better only at 8. It is already the worst at the length of training, 2.27 against 1.91 nats; why was not
tested, but its numbers begin near 0, and 1,000 steps are few. From there it loses less than rotary positions do, 0.14
against 0.42 at 4 times the length. ALiBi is a little better on longer texts with every seed.

Nothing was selected for this experiment. The code was tried on random characters, for its speed.
"""

from pathlib import Path

from attention_jax.config import Config, Grid, replace
from experiments import shakespeare

SEEDS = 3
POSITIONS = ("sinusoidal", "rotary", "t5", "alibi")
FACTORS = (1, 2, 4, 8)
CHARACTERS = 2**14
"""Characters evaluated at once."""


def config() -> Config:
    sizes = {"data.sequence_length": 128, "model.num_layers": 3, "model.hidden_size": 96, "model.mlp_dim": 384}
    train = {"train.batch_size": 8, "train.max_steps": 1_000}
    return replace(shakespeare.config(), name="length_extrapolation", **sizes, **train)


def smoke() -> Config:
    small = {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.mlp_dim": 16}
    short = {"data.sequence_length": 8, "data.overlap": 1, "train.max_steps": 2, "train.steps_per_call": 2}
    return replace(config(), **small, **short, **{"model.position_embedding": "alibi"})


def variants() -> dict[str, Config]:
    return {name: replace(config(), **{"model.position_embedding": name}) for name in POSITIONS}


def study(config: Config, directory: Path) -> dict:
    """Train, then evaluate on windows of one to eight times the length."""
    from attention_jax import tasks
    from attention_jax.train.loop import train_one

    task = tasks.build(config)
    _, params = train_one(task, config.optim, config.train, directory)
    loss = {n: loss_on_windows(task, params, n * config.data.sequence_length) for n in FACTORS}
    return {f"valid.loss_{n}x": value for n, value in loss.items()} | {
        f"valid.loss_{n}x_less_1x": loss[n] - loss[1] for n in FACTORS[1:]
    }


def loss_on_windows(task, params, length: int) -> float:
    """The loss in nats a character on the validation text, in windows of so many characters."""
    import numpy as np

    from attention_jax.data.public_texts import load_shakespeare
    from attention_jax.train.placement import map_batches

    rows = load_shakespeare(replace(task.config, **{"data.sequence_length": length}).data).held_out["valid"]
    nats = map_batches(task.score_rows, params, {"tokens": rows}, max(CHARACTERS // length, 1))
    return float(nats.sum(dtype=np.float64) / rows[:, 1:].size)


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """Validation loss against the length of the windows."""
    from attention_jax.report.curves import lines

    lengths = [128 * n for n in FACTORS]
    losses = {
        name: [[run["metrics"][f"valid.loss_{n}x"] for n in FACTORS] for run in recorded[name]]
        for name in POSITIONS
        if name in recorded
    }
    labels = {"t5": "T5's bias", "alibi": "ALiBi"}
    series = {labels.get(name, name): (lengths, rows) for name, rows in losses.items()}
    axes = {"xlabel": "characters in a window (128 in training)", "ylabel": "validation loss (nats)"}
    return lines(series, path, **axes, log="x", inputs=losses)


GRIDS = (Grid("Validation loss, by length", {f"{n} times": f"valid.loss_{n}x" for n in FACTORS}, POSITIONS),)
