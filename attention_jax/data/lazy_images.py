"""Lazily read images, of files or of array_record files that TFDS writes, for datasets that do not fit in memory."""

import functools
import hashlib
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from attention_jax.data.cache import checksum
from attention_jax.data.image_files import SKIP, decode
from attention_jax.data.stream import PlannedStream
from attention_jax.errors import InputError
from attention_jax.files import data_home, explain_home_errors, temporary_file
from attention_jax.provenance import cores

SPLITS = {"train": ("train",), "test": ("test", "validation")}
"""Names of the splits that train and that test, the first that is there and has labels."""
Crop = Callable[[tuple[int, int], np.random.Generator], tuple[float, float, float, float]]
"""(width, height), random numbers -> the box (left, top, right, bottom) of an image that training sees."""


@dataclass(frozen=True, eq=False)
class Files:
    """Image files in one directory per class, numbered."""

    directories: tuple[str, ...]
    label: np.ndarray
    """[N] int32: the index of the directory"""
    name: np.ndarray
    """[N] bytes: the file name in that directory"""

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: np.ndarray) -> "Files":
        """Return a source with the images of `rows` [n] alone, in that order."""
        return replace(self, label=self.label[rows], name=self.name[rows])

    def paths(self) -> Iterator[str]:
        """The paths of the images one after the other."""
        return (self.open(row)[0] for row in range(len(self)))

    def open(self, row: int) -> tuple[str, None]:
        """Return the path of an image, which has no content yet."""
        return os.path.join(self.directories[self.label[row]], os.fsdecode(bytes(self.name[row]))), None


@dataclass(frozen=True, eq=False)
class Records:
    """Rows of a split of a dataset that TFDS has prepared in `directory`."""

    directory: str
    split: str
    rows: np.ndarray
    """[N] int64"""

    def __len__(self) -> int:
        return len(self.rows)

    def checksum(self) -> str:
        """Return a checksum of the files of the split."""
        return checksum(lambda: paths_of(self.directory, self.split), f"{self.split} of {self.directory}")

    def take(self, rows) -> "Records":
        return replace(self, rows=self.rows[rows])

    def open(self, row: int) -> tuple[str, bytes]:
        """Return the name of an image for messages, and the content of its file."""
        record = int(self.rows[row])
        return f"{self.split}[{record}] of {self.directory}", open_split(self.directory, self.split)[record]["image"]


@functools.cache
def open_split(directory: str, split: str):
    """Open the split with undecoded images, once in every process."""
    import tensorflow_datasets as tfds

    return load_builder(directory).as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})


@functools.cache
def load_builder(place: str):
    """The dataset in a directory, or of a name in the data home."""
    import tensorflow_datasets as tfds

    try:
        if os.path.isdir(place):
            return tfds.builder_from_directory(place)
        return tfds.builder(place, data_dir=data_home(), file_format="array_record", try_gcs=False)
    except Exception as error:  # TFDS raises many kinds
        reason = " ".join(str(error).split())[:100]
        raise InputError(
            f"--data.path {place or '(empty)'} is no dataset that TFDS has prepared as array_record files, neither a "
            f"directory with features.json nor a name in {data_home()} ({reason})"
        ) from error


def paths_of(directory: str, split: str) -> list[str]:
    """Return the paths of the array_record files of a split."""
    return [os.fspath(path) for path in load_builder(directory).info.splits[split].filepaths]


def load_splits(place: str) -> tuple[dict[str, tuple[Records, np.ndarray]], tuple[str, ...]]:
    """Return {"train": (records, labels), "test": ...} of the dataset, and the names of its classes."""
    dataset = load_builder(place)
    features, split_names = dataset.info.features, dataset.info.splits
    matches = {split: [name for name in names if name in split_names] for split, names in SPLITS.items()}
    if not {"image", "label"} <= set(features) or not all(matches.values()):
        raise InputError(
            f"{place} needs an image, a label, and splits train and test (or validation); it has "
            f"{', '.join(features)} in {', '.join(split_names)}"
        )
    directory = os.fspath(dataset.data_path)
    records = {}
    for split, names in matches.items():
        unlabeled = [*itertools.takewhile(lambda name: (load_split(directory, name)[1] < 0).any(), names)]
        if unlabeled == names:
            raise InputError(f"{place} has images without a label (-1) in {' and '.join(names)}: its labels are needed")
        if unlabeled:
            print(f"left out: {' and '.join(unlabeled)} of {place}, with images without a label (-1)", file=sys.stderr)
        records[split] = load_split(directory, names[len(unlabeled)])
    return records, tuple(features["label"].names)


