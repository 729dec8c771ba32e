"""Lazily read images in the array_record files that TFDS writes."""

import functools
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attention_jax.data.derived import checksum
from attention_jax.errors import InputError
from attention_jax.files import data_home, explain_home_errors, temporary_file

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
    matches = {
        "train": [name for name in TRAIN if name in split_names],
        "test": [name for name in TEST if name in split_names],
    }
    if not {"image", "label"} <= set(features) or not all(matches.values()):
        raise InputError(
            f"{place} needs an image, a label, and splits train and test (or validation); it has "
            f"{', '.join(features)} in {', '.join(split_names)}"
        )
    directory = os.fspath(dataset.data_path)
    records = {split: load_split(directory, names[0]) for split, names in matches.items()}
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
