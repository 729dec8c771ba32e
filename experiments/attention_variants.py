"""Forms of attention published from 2021 to 2026 in one small language model: the same size, text and steps.

Chapter: Transformer
Source: Qiu et al. 2025 (arXiv 2505.06708), gated attention; the other papers are in attention_variants.toml
Data: tiny Shakespeare, 1,115,394 characters; `--data.path input.txt` reads the published file
Command: python launch.py reproduce attention_variants
Cost: 170 minutes

The model and its training are those of `shakespeare`, which are nanoGPT's, with rotary positions, windows of 128
characters, 8 of them a step, and 1,000 steps. Each variant changes the options in VARIANTS and nothing else: no
learning rate, schedule or size was tuned for any of them. Where an option adds weights, the feed-forward layers shrink,
so that all models have the same number of parameters to 1 %. A seed means the same batches in the same order for all.
The variant softmax has five seeds, the others three.

Measured on the last tenth of the text: the loss in windows of 1, 2, 4 and 8 times the trained length, as
`length_extrapolation` does; and in 64 windows of the trained length the attention weights and the residual stream.

* First token: the mean weight that queries give to the first token of a window, over layers and heads; the sink rate is
  the share of heads where this mean is above 0.3 (Gu et al. 2025, arXiv 2410.10781, with epsilon 0.3). These
  texts have no token of their beginning: a window starts anywhere.
* Zeros: the share of weights of allowed keys that are exactly 0. Entropy: of a query's weights divided by their sum.
* Largest activation, kurtosis: of the residual stream after a layer, the largest over layers; of attention residuals,
  of what the output layer reads.
* Memory: temporary arrays of ten training steps in one call, as XLA compiled them.

Each run trains alone. A population shares one program among members that differ in numbers and seeds, here among the
seeds of a variant; they would have one run directory, one record and one speed, and on a CPU they train one after the
other anyway.

The code was tried on seed 990001, which is not recorded: 50 steps of each variant up to exclusive, and all steps of
softmax; the variants after exclusive joined the table later, without a trial. In softmax's no
head has a sink (the first token gets 2.3 % of the weight, 4.2 % if all are equal) and no activation is massive (14), so
that nothing is claimed about sinks and outliers.
"""

from pathlib import Path

from attention_jax.config import Config, Grid, replace
from experiments import shakespeare

SEEDS = 3
FACTORS = (1, 2, 4, 8)
WINDOWS = 64
"""Windows in which weights and activations are measured."""
SINK = 0.3
"""The mean weight of the first token from which on a head has a sink."""
VARIANTS: dict[str, dict] = {
    "softmax": {},
    "output gate": {"output_gate": True, "mlp_dim": 448},
    "sigmoid": {"normalizer": "sigmoid(-4.852)"},  # -log 128
    "learned sink": {"normalizer": "learned_sink"},
    "softpick": {"normalizer": "softpick"},
    "SSMax": {"normalizer": "ssmax"},
    "learned entmax": {"normalizer": "learned_entmax"},
    "stick-breaking": {"normalizer": "stick_breaking", "position_embedding": "none"},
    "ALiBi": {"position_embedding": "alibi"},
    "forget gate": {"bias": "forget", "position_embedding": "none"},
    "contextual positions": {"bias": "cope", "position_embedding": "none", "mlp_dim": 504},
    "QK norm, soft cap": {"normalize_qk": True, "score": "soft_cap(50)"},
    "differential": {"differential": True},
    "exclusive": {"exclusive": True},
    "value residual": {"value_residual": True},
    "value embeddings": {"value_embeddings": True, "mlp_dim": 480},
    "attention residuals": {"attention_residuals": True},
    "differential 2": {"differential_v2": True, "mlp_dim": 448},
    "output gate, exclusive": {"output_gate": True, "exclusive": True, "mlp_dim": 448},
    "value residual, forget gate": {"value_residual": True, "bias": "forget", "position_embedding": "none"},
}
"""The lines that change: the options of the model that differ from the first one's."""


def config() -> Config:
    sizes = {"data.sequence_length": 128, "model.position_embedding": "rotary"}
    train = {"train.batch_size": 8, "train.max_steps": 1_000}
    return replace(shakespeare.config(), name="attention_variants", **sizes, **train)


