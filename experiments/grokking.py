"""Grokking: modular addition generalizes long after the training set is memorized, with weight decay alone.

Chapter: theory of attention
Source: Power et al. 2022, "Grokking: Generalization Beyond Overfitting on Small Algorithmic Datasets" (arXiv
  2201.02177), figures 1 and 2; Nanda et al. 2023 (arXiv 2301.05217), section 4
Data: generated; half of the 9,409 equations a + b = c modulo 97 train
Command: python launch.py reproduce grokking
Cost: 29 minutes

Two layers of width 128 read "a + b" and classify c. Where a + b trains, b + a trains too, so that the held-out half
cannot be known from the symmetry of what was memorized, only by addition. Without weight decay the table stays a table
(0.1 to 0.7 % of the held-out sums are right, six seeds). With it 99 % of the training sums are known after 200 to 240
steps; of the others at most 0.3 % after 1,000, 0.2 to 1.6 % after 2,000 and 99 % after 2,760 to 3,100: the smaller
circuit wins, which adds angles (Nanda et al.). The embeddings of the numbers are then waves: five of 48 frequencies
have 53 to 76 % of their energy, without decay 12 %. The papers show curves of other operations (division in figure 1 of
Power et al., addition modulo 113 in Nanda et al.), so the bounds are our own.

Training is not quiet after that: the loss jumps now and then, in one replaced run also in the last epoch, and recovers
within a few. So the parameters are those of the epoch that is best on one half of the held-out equations, and the
accuracy that is judged is that on the other half (a first run, judged after its last epoch, had 0.04 there and 0.995
before).
"""

from pathlib import Path

from attention_jax.config import Config, Grid, ModularAddition, Optim, TextClassifierConfig, Train, replace

SEEDS = 3
KEY_FREQUENCIES = 5


def config() -> Config:
    return Config(
        "grokking",
        ModularAddition(),
        TextClassifierConfig(dropout=0.0, attention_dropout=0.0, mlp_dim=512),
        Optim("adamw", learning_rate=1e-3, b2=0.98, weight_decay=1.0),
        Train(batch_size=512, total_epochs=400, save_minutes=0, best_metric="valid.accuracy", use_best=True),
    )


def smoke() -> Config:
    small = {"data.modulus": 7, "model.hidden_size": 8, "model.num_heads": 1, "model.mlp_dim": 8, "model.num_layers": 1}
    return replace(config(), **small, **{"train.total_epochs": 2})


def variants() -> dict[str, Config]:
    return {"weight decay": config(), "none": replace(config(), **{"optim.weight_decay": 0.0})}


def sweep() -> dict[str, str]:
    return {"optim.weight_decay": "0,0.1,1", "data.train_fraction": "0.3,0.4,0.5,0.6"}


def spectrum(table):
    """The share [(p - 1) / 2] of each frequency in the energy of a table of numbers [p, D], its mean left out.

    A table whose rows are cos(2 pi k n / p) and sin(2 pi k n / p), n = 0 to p - 1, in a few directions, has all of its
    energy in the frequency k.
    """
    import numpy as np

    waves = np.fft.rfft(np.asarray(table, np.float64), axis=0)[1:]
    energy = (np.abs(waves) ** 2).sum(1)
    return energy / energy.sum()


def study(config: Config, directory: Path) -> dict:
    """Train, then measure the frequencies of the learned embeddings of the numbers."""
    import numpy as np

    from attention_jax import tasks
    from attention_jax.train.loop import train_one

    task = tasks.build(config)
    _, params = train_one(task, config.optim, config.train, directory)
    numbers = np.array(task.data.vocabulary.encode(task.data.names))
    shares = spectrum(np.asarray(params["embedding"]["token"]["embedding"])[numbers])
    return task.evaluate(params, True).metrics | {"fourier.key_share": float(np.sort(shares)[-KEY_FREQUENCIES:].sum())}


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """Accuracy on training and on held-out equations, step by step."""
    from attention_jax.report.curves import lines

    series = {}
    for variant, runs in recorded.items():
        decay = "no weight decay" if variant == "none" else variant
        steps = [row["step"] for row in runs[0]["history"]]
        for split, name in (("train", "training"), ("valid", "held out")):
            values = [[row[f"{split}.accuracy"] for row in run["history"]] for run in runs]
            series[f"{decay}, {name}"] = (steps, values)
    return lines(series, path, xlabel="step", ylabel="accuracy", log="x", inputs=series)


GRIDS = (
    Grid(
        "After the best epoch",
        {"accuracy": "test.accuracy", "share of five frequencies": "fourier.key_share"},
        variants=("weight decay", "none"),
    ),
)
