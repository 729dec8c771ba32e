"""A ViT and a ResNet of equal size on Fashion-MNIST, each at the learning rate that validation images choose.

Chapter: vision
Source: Dive into Deep Learning 11.8.6: on Fashion-MNIST its ViT does not outperform the ResNet-18 of section 8.6, 0.861
  and 0.903 after 10 epochs (PyTorch; 0.866 and 0.907 in JAX), decoded from the notebooks' curves
Data: Fashion-MNIST, 28 x 28: 55,000 images train, 5,000 validate, 10,000 test
Command: python launch.py reproduce vit_resnet_fashion_mnist --data.path DIR
Cost: 28 minutes

The book's pair has 6.5 and 11.2 million parameters, reads images of 96 x 96 and trains with SGD, the ViT at a rate of
0.1 and the ResNet at 0.01. Here both read 28 x 28 for 5 epochs with AdamW, and their sizes are within 3 % of each
other: 80,330 parameters in a ViT of two layers of width 64 on patches of 4 pixels, and 78,202 in a ResNet of three
stages of 16, 32 and 64 channels, one block each, behind the book's 7 x 7 stem. Both work on 7 x 7 positions at first. A
run trains its model once at each of three learning rates, keeps the one with the best accuracy on the validation images
after the last epoch, and tests that one alone.

Three seeds (1001 to 1003, AMD EPYC, 2026-11-24) give the ViT 0.870, 0.871 and 0.872 and the ResNet 0.905, 0.903 and
0.901 on the test images, so the ResNet is ahead by 0.03 to 0.035, in the book by 0.042 (by 0.041 to 0.060 in ten runs
of its PyTorch and JAX notebooks from December 2022 to August 2023). Every ViT was chosen at the rate 0.003, every
ResNet at 0.01, the largest of the three, so that a higher rate may still gain something.
"""

from attention_jax.config import Config, Grid, Images, Optim, Train, ViTConfig, replace
from experiments.papers.options import ResNetConfig

SEEDS = 3
RATES = (1e-3, 3e-3, 1e-2)


def config() -> Config:
    return Config(
        "vit_resnet_fashion_mnist",
        Images("fashion_mnist", standardize=True, validation=5_000),
        ViTConfig(patch_size=4, hidden_size=64, mlp_dim=160, num_layers=2, num_heads=4, dropout=0.1),
        Optim("adamw", schedule="warmup_cosine", warmup_steps=200, weight_decay=0.05, clip_norm=1.0),
        Train(batch_size=128, total_epochs=5, best_metric="valid.accuracy"),
    )


def variants() -> dict[str, Config]:
    resnet = ResNetConfig(widths=(16, 32, 64), blocks_per_stage=1, stem="large", num_groups=8)
    return {"vit": config(), "resnet": replace(config(), model=resnet)}


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.examples": 128, "data.validation": 64}
    return replace(config(), **data, **{"model.patch_size": 2, "model.num_layers": 1, "train.total_epochs": 1})


def study(config: Config, directory) -> dict:
    """Train at each learning rate; test the one that is best on the validation images."""
    from attention_jax import tasks
    from attention_jax.train.loop import train_one

    task, accuracy, trained = tasks.build(config), {}, {}
    for rate in RATES:
        optim = replace(config.optim, learning_rate=rate)
        run, trained[rate] = train_one(task, optim, config.train, directory / f"learning_rate_{rate}")
        accuracy[rate] = run.history[-1]["valid.accuracy"]
    best = max(RATES, key=accuracy.get)
    metrics = {f"valid.accuracy_{rate}": value for rate, value in accuracy.items()} | {"learning_rate": best}
    return task.evaluate(trained[best], True).metrics | metrics | {"parameters": task.describe()["parameters"]}


GRIDS = (
    Grid(
        "The learning rate that validation chose",
        {
            "learning rate": "learning_rate",
            "validation accuracy": "valid.accuracy",
            "test accuracy": "test.accuracy",
            "parameters": "parameters",
        },
        ("vit", "resnet"),
    ),
)
