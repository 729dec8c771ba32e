"""Image classification: ViT, CCT and ResNet on labelled images that live on the device as bytes."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.data import batches, images
from attention_jax.data.image_files import decode
from attention_jax.models.blocks import Block
from attention_jax.models.cct import Cct
from attention_jax.models.resnet import ResNet
from attention_jax.models.vit import Vit
from attention_jax.ops import augment
from attention_jax.ops.autoaugment import auto_augment
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.ops.metrics import token_accuracy
from attention_jax.report import image_figures as figures
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Task, load_once
from attention_jax.tasks.looking import maps
from attention_jax.train.parallel import over_rows

EVALUATED = 512
"""Images a batch when evaluating."""


def build_model(model, classes: int, image_size: int):
    """The Flax module of a `config.Vit`, `config.Cct` or `config.ResNet`."""
    dtype, kind = jnp.dtype(model.dtype), type(model).__name__
    if kind == "ResNet":
        return ResNet(classes, tuple(model.widths), model.blocks, model.stem, model.groups, model.dropout, dtype)
    if model.hidden_size % model.heads:
        raise InputError(
            f"--model.hidden-size must be a multiple of --model.heads, got {model.hidden_size} and {model.heads}"
        )
    block = Block(
        model.hidden_size, model.heads, model.mlp_size, norm="pre", activation="gelu", positions="none", use_bias=getattr(model, "bias", True),
        dropout=model.dropout, ffn_dropout=model.dropout, attention_dropout=model.attention_dropout, dtype=dtype,
    )  # fmt: skip
    if kind == "Cct":
        return Cct(
            classes,
            image_size,
            block,
            model.layers,
            model.convolutions,
            model.kernel_size,
            model.position,
            model.stochastic_depth,
        )
    options = (model.pool, model.position, model.stochastic_depth, model.shifted)
    return Vit(classes, image_size, model.patch_size, block, model.layers, *options)


def preparation(data, image_size: int, mean, deviation):
    """Two functions from bytes to what a model reads: `vary(rng, images)` for training and `plain(images)`."""

    def plain(x):
        x = augment.resize(augment.unit(x), image_size)
        return x if mean is None else augment.standardize(x, jnp.asarray(mean), jnp.asarray(deviation))

    def vary(rng, x):
        policy, crop, flip, erase = jax.random.split(rng, 4)
        x = auto_augment(policy, x) if data.auto_augment else x
        x = augment.crop(crop, x, data.crop_padding)
        x = plain(augment.flip(flip, x) if data.flip else x)
        return augment.erase(erase, x, data.erase) if data.erase else x

    return vary, plain


def mix(rng, x, data):
    """Mixup or cutmix, or one of the two at random if both are on: (images, partners, shares)."""
    which, rng = jax.random.split(rng)
    options = [
        functools.partial(f, alpha=a) for f, a in ((augment.mixup, data.mixup), (augment.cutmix, data.cutmix)) if a
    ]
    return jax.lax.switch(jax.random.randint(which, (), 0, len(options)), options, rng, x)


def build(config) -> Task:
    """The task of a vision model."""
    data = load_once(images.load, config.data)
    train, names, settings = data.train, data.names, config.data
    size = settings.pixels or train.image.shape[1]
    mean = deviation = None
    if settings.standardize:
        rows = train.image[:10_000].astype(np.float32) / 255
        mean, deviation = rows.mean((0, 1, 2)), np.maximum(rows.std((0, 1, 2)), 1e-3)
    vary, plain = preparation(settings, size, mean, deviation)
    model = build_model(config.model, len(names), size)

    @jax.jit
    def init(rng):
        return model.init(rng, plain(jnp.asarray(train.image[:1])))["params"]

    def loss(params, batch, rng):
        varying, mixing, dropping = jax.random.split(rng, 3)
        x, label, weight = vary(varying, batch["image"]), batch["label"], batch["weight"]
        partner = share = None
        if settings.mixup or settings.cutmix:
            x, partner, share = mix(mixing, x, settings)
        logits, _ = model.apply({"params": params}, x, train=True, rngs={"dropout": dropping})
        entropy = functools.partial(masked_cross_entropy, logits, label_smoothing=config.train.label_smoothing)
        if share is None:
            total = entropy(label, weight)[0]
        else:
            total = entropy(label, weight * share)[0] + entropy(label[partner], weight * (1 - share))[0]
        return total, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

    def classify(params, batch):
        """Probabilities [B, classes] of the classes."""
        return jax.nn.softmax(model.apply({"params": params}, plain(batch["image"]))[0])

    def score_rows(params, batch):
        """Loss and correctness, an image."""
        logits, _ = model.apply({"params": params}, plain(batch["image"]))
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["label"], jnp.ones_like(batch["label"], jnp.float32))
        return {"loss": nats, "accuracy": (logits.argmax(-1) == batch["label"]).astype(jnp.float32)}

    @jax.jit
    def look(params, x):
        """What the model attends to in some images: (probabilities, maps over the image)."""
        logits, seen = model.apply({"params": params}, plain(x), look=True)
        return jax.nn.softmax(logits), maps(seen, prefix=getattr(model, "pool", "") == "token") if seen else {}

    def evaluate(params, full: bool) -> dict:
        """Of the test set; of the validation set instead after an epoch, and as well at the end, if there is one."""
        splits = ["valid"] if "valid" in data.held_out and not full else list(data.held_out)
        rows = {split: over_rows(score_rows, params, data.held_out[split]._asdict(), EVALUATED) for split in splits}
        return {
            f"{split}.{name}": float(values.mean(dtype=np.float64))
            for split, found in rows.items()
            for name, values in found.items()
        }

    def show_attention(params, x, titles, path) -> Path | None:
        probabilities, found = jax.device_get(look(params, x))
        titles = titles or [f"{names[i]} {p[i]:.2f}" for p, i in zip(probabilities, probabilities.argmax(1))]
        return figures.show_attention(x, found, titles, path) if found else None

    def predict(params, texts: list[str], figure: Path | None) -> list[str]:
        """`texts` are paths of image files."""
        mode = "L" if train.image.shape[-1] == 1 else "RGB"
        x = np.stack([decode(path, train.image.shape[1], mode) for path in texts])
        probabilities = over_rows(classify, params, {"image": x}, EVALUATED)
        if figure and show_attention(params, x[: figures.SHOWN], None, Path(figure)) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        best = np.argsort(-probabilities, axis=1)[:, :3]
        return [", ".join(f"{names[i]} {row[i]:.3f}" for i in top) for row, top in zip(probabilities, best)]

    def report(params, directory: Path) -> list[Path]:
        test = data.held_out["test"]
        probabilities = over_rows(classify, params, {"image": test.image}, EVALUATED)
        found = probabilities.argmax(1)
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (test.label, found), 1)
        paths = [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            figures.mistakes(test.image, test.label, probabilities, names, directory / "mistakes.png"),
        ]
        first = np.array([np.argmax(test.label == c) for c in np.unique(test.label)])[: figures.SHOWN]
        titles = [f"{names[test.label[i]]} ({names[found[i]]} {probabilities[i].max():.2f})" for i in first]
        paths.append(show_attention(params, test.image[first], titles, directory / "attention.png"))
        if "positions" in params:
            prefix = int(getattr(model, "pool", "") == "token")
            paths.append(
                figures.position_similarity(np.asarray(params["positions"])[prefix:], directory / "positions.png")
            )
        return [path for path in paths if path]

    def describe() -> dict:
        shapes = jax.eval_shape(init, jax.random.PRNGKey(0))
        parts = {"train_images": len(train.label)} | {
            f"{name}_images": len(split.label) for name, split in data.held_out.items()
        }
        count = sum(x.size for x in jax.tree.leaves(shapes))
        return parts | {
            "classes": len(names),
            "image": f"{size} x {size} x {train.image.shape[-1]}",
            "parameters": count,
        }

    return Task(
        init=init,
        loss=loss,
        buckets=(train._asdict(),),
        plan=lambda epoch, steps_per_call: batches.plan(
            config.train.seed, epoch, [len(train.label)], [config.train.batch_size], steps_per_call
        ),
        evaluate=evaluate,
        report=report,
        predict=predict,
        describe=describe,
    )
