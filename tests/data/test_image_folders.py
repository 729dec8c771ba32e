"""Folders of images as people have them: nested, in splits, from a Mac's zip file; deep, animated and paged images."""

import errno
import os
import re
import types

import numpy as np
import pytest
from PIL import Image

from attention_jax.config import Images
from attention_jax.data import images, lazy_images
from attention_jax.data.image_files import decode, images_below, list_folder
from attention_jax.errors import InputError
from attention_jax.export import prepare_image

DRAW = np.random.default_rng(0)


def picture(path, size: int = 4):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DRAW.integers(0, 256, (size, size, 3)).astype(np.uint8)).save(path)


def folder(place, names=("a", "b"), count: int = 6):
    for name in names:
        for number in range(count):
            picture(place / name / f"{number:03d}.png")
    return place


def load(place, dataset="folder", **options):
    return images.load(Images(dataset, path=str(place), pixels=4, **options))


def list_images(place) -> list[tuple[str, int]]:
    """What torchvision's ImageFolder documents: os.walk of each class, sorted by directory, then by name."""
    images = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(place) if entry.is_dir())):
        for root, _, files in sorted(os.walk(place / name, followlinks=True)):
            images += [(os.path.join(root, file), label) for file in sorted(files)]
    return images


@pytest.mark.parametrize("stream", ["never", "always"])
def test_images_below_a_class_are_of_that_class(tmp_path, stream):
    folder(tmp_path)
    for name in ("a/sub/000.png", "a/sub/deeper/x.png", "a/sub-2/y.png", "b/é/z.png"):
        picture(tmp_path / name)
    label, files, names = list_folder(str(tmp_path))
    listing = [(str(tmp_path / names[number] / os.fsdecode(file)), number) for number, file in zip(label, files)]
    assert listing == list_images(tmp_path) and len(listing) == 16
    data = load(tmp_path, stream=stream)
    splits = [data.train, *data.held_out.values()]
    contents = {np.asarray(image)[..., :3].tobytes() for split in splits for image in split.image[:]}
    assert contents == {decode(path).tobytes() for path, _ in listing}


def test_linked_directory_is_read_once(tmp_path):
    folder(tmp_path)
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    assert len(images_below(str(tmp_path / "a"))[0]) == 6 == len(images_below(str(tmp_path / "c"))[0])


