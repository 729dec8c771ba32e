"""What a run was trained on is known: whatever the kind of data, other contents under the same names are refused."""

import inspect
import os
import shutil
import types
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from attention_jax import config as configs
from attention_jax.config import options
from attention_jax.data import builders, cache, lazy_images
from attention_jax.errors import InputError
from attention_jax.files import write_json
from attention_jax.runs import directory as run_directory
from experiments.papers import options as papers


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path


def facts(data) -> dict:
    """The facts of a run on the data of these options."""
    load = options.import_object(data.loader)
    loaded = load(data, *[8] * (len(inspect.signature(load).parameters) - 1))  # a batch size, or a seed
    return run_directory.facts_of(
        types.SimpleNamespace(data=loaded, describe=lambda: dict(getattr(loaded, "facts", {})))
    )


def replace_text(path: Path, old: str, new: str):
    """Replace a text in a file by another of the same length."""
    text = path.read_text()
    assert old in text and len(old) == len(new)
    path.write_text(text.replace(old, new, 1))


def picture(path: Path, value: int, side: int = 8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), value, np.uint8)).save(path)


def folders(place: Path, splits=("",)):
    """A light and a dark class; with `parts` in each of these splits."""
    for split in splits:
        for name, value in (("dark", 20), ("light", 220)):
            for number in range(5):
                picture(place / split / name / f"{number}.png", value + number)


def swap_classes(place: Path):
    """Exchange the images of two classes under their names."""
    (place / "dark").rename(place / "other")
    (place / "light").rename(place / "dark")
    (place / "other").rename(place / "light")


def fixed_width(place: Path, kind, line: str, new: str):
    lines = [
        f"{number:>2}/1/99_1999-01-{number:02}" if kind is configs.Dates else f"{number:>2}+ 1_{number + 1:<2}"
        for number in range(10, 30)
    ]
    (place / "data.txt").write_text("\n".join(lines) + "\n")
    return kind(path=str(place / "data.txt")), lambda: replace_text(place / "data.txt", line, new)


def image_folder(place: Path, splits=("",), **options):
    folders(place / "images", splits)
    data = configs.Images("folder", path=str(place / "images"), pixels=8, **options)
    return data, lambda: swap_classes(place / "images" / splits[-1])


def graph(place: Path, name: str, value):
    """Four papers with five words; the first number of one of the arrays is changed."""
    arrays = {"feature_row": [2, 0, 0, 1], "feature_column": [3, 4, 1, 0], "shape": [4, 5], "label": [1, 0, 2, 1]}
    arrays |= {"edges": [[2, 0], [0, 2], [0, 1], [2, 0]], "train": [0], "valid": [1], "test": [3, 2]}
    arrays = {key: np.array(values) for key, values in arrays.items()}
    np.savez(place / "graph.npz", **arrays)
    later = arrays[name].copy()
    later[0] = value
    return papers.Citations(str(place / "graph.npz")), lambda: np.savez(place / "graph.npz", **arrays | {name: later})


def text(place: Path, kind, **changes):
    (place / "text.txt").write_text("the time traveller said so\n" * 40)
    options = kind(str(place / "text.txt"), **changes)
    return options, lambda: replace_text(place / "text.txt", "traveller", "travelled")