def load_split(directory: str, split: str) -> tuple[Records, np.ndarray]:
    """Return the records of a split and their labels, which are cached in the data home for each content."""
    count = len(open_split(directory, split))
    records = Records(directory, split, np.arange(count))
    key = hashlib.sha256(f"{directory} {split} {records.checksum()}".encode()).hexdigest()[:16]
    path = os.path.join(data_home(), "attention_jax", "labels", f"{key}-{count}.npy")
    if not os.path.exists(path):
        label = np.array([open_split(directory, split)[row]["label"] for row in range(count)], np.int32)
        with explain_home_errors(), temporary_file(Path(path)) as temporary_path:
            np.save(temporary_path, label)
    return records, np.load(path)


@functools.cache
def note_damaged(line: str):
    """Print once about an image that is left out."""
    print(f"left out: {line}", file=sys.stderr)


class ImageBatch(NamedTuple):
    """Images, and an error message for each that could not be read."""

    image: np.ndarray
    """[n, S, S, 3] uint8"""
    damaged: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LazyImages:
    """N images of `size` x `size` pixels in color; indexed by rows it gives an array of them, uint8."""

    dtype: ClassVar = np.dtype(np.uint8)
    source: Files | Records
    label: np.ndarray
    """[N] int32"""
    size: int
    damaged: str = "error"
    """"skip" replaces an unreadable image by the next readable one of the same class."""
    by_area: bool = False
    """Resizing of whole images (`image_files.decode`)."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.source), self.size, self.size, 3

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows) -> np.ndarray:
        """Rows as NumPy understands them: a number, a slice, or an array of numbers."""
        numbers = np.arange(len(self))[rows]
        image, damaged = self.read(np.atleast_1d(numbers), threads=cores())
        for line in damaged:
            note_damaged(line)
        return image if np.ndim(numbers) else image[0]

    def take(self, rows, axis: int = 0) -> "LazyImages":
        """Return a subset of the images, still unread."""
        return replace(self, source=self.source.take(rows), label=self.label[rows])

    def read(
        self, rows: np.ndarray, crop: Crop | None = None, draws: tuple[int, ...] = (), threads: int = 1
    ) -> ImageBatch:
        """Read the images of `rows` [n]; with `crop`, random crops seeded with (*draws, row)."""
        unique, inverse = np.unique(rows, return_inverse=True)
        read_image = functools.partial(self._read_image, crop=crop, draws=draws)
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(read_image, unique.tolist()))
        return ImageBatch(
            np.stack([image for image, _ in results])[inverse.reshape(-1)],
            tuple(line for _, lines in results for line in lines),
        )

    def _read_image(self, row: int, crop: Crop | None, draws: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
        lines, number = [], row
        while True:
            path, content = self.source.open(number)
            box = crop and functools.partial(crop, rng=np.random.default_rng([*draws, row]))
            try:
                file = None if content is None else io.BytesIO(content)
                return decode(path, self.size, "RGB", file, box, self.by_area), lines
            except InputError as error:
                if self.damaged != "skip":
                    raise InputError(f"{error}; {SKIP}") from None
                lines.append(str(error))
            same = np.flatnonzero(self.label == self.label[row])
            number = int(same[(np.searchsorted(same, number) + 1) % len(same)])
            if number == row:
                raise InputError(f"none of the {len(same)} images of a class can be read; the first: {lines[0]}")


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageStream(PlannedStream):
    """A stream of labeled images, randomly cropped by `crop`."""

    crop: Crop | None = None

    def examples(self, bucket: int, rows: np.ndarray, epoch: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        image, damaged = self.buckets[bucket]["image"].read(rows, self.crop, (self.seed, epoch))
        return {"image": image, "label": self.buckets[bucket]["label"][rows]}, damaged