def test_hidden_files_are_no_classes_or_images(tmp_path):
    folder(tmp_path)
    for name in ("__MACOSX/a/._000.png", "a/._000.png", "a/.sub/000.png", ".DS_Store", "b/__MACOSX/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"resources")
    data = load(tmp_path)
    assert data.names == ("a", "b") and len(data.train.label) + len(data.held_out["test"].label) == 12


@pytest.mark.parametrize("stream", ["never", "always"])
def test_what_is_no_image_is_counted_once(tmp_path, stream, capsys):
    folder(tmp_path)
    for name in ("a/x.HEIC", "b/y.heic", "b/README", "a/.DS_Store", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    picture(tmp_path / "beside.png")
    load(tmp_path, stream=stream)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out: 6 files in {tmp_path}: 2 .heic, ")
    assert all(f"1 {kind}" in line for kind in ("hidden", ".txt", "image beside the classes", "without ending"))


@pytest.mark.parametrize("ending", ["jfif", "jpe", "JFIF", "pnm"])
def test_other_endings_of_a_format_are_images(tmp_path, ending):
    folder(tmp_path)
    (tmp_path / "a" / "000.png").rename(tmp_path / "a" / f"000.{ending}")
    data = load(tmp_path)
    assert len(data.train.label) + len(data.held_out["test"].label) == 12


def test_unreadable_directory_is_named(tmp_path, monkeypatch):
    """Its images would be missing. (The superuser, as whom tests may run, reads all directories.)"""
    scan = os.scandir

    def scandir(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    picture(folder(tmp_path) / "a" / "closed" / "1.png")
    monkeypatch.setattr(os, "scandir", scandir)
    for skip in ("error", "skip"):
        with pytest.raises(InputError, match=r"cannot read the directory .*a/closed \(Permission denied\)"):
            load(tmp_path, on_bad_record=skip)


def test_splits_without_labels_are_not_evaluated(monkeypatch, capsys):
    """As the test split of ImageNet in TFDS, whose labels are -1."""
    labels = {"train": [0, 1], "test": [-1, -1], "validation": [1, 0, 1]}
    features = {"image": None, "label": types.SimpleNamespace(names=["cat", "dog"])}
    dataset = lambda: types.SimpleNamespace(
        data_path="/data", info=types.SimpleNamespace(features=features, splits=labels)
    )
    monkeypatch.setattr(lazy_images, "load_builder", lambda place: dataset())
    monkeypatch.setattr(lazy_images, "load_split", lambda place, split: (split, np.array(labels[split])))
    splits, names = lazy_images.load_splits("imagenet")
    assert {split: source for split, (source, _) in splits.items()} == {"train": "train", "test": "validation"}
    assert capsys.readouterr().err == "left out: test of imagenet, with images without a label (-1)\n"
    labels["test"] = [0, 1]
    assert lazy_images.load_splits("imagenet")[0]["test"][0] == "test"
    labels |= {"test": [0, -1], "validation": [-1]}
    with pytest.raises(InputError, match="without a label .-1. in test and validation"):
        lazy_images.load_splits("imagenet")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dataset", ["own", "folder"])
@pytest.mark.parametrize(
    "names", [("train", "test", "val"), ("Train", "TEST", "Validation"), ("training", "test", "dev")]
)
def test_three_splits_are_taken_as_they_are(tmp_path, names, dataset):
    for count, name in enumerate(names, 3):
        folder(tmp_path / name, count=count)
    (tmp_path / "__MACOSX").mkdir()
    data = load(tmp_path, dataset)
    assert [len(split.label) for split in (data.train, data.held_out["test"], data.held_out["valid"])] == [6, 8, 10]
    assert list(data.held_out) == ["test", "valid"] and data.names == ("a", "b")
    with pytest.raises(InputError, match="--data.validation 2 holds out training images, but .* has images for valid"):
        load(tmp_path, dataset, validation=2)


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "valid"), ("val", "test"), ("train", "test", "testing")])
def test_missing_or_repeated_split_is_an_error(tmp_path, names):
    for name in names:
        folder(tmp_path / name, count=2)
    message = f"has .*{names[0]}.*one directory train, one test and optionally one val"
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_directory_beside_the_splits_is_named(tmp_path, capsys):
    for name in ("train", "test", "extra"):
        folder(tmp_path / name, count=2)
    assert len(load(tmp_path).train.label) == 4
    assert capsys.readouterr().err == f"left out: extra in {tmp_path}, which are no splits\n"


def test_splits_of_other_classes_are_refused(tmp_path):
    for name in ("train", "test"):
        folder(tmp_path / name, count=2)
    folder(tmp_path / "val", names=("a", "c"), count=2)
    with pytest.raises(InputError, match="must have the same classes and one size of images; .*/val has classes"):
        load(tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    assert load(folder(tmp_path, names=("bus", "train"))).names == ("bus", "train")


def test_class_name_outside_utf8_is_one_line(tmp_path):
    folder(tmp_path)
    os.rename(os.fsencode(tmp_path / "b"), os.fsencode(tmp_path) + b"/\xffcls")
    message = re.escape(r"the name of the class b'\xffcls' in") + ".* is not UTF-8: rename the directory"
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path)
    assert str(error.value).isascii()


