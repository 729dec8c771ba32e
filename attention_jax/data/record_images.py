"""Lazily read images in the array_record files that TFDS writes."""

import functools
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attention_jax.data.derived import checksum
from attention_jax.errors import InputError
from attention_jax.files import data_home, home_written, temporary

TRAIN, TEST = ("train",), ("test", "validation")
"""Names of the splits that train and that test, the first that is there."""


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
        record = int(self.rows[row])
        return f"{self.split}[{record}] of {self.directory}", source(self.directory, self.split)[record]["image"]


@functools.cache
def source(directory: str, split: str):
    """Open the split with undecoded images, once in every process."""
    import tensorflow_datasets as tfds

    return builder(directory).as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})


@functools.cache
def builder(place: str):
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
    return [os.fspath(path) for path in builder(directory).info.splits[split].filepaths]


def splits(place: str) -> tuple[dict[str, tuple[Records, np.ndarray]], tuple[str, ...]]:
    """Return {"train": (records, labels), "test": ...} of the dataset, and the names of its classes."""
    built = builder(place)
    features, known = built.info.features, built.info.splits
    found = {"train": [name for name in TRAIN if name in known], "test": [name for name in TEST if name in known]}
    if not {"image", "label"} <= set(features) or not all(found.values()):
        raise InputError(
            f"{place} needs an image, a label, and splits train and test (or validation); it has "
            f"{', '.join(features)} in {', '.join(known)}"
        )
    directory = os.fspath(built.data_path)
    made = {part: labeled(directory, names[0]) for part, names in found.items()}
    return made, tuple(features["label"].names)


def labeled(directory: str, split: str) -> tuple[Records, np.ndarray]:
    """Return the records of a split and their labels, which are cached in the data home for each content."""
    count = len(source(directory, split))
    records = Records(directory, split, np.arange(count))
    key = hashlib.sha256(f"{directory} {split} {records.checksum()}".encode()).hexdigest()[:16]
    path = os.path.join(data_home(), "attention_jax", "labels", f"{key}-{count}.npy")
    if not os.path.exists(path):
        label = np.array([source(directory, split)[row]["label"] for row in range(count)], np.int32)
        with home_written(), temporary(Path(path)) as part:
            np.save(part, label)
    return records, np.load(path)
