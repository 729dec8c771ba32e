"""Image classification; images stay on the devices as bytes, and are augmented there."""

import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax import config as configs
from attention_jax.config import ModelOptions
from attention_jax.data import images
from attention_jax.data.image_files import decode, list_folder
from attention_jax.data.images import ImageData, Split
from attention_jax.data.stream import Stream
from attention_jax.data.text_tables import Columns
from attention_jax.errors import InputError
from attention_jax.ops.images import augment
from attention_jax.ops.images.autoaugment import auto_augment
from attention_jax.ops.images.randaugment import rand_augment
from attention_jax.ops.losses import masked_cross_entropy, token_accuracy
from attention_jax.report import image_figures as figures
from attention_jax.report.attention_data import PROBABILITY, Attention, AttentionRecord, Axis, Prediction
from attention_jax.report.class_report import class_bars, reliability, report_classes
from attention_jax.report.panels import confusion_matrix, count_confusions
from attention_jax.tasks import Evaluation, Task, build_model, format_classes, initial, loader_of
from attention_jax.tasks.attention_maps import ablate_heads, pool_attention, rollout, with_rollout, without_key
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

    eval_means = ("examples", "batches")
    table_columns = Columns(text="path", is_path=True)

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
        if not full:
            return Evaluation(metrics)
        test = self.data.held_out["test"]
        probabilities = map_batches(self.classify, params, {"image": test.image}, EVALUATED)
        classification = {"test": report_classes(test.label, probabilities, self.data.names)}
        return Evaluation(metrics, probabilities={"test": probabilities}, classification=classification)

    def splits(self, full: bool) -> list[str]:
        """Return the names of the splits to evaluate."""
        return ["valid"] if "valid" in self.data.held_out and not full else list(self.data.held_out)

    def metric_names(self, full: bool) -> list[str]:
        return [f"{split}.{name}" for split in self.splits(full) for name in ("loss", "accuracy")]

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

    def classify(self, params, batch):
        """Return probabilities [B, classes]."""
        x = self.preparation.for_evaluation(batch["image"])
        return self.answer(self.model.apply({"params": params}, x)[0])

    @property
    def meaning(self) -> str:
        """What a page calls the numbers of `answer`."""
        return PROBABILITY

    def answer(self, logits):
        """Return the probabilities [B, classes] that logits are."""
        return jax.nn.softmax(logits)

    def attention(self, params, batch):
        """Return probabilities, attention weights with their rollout, maps over the image, and the pixels of the input;
        without attention, weights and maps are empty."""
        centered = self.preparation.center(batch["image"])
        logits, weights = self.model.apply(
            {"params": params}, self.preparation.normalize(centered), return_weights=True
        )
        maps, pixels = image_maps(weights) if weights else {}, jnp.round(centered * 255).astype(jnp.uint8)
        return with_rollout(weights) | {"probabilities": self.answer(logits), "maps": maps, "pixels": pixels}

    def read(self, paths: list[str]) -> np.ndarray:
        """Read image files as bytes [N, S, S, C], like those of the data."""
        train, resized = self.data.train, self.config.data.resize_pixels
        mode = "L" if train.image.shape[-1] == 1 else "RGB"
        return np.stack([decode(path, resized or train.image.shape[1], mode, by_area=resized > 0) for path in paths])

    def confidence(self, params, batch):
        """Return the probability [B] of the class `label`."""
        return jnp.take_along_axis(self.classify(params, batch), batch["label"][:, None], axis=1)[:, 0]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the attention over image files, or over the first held-out image of each class."""
        names, test = self.data.names, self.data.held_out["test"]
        if texts:
            images, titles = self.read(texts), [Path(text).name for text in texts]
        else:
            first = first_of_each(test.label)
            images, titles = test.image[first], [f"a held-out image of class {names[test.label[i]]}" for i in first]
        outputs = map_batches(self.attention, params, {"image": images}, EVALUATED, pad=True)
        if not outputs["weights"]:
            return ()
        probabilities = outputs["probabilities"]
        rows = {"image": images, "label": probabilities.argmax(1).astype(np.int32)}
        without = ablate_heads(self.confidence, params, rows, outputs["weights"])
        records = []
        for i, (title, label) in enumerate(zip(titles, rows["label"])):
            sure, attentions = (
                float(probabilities[i, label]),
                image_attentions(self.config.model, i, outputs, outputs["pixels"][i], without),
            )
            answer = Prediction(str(names[label]), attentions, sure, self.meaning, sure)
            records.append(AttentionRecord(str(title), (answer,)))
        return tuple(records)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, self.data.names))

    def probabilities(self, params, texts: list[str]) -> np.ndarray:
        return map_batches(self.classify, params, {"image": self.read(texts)}, EVALUATED, pad=True)

    def new_examples(self, path: str) -> Iterator[tuple[str, str]]:
        if not Path(path).is_dir():
            raise InputError(f"--data {path} must be a directory with one sub-directory of images per class")
        labels, files, names = list_folder(path)
        for label, file in zip(labels, files):
            yield names[label], str(Path(path) / names[label] / os.fsdecode(file))

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return the three most probable classes of each image file."""
        x = self.read(texts)
        probabilities = map_batches(self.classify, params, {"image": x}, EVALUATED, pad=True)
        if figure and self.show_attention(params, x[: figures.SHOWN], None, Path(figure)) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        return [format_classes(self.data.names, row) for row in probabilities]

    def show_attention(self, params, x, titles, path: Path) -> Path | None:
        """Plot the attention maps of some images, with predictions as default titles; None without attention."""
        outputs = map_batches(self.attention, params, {"image": x}, EVALUATED)
        probabilities, maps = outputs["probabilities"], outputs["maps"]
        if titles is None:
            titles = [f"{self.data.names[i]} {p[i]:.2f}" for p, i in zip(probabilities, probabilities.argmax(1))]
        return figures.show_attention(x, maps, titles, path) if maps else None

    def excerpt(self) -> ImageData:
        """Return one training image, for its shape, and the first test image of each class."""
        train, test = self.data.train, self.data.held_out["test"]
        rows = first_of_each(test.label)
        held_out = {"test": Split(np.asarray(test.image[rows]), test.label[rows])}
        return self.data._replace(train=Split(np.asarray(train.image[:1]), train.label[:1]), held_out=held_out)

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        test, names = self.data.held_out["test"], self.data.names
        probabilities, classification = evaluation.probabilities["test"], evaluation.classification["test"]
        guesses = probabilities.argmax(1)
        confusion = count_confusions(test.label, guesses, len(names))
        paths = [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            class_bars(classification, directory / "classes.png"),
            reliability(classification, directory / "reliability.png"),
            figures.mistakes(test.image, test.label, probabilities, names, directory / "mistakes.png"),
        ]
        first = first_of_each(test.label)
        titles = [f"{names[test.label[i]]}, read as {names[guesses[i]]}" for i in first]
        paths.append(self.show_attention(params, test.image[first], titles, directory / "attention.png"))
        if "positions" in params:
            table = np.asarray(params["positions"])
            paths.append(figures.position_similarity(table[prefix_of(len(table)) :], directory / "positions.png"))
        return [path for path in paths if path]


