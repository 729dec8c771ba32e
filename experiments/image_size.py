"""How the cost of a ViT grows with the image: a measured exponent.

Chapter: vision
Source: Zhang et al., Dive into Deep Learning, 11.8, exercise 1: how does `img_size` affect training time?
Data: random images; the time of a step does not depend on what is in them
Command: python launch.py reproduce image_size
Cost: 0.76 minutes

With patches of 16 pixels the number of tokens is (size / 16)^2. So the operations of a step grow with size^2 as long as
the products with the weights dominate, and with size^4 once the T x T attention does: an exponent between 2 and 4. The
study times d2l's ViT (vit_fashion_mnist) at sizes of 32 to 256 pixels: a training step of `train.batch_size`
images, the fastest of five after compilation. The exponent is the slope of log(time) against log(size), by least
squares over the larger half of the sizes. It holds for the machine it was measured on.
"""

import time
from pathlib import Path

import numpy as np

from attention_jax.config import Config, Grid, Images, Optim, Train, ViTConfig, replace

SIZES = (32, 64, 96, 128, 192, 256)


def config() -> Config:
    model = ViTConfig(
        patch_size=16,
        hidden_size=512,
        mlp_dim=2048,
        num_layers=2,
        num_heads=8,
        use_bias=False,
        dropout=0.1,
        attention_dropout=0.1,
    )
    return Config("image_size", Images(pixels=max(SIZES)), model, Optim("sgd", learning_rate=0.1), Train(batch_size=64))


def smoke() -> Config:
    return replace(config(), **{"data.pixels": 64, "model.hidden_size": 32, "model.mlp_dim": 64, "train.batch_size": 4})


def step_seconds(config: Config, size: int) -> float:
    """The fastest of five training steps at `size` pixels."""
    from functools import partial

    import jax
    import jax.numpy as jnp

    from attention_jax.ops.losses import masked_cross_entropy
    from attention_jax.tasks import build_model
    from attention_jax.train.optimizer import optimizer
    from attention_jax.train.step import gradient_sums, init_state, train_step

    model = build_model(config, 10, size)
    update = optimizer(config.optim, 1)
    count = config.train.batch_size
    batch = {
        "image": jax.random.uniform(jax.random.key(0), (count, size, size, 1)),
        "label": jnp.zeros(count, jnp.int32),
    }

    def loss(params, batch, rng):
        logits, _ = model.apply({"params": params}, batch["image"], train=True, rngs={"dropout": rng})
        return *masked_cross_entropy(logits, batch["label"], jnp.ones_like(batch["label"], jnp.float32)), {}

    state = init_state(jax.jit(lambda rng: model.init(rng, batch["image"][:1])["params"]), update, config.train.seed)
    gradients, rows = partial(gradient_sums, loss, 1), (jnp.arange(count), jnp.ones(count))
    step = jax.jit(lambda state: train_step(gradients, update, batch, state, rows))
    jax.block_until_ready(step(state))
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(step(state))
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def study(config: Config, directory) -> dict:
    """{"ms_SIZE": milliseconds a step, "exponent": slope of log time over log size}."""
    sizes = [size for size in SIZES if size <= config.data.pixels]
    seconds = [step_seconds(config, size) for size in sizes]
    half = len(sizes) // 2 if len(sizes) > 3 else 0
    slope = np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0]
    return {f"ms_{size}": round(1e3 * s, 3) for size, s in zip(sizes, seconds)} | {"exponent": round(float(slope), 3)}


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """Milliseconds a training step against the size of the image, beside size^2."""
    from attention_jax.report.curves import lines

    runs = [run["metrics"] for run in recorded[""]]
    milliseconds = [[metrics[f"ms_{size}"] for size in SIZES] for metrics in runs]
    largest, slope = (float(np.median([metrics[name] for metrics in runs])) for name in (f"ms_{SIZES[-1]}", "exponent"))
    series = {
        f"measured, slope {slope:.2f} from 128 pixels on": (SIZES, milliseconds),
        "size^2": (SIZES, [largest * (size / SIZES[-1]) ** 2 for size in SIZES]),
    }
    axes = {"xlabel": "image size (pixels)", "ylabel": "milliseconds per training step"}
    return lines(series, path, **axes, log="xy", inputs=series)


GRIDS = (Grid("Milliseconds a training step", {f"{size} pixels": f"ms_{size}" for size in SIZES}, ("",)),)