class Records(builders._FromFiles, tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Eight images and their labels, of which a file of TFDS is made."""

    name = "records"
    VERSION = tfds.core.Version("1.0.0")
    labels: ClassVar = [0, 1] * 4

    def _info(self):
        features = {"image": tfds.features.Image(shape=(8, 8, 1)), "label": tfds.features.ClassLabel(num_classes=2)}
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, description="Images.", features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        image = np.arange(8, dtype=np.uint8)[:, None, None, None] * np.ones((8, 8, 1), np.uint8)
        return {name: self._generate_examples(image) for name in ("train", "test")}

    def _generate_examples(self, image):
        return self._records(image, self.labels)


def records(place: Path, monkeypatch):
    def prepare(labels):
        for cached in (lazy_images.open_split, lazy_images.load_builder):
            cached.cache_clear()
        shutil.rmtree(place / "tfds" / "records", ignore_errors=True)
        monkeypatch.setattr(Records, "labels", labels)
        builders.prepare_builder(Records)

    prepare([0, 1] * 4)
    path = str(place / "tfds" / "records" / "1.0.0")
    return configs.Images("tfds", path=path, pixels=8), lambda: prepare([1, 0] * 4)


def pair_stream(place: Path):
    """One line of many is changed."""
    (place / "pairs.tsv").write_text("".join(f"a{n:04}\tb{n:04}\n" for n in range(3000)))
    return configs.Corpus(tsv_file=str(place / "pairs.tsv"), stream="always"), lambda: replace_text(
        place / "pairs.tsv", "b1234", "b4321"
    )


def pairs_with_file(place: Path, name: str, content: str, later: str, **options):
    """Pairs whose vocabulary or merges are in a file, which is replaced by another that is as long."""
    (place / "pairs.tsv").write_text("".join(f"ab ba {n}\tba ab {n}\n" for n in range(10, 40)))
    (place / "file").write_text(content)
    data = configs.Corpus(tsv_file=str(place / "pairs.tsv"), **{name: str(place / "file")}, **options)
    return data, lambda: (place / "file").write_text(later)


CASES = {
    "dates": lambda place: fixed_width(place, configs.Dates, "1999-01-12", "1999-01-21"),
    "addition": lambda place: fixed_width(place, configs.Addition, "12+ 1_13", "12+ 1_31"),
    "images": image_folder,
    "images that are streamed": lambda place: image_folder(place, stream="always"),
    "images of splits": lambda place: image_folder(place, ("train", "test")),
    "images of streamed splits": lambda place: image_folder(place, ("train", "val", "test"), stream="always"),
    "a graph's labels": lambda place: graph(place, "label", 2),
    "a graph's edges": lambda place: graph(place, "edges", (2, 1)),
    "a graph's words": lambda place: graph(place, "feature_column", 2),
    "the time machine": lambda place: text(
        place, configs.TimeMachine, sequence_length=8, train_windows=40, valid_windows=8
    ),
    "shakespeare": lambda place: text(place, configs.Shakespeare, sequence_length=8),
    "pairs that are streamed": pair_stream,
    "a vocabulary": lambda place: pairs_with_file(
        place, "vocabulary_file", "ab\nba\n", "ba\nab\n", tokenizer="whitespace"
    ),
    "a vocabulary of streamed pairs": lambda place: pairs_with_file(
        place, "vocabulary_file", "ab\nba\n", "ba\nab\n", tokenizer="whitespace", stream="always"
    ),
    "merges": lambda place: pairs_with_file(
        place,
        "merges",
        "#version: 0.2\na b</w>\n",
        "#version: 0.2\nx y</w>\n",
        tokenizer="bpe",
        lowercase=True,
        reverse_source=True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_changed_contents_change_the_fingerprint(case, home, monkeypatch):
    data, change = CASES[case](home)
    first = facts(data)
    assert facts(data) == first, "the same data are known again"
    change()
    later = facts(data)
    assert [name for name in first if first[name] != later[name] and name.endswith("fingerprint")]
    with pytest.raises(InputError, match="have changed since it was trained") as error:
        write_json(home / "run" / "facts.json", first)
        run_directory.check_data(home / "run", types.SimpleNamespace(data=None, describe=lambda: later))
    assert "\n" not in str(error.value)


def test_tfds_records_are_identified_by_contents(home, monkeypatch):
    data, change = records(home, monkeypatch)
    first, labels = facts(data), options.import_object(data.loader)(data).train.label
    assert facts(data) == first and labels.tolist() == [0, 1] * 4
    change()
    assert facts(data)["fingerprint"] != first["fingerprint"]
    assert options.import_object(data.loader)(data).train.label.tolist() == [1, 0] * 4


GENERATED = (
    configs.Dates(examples=60), configs.Addition(examples=60), configs.Scan(), configs.Reverse(examples=60),
    configs.Corpus(examples=60), configs.LabeledFile(examples=60), configs.TextFile(sequence_length=16),
    configs.Images(), configs.MarkovChains(train_windows=8, valid_windows=8), configs.ModularAddition(modulus=7),
    papers.ConvexHulls(examples=8, held_out=8), papers.Citations(num_nodes=70), papers.Activations(),
    configs.Algorithmic(sequences=8, valid_sequences=4),
)  # fmt: skip


@pytest.mark.parametrize("data", GENERATED, ids=lambda data: type(data).__name__)
def test_every_dataset_has_eight_digit_fingerprint(data):
    fingerprint = facts(data)["fingerprint"]
    assert len(fingerprint) == 8 and int(fingerprint, 16) and fingerprint == facts(data)["fingerprint"]


def test_no_kind_of_data_is_forgotten():
    kinds = (*vars(configs).values(), *vars(papers).values())
    loaded = {kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "loader")}
    downloaded = {configs.TimeMachine, configs.Shakespeare, configs.FraEng, configs.Multi30k}
    assert loaded == {type(data) for data in GENERATED} | downloaded


def test_images_are_identified_by_their_bytes(home):
    """Neither the place nor the times of files count, nor whether they are streamed."""
    folders(home / "a")
    shutil.copytree(home / "a", home / "b", copy_function=shutil.copy)
    fingerprints = {
        facts(configs.Images("folder", path=str(home / name), pixels=8, stream=stream))["fingerprint"]
        for name in "ab"
        for stream in ("never", "always")
    }
    assert len(fingerprints) == 1


@pytest.mark.parametrize("large", [False, True], ids=["computed", "kept in the data home"])
def test_checksum_ignores_file_times(home, monkeypatch, capsys, large):
    """Against CRC-32 by hand: contents exchanged between two names, with the sizes and times of before."""
    monkeypatch.setattr(cache, "LONG", 0 if large else 2**26)
    paths = [str(home / name) for name in "ab"]
    sums = []
    for contents in (b"xy", b"yx"):
        for path, content in zip(paths, contents):
            Path(path).write_bytes(bytes([content]))
            os.utime(path, (1, 1))
        sums.append(cache.checksum(lambda: paths, "two files"))
        of_files = b"".join(zlib.crc32(bytes([content])).to_bytes(5, "little") for content in contents)
        assert sums[-1] == f"{zlib.crc32(of_files):08x}" == cache.checksum(lambda: paths, "two files")
    assert sums[0] != sums[1]
    assert capsys.readouterr().err.count("reading two files, 2 files, for their checksum (once)") == 2 * large


def test_unreadable_file_does_not_stop_checksum(home):
    os.mkfifo(home / "pipe")
    paths = [str(home / name) for name in ("absent", "pipe")] + [str(home)]
    assert cache.checksum(lambda: paths, "nothing") == cache.checksum(lambda: paths, "nothing")


def test_tokens_differ_for_equal_size_and_time(home):
    path = home / "text"
    path.write_text("one")
    os.utime(path, (1, 1))
    first = cache.file_stamp(str(path))
    path.write_text("two")
    os.utime(path, (1, 1))
    assert cache.file_stamp(str(path)) != first
