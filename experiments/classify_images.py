"""Your own images, a directory for each class, classified by a Compact Convolutional Transformer (CCT).

Chapter: your own data
Source: the Compact Convolutional Transformer of Hassani et al. 2021 is made for few images; a ViT: vit_digits
Data: yours, --data.path DIR with class/image.png in it, of any sizes, gray or in color; without one, 8 x 8 digits
Command: python launch.py train classify_images --data.path DIR
Cost: 3 minutes for 200 images; at most 2,000 steps (docs/own_data.md)

Every fifth image of a class tests, unless DIR has train/class/image.png and test/class/image.png. Every fifth of the
training images of a class validates, or `--data.validation N` of all: training ends with the epoch of the best
validation accuracy, which is tested once.
"""

from attention_jax.config import Config, Images, Optim, Train, replace
from experiments.papers.options import CCTConfig


def config() -> Config:
    return Config(
        "classify_images",
        Images("own", pixels=64, standardize=True, crop_padding=4),
        CCTConfig(num_conv_layers=3, hidden_size=128, mlp_dim=256, num_layers=2, num_heads=4),
        Optim("adamw", learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=50, weight_decay=0.05, clip_norm=1.0),
        Train(batch_size=32, total_epochs=60, max_steps=2_000, best_metric="valid.accuracy", use_best=True),
    )


def smoke() -> Config:
    small = {
        "data.examples": 64,
        "data.pixels": 16,
        "model.num_layers": 1,
        "model.hidden_size": 16,
        "model.mlp_dim": 16,
    }
    return replace(config(), **small, **{"train.max_steps": 2})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.num_layers": "1,2,4", "data.pixels": "32,64"}