def first_of_each(label: np.ndarray) -> np.ndarray:
    """Return the indices of the first image of each class, for as many classes as a figure shows.

    >>> first_of_each(np.array([2, 0, 2, 1])).tolist()
    [1, 3, 0]
    """
    return np.array([np.argmax(label == c) for c in np.unique(label)])[: figures.SHOWN]


def image_attentions(
    options: ModelOptions, row: int, outputs: dict, image: np.ndarray, without: dict
) -> tuple[Attention, ...]:
    """Return the self-attention of one image's tokens in `with_rollout`, and attention pooling over them if any."""
    weights = np.asarray(outputs["weights"]["encoder_attention"][row], np.float32)  # [L, H, T, T]
    tokens = image_tokens(weights.shape[-1])
    side, rolled = Axis(tokens, image=image), np.asarray(outputs["rollout"]["encoder_attention"][row])
    of_head = without["encoder_attention"][row] if without else None
    keywords = {"rollout": rolled, "head_ablation": of_head, "without_key": without_key(options)}
    attentions = [Attention("encoder", weights, side, side, **keywords)]
    if "pool_attention" in outputs["weights"]:
        attentions.append(pool_attention(outputs["weights"]["pool_attention"][row], side))
    return tuple(attentions)


def image_tokens(count: int) -> tuple[str, ...]:
    """Return labels of an image's tokens: the class token if there is one, registers, and patches row by row.

    >>> image_tokens(5)
    ('class token', 'row 1, column 1', 'row 1, column 2', 'row 2, column 1', 'row 2, column 2')
    """
    prefix = prefix_of(count)
    size = math.isqrt(count - prefix)
    patches = [f"row {i + 1}, column {j + 1}" for i in range(size) for j in range(size)]
    registers = [f"register {i}" for i in range(1, prefix)]
    return (*("class token",)[:prefix], *registers, *patches)


def prefix_of(tokens: int) -> int:
    """Return the number of an image's tokens before its G x G patches: 0, or a class token and registers.

    >>> prefix_of(16), prefix_of(17), prefix_of(19)
    (0, 1, 3)
    """
    return tokens - math.isqrt(tokens) ** 2


def image_maps(weights: dict) -> dict[str, Float[Array, "..."]]:
    """Return attention maps [B, G, G] over the patches of an image, from a model's intermediates.

    "heads" [B, H, G, G] are the last layer's weights from the class token, or pooled over all tokens without one;
    "last" is their mean over heads; "rollout" is the attention rollout (Abnar & Zuidema 2020), pooled alike.
    """
    attention = weights["encoder_attention"]  # [B, layers, H, T, T]
    size = math.isqrt(attention.shape[-1])
    grid = lambda x: x.reshape(*x.shape[:-1], size, size)
    flow = jax.vmap(rollout)(attention)  # [B, T, T]
    if prefix := prefix_of(attention.shape[-1]):
        heads, through = attention[:, -1, :, 0, prefix:], flow[:, 0, prefix:]
    elif "pool_attention" in weights:
        pool = weights["pool_attention"]  # [B, T]
        heads, through = jnp.einsum("bt,bhts->bhs", pool, attention[:, -1]), jnp.einsum("bt,bts->bs", pool, flow)
    else:
        heads, through = attention[:, -1].mean(axis=2), flow.mean(axis=1)
    return {"heads": grid(heads), "last": grid(heads.mean(axis=1)), "rollout": grid(through)}
