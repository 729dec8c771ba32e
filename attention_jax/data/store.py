"""TFDS without TensorFlow: prepare a dataset once as array_record files, and read a whole split into memory."""

import contextlib
import errno
import hashlib
import io
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import tensorflow_datasets as tfds

from attention_jax.files import data_home, directory_lock, home_write_error


def text_features(
    builder: tfds.core.DatasetBuilder, description: str, names: Iterable[str] = ("source", "target"), **info: str
) -> tfds.core.DatasetInfo:
    """Return the DatasetInfo of a dataset of texts in a fixed order."""
    features = tfds.features.FeaturesDict({name: tfds.features.Text() for name in names})
    return tfds.core.DatasetInfo(
        builder=builder, description=description, features=features, disable_shuffling=True, **info
    )


@contextlib.contextmanager
def _quiet_absl():
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    return os.path.exists(os.path.join(builder.data_dir, "dataset_info.json"))


def prepare_builder(
    builder: type[tfds.core.DatasetBuilder], config: str | tfds.core.BuilderConfig | None = None
) -> tfds.core.DatasetBuilder:
    """Return the builder of a dataset in the cache, after preparing it if necessary, which prints one line.

    A builder's method `check_files`, if there is one, is called before anything is written.
    """

    def make():
        with _quiet_absl():  # a warning for every configuration that is not in BUILDER_CONFIGS
            return builder(data_dir=data_home(), file_format="array_record", config=config)

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
                with _quiet_absl(), contextlib.redirect_stdout(io.StringIO()):
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
        result[split] = {name: [_plain(example[name]) for example in examples] for name in builder.info.features}
    return result


def _plain(value):
    return value.decode("utf-8") if isinstance(value, bytes) else value


def fingerprint(digests: Iterable[str]) -> str:
    """Return an eight-character digest of the content of files, to name derived files."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:8]
