"""Public datasets as TFDS builders without TensorFlow: they are prepared once, as array_record files, and whole splits
are read into memory.

`FashionMnist` and `Cifar10` are subclasses of TFDS's builders under their names and versions, so what they prepare is
read back by a plain `tfds.data_source("fashion_mnist")`. Images are passed as PNG bytes.
"""

import contextlib
import errno
import functools
import hashlib
import importlib.metadata
import io
import logging
import os
import sys
import tarfile
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.image_classification import cifar, mnist

from attention_jax.data.published import Published, download_files, locate_file
from attention_jax.data.text_files import read_bytes
from attention_jax.errors import InputError
from attention_jax.files import data_home, directory_lock, home_write_error


def text_builder(name: str, corpus: Published) -> type[tfds.core.DatasetBuilder]:
    """Return the TFDS builder of a public corpus, which has texts in a fixed order."""
    dataset, _, form = name.partition("/")

    class TextBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name=form)]

        def _info(self):
            features = tfds.features.FeaturesDict({feature: tfds.features.Text() for feature in corpus.features})
            return tfds.core.DatasetInfo(
                builder=self,
                description=f"Texts of {name}.",
                features=features,
                homepage=corpus.homepage,
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            directory = download_files(name)
            paths = {
                split: [locate_file(directory, names) for names in files] for split, files in corpus.splits.items()
            }
            return {split: self._generate_examples(corpus.read(files)) for split, files in paths.items()}

        def _generate_examples(self, rows):
            for number, row in enumerate(rows):
                yield number, dict(zip(corpus.features, row))

    TextBuilder.name = dataset
    return TextBuilder


def _is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    return os.path.exists(os.path.join(builder.data_dir, "dataset_info.json"))


def prepare_builder(
    builder: type[tfds.core.DatasetBuilder], config: str | tfds.core.BuilderConfig | None = None
) -> tfds.core.DatasetBuilder:
    """Return the builder of a dataset in the cache, after preparing it if necessary, which prints one line.

    A builder's method `check_files`, if there is one, is called before anything is written.
    """
    make = functools.partial(builder, data_dir=data_home(), file_format="array_record", config=config)
    built = make()
    if _is_prepared(built):
        return built
    if hasattr(built, "check_files"):
        built.check_files()
    try:
        os.makedirs(os.path.dirname(built.data_dir), exist_ok=True)
        with directory_lock(Path(built.data_dir).parent):  # a sweep starts many runs on the same data
            if not _is_prepared(built):
                print(f"preparing {built.info.full_name} in {data_home()} (once)", file=sys.stderr)
                tfds.disable_progress_bar()
                with contextlib.redirect_stdout(io.StringIO()):
                    built.download_and_prepare()
    except (OSError, RuntimeError) as error:  # array_record raises the second
        reasons = (os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
        full = next((reason for reason in reasons if reason in str(error)), None)
        if isinstance(error, RuntimeError) and full is None:
            raise
        for empty in ("downloads/extracted", "downloads"):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(data_home(), empty))
        reason = full or error.strerror or error
        raise home_write_error(reason) from error
    return make()


def read_rows(builder: tfds.core.DatasetBuilder, splits: Iterable[str]) -> dict[str, dict[str, list]]:
    """All rows of the named splits of a prepared dataset, {split: {feature: list}}; texts as str.

    Reads a split in one batched call: 50,000 pairs of short texts take about 0.7 s.
    """
    result = {}
    for split in splits:
        source = builder.as_data_source(split=split)
        examples = source.__getitems__(range(len(source)))
        plain = lambda value: value.decode("utf-8") if isinstance(value, bytes) else value
        result[split] = {name: [plain(example[name]) for example in examples] for name in builder.info.features}
    return result


logging.getLogger("absl").setLevel(logging.ERROR)  # TFDS would recommend OpenCV, and warn of every configuration

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def encode_png(image: np.ndarray) -> io.BytesIO:
    """Encode a uint8 image [H, W, 1 or 3] as PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "PNG", compress_level=1)
    file.seek(0)
    return file


class _FromFiles:
    """Base of the builders: `path` is the directory of the published FILES ("" downloads them), whose digests are
    checked; records are (image, label)."""

    FILES: ClassVar[dict[str, str]] = {}
    """{published file: its SHA-256, unzipped}"""

    def __init__(self, *, path: str = "", **options):
        self.path = path
        super().__init__(**options)

    def check_files(self):
        """Raise InputError before anything is written, if a published file is not in `path`."""
        for name in self.FILES if self.path else ():
            locate_file(self.path, [name])

    def _bytes(self, directory: str, name: str) -> np.ndarray:
        """Return the decompressed bytes of a published file; InputError if their digest differs."""
        path = locate_file(directory, [name])
        data = read_bytes(path, "file of images")
        digest, expected = hashlib.sha256(data).hexdigest(), self.FILES[name]
        if digest != expected:
            raise InputError(
                f"{path} is not the published file: sha256 of its content is {digest[:12]}..., expected "
                f"{expected[:12]}...; fetch it again"
            )
        return np.frombuffer(data, np.uint8)

    def _records(self, images, labels, prefix: str = ""):
        for number, (image, label) in enumerate(zip(images, labels)):
            record = {"image": encode_png(image), "label": int(label)}
            yield number, record | ({"id": f"{prefix}_{number:05d}"} if "id" in self.info.features else {})

    def _download(self, dl_manager, urls: dict[str, str]) -> dict[str, str]:
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of every attempt
        limit_attempts()
        try:
            return {name: os.fspath(path) for name, path in dl_manager.download(urls).items()}
        except Exception as error:  # requests, urllib and TFDS each raise their own kinds
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
            raise InputError(
                f"cannot download {self.name} ({reason}); give the directory of its files with --data.path"
            ) from error


def limit_attempts():
    """Let TFDS give up after three attempts to download a file: without a network its own take minutes. The number is
    in a private module, without which a line says so."""
    try:
        from tensorflow_datasets.core.download import downloader

        downloader.MAX_RETRIES  # noqa: B018
    except (ImportError, AttributeError):
        version = importlib.metadata.version("tensorflow-datasets")
        print(
            f"note: tensorflow-datasets {version} has no core.download.downloader.MAX_RETRIES: without a network its "
            "downloads may take minutes to fail",
            file=sys.stderr,
        )
    else:
        downloader.MAX_RETRIES = 3


class FashionMnist(_FromFiles, mnist.FashionMNIST, skip_registration=True):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 and 10,000 gray images of 28 x 28 pixels, 10 classes."""

    name = "fashion_mnist"
    FILES: ClassVar = {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }

    def _split_generators(self, dl_manager):
        directory = self.path
        if not directory:
            urls = {name: urllib.parse.urljoin(self.URL, name + ".gz") for name in self.FILES}
            directory = os.path.join(self._data_dir_root, "downloads", self.name)
            os.makedirs(directory, exist_ok=True)
            for name, path in self._download(dl_manager, urls).items():
                os.replace(path, os.path.join(directory, name + ".gz"))
        splits = {"train": "train", "test": "t10k"}
        return {split: self._generate_examples(directory, prefix) for split, prefix in splits.items()}

    def _generate_examples(self, directory, prefix):
        images = self._bytes(directory, f"{prefix}-images-idx3-ubyte")[16:]  # idx: 4 bytes, and 4 for each dimension
        labels = self._bytes(directory, f"{prefix}-labels-idx1-ubyte")[8:]
        return self._records(images.reshape(-1, 28, 28, 1), labels)


class Cifar10(_FromFiles, cifar.Cifar10, skip_registration=True):
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 color images of 32 x 32 pixels, 10 classes."""

    name = "cifar10"
    FILES: ClassVar = {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }

    def _split_generators(self, dl_manager):
        directory = self.path
        if not directory:
            archive = self._download(dl_manager, {"archive": self._cifar_info.url})["archive"]
            directory = os.path.join(self._data_dir_root, "downloads", "cifar-10-batches-bin")
            with tarfile.open(archive) as tar:
                tar.extractall(os.path.dirname(directory), filter="data")
        self.info.features["label"].names = CIFAR10_CLASSES
        files = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
        return {split: self._generate_examples(directory, split, names) for split, names in files.items()}

    def _generate_examples(self, directory, prefix, names):
        rows = np.concatenate([self._bytes(directory, name).reshape(-1, 1 + 3 * 32 * 32) for name in names])
        return self._records(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0], prefix)


BUILDERS = {"fashion_mnist": FashionMnist, "cifar10": Cifar10}
