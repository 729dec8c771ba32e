"""Vision Transformer on scikit-learn's digits: real images of 8 x 8 pixels, no download.

Chapter: vision
Claim: none is published; at least 0.96 is asked of it. The nearest neighbour (Euclidean) has 0.992 on this split:
with 1,438 images a Transformer, which has to learn what a neighbouring pixel is, does not beat it. The experiment is
there because it runs anywhere.
Source: this project; the data are scikit-learn's digits (Alpaydin and Kaynak 1998)
Data: 1,438 training and 359 test images that come with scikit-learn.
Command: python launch.py reproduce vit_digits
Cost: 1,380 steps, under a minute a seed on 2 CPU cores.

Your own images: `classify_images`.
"""

from attention_jax.config import Claim, Config, Images, Optim, Train, Vit, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "vit_digits",
        Images(standardize=True),
        Vit(patch_size=2, hidden_size=64, mlp_size=128, layers=4, heads=4, dropout=0.1),
        Optim("adamw", learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=60, weight_decay=0.05),
        Train(batch_size=64, total_epochs=60, best_metric="test.loss"),
    )


def smoke() -> Config:
    return replace(config(), **{"train.total_epochs": 2, "data.examples": 256, "model.layers": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.patch_size": "2,4", "model.dropout": "0..0.3"}


CLAIMS = (Claim("small ViT learns digits from 1,438 images", "test.accuracy", None, "this repository", at_least=0.96),)
