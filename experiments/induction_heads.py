"""Induction heads: two attention layers learn bigram statistics in context, close to the Bayes optimum; one does not.

Chapter: theory of attention
Source: Edelman et al. 2024 (arXiv 2402.11004), figure 1; Olsson et al. 2022 (arXiv 2209.11895)
Data: generated; sequences of 101 states of random chains of 3 states, the rows of their matrices uniform (Dirichlet)
Command: python launch.py reproduce induction_heads
Cost: 3.3 minutes

Each sequence has a chain of its own, so its transitions can only be learned while it is read. The best prediction is
the posterior mean, (n(i, j) + 1) / (n(i) + 3) after a state i: it costs 0.894 nats a state on the validation sequences.
A prediction that counts the states but not their order, (n(j) + 1) / (t + 3), costs 0.121 more. The first layer tells
each position which state preceded it, the second attends to the positions that follow the present state: an
induction head. This takes both layers, so a model with two layers first stays where one layer ends, at the count of
states, and then drops towards the bound. Of six seeds five end 0.012 to 0.017 nats above it; seed 1001 leaves the
plateau only in epochs 12 and 13 and ends 0.034 above. Width 32, one head. The model is that of the last epoch: nothing
is selected.
"""

from pathlib import Path

from attention_jax.config import Config, LanguageModelConfig, MarkovChains, Optim, Train, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "induction_heads",
        MarkovChains(num_states=3, sequence_length=100, train_windows=3_200),
        LanguageModelConfig(num_layers=2, hidden_size=32, num_heads=1, mlp_dim=32, dropout=0.0, attention_dropout=0.0),
        Optim("adam", learning_rate=5e-3, schedule="warmup_cosine", warmup_steps=50, clip_norm=1.0),
        Train(batch_size=32, total_epochs=16, steps_per_call=50),
    )


def smoke() -> Config:
    small = {"data.sequence_length": 16, "data.train_windows": 64, "data.valid_windows": 32}
    return replace(config(), **small, **{"model.hidden_size": 8, "model.mlp_dim": 8, "train.total_epochs": 2})


def variants() -> dict[str, Config]:
    return {"two layers": config(), "one layer": replace(config(), **{"model.num_layers": 1})}


def sweep() -> dict[str, str]:
    return {"model.num_layers": "1,2,3", "model.num_heads": "1,2", "optim.learning_rate": "3e-3..2e-2:log"}


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """Loss above the Bayes-optimal one, epoch by epoch; the dashed line is that of the unigram baseline."""
    from attention_jax.report.curves import lines

    series, unigram = {}, 0.0
    for name, runs in recorded.items():
        above = [[row["valid.loss_less_bigram"] for row in run["history"]] for run in runs]
        series[name] = ([row["epoch"] for row in runs[0]["history"]], above)
        unigram = above[0][-1] - runs[0]["history"][-1]["valid.loss_less_unigram"]
    axes = {"xlabel": "epoch", "ylabel": "loss above Bayes (nats)"}
    return lines(series, path, **axes, reference={"unigram baseline": unigram}, inputs=series)