@pytest.mark.parametrize("stream", ["never", "always"])
def test_file_names_outside_utf8_are_read(tmp_path, stream):
    folder(tmp_path)
    os.rename(os.fsencode(tmp_path / "a" / "000.png"), os.fsencode(tmp_path) + b"/a/\xff.png")
    os.mkdir(os.fsencode(tmp_path) + b"/a/\xfe")
    os.rename(os.fsencode(tmp_path / "a" / "001.png"), os.fsencode(tmp_path) + b"/a/\xfe/1.png")
    data = load(tmp_path, stream=stream)
    assert sum(len(data_part.label) for data_part in (data.train, *data.held_out.values())) == 12
    assert data.train.image[:].shape == (10, 4, 4, 3)


@pytest.mark.parametrize("kind, options", [("gif", {}), ("webp", {"lossless": True}), ("tiff", {}), ("png", {})])
def test_an_image_of_several_frames_is_refused(tmp_path, kind, options):
    frames = [Image.fromarray(np.full((4, 4, 3), 90 * n, np.uint8)) for n in range(3)]
    path = tmp_path / "a" / f"x.{kind}"
    folder(tmp_path)
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    with pytest.raises(InputError, match="it has 3 frames, which are 3 images: save one of them; repair") as error:
        decode(str(path))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="has 3 frames"):
        prepare_image.prepare(path, {"side": 4, "mode": "RGB", "filter": "bilinear"})
    with pytest.raises(InputError, match="frames.*--data.on-bad-record skip"):
        load(tmp_path)
    assert len(load(tmp_path, on_bad_record="skip").train.label) == 10
    frames[1].save(path, save_all=True, **options)
    assert abs(decode(str(path)).astype(int) - 90).max() <= 1


def test_first_picture_of_mpo_is_read(tmp_path):
    frames = [Image.fromarray(np.full((16, 16, 3), value, np.uint8)) for value in (200, 20)]
    frames[0].save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert (decode(str(tmp_path / "a.jpg")) == 200).all()


def twelve_bits(values: np.ndarray) -> bytes:
    """A gray TIFF of 12 bits per value, two in three bytes, as TIFF 6.0 describes it."""
    height, width = values.shape
    pairs = values.reshape(-1, 2).astype(int)
    packed = np.stack([pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255], 1)
    data = packed.astype(np.uint8).tobytes()
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(data)}
    entry = lambda tag, value: b"".join(n.to_bytes(size, "little") for n, size in zip((tag, 4, 1, value), (2, 2, 4, 4)))
    directory = len(tags).to_bytes(2, "little") + b"".join(entry(*pair) for pair in tags.items()) + bytes(4)
    return b"II*\0" + (8 + len(data)).to_bytes(4, "little") + data + directory


def graymap(values: np.ndarray, highest: int) -> bytes:
    height, width = values.shape
    return f"P5 {width} {height} {highest}\n".encode() + values.astype(">u2").tobytes()


@pytest.mark.parametrize("highest", [40, 255, 256, 4095], ids="up to {}".format)
@pytest.mark.parametrize("form", ["png", "tiff", "pgm", "pgm of 12 bits", "tiff of 12 bits"])
def test_gray_depth_is_read_from_format(tmp_path, form, highest):
    """A dark image stays dark, whatever its largest value."""
    values = np.linspace(0, highest, 64).astype(np.uint16).reshape(8, 8)
    kind, bits = form.split()[0], 12 if "12" in form else 16
    path = tmp_path / f"a.{kind}"
    if kind == "pgm":
        path.write_bytes(graymap(values, 2**bits - 1))
    elif bits == 12:
        path.write_bytes(twelve_bits(values))
    else:
        Image.fromarray(values).save(path)
    pixels = decode(str(path))[..., 0].astype(int)
    expected = values.astype(int) * 255 / (2**bits - 1)
    assert np.abs(pixels - expected).max() <= 1
    recipe = {"side": 8, "mode": "L", "filter": "bilinear"}
    np.testing.assert_array_equal(prepare_image.prepare(path, recipe)[..., 0], pixels)
