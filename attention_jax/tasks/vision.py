"""Image classification: ViT, CCT and ResNet on labelled images that live on the device as bytes."""

import functools
from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError, config as configs
from attention_jax.data import batches, images
from attention_jax.data.image_files import decode
from attention_jax.data.streams import Stream
from attention_jax.ops import augment
from attention_jax.ops.autoaugment import auto_augment
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.ops.metrics import token_accuracy
from attention_jax.ops.randaugment import rand_augment
from attention_jax.report import image_figures as figures
from attention_jax.report.attended import Answer, Looked
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Evaluation, build_model, initial, load_once
from attention_jax.tasks.looking import image_attentions, with_rollout, without_heads
from attention_jax.tasks.pictures import image_maps, prefix_of
from attention_jax.train.placement import map_batches

EVALUATED = 512
"""Images a batch when evaluating."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """From the bytes of square images to what a model reads."""

    options: configs.Images
    size: int
    """Pixels of a side."""
    mean: np.ndarray | None = None
    """Of each channel, [C], of images in [0, 1]; None leaves them as they are."""
    deviation: np.ndarray | None = None
    cropped: bool = False
    """Training images come as inception crops from whoever reads them."""

    def plain(self, x):
        """For evaluation."""
        return self.scaled(self.seen(x))

    def seen(self, x):
        """What of the images is read, in [0, 1]."""
        return augment.middle(augment.resize(augment.unit(x), self.options.resize_pixels or self.size), self.size)

    def scaled(self, x):
        """Images in [0, 1] in the range that a model reads."""
        return x if self.mean is None else augment.standardize(x, jnp.asarray(self.mean), jnp.asarray(self.deviation))

    def vary(self, rng, x):
        """For training: with what the options say of cropping, flipping, distorting and erasing."""
        options = self.options
        policy, crop, flip, erase = jax.random.split(rng, 4)
        x = auto_augment(policy, x) if options.auto_augment else x
        x = augment.inception_crop(crop, x, self.size) if options.inception_crop and not self.cropped else x
        x = augment.crop(crop, x, options.crop_padding)
        x = augment.flip(flip, x) if options.flip else x
        x = rand_augment(policy, x, options.rand_augment) if options.rand_augment else x
        x = self.scaled(augment.resize(augment.unit(x), self.size))
        return augment.erase(erase, x, options.erase) if options.erase else x

    def mix(self, rng, x):
        """Mixup or cutmix, or one of the two at random if both are on: (images, partners, shares)."""
        which, rng = jax.random.split(rng)
        mixup = augment.mixup_rolled if self.options.mixup_rolled else augment.mixup
        rates = ((mixup, self.options.mixup), (augment.cutmix, self.options.cutmix))
        ways = [functools.partial(way, alpha=alpha) for way, alpha in rates if alpha]
        return jax.lax.switch(jax.random.randint(which, (), 0, len(ways)), ways, rng, x)


def build(config: configs.Config) -> "VisionTask":
    """The task of a vision model."""
    check(config.data)
    data = load_once(images.load, config.data)
    size, mean, deviation = config.data.pixels or data.train.image.shape[1], None, None
    if config.data.standardize:
        rows = images.sample(data.train).astype(np.float32) / 255
        mean, deviation = rows.mean((0, 1, 2)), np.maximum(rows.std((0, 1, 2)), 1e-3)
    if config.data.signed:
        mean = deviation = np.full(data.train.image.shape[-1], 0.5, np.float32)
    preparation = Preparation(config.data, size, mean, deviation, isinstance(data.train.image, images.LazyImages))
    return VisionTask(config, data, build_model(config, len(data.names), size), preparation)


def check(options: configs.Images) -> None:
    """Raises InputError for options that contradict each other."""
    pairs = (("standardize", "signed"), ("auto_augment", "rand_augment"), ("inception_crop", "crop_padding"))
    for one, other in pairs:
        if getattr(options, one) and getattr(options, other):
            flags = [f"--data.{name.replace('_', '-')}" for name in (one, other)]
            raise InputError(f"{flags[0]} and {flags[1]} are two ways to do one thing: leave one of them out")
    if options.resize_pixels and not 0 < options.pixels <= options.resize_pixels:
        raise InputError(
            "--data.resize-pixels needs --data.pixels, the middle of the resized image, of at most as many; got "
            f"{options.resize_pixels} and {options.pixels}"
        )


@dataclass(frozen=True, eq=False)
class VisionTask:
    """A classifier of images (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: configs.Config
    data: images.ImageData
    model: nn.Module
    preparation: Preparation

    @property
    def said(self) -> str:
        return self.data.said

    @property
    def buckets(self) -> tuple[dict, ...]:
        return () if self.stream else (self.data.train._asdict(),)

    @property
    def stream(self) -> Stream | None:
        train = self.config.train
        return images.stream(self.config.data, self.data.train, train.seed, train.batch_size, train.steps_per_call)

    def init(self, rng):
        size = self.preparation.size
        return initial(self.model, rng, (1, size, size, self.data.train.image.shape[-1]))

    def loss(self, params, batch, rng):
        varying, mixing, dropping = jax.random.split(rng, 3)
        x, label, weight = self.preparation.vary(varying, batch["image"]), batch["label"], batch["weight"]
        mixed = self.config.data.mixup or self.config.data.cutmix
        x, partner, share = self.preparation.mix(mixing, x) if mixed else (x, None, None)
        logits, _ = self.model.apply({"params": params}, x, train=True, rngs={"dropout": dropping})
        smoothing = self.config.train.label_smoothing
        entropy = functools.partial(masked_cross_entropy, logits, label_smoothing=smoothing)
        if mixed:
            total = entropy(label, weight * share)[0] + entropy(label[partner], weight * (1 - share))[0]
        else:
            total = entropy(label, weight)[0]
        return total, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

    def plan(self, epoch: int, steps_per_call: int) -> list:
        train = self.config.train
        return batches.plan(train.seed, epoch, [len(self.data.train.label)], [train.batch_size], steps_per_call)

    def score_rows(self, params, batch):
        """Loss and correctness, an image."""
        logits, _ = self.model.apply({"params": params}, self.preparation.plain(batch["image"]))
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["label"], jnp.ones_like(batch["label"], jnp.float32))
        return {"loss": nats, "accuracy": (logits.argmax(-1) == batch["label"]).astype(jnp.float32)}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Of the test set; of the validation set instead after an epoch, and as well at the end, if there is one."""
        metrics = {}
        for split in self.splits(full):
            rows = map_batches(self.score_rows, params, self.data.held_out[split]._asdict(), EVALUATED)
            metrics |= {f"{split}.{name}": float(values.mean(dtype=np.float64)) for name, values in rows.items()}
        return Evaluation(metrics, {})

    def splits(self, full: bool) -> list[str]:
        """The held-out splits that are evaluated."""
        return ["valid"] if "valid" in self.data.held_out and not full else list(self.data.held_out)

    def metric_names(self, full: bool) -> list[str]:
        return [f"{split}.{name}" for split in self.splits(full) for name in ("loss", "accuracy")]

    def evaluated_with(self) -> dict:
        largest = max(self.data.held_out.values(), key=lambda split: len(split.label))
        return {"evaluation": (self.score_rows, largest._asdict(), EVALUATED)}

    def classify(self, params, batch):
        """Probabilities [B, classes] of the classes."""
        return jax.nn.softmax(self.model.apply({"params": params}, self.preparation.plain(batch["image"]))[0])

    def look(self, params, batch):
        """The probabilities, the weights with their rollout, their maps over the image, and the pixels that were read;
        no weights and no maps if the model has no attention."""
        seen = self.preparation.seen(batch["image"])
        logits, weights = self.model.apply({"params": params}, self.preparation.scaled(seen), look=True)
        maps, pixels = image_maps(weights) if weights else {}, jnp.round(seen * 255).astype(jnp.uint8)
        return with_rollout(weights) | {"probabilities": jax.nn.softmax(logits), "maps": maps, "pixels": pixels}

    def read(self, paths: list[str]) -> np.ndarray:
        """Image files as bytes [N, S, S, C], as those of the data."""
        train, resized = self.data.train, self.config.data.resize_pixels
        mode = "L" if train.image.shape[-1] == 1 else "RGB"
        return np.stack([decode(path, resized or train.image.shape[1], mode, by_area=resized > 0) for path in paths])

    def sureness(self, params, batch):
        """The probability [B] of a class, `label`."""
        return jnp.take_along_axis(self.classify(params, batch), batch["label"][:, None], axis=1)[:, 0]

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where the model looks in images: files, or the first held-out one of each class."""
        names, test = self.data.names, self.data.held_out["test"]
        if texts:
            images, titles = self.read(texts), [Path(text).name for text in texts]
        else:
            first = first_of_each(test.label)
            images, titles = test.image[first], [f"a held-out image of class {names[test.label[i]]}" for i in first]
        found = map_batches(self.look, params, {"image": images}, EVALUATED)
        if not found["weights"]:
            return ()
        probabilities = found["probabilities"]
        rows = {"image": images, "label": probabilities.argmax(1).astype(np.int32)}
        without = without_heads(self.sureness, params, rows, found["weights"])
        looked = []
        for i, (title, label) in enumerate(zip(titles, rows["label"])):
            sure, attentions = float(probabilities[i, label]), image_attentions(i, found, found["pixels"][i], without)
            answer = Answer(str(names[label]), attentions, sure, "the probability", sure)
            looked.append(Looked(str(title), (answer,)))
        return tuple(looked)

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        """`texts` are paths of image files."""
        names, x = self.data.names, self.read(texts)
        probabilities = map_batches(self.classify, params, {"image": x}, EVALUATED)
        if figure and self.show_attention(params, x[: figures.SHOWN], None, Path(figure)) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        best = np.argsort(-probabilities, axis=1)[:, :3]
        return [", ".join(f"{names[i]} {row[i]:.3f}" for i in top) for row, top in zip(probabilities, best)]

    def show_attention(self, params, x, titles, path: Path) -> Path | None:
        """The maps of some images, titled by what the model sees in them unless `titles` are given; None without
        attention."""
        found = map_batches(self.look, params, {"image": x}, EVALUATED)
        probabilities, maps = found["probabilities"], found["maps"]
        if titles is None:
            titles = [f"{self.data.names[i]} {p[i]:.2f}" for p, i in zip(probabilities, probabilities.argmax(1))]
        return figures.show_attention(x, maps, titles, path) if maps else None

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        test, names = self.data.held_out["test"], self.data.names
        probabilities = map_batches(self.classify, params, {"image": test.image}, EVALUATED)
        guesses = probabilities.argmax(1)
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (test.label, guesses), 1)
        paths = [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            figures.mistakes(test.image, test.label, probabilities, names, directory / "mistakes.png"),
        ]
        first = first_of_each(test.label)
        titles = [f"{names[test.label[i]]} ({names[guesses[i]]} {probabilities[i].max():.2f})" for i in first]
        paths.append(self.show_attention(params, test.image[first], titles, directory / "attention.png"))
        if "positions" in params:
            table = np.asarray(params["positions"])
            paths.append(figures.position_similarity(table[prefix_of(len(table)) :], directory / "positions.png"))
        return [path for path in paths if path]

    def describe(self) -> dict:
        shapes = jax.eval_shape(self.init, jax.random.PRNGKey(0))
        facts = {"train_images": len(self.data.train.label)}
        facts |= {f"{name}_images": len(split.label) for name, split in self.data.held_out.items()}
        size, channels = self.preparation.size, self.data.train.image.shape[-1]
        return facts | {
            "classes": len(self.data.names),
            "image": f"{size} x {size} x {channels}",
            "parameters": sum(x.size for x in jax.tree.leaves(shapes)),
        }


def first_of_each(label: np.ndarray) -> np.ndarray:
    """The rows of the first image of each of the first classes, as many as a figure shows.

    >>> first_of_each(np.array([2, 0, 2, 1])).tolist()
    [1, 3, 0]
    """
    return np.array([np.argmax(label == c) for c in np.unique(label)])[: figures.SHOWN]
