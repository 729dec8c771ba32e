"""The Vision Transformer of "Dive into Deep Learning" on Fashion-MNIST.

Chapter: vision
Source: Zhang, Lipton, Li and Smola, Dive into Deep Learning, section 11.8.6: test accuracy 0.861 (PyTorch) and 0.866
  (JAX) after 10 epochs, decoded from the notebooks' curves; the model is that of Dosovitskiy et al. 2021
Data: Fashion-MNIST, 60,000 and 10,000 images, resized to 96 x 96
Command: python launch.py reproduce vit_fashion_mnist --data.path DIR   (DIR: the four published .gz files, read once)
Cost: 61 minutes

Patches of 16, width 512, feed-forward 2,048, 8 heads without biases, 2 blocks, dropout 0.1, SGD at 0.1, batches of 128,
pixels from 0 to 1, no augmentation. As in the book, accuracy is measured on the test images after every epoch, and that
of the last epoch is reported, and no epoch is chosen. The settings are the book's but for the initial values, in which
its editions differ from each other, too: position embeddings have a deviation of 0.02 here, 1 in PyTorch and 0.01 in
JAX.

Both published numbers are one run. Five runs of each notebook from December 2022 to August 2023 (in the histories of
d2l-ai/d2l-pytorch-colab and d2l-jax-colab) have 0.842 to 0.862 in PyTorch and 0.860 to 0.869 in JAX. They plot the mean
over 79 batches, the last of which has 16 images that count as much as 128.
"""

from attention_jax.config import Config, Images, Optim, Train, ViTConfig, replace


def config() -> Config:
    return Config(
        "vit_fashion_mnist",
        Images("fashion_mnist", pixels=96),
        ViTConfig(
            patch_size=16,
            hidden_size=512,
            mlp_dim=2048,
            num_layers=2,
            num_heads=8,
            use_bias=False,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        Optim("sgd", learning_rate=0.1),
        Train(batch_size=128, total_epochs=10, best_metric="train.loss"),
    )


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.pixels": 32, "data.examples": 128}
    return replace(config(), **data, **{"model.hidden_size": 32, "model.mlp_dim": 64, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "0.03..0.3:log", "model.num_layers": "2,4", "model.dropout": "0..0.2"}
