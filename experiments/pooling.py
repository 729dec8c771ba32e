"""What the classifier of a ViT should read: class token, mean of the tokens, or attention pooling.

Chapter: vision
Claim: none is published for this data; an exercise of d2l 11.8 asks. Three seeds each.
Source: Dive into Deep Learning, 11.8, exercise 2; attention pooling: Hassani et al. 2021, section 3.2.
Data: Fashion-MNIST, 28 x 28.
Command: python launch.py reproduce pooling --data.path DIR
Cost: nine runs of 5 epochs, 4 minutes on 2 CPU cores.

A small model (patches of 7, 2 layers of 64) so that differences are seen over seeds, not one good number.
"""

from attention_jax.config import Claim, Config, Images, Optim, Train, Vit, replace

SEEDS = 3
POOLS = ("token", "mean", "attention")


def config() -> Config:
    return Config(
        "pooling",
        Images("fashion_mnist", standardize=True),
        Vit(patch_size=7, hidden_size=64, mlp_size=128, layers=2, heads=4, dropout=0.1),
        Optim(
            "adamw", learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=200, weight_decay=0.05, clip_norm=1.0
        ),
        Train(batch_size=128, total_epochs=5, best_metric="test.loss"),
    )


def variants() -> dict[str, Config]:
    return {pool: replace(config(), **{"model.pool": pool}) for pool in POOLS}


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.examples": 128}
    return replace(
        config(),
        **data,
        **{"model.patch_size": 2, "model.layers": 1, "model.pool": "attention", "train.total_epochs": 1},
    )


def sweep() -> dict[str, str]:
    return {"model.pool": "token,mean,attention", "optim.learning_rate": "3e-4..3e-3:log"}


CLAIMS = tuple(Claim(f"pool: {pool}", "test.accuracy", None, "d2l 11.8, exercise 2", variant=pool) for pool in POOLS)
