"""Compact Convolutional Transformer CCT-2/3x2 on CIFAR-10, from scratch.

Chapter: vision
Claim: 89.17 % on the test set with 0.284 M parameters after 200 epochs.
Source: Hassani et al. 2021, "Escaping the Big Data Paradigm with Compact Transformers", table of results on CIFAR-10.
Data: CIFAR-10, 50,000 and 10,000 images.
Command: python launch.py reproduce cct_cifar10 --data.path DIR   (DIR: the binary version's six .bin files, read once)
Cost: "5 epochs": 19 minutes on one CPU core, other work beside it; "200 epochs", 78,200
  steps: half a day, not run here.

The recipe of the authors' example script: AutoAugment's CIFAR-10 policy, random crops with 4 pixels of padding, flips,
label smoothing 0.1, AdamW with weight decay 0.03, learning rate 5e-4 with 5 epochs of warm-up and cosine decay,
attention dropout 0.1, stochastic depth 0.1. The published number is the best epoch's on the test images; so is the one
in the claim "best epoch", while "last epoch" selects nothing.
"""

from attention_jax.config import Cct, Claim, Config, Images, Optim, Train, replace


def config() -> Config:
    return Config(
        "cct_cifar10",
        Images("cifar10", standardize=True, crop_padding=4, flip=True, auto_augment=True),
        Cct(),
        Optim("adamw", learning_rate=5e-4, schedule="warmup_cosine", warmup_steps=5 * 391, weight_decay=0.03),
        Train(
            batch_size=128,
            total_epochs=200,
            steps_per_call=128,
            best_metric="test.accuracy",
            label_smoothing=0.1,
            matmul_precision="bfloat16",
        ),
    )


def variants() -> dict[str, Config]:
    short = {
        "train.total_epochs": 5,
        "data.auto_augment": False,
        "optim.warmup_steps": 391,
        "optim.learning_rate": 1e-3,
    }
    return {"5 epochs": replace(config(), **short), "200 epochs": config()}


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.examples": 64, "data.auto_augment": False}
    return replace(config(), **data, **{"model.hidden_size": 16, "train.total_epochs": 1, "train.batch_size": 32})


def sweep() -> dict[str, str]:
    return {
        "optim.learning_rate": "2e-4..2e-3:log",
        "optim.weight_decay": "0.01..0.1:log",
        "model.stochastic_depth": "0..0.2",
    }


PUBLISHED = "Hassani et al. 2021, CCT-2/3x2, 200 epochs"
CLAIMS = (
    Claim(
        "CCT-2/3x2, best epoch",
        "test.accuracy",
        0.8917,
        PUBLISHED,
        variant="200 epochs",
        best=True,
        at_least=0.885,
        beaten=0.8922,
    ),
    Claim(
        "CCT-2/3x2, last epoch", "test.accuracy", 0.8917, PUBLISHED, variant="200 epochs", at_least=0.885, beaten=0.8922
    ),
    Claim(
        "CCT-2/3x2 after 5 epochs, without AutoAugment", "test.accuracy", None, "this repository", variant="5 epochs"
    ),
)
