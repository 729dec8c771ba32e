"""Vision Transformer on scikit-learn's digits: real images of 8 x 8 pixels, no download.

Chapter: vision
Source: this project; the data are scikit-learn's digits (Alpaydin and Kaynak 1998)
Data: 1,438 training and 359 test images that come with scikit-learn
Command: python launch.py reproduce vit_digits
Cost: 2.1 minutes

No number is published for this split; our aim is a test accuracy of 0.96 after the last epoch. The nearest neighbor
(Euclidean) has 0.992: with 1,438 images a Transformer, which has to learn what a neighboring pixel is, does not beat
it. The experiment is there because it runs anywhere. Nothing is chosen on the test images; `--data.validation 200`
holds out training images for a sweep. For your own images there is `classify_images`.
"""

from attention_jax.config import Config, Images, Optim, Train, ViTConfig, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "vit_digits",
        Images(standardize=True),
        ViTConfig(patch_size=2, hidden_size=64, mlp_dim=128, num_layers=4, num_heads=4, dropout=0.1),
        Optim("adamw", learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=60, weight_decay=0.05),
        Train(batch_size=64, total_epochs=60, best_metric="train.loss"),
    )


def smoke() -> Config:
    return replace(config(), **{"train.total_epochs": 2, "data.examples": 256, "model.num_layers": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.patch_size": "2,4", "model.dropout": "0..0.3"}
