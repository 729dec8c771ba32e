"""A GRU of 32 units writes The Time Machine, as in Dive into Deep Learning.

Chapter: training theory
Source: Dive into Deep Learning 10.2: perplexity 6.68 to 6.86 over its own two implementations, re-run
Data: The Time Machine; `--data.path timemachine.txt.gz` reads the published file
Command: python launch.py reproduce time_machine_gru
Cost: about 1 minute a seed on 2 cores

Windows of 32 characters, 10,000 to train and 5,000 to validate, batches of 1,024, SGD with learning rate 4, gradients
clipped to norm 1. "better" is the same data with 128 units, dropout and Adam, ending with its best epoch.
"""

from attention_jax.config import Claim, Config, Optim, RecurrentLanguageModel, TimeMachine, Train, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "time_machine_gru",
        TimeMachine(),
        RecurrentLanguageModel("gru", 32),
        Optim("sgd", learning_rate=4.0, clip_norm=1.0),
        Train(batch_size=1_024, total_epochs=50, steps_per_call=10, best_metric="valid.perplexity"),
    )


def variants() -> dict[str, Config]:
    model = {"model.hidden_size": 128, "model.dropout": 0.5}
    optim = {
        "optim.name": "adamw",
        "optim.learning_rate": 5e-3,
        "optim.weight_decay": 0.05,
        "optim.schedule": "warmup_cosine",
    }
    train = {"train.batch_size": 256, "train.total_epochs": 12, "train.use_best": True}
    return {"d2l": config(), "better": replace(config(), **model | optim | train)}


def smoke() -> Config:
    return replace(config(), **{"data.train_windows": 512, "data.valid_windows": 100, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "0.5..8:log", "model.hidden_size": "32,64,128"}


CLAIMS = (
    Claim(
        "validation perplexity",
        "valid.perplexity",
        6.86,
        "d2l 10.2, re-run",
        variant="d2l",
        at_least=6.48,
        at_most=7.07,
    ),
    Claim(
        "validation perplexity, better settings",
        "valid.perplexity",
        None,
        "aim",
        variant="better",
        best=True,
        at_most=6.68,
        beaten=6.0,
    ),
)