def smoke() -> Config:
    small = {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.mlp_dim": 16}
    short = {"data.sequence_length": 8, "data.overlap": 1, "train.max_steps": 2, "train.steps_per_call": 2}
    return replace(config(), **small, **short)


def variants() -> dict[str, Config]:
    with_prefix = lambda options: {f"model.{name}": value for name, value in options.items()}
    return {name: replace(config(), **with_prefix(options)) for name, options in VARIANTS.items()}


def study(config: Config, directory: Path) -> dict:
    """Train, then measure the loss at all lengths, the attention, the residual stream and the cost."""
    from attention_jax import tasks
    from attention_jax.train.loop import train_one
    from experiments.length_extrapolation import loss_on_windows

    task = tasks.build(config)
    run, params = train_one(task, config.optim, config.train, directory)
    longer = {n: loss_on_windows(task, params, n * config.data.sequence_length) for n in FACTORS[1:]}
    loss = {1: run.history[-1]["valid.loss"]} | longer
    metrics = {f"valid.loss_{n}x": value for n, value in loss.items()}
    metrics |= {f"valid.loss_{n}x_less_1x": loss[n] - loss[1] for n in FACTORS[1:]}
    return metrics | attention_numbers(task, params) | training_cost(task, config)


def attention_numbers(task, params) -> dict[str, float]:
    """What the heads attend to and how large activations are, in validation windows of the trained length."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attention_jax import interpret

    rows = task.data.held_out["valid"]
    rows = rows[:: max(len(rows) // WINDOWS, 1)][:WINDOWS]  # [B, T + 1]
    batch = {"tokens": rows, "weight": np.ones(len(rows), np.float32)}
    statistics = jax.jit(task.attention_statistics)(params, batch, jax.random.key(0))  # {layer: [H, 3]}
    _, entropy, first = np.concatenate([*statistics.values()]).T  # [layers H] each
    trace = interpret.trace(task.model, params, rows[:, :-1], sites=("*.weights", "decoder.*residual_out"))
    allowed = np.tril(np.ones((rows.shape[1] - 1,) * 2, bool))  # [T, T]
    zeros = [jnp.mean(x[..., allowed] == 0) for site, x in trace.items() if site.endswith("weights")]
    streams = [x for site, x in trace.items() if site.endswith("residual_out")]
    return {
        "attention.first_token": float(first.mean()),
        "attention.sink_rate": float((first > SINK).mean()),
        "attention.entropy": float(entropy.mean()),
        "attention.zeros": float(np.mean(zeros)),
        "stream.largest": max(float(jnp.abs(x).max()) for x in streams),
        "stream.kurtosis": max(float(kurtosis(x)) for x in streams),
    }


def kurtosis(x):
    """E (x - m)^4 / (E (x - m)^2)^2 over all numbers of an array: 3 of a normal distribution."""
    centered = x - x.mean()
    return (centered**4).mean() / (centered**2).mean() ** 2


def training_cost(task, config: Config) -> dict[str, float]:
    """Parameters, and temporary memory of the compiled training step."""
    import jax
    import numpy as np

    from attention_jax.train.optimizer import optimizer
    from attention_jax.train.placement import Program
    from attention_jax.train.step import init_state

    update = optimizer(config.optim, config.train.max_steps)
    state = init_state(task.init, update, config.train.seed)
    indices = np.arange(10 * config.train.batch_size).reshape(10, -1)  # [K, B], of ten steps
    weight = np.ones(indices.shape, np.float32)
    compiled = Program(task.loss, update).compiled.lower(state, task.buckets[0], indices, weight).compile()
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    return {"cost.parameters": parameters, "cost.temporary_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20}


def figure(recorded: dict[str, list[dict]], path: Path) -> Path | None:
    """Validation loss of each variant in windows of all lengths; None without a run."""
    from attention_jax.report.curves import bars

    names = [name for name in VARIANTS if name in recorded]
    losses = lambda n: [[run["metrics"][f"valid.loss_{n}x"] for run in recorded[name]] for name in names]
    series = {f"{128 * n} characters": losses(n) for n in FACTORS}
    return bars(names, series, path, xlabel="validation loss (nats)", dots=True, inputs=series) if names else None


def change(options: dict) -> str:
    """The options of a variant as flags of the command line."""
    argument = lambda value: f' "{value}"' if "(" in str(value) else "" if value is True else f" {value}"
    flags = [f"--model.{name.replace('_', '-')}{argument(value)}" for name, value in options.items()]
    return f"`{' '.join(flags)}`" if flags else "-"


TABLE = {
    "loss": "valid.loss_1x",
    "at 8 times the length, more": "valid.loss_8x_less_1x",
    "first token": "attention.first_token",
    "memory of a step, MiB": "cost.temporary_mib",
}
MORE = {
    "loss, 2 times": "valid.loss_2x",
    "loss, 4 times": "valid.loss_4x",
    "loss, 8 times": "valid.loss_8x",
    "sink rate": "attention.sink_rate",
    "entropy": "attention.entropy",
    "zeros": "attention.zeros",
    "largest activation": "stream.largest",
    "kurtosis": "stream.kurtosis",
    "parameters": "cost.parameters",
}
CHANGES = {name: change(options) for name, options in VARIANTS.items()}
GRIDS = (
    Grid(
        "Variants, with the options that change",
        TABLE,
        tuple(VARIANTS),
        texts={"the line that changes": CHANGES},
    ),
    Grid("Other lengths, attention and activations", MORE, tuple(VARIANTS)),
)
