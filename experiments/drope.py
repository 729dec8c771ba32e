"""Rotary positions that are dropped for the last eighth of training, on texts longer than any in training.

Chapter: Transformer
Source: Gelberg et al. 2025 (arXiv 2512.12167), DroPE: positions help training, and are dropped for longer texts
Data: tiny Shakespeare, 1,115,394 characters; `--data.path input.txt` reads the published file
Command: python launch.py reproduce drope
Cost: 20 minutes

The model and its training are those of `length_extrapolation`: 3 layers of width 96, windows of 128 characters, 8 of
them a step, and 1,000 steps. Three models are trained with the same batches:

* rotary: 1,000 steps with rotary positions. On longer texts it is evaluated as it is; with all positions divided by 4
  (linear scaling, Chen et al. 2023); and with YaRN's frequencies for 4 times the length (Peng et al. 2023).
* dropped: 875 steps with rotary positions, then 125 without positions, with a warm-up of 12 steps and the same peak of
  the learning rate (the recalibration). Its loss right after positions are dropped is recorded, too.
* none: 1,000 steps without positions. The causal mask alone tells the model where it is.

The paper recalibrates pretrained models of 360 million to 7 billion parameters with half a percent to two percent of
the tokens that they were trained on, and measures tasks at up to 8 times their length. Here is the loss alone, of a
model of 0.34 million parameters that is recalibrated with an eighth of its tokens; the temperature of attention is the
same at all lengths.

What was found: at this size the model is not rid of its positions. Without them the loss jumps from 1.92 to 3.3, and
125 steps bring it back to 2.44, above the 2.39 of the model that never had any. From there it hardly rises on longer
texts, 2.50 at 8 times the length, where rotary positions have 2.69. YaRN is better at every length, 2.06 at 4 times.
Of the paper's orders the one against linear scaling holds, two are the opposite, and two are open.

Nothing was selected for this experiment. The code was tried on random characters, for its speed.
"""

from pathlib import Path

from attention_jax.config import Config, replace
from experiments import length_extrapolation

SEEDS = 3
FACTORS = length_extrapolation.FACTORS
RECALIBRATION = 8
"""One of so many steps is without positions."""
SCALINGS = {"linear": "linear(4)", "yarn": "yarn(4, 128)"}
CURVES = {
    "rotary": "rotary positions",
    "linear": "positions divided by 4",
    "yarn": "YaRN, 4 times",
    "none": "no positions",
    "dropped": "rotary positions, dropped",
}


def config() -> Config:
    return replace(length_extrapolation.config(), name="drope", **{"model.position_embedding": "rotary"})


def smoke() -> Config:
    small = {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.mlp_dim": 16}
    short = {"data.sequence_length": 8, "data.overlap": 1, "train.max_steps": 8, "train.steps_per_call": 1}
    return replace(config(), **small, **short)


def study(config: Config, directory: Path) -> dict:
    """Train the three models, then evaluate each on windows of one to eight times the length."""
    from attention_jax import tasks
    from attention_jax.train.loop import train_one

    def train(name: str, changes: dict, **options):
        changed = replace(config, **changes)
        return train_one(tasks.build(changed), changed.optim, changed.train, directory / name, **options)[1]

    def losses(name: str, params, changes: dict, factors=FACTORS) -> dict[str, float]:
        task, length = tasks.build(replace(config, **changes)), config.data.sequence_length
        loss = {n: length_extrapolation.loss_on_windows(task, params, n * length) for n in factors}
        return {f"{name}.loss_{n}x": value for n, value in loss.items()}

    steps = config.train.max_steps
    last = steps // RECALIBRATION
    no_positions = {"model.position_embedding": "none"}
    recalibration = no_positions | {"train.max_steps": last, "optim.warmup_steps": last // 10}
    rotary, none = train("rotary", {}), train("none", no_positions)
    rotary_start = train("rotary_start", {"train.max_steps": steps - last})
    dropped = train("dropped", recalibration, begin=lambda params: rotary_start)
    metrics = losses("rotary", rotary, {}) | losses("none", none, no_positions)
    for name, scaling in SCALINGS.items():
        metrics |= losses(name, rotary, {"model.rope_scaling": scaling})
    metrics |= losses("just_dropped", rotary_start, no_positions, (1,)) | losses("dropped", dropped, no_positions)
    baselines = [name for name in CURVES if name != "dropped"]
    less = {
        f"dropped_less_{name}.loss_{n}x": metrics[f"dropped.loss_{n}x"] - metrics[f"{name}.loss_{n}x"]
        for name in baselines
        for n in FACTORS
    }
    return metrics | less


def figure(recorded: dict[str, list[dict]], path: Path) -> Path | None:
    """Validation loss against the length of the windows; None without a run."""
    from attention_jax.report.curves import lines

    lengths, runs = [128 * n for n in FACTORS], [run["metrics"] for run in recorded.get("", [])]
    losses = {name: [[run[f"{name}.loss_{n}x"] for n in FACTORS] for run in runs] for name in CURVES}
    series = {CURVES[name]: (lengths, rows) for name, rows in losses.items()}
    axes = {"xlabel": "characters in a window (128 in training)", "ylabel": "validation loss (nats)"}
    return lines(series, path, **axes, log="x", inputs=losses) if runs else None
