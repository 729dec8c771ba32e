"""Image classification; images stay on the devices as bytes, and are augmented there."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.data import images
from attention_jax.data.stream import Stream
from attention_jax.errors import InputError
from attention_jax.ops.images import augment
from attention_jax.ops.images.autoaugment import auto_augment
from attention_jax.ops.images.randaugment import rand_augment
from attention_jax.ops.losses import masked_cross_entropy, token_accuracy
from attention_jax.tasks import Evaluation, Task, build_model, initial, loader_of
from attention_jax.tasks.objectives import class_loss
from attention_jax.train.placement import map_batches

EVALUATED = 512
"""Images per batch in evaluation."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """Preprocessing and augmentation of square images, from bytes to a model's inputs."""

    options: configs.Images
    size: int
    """Pixels of a side of a model's input."""
    mean: np.ndarray | None = None
    """The mean of each channel [C] of images in [0, 1]; None means no normalization."""
    deviation: np.ndarray | None = None
    cropped: bool = False
    """Training images are inception crops already, made when they were read."""

    def for_evaluation(self, x):
        """Return model inputs for evaluation."""
        return self.normalize(self.center(x))

    def center(self, x):
        """Resize and crop the center of images, scaled to [0, 1]."""
        return augment.center_crop(
            augment.resize(augment.to_unit_range(x), self.options.resize_pixels or self.size), self.size
        )

    def normalize(self, x):
        """Standardize the channels of images in [0, 1]."""
        return x if self.mean is None else augment.standardize(x, jnp.asarray(self.mean), jnp.asarray(self.deviation))

    def augment(self, rng, x):
        """Return model inputs for training: randomly cropped, flipped, distorted and erased as the options say."""
        options = self.options
        policy, crop, flip, erase = jax.random.split(rng, 4)
        x = auto_augment(policy, x) if options.auto_augment else x
        x = augment.inception_crop(crop, x, self.size) if options.inception_crop and not self.cropped else x
        x = augment.crop(crop, x, options.crop_padding)
        x = augment.flip(flip, x) if options.flip else x
        x = rand_augment(policy, x, options.rand_augment) if options.rand_augment else x
        x = self.normalize(augment.resize(augment.to_unit_range(x), self.size))
        return augment.erase(erase, x, options.erase) if options.erase else x

    def mix(self, rng, x):
        """Apply mixup or cutmix, or one of them at random; return (images, partners [B], weights [B])."""
        which, rng = jax.random.split(rng)
        mixup = augment.mixup_rolled if self.options.mixup_rolled else augment.mixup
        rates = ((mixup, self.options.mixup), (augment.cutmix, self.options.cutmix))
        mixes = [functools.partial(mix, alpha=alpha) for mix, alpha in rates if alpha]
        return jax.lax.switch(jax.random.randint(which, (), 0, len(mixes)), mixes, rng, x)


def check_options(options: configs.Images) -> None:
    """Raise InputError for options that contradict each other."""
    pairs = (("standardize", "signed"), ("auto_augment", "rand_augment"), ("inception_crop", "crop_padding"))
    for first, second in pairs:
        if getattr(options, first) and getattr(options, second):
            flags = [f"--data.{name.replace('_', '-')}" for name in (first, second)]
            raise InputError(f"{flags[0]} and {flags[1]} exclude each other: leave one of them out")
    if options.resize_pixels and not 0 < options.pixels <= options.resize_pixels:
        raise InputError(
            "--data.resize-pixels needs --data.pixels, the middle of the resized image, of at most as many; got "
            f"{options.resize_pixels} and {options.pixels}"
        )


class VisionTask(Task):
    """A classifier of images; `data` is an `ImageData`."""

    view = "attention_jax.views.vision:VisionView"
    eval_means = ("examples", "batches")

    @classmethod
    def load(cls, config: configs.Config) -> images.ImageData:
        check_options(config.data)
        return loader_of(config.data.loader)(config.data)

    @classmethod
    def make_model(cls, config: configs.Config, data: images.ImageData):
        return build_model(config, len(data.names), config.data.pixels or data.train.image.shape[1])

    @functools.cached_property
    def preparation(self) -> Preparation:
        """Preprocessing and augmentation."""
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
        x, label, weight = self.preparation.augment(varying, batch["image"]), batch["label"], batch["weight"]
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
        """Return loss and correctness of each image [B]."""
        logits, _ = self.model.apply({"params": params}, self.preparation.for_evaluation(batch["image"]))
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["label"], jnp.ones_like(batch["label"], jnp.float32))
        return {"loss": nats, "accuracy": (logits.argmax(-1) == batch["label"]).astype(jnp.float32)}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Evaluate the validation set if there is one, else the test set; in `full` both."""
        metrics = {}
        for split in self.splits(full):
            rows = map_batches(self.score_rows, params, self.data.held_out[split]._asdict(), EVALUATED)
            for name, values in rows.items():
                means = [values[chunk].mean(dtype=np.float64) for chunk in self.eval_slices(len(values))]
                metrics[f"{split}.{name}"] = float(np.mean(means))
        return Evaluation(metrics, {})

    def splits(self, full: bool) -> list[str]:
        """Return the names of the splits to evaluate."""
        return ["valid"] if "valid" in self.data.held_out and not full else list(self.data.held_out)

    def metric_names(self, full: bool) -> list[str]:
        return [f"{split}.{name}" for split in self.splits(full) for name in ("loss", "accuracy")]

    def eval_functions(self) -> dict:
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
