"""Labeled images in memory: uint8 arrays, decoded once.

`load` reads a public dataset that TFDS has prepared (and prepares it first if need be, without TensorFlow:
data/builders.py) and keeps the decoded arrays next to it, in `TFDS_DATA_DIR`/arrays/NAME-VERSION.npz: 70,000
images are there in 0.1 s instead of 15. "folder" reads a user's own class/image.png.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from attention_jax.config import Images
from attention_jax.data import data_summary
from attention_jax.data.cache import checksum
from attention_jax.data.image_files import inception_box, list_folder, read_folder, split_directories
from attention_jax.data.lazy_images import Files, ImageStream, LazyImages, load_splits
from attention_jax.data.stored import storable
from attention_jax.data.stream import is_streamed, steps_in_call
from attention_jax.errors import InputError
from attention_jax.files import data_home, explain_home_errors, temporary_file

VERSIONS = {"fashion_mnist": "3.0.1", "cifar10": "3.0.2"}
HELD_OUT = 5
"""Of a user's images every fifth of a class is in the test set, and for "own" every fifth of the others validates."""


@storable
class Split(NamedTuple):
    """Images and their labels."""

    image: np.ndarray | LazyImages
    """[N, S, S, C] uint8"""
    label: np.ndarray
    """[N] int32"""


@storable
class ImageData(NamedTuple):
    """A dataset with its held-out parts ("test", and "valid" if some of the training images were held out)."""

    train: Split
    held_out: dict[str, Split]
    names: tuple[str, ...]
    """The names of the classes."""
    facts: Mapping = MappingProxyType({})
    """For facts.json."""
    normalization: tuple[np.ndarray, np.ndarray] | None = None
    """(mean [C], standard deviation [C]) of images in [0, 1], by which a model's inputs are normalized, or None."""


def load(config: Images) -> ImageData:
    """Load the dataset of `config`.

    Raises:
      InputError: files are missing, damaged or not the published ones; the message names the file.
    """
    folder = config.dataset == "folder" or (config.dataset == "own" and bool(config.path))
    if folder:
        train, held_out, names, fingerprint = _load_folder(config)
    elif config.dataset == "tfds":
        train, held_out, names = _load_records(config)
        sources = [split.image.source.checksum() for split in (train, *held_out.values())]
        fingerprint = data_summary.fingerprint([*names, *sources])
    elif config.path and config.dataset == "digits":
        raise InputError(
            f"--data.dataset digits reads no files; leave --data.path {config.path} out, or add --data.dataset folder"
        )
    else:
        in_tfds = config.dataset in VERSIONS
        train, held_out, names = _load_published(config.dataset, config.path) if in_tfds else load_digits()
        fingerprint = data_summary.fingerprint(data_summary.contents([train, held_out, names]))
    if config.validation and "valid" in held_out:
        raise InputError(
            f"--data.validation {config.validation} holds out training images, but {config.path} has images for "
            "validation: leave the option out, or remove their directory"
        )
    if not 0 <= config.validation < len(train.label):
        raise InputError(
            f"--data.validation must be less than the number of training images, {len(train.label)}; "
            f"got {config.validation}"
        )
    if config.validation:
        order = np.random.default_rng(0).permutation(len(train.label))
        held_out["valid"] = _take(train, order[: config.validation])
        train = _take(train, np.sort(order[config.validation :]))
    elif config.dataset == "own" and "valid" not in held_out:
        train, held_out["valid"] = _hold_out(train, config.path, "validation")
    if not 0 <= config.examples <= len(train.label):
        raise InputError(
            f"--data.examples must be 0 (all) to {len(train.label)}, the number of training images; "
            f"got {config.examples}"
        )
    if config.examples:
        train = _take(train, np.sort(np.random.default_rng(1).permutation(len(train.label))[: config.examples]))
    data = ImageData(train, held_out, names, normalization=normalization(config, train))
    facts = image_facts(data) if folder or config.dataset == "own" else {}
    return data._replace(facts=facts | {"fingerprint": fingerprint})


