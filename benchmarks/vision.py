"""`python launch.py bench vision`: a training step of d2l's Vision Transformer, ours and a simple PyTorch one.

Both: 128 gray images of 28 x 28 pixels resized to 96, patches of 16, width 512, feed-forward 2,048, 8 heads, 2 layers,
dropout 0.1, plain SGD (Zhang et al., "Dive into Deep Learning", 11.8). Ours is the compiled call of the training loop,
so it also resizes and gathers its batches; PyTorch gets resized images. Also printed: the rate of a large matmul on
this machine, the fraction of it that our step reaches, and the cost of the input pipeline.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config
from attention_jax.config import Images, Optim
from attention_jax.models.vit import ViT
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.tasks.vision import Preparation
from attention_jax.train.optimizer import optimizer
from benchmarks._rounds import alternate, compare, import_torch, training

BATCH, SIZE, PATCH, WIDTH, MLP, HEADS, LAYERS, CLASSES = 128, 96, 16, 512, 2048, 8, 2, 10
TOKENS = (SIZE // PATCH) ** 2 + 1
STEPS = 2
"""Training steps per call."""


def jax_program(image, label):
    """(a function that makes STEPS training steps, a function that only prepares STEPS batches)."""
    options = config.ViTConfig(PATCH, WIDTH, MLP, LAYERS, HEADS, use_bias=False, dropout=0.1, attention_dropout=0.1)
    model, preparation = ViT(options, CLASSES, SIZE), Preparation(Images(), SIZE)

    def loss(params, batch, rng):
        rng, dropping = jax.random.split(rng)
        x = preparation.augment(rng, batch["image"])
        logits, _ = model.apply(params, x, train=True, rngs={"dropout": dropping})
        return *masked_cross_entropy(logits, batch["label"], batch["weight"]), {}

    sgd = optimizer(Optim("sgd", learning_rate=0.1), 1)
    init = lambda rng: model.init(rng, preparation.for_evaluation(image[:1]))
    rows = np.tile(np.arange(BATCH, dtype=np.int32), (STEPS, 1))
    prepare = jax.jit(lambda image, rows: jax.lax.map(lambda r: preparation.augment(jax.random.key(0), image[r]), rows))
    run = training(loss, sgd, init, {"image": image, "label": label}, rows, STEPS)
    return run, lambda: prepare(image, rows).block_until_ready()


def torch_program(torch, image, label):
    """The same step with PyTorch's modules, scaled_dot_product_attention, autograd and torch.optim.SGD, eager."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.mlp = nn.Sequential(
                nn.Linear(WIDTH, MLP), nn.GELU(), nn.Dropout(0.1), nn.Linear(MLP, WIDTH), nn.Dropout(0.1)
            )

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).reshape(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
            x = x + self.out(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(1, WIDTH, PATCH, PATCH)
            self.token, self.positions = (
                nn.Parameter(torch.zeros(1, 1, WIDTH)),
                nn.Parameter(torch.randn(1, TOKENS, WIDTH) * 0.02),
            )
            self.layers = nn.Sequential(nn.Dropout(0.1), *(Layer() for _ in range(LAYERS)))
            self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
            return self.head(self.layers(x)[:, 0])

    model = Model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.from_numpy(np.array(image[:BATCH], np.float32) / 255).permute(0, 3, 1, 2)
    x = functional.interpolate(x, (SIZE, SIZE), mode="bilinear").contiguous()
    y = torch.from_numpy(np.array(label[:BATCH])).long()

    def run():
        for _ in range(STEPS):
            sgd.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            sgd.step()

    return run


def main(anyway: bool = False) -> dict[str, list[float]]:
    """Measure, print the table, and return the seconds per step of every round.

    Args:
        anyway: Print ratios even where other processes or the spread of the rounds make them meaningless.
    """
    torch = import_torch()
    draw = np.random.default_rng(0).integers
    image = jnp.asarray(draw(256, size=(1024, 28, 28, 1)).astype(np.uint8))
    label = jnp.asarray(draw(CLASSES, size=1024).astype(np.int32))
    train, prepare = jax_program(image, label)
    programs = {f"torch {torch.__version__.split('+')[0]}": torch_program(torch, image, label), "attention_jax": train}
    title = f"d2l Vision Transformer, a training step of {BATCH} images"
    seconds = compare(title, programs, BATCH, "images", steps=STEPS, rounds=6, anyway=anyway)
    pipeline = np.median(alternate({"input": prepare}, rounds=5, calls=2)["input"]) / STEPS
    print(
        f"input pipeline (sample, resize to {SIZE} pixels): {1e3 * pipeline:.1f} ms, "
        f"{100 * pipeline / np.median(seconds['attention_jax']):.1f} % of the step"
    )
    return seconds
