"""What the classifier of a ViT should read: class token, mean of the tokens, or attention pooling.

Chapter: vision
Source: Dive into Deep Learning, 11.8, exercise 2, whose answer is not published; attention pooling: Hassani et al.
  2021, section 3.2
Data: Fashion-MNIST, 28 x 28
Command: python launch.py reproduce pooling --data.path DIR
Cost: 3 minutes

The model is small (patches of 7, 2 layers of width 64), so that each kind of pooling is trained with three seeds, and
token and mean with three more in the replication. Accuracy is that of the last epoch on the test images; nothing is
chosen on them. Class token and mean differ by less than 0.01.
"""

from attention_jax.config import Config, Grid, Images, Optim, Train, ViTConfig, replace

SEEDS = 3
POOLS = ("token", "mean", "attention")


def config() -> Config:
    return Config(
        "pooling",
        Images("fashion_mnist", standardize=True),
        ViTConfig(patch_size=7, hidden_size=64, mlp_dim=128, num_layers=2, num_heads=4, dropout=0.1),
        Optim(
            "adamw", learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=200, weight_decay=0.05, clip_norm=1.0
        ),
        Train(batch_size=128, total_epochs=5, best_metric="train.loss"),
    )


def variants() -> dict[str, Config]:
    return {pool: replace(config(), **{"model.pool": pool}) for pool in POOLS}


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.examples": 128}
    return replace(
        config(),
        **data,
        **{"model.patch_size": 2, "model.num_layers": 1, "model.pool": "attention", "train.total_epochs": 1},
    )


def sweep() -> dict[str, str]:
    return {"model.pool": "token,mean,attention", "optim.learning_rate": "3e-4..3e-3:log"}


GRIDS = (Grid("After 5 epochs", {"test accuracy": "test.accuracy"}, POOLS),)