def image_facts(data: ImageData) -> dict:
    """Return facts: the classes, those without test images, and the number of test images that are trained on, too."""
    train, test = data.train, data.held_out["test"]
    label = np.concatenate([train.label, *(split.label for split in data.held_out.values())])
    facts = data_summary.class_facts(data.names, label)
    untested = [name for number, name in enumerate(data.names) if number not in test.label]
    facts |= {"untested_classes": ", ".join(untested)[:60]} if untested else {}
    if not isinstance(train.image, LazyImages):
        train_images = {image.tobytes() for image in train.image}
        facts["test_images_also_in_train"] = sum(image.tobytes() in train_images for image in test.image)
    return facts


def stream(config: Images, train: Split, seed: int, batch_size: int, steps_per_call: int) -> ImageStream | None:
    """Return the stream of the images of `train`; None for images in memory."""
    if not isinstance(train.image, LazyImages):
        return None
    image, crop = train.image, None
    if config.inception_crop:
        image, crop = replace(image, size=config.pixels), inception_box
    row_bytes = int(np.prod(image.shape[1:]))
    steps = steps_in_call(row_bytes, batch_size, min(steps_per_call, -(-len(train.label) // batch_size)))
    return ImageStream(
        buckets=({"image": image, "label": train.label},),
        batch_sizes=(batch_size,),
        steps=steps,
        seed=seed,
        workers=config.workers,
        crop=crop,
    )


def normalization(config: Images, train: Split) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean and standard deviation [C] of the training images, or those that map [0, 1] to [-1, 1].

    The color is that of the first 10,000 images, or of about 1,000 of all classes if they are streamed.
    """
    if config.signed:
        half = np.full(train.image.shape[-1], 0.5, np.float32)
        return half, half
    if not config.standardize:
        return None
    is_lazy, stride = isinstance(train.image, LazyImages), max(1, len(train.label) // 1_000)
    rows = train.image[slice(None, None, stride) if is_lazy else slice(10_000)].astype(np.float32) / 255
    return rows.mean((0, 1, 2)), np.maximum(rows.std((0, 1, 2)), 1e-3)


def _take(split: Split, rows) -> Split:
    return Split(split.image.take(rows, 0), split.label[rows])


def _hold_out(split: Split, path: str, purpose: str) -> tuple[Split, Split]:
    """Divide a split into one without every `HELD_OUT`-th image of each class, and these images.

    Raises InputError if there are none.
    """
    is_held_out = np.zeros(len(split.label), bool)
    for label in np.unique(split.label):
        is_held_out[np.flatnonzero(split.label == label)[HELD_OUT - 1 :: HELD_OUT]] = True
    if not is_held_out.any():
        raise InputError(
            f"{path} has fewer than {HELD_OUT} images in every class, so none is left for {purpose}; "
            "add images or train and test directories"
        )
    return _take(split, np.flatnonzero(~is_held_out)), _take(split, np.flatnonzero(is_held_out))


def _load_folder(config: Images) -> tuple[Split, dict[str, Split], tuple[str, ...], str]:
    """Load the splits of the directories path/train, path/test and path/val, of which the last may be missing; without
    any of them every `HELD_OUT`-th image of each class of path is for testing. The last value is the fingerprint."""
    path, directories = config.path, split_directories(config.path)
    read_folder = _folder_reader(config, directories.get("train", path))
    if not directories:
        image, label, names = read_folder(path)
        train, test = _hold_out(Split(image, label), path, "testing")
        return train, {"test": test}, names, folder_fingerprint({path: image}, config.on_bad_record)
    splits, formats = {}, {}
    for name, directory in directories.items():
        *arrays, names = read_folder(directory)
        splits[name], formats[directory] = Split(*arrays), (names, arrays[0].shape[1:])
    if len(set(formats.values())) > 1:
        description = "; ".join(
            f"{directory} has classes {names} and images {shape}" for directory, (names, shape) in formats.items()
        )
        raise InputError(f"the splits in {path} must have the same classes and one size of images; {description}")
    fingerprint = folder_fingerprint(
        {directories[name]: arrays.image for name, arrays in splits.items()}, config.on_bad_record
    )
    return splits.pop("train"), splits, names, fingerprint


def folder_fingerprint(images: dict[str, np.ndarray | LazyImages], damaged: str) -> str:
    """Return a checksum of the images of these directories, by the bytes of their files, and of their classes."""
    items = []
    for folder, image in images.items():
        source = image.source if isinstance(image, LazyImages) else _files(folder, damaged, quiet=True)[0]
        names = map(os.path.basename, source.directories)
        items += [*names, source.label, checksum(source.paths, f"the images in {folder}")]
    return data_summary.fingerprint(items)


def _files(path: str, damaged: str, quiet: bool = False) -> tuple[Files, tuple[str, ...]]:
    label, files, names = list_folder(path, damaged, quiet)
    return Files(tuple(os.path.join(path, name) for name in names), label, files), names


def _folder_reader(config: Images, folder: str) -> Callable:
    """Return the reader of a folder: (path) -> images, labels, names; of images read now, or lazily if streamed, which
    the size of `folder` decides."""
    size, by_area = config.resize_pixels or config.pixels, config.resize_pixels > 0
    count = len(list_folder(folder, config.on_bad_record, quiet=True)[0]) if config.stream == "auto" else 0
    if not is_streamed(config.stream, count * 3 * size**2):
        return lambda path: read_folder(path, size, config.on_bad_record, by_area)
    if not config.pixels:
        raise InputError(
            f"images that are read while training need one size: give --data.pixels (--data.path {folder})"
        )

    def lazy(path):
        source, names = _files(path, config.on_bad_record)
        return LazyImages(source, source.label, size, config.on_bad_record, by_area), source.label, names

    return lazy


def _load_records(config: Images) -> tuple[Split, dict[str, Split], tuple[str, ...]]:
    """Load a dataset that TFDS has prepared."""
    if not config.pixels or config.stream == "never":
        raise InputError(
            "--data.dataset tfds is read while training, at one size: give --data.pixels, no --data.stream"
        )
    splits, names = load_splits(config.path)
    size, by_area = config.resize_pixels or config.pixels, config.resize_pixels > 0
    lazy = lambda records, label: Split(LazyImages(records, label, size, config.on_bad_record, by_area), label)
    return lazy(*splits["train"]), {"test": lazy(*splits["test"])}, names


def load_digits() -> tuple[Split, dict[str, Split], tuple[str, ...]]:
    """Load scikit-learn's digits (Alpaydin and Kaynak 1998): 1,797 gray images of 8 x 8 pixels; a random fifth is the
    test set."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    image = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]  # 16 levels of ink
    test, train = np.split(np.random.default_rng(0).permutation(len(image)), [len(image) // 5])
    split = lambda rows: Split(image[rows], bunch.target[rows].astype(np.int32))
    return split(train), {"test": split(test)}, tuple(map(str, range(10)))


def _load_published(name: str, path: str) -> tuple[Split, dict[str, Split], tuple[str, ...]]:
    """Load from the cache of arrays, or from TFDS, whose arrays are then cached."""
    cache = os.path.join(data_home(), "arrays", f"{name}-{VERSIONS[name]}.npz")
    if not os.path.exists(cache):
        arrays = _decode_dataset(name, path)
        with explain_home_errors(), temporary_file(Path(cache)) as temporary_path:
            np.savez(temporary_path, **arrays)
    with np.load(cache) as arrays:
        train, test = (Split(arrays[f"{split}_image"], arrays[f"{split}_label"]) for split in ("train", "test"))
        return train, {"test": test}, tuple(arrays["names"].tolist())


def _decode_dataset(name: str, path: str) -> dict[str, np.ndarray]:
    """All images and labels of a TFDS dataset, prepared first if it is not."""
    from attention_jax.data import builders  # TFDS takes seconds to import: only where it is needed

    builder = builders.prepare_builder(functools.partial(builders.BUILDERS[name], path=path))
    arrays = {"names": np.array(builder.info.features["label"].names)}
    for split in ("train", "test"):
        source = builder.as_data_source(split=split)
        rows = source.__getitems__(range(len(source)))
        arrays[f"{split}_image"] = np.stack([row["image"] for row in rows])
        arrays[f"{split}_label"] = np.array([row["label"] for row in rows], np.int32)
    return arrays
