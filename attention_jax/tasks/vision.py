"""Image classification: ViT, CCT and ResNet on labelled images, which stay on the device as bytes."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError, config as configs
from attention_jax.data import images
from attention_jax.data.streams import Stream
from attention_jax.ops import augment
from attention_jax.ops.autoaugment import auto_augment
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.ops.metrics import token_accuracy
from attention_jax.ops.randaugment import rand_augment
from attention_jax.tasks import Evaluation, Task, build_model, initial, load_once
from attention_jax.tasks.objectives import class_loss
from attention_jax.train.placement import map_batches

EVALUATED = 512
"""Images per batch in evaluation."""


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


class VisionTask(Task):
    """A classifier of images; `data` is an `ImageData`."""

    view = "attention_jax.views.vision:VisionView"

    @classmethod
    def load(cls, config: configs.Config) -> images.ImageData:
        check(config.data)
        return load_once(images.load, config.data)

    @classmethod
    def make_model(cls, config: configs.Config, data: images.ImageData):
        return build_model(config, len(data.names), config.data.pixels or data.train.image.shape[1])

    @functools.cached_property
    def preparation(self) -> Preparation:
        """How bytes become what the model reads."""
        options, train = self.config.data, self.data.train.image
        cropped = isinstance(train, images.LazyImages)
        return Preparation(options, options.pixels or train.shape[1], *self.data.normalization or (), cropped=cropped)

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
        loss = functools.partial(class_loss, self.config.train, logits)
        if mixed:
            total = loss(label, weight * share)[0] + loss(label[partner], weight * (1 - share))[0]
        else:
            total = loss(label, weight)[0]
        return total, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

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

    def describe(self) -> dict:
        shapes = jax.eval_shape(self.init, jax.random.PRNGKey(0))
        facts = {"train_images": len(self.data.train.label)}
        facts |= {f"{name}_images": len(split.label) for name, split in self.data.held_out.items()}
        size, channels = self.preparation.size, self.data.train.image.shape[-1]
        return facts | {
            "classes": len(self.data.names),
            "image": f"{size} x {size} x {channels}",
            "parameters": sum(x.size for x in jax.tree.leaves(shapes)),
            **self.data.facts,
        }
