"""A GRU of 32 units writes The Time Machine, as in Dive into Deep Learning.

Chapter: training theory
Source: Dive into Deep Learning 10.2; perplexities decoded from the curves in the published notebooks
Data: The Time Machine; `--data.path timemachine.txt.gz` reads the published file
Command: python launch.py reproduce time_machine_gru
Cost: 3.6 minutes

The model reads windows of 32 characters, 10,000 to train and 5,000 to validate, in batches of 1,024. SGD has a learning
rate of 4, and gradients are clipped to norm 1. The number is the validation perplexity after the last epoch, as the
book plots it. The book prints two implementations. From scratch the GRU has 6.74 in PyTorch, 6.86 in TensorFlow, 6.68
in JAX and 6.75 in MXNet; with the library's layer 6.55 in PyTorch, 6.58 in MXNet, 7.27 in JAX and 9.74 in TensorFlow.
The last is an error of the book: its layer lacks `time_major`, so it scans the batch instead of the characters, and
learns what a table of bigrams knows (9.6). Ours is the library's layer of PyTorch: its reset gate comes after the
product, and all weights start uniform; the other two gates have one bias vector each, where PyTorch's have two.
"two biases, mean of batches" (`time_machine_rnn`) differs from PyTorch in neither the biases nor the mean.

Each of these numbers is one run. The PyTorch notebook was run eleven times between July 2022 and August 2023 (in the
history of d2l-ai/d2l-pytorch-colab); the library's layer has 6.31 to 6.75, 6.65 in the median. The plotted perplexity
is the mean over five batches, ours that of the mean loss: weights with 6.629 here have 6.658 there. The JAX edition
sets a norm for clipping, but its training loop does not clip; its layer has 6.74 to 9.13 in five runs.

"better" has the same data, 128 units, dropout and Adam. It ends with its best epoch, chosen on the validation windows
whose perplexity is reported.
"""

from attention_jax.config import (
    Config,
    Optim,
    RecurrentLanguageModelConfig,
    TimeMachine,
    Train,
    replace,
)
from experiments.time_machine_rnn import NOTEBOOK, PYTORCH

SEEDS = 3


def config() -> Config:
    return Config(
        "time_machine_gru",
        TimeMachine(),
        RecurrentLanguageModelConfig("gru", 32),
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
    return {
        "d2l": config(),
        "better": replace(config(), **model | optim | train),
        NOTEBOOK: replace(config(), **PYTORCH),
    }


def smoke() -> Config:
    return replace(config(), **{"data.train_windows": 512, "data.valid_windows": 100, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "0.5..8:log", "model.hidden_size": "32,64,128"}
