"""Image datasets: from small published-style files through TFDS and back, and every kind of damage said in one line."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image, ImageOps

from attention_jax.config import Images
from attention_jax.data import builders, images
from attention_jax.data.image_files import decode, read_folder
from attention_jax.errors import InputError

RANDOM = np.random.default_rng(0)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache of datasets."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path


def idx(array) -> bytes:
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def fashion(directory, monkeypatch, train=30, test=20):
    """The four files, with random contents, which are the published ones then."""
    directory.mkdir()
    arrays, digests = {}, {}
    for split, count in {"train": train, "t10k": test}.items():
        arrays[split] = (
            RANDOM.integers(0, 256, (count, 28, 28)).astype(np.uint8),
            RANDOM.integers(0, 10, count).astype(np.uint8),
        )
        for array, name in zip(arrays[split], ("images-idx3", "labels-idx1")):
            (directory / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
            digests[f"{split}-{name}-ubyte"] = hashlib.sha256(idx(array)).hexdigest()
    monkeypatch.setattr(builders.FashionMnist, "FILES", digests)
    return arrays


def check_error(call, *fragments):
    """The InputError of `call`: one line that has all `fragments`."""
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value) and all(fragment in str(error.value) for fragment in fragments), str(
        error.value
    )


def test_fashion_mnist_from_files_through_tfds_and_back(home, monkeypatch):
    arrays = fashion(home / "files", monkeypatch)
    data = images.load(Images("fashion_mnist", path=str(home / "files")))
    for split, expected in ((data.train, arrays["train"]), (data.held_out["test"], arrays["t10k"])):
        order = (
            np.lexsort(split.image.reshape(len(split.image), -1).T),
            np.lexsort(expected[0].reshape(len(expected[0]), -1).T),
        )  # TFDS shuffles
        np.testing.assert_array_equal(split.image[order[0], ..., 0], expected[0][order[1]])
        np.testing.assert_array_equal(split.label[order[0]], expected[1][order[1]])
    assert data.train.image.dtype == np.uint8 and data.train.label.dtype == np.int32 and data.names[0] == "T-shirt/top"
    stock = tfds.data_source("fashion_mnist", split="test", data_dir=str(home / "tfds"))
    np.testing.assert_array_equal(stock[0]["image"], data.held_out["test"].image[0])
    again = images.load(Images("fashion_mnist"))  # from the cache: no path, no download
    np.testing.assert_array_equal(again.train.image, data.train.image)


def test_cifar10_from_files(home, monkeypatch):
    (home / "files").mkdir()
    rows = RANDOM.integers(0, 256, (6, 4, 3073)).astype(np.uint8)
    rows[:, :, 0] %= 10
    for name, batch in zip([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"], rows):
        (home / "files" / f"{name}.bin").write_bytes(batch.tobytes())
    check_error(
        lambda: images.load(Images("cifar10", path=str(home / "files"))),
        "data_batch_1.bin",
        "not the published file",
        "sha256",
    )
    digests = {path.stem + ".bin": hashlib.sha256(path.read_bytes()).hexdigest() for path in (home / "files").iterdir()}
    monkeypatch.setattr(builders.Cifar10, "FILES", digests)
    data = images.load(Images("cifar10", path=str(home / "files")))
    assert (
        data.train.image.shape == (20, 32, 32, 3)
        and data.held_out["test"].label.shape == (4,)
        and data.names[9] == "truck"
    )
    published = {(row[0], row[1:].reshape(3, 32, 32).transpose(1, 2, 0).tobytes()) for row in rows[5]}
    assert published == {(label, image.tobytes()) for image, label in zip(*data.held_out["test"])}


def test_digits_come_along(home):
    data = images.load(Images(validation=200, examples=1000))
    assert [len(split.label) for split in (data.train, data.held_out["valid"], data.held_out["test"])] == [
        1000,
        200,
        359,
    ]
    assert (
        data.train.image.shape[1:] == (8, 8, 1)
        and data.train.image.max() == 255
        and set(data.train.label.tolist()) == set(range(10))
    )
    contents = [
        {image.tobytes() for image in split.image}
        for split in (data.train, data.held_out["valid"], data.held_out["test"])
    ]
    assert not (
        contents[0] & contents[1] or contents[0] & contents[2] or contents[1] & contents[2]
    )  # no two of the 1,797 are the same
    check_error(lambda: images.load(Images(validation=1438)), "--data.validation", "1438")
    check_error(lambda: images.load(Images(examples=2000)), "--data.examples", "2000")
    check_error(lambda: images.load(Images("digits", str(home))), "reads no files", "--data.dataset folder")


def test_damaged_files_are_named(home, monkeypatch):
    with monkeypatch.context() as published:
        fashion(home / "files", published)
    path = home / "files" / "train-images-idx3-ubyte.gz"
    load = lambda: images.load(Images("fashion_mnist", path=str(home / "files")))
    good = path.read_bytes()
    check_error(
        load, str(path), "not the published file", "sha256 of its content is", "c59f468a2f67"
    )  # with other contents
    path.write_bytes(good[:-50])
    check_error(load, str(path), "cannot read")
    path.write_bytes(b"not gzip")
    check_error(load, str(path), "cannot read")
    path.unlink()
    check_error(load, "train-images-idx3-ubyte", "--data.path")
    check_error(
        lambda: images.load(Images("fashion_mnist", path=str(home / "no"))), "no file or directory", str(home / "no")
    )


def test_no_network_is_one_line(home, monkeypatch):
    def fail(*_):
        raise OSError("no route\nto host")

    monkeypatch.setattr(tfds.download.DownloadManager, "download", fail)
    check_error(lambda: images.load(Images("cifar10")), "cannot download cifar10", "no route to host", "--data.path")


def folder(directory, classes=("cat", "dog"), count=5, size=(6, 6), mode="RGB"):
    for name in classes:
        (directory / name).mkdir(parents=True)
        for i in range(count):
            shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
            Image.fromarray(RANDOM.integers(0, 256, shape).astype(np.uint8)).save(directory / name / f"{i}.png")
    return directory


def test_folder_of_classes(tmp_path):
    data = images.load(Images("folder", path=str(folder(tmp_path / "a"))))
    assert (
        data.names == ("cat", "dog")
        and data.train.image.shape == (8, 6, 6, 3)
        and data.held_out["test"].label.tolist() == [0, 1]
    )
    np.testing.assert_array_equal(data.train.image[0], np.asarray(Image.open(tmp_path / "a" / "cat" / "0.png")))
    folder(tmp_path / "b" / "train", mode="L"), folder(tmp_path / "b" / "test", count=1, mode="L")
    data = images.load(Images("folder", path=str(tmp_path / "b")))
    assert data.train.image.shape == (10, 6, 6, 1) and len(data.held_out["test"].label) == 2
    folder(tmp_path / "c", classes=("2", "10", "1"), count=1)
    assert read_folder(str(tmp_path / "c"))[2] == ("1", "10", "2"), "as torchvision and TFDS number them"


def test_folder_of_other_sizes_is_cut_and_resized(tmp_path):
    path = folder(tmp_path / "a", size=(12, 8))
    check_error(lambda: read_folder(str(path)), "12 x 8", "--data.pixels")
    assert read_folder(str(path), 4)[0].shape == (10, 4, 4, 3)
    gray = Image.fromarray(np.tile(np.arange(12, dtype=np.uint8) * 10, (6, 1)))
    gray.save(tmp_path / "gray.png")
    np.testing.assert_array_equal(decode(str(tmp_path / "gray.png"), 6)[0, :, 0], np.arange(3, 9) * 10)  # the middle


def test_bad_folders_are_named(tmp_path):
    check_error(lambda: read_folder(str(tmp_path / "no")), "is not a directory")
    (tmp_path / "a").mkdir()
    check_error(lambda: read_folder(str(tmp_path / "a")), "has 0 classes", "at least 2")
    folder(tmp_path / "a", classes=("cat",))
    check_error(lambda: read_folder(str(tmp_path / "a")), "has 1 classes")
    (tmp_path / "a" / "dog").mkdir()
    check_error(lambda: read_folder(str(tmp_path / "a")), "class dog", "has no images", "--data.on-bad-record skip")
    folder(tmp_path / "a", classes=("bird",))
    _, label, names = read_folder(str(tmp_path / "a"), damaged="skip")
    assert names == ("bird", "cat") and set(label) == {0, 1}
    (tmp_path / "a" / "dog" / "bad.png").write_bytes((tmp_path / "a" / "cat" / "0.png").read_bytes()[:60])
    check_error(
        lambda: read_folder(str(tmp_path / "a")),
        str(tmp_path / "a" / "dog" / "bad.png"),
        "cannot read the image",
        "bad-record skip",
    )
    for name, count, purpose in (("folder", 4, "testing"), ("own", 5, "validation")):
        data = Images(name, path=str(folder(tmp_path / name, count=count)))
        check_error(
            lambda data=data: images.load(data), f"fewer than 5 images in every class, so none is left for {purpose}"
        )
    for name in ("a", "b"):
        (tmp_path / "unreadable" / name).mkdir(parents=True)
        (tmp_path / "unreadable" / name / "1.png").write_text("a pointer to a file")
    check_error(lambda: read_folder(str(tmp_path / "unreadable"), 8, "skip"), "none of the 2 images")


def test_a_photograph_is_upright(tmp_path):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    upright = Image.fromarray(pixels)
    turned = upright.getexif()
    turned[274] = 6  # the camera was held turned: show it a quarter further clockwise
    upright.save(tmp_path / "photo.png", exif=turned)
    np.testing.assert_array_equal(decode(str(tmp_path / "photo.png"))[..., 0], np.rot90(pixels, -1))


def test_unusable_image_is_one_line(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "photo.png")
    monkeypatch.setattr(ImageOps, "exif_transpose", lambda *_, **__: struct.pack("H", "no number"))
    with pytest.raises(InputError, match="cannot read the image .*photo.png: required argument is not an integer"):
        decode(str(tmp_path / "photo.png"))


def test_deep_gray_and_transparency_are_converted(tmp_path):
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(decode(str(tmp_path / "deep.png"))[..., 0], deep >> 8)
    for kind, name in ((np.int32, "shallow.tiff"), (np.uint8, "bytes.png")):
        Image.fromarray((deep // 1000).astype(kind)).save(tmp_path / name)
        np.testing.assert_array_equal(decode(str(tmp_path / name))[..., 0], deep // 1000)
    for values in (deep.astype(np.int32) * 2, (deep / 64_000).astype(np.float32)):
        Image.fromarray(values).save(tmp_path / "other.tiff")
        with pytest.raises(InputError, match="cannot read the image .*other.tiff: .*: save it with 8 or 16"):
            decode(str(tmp_path / "other.tiff"))
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4, :, 3] = 255  # black above, nothing below
    Image.fromarray(clear).save(tmp_path / "clear.png")
    pixels = decode(str(tmp_path / "clear.png"))
    assert pixels.shape == (8, 8, 3) and not pixels[:4].any() and (pixels[4:] == 255).all()


def test_own_images_train_validate_and_test(tmp_path):
    """Of 12 images of a class the fifth and the tenth test, and the fifth and the tenth of the other ten validate."""
    folder(tmp_path, count=12)
    validated, whole = (images.load(Images(name, path=str(tmp_path))) for name in ("own", "folder"))
    assert [len(split.label) for split in (validated.train, *validated.held_out.values())] == [16, 4, 4]
    assert list(validated.held_out) == ["test", "valid"] and list(whole.held_out) == ["test"]
    np.testing.assert_array_equal(validated.held_out["test"].image, whole.held_out["test"].image)
    order = np.delete(np.arange(10), [4, 9])
    np.testing.assert_array_equal(validated.train.image, whole.train.image[[*order, *(10 + order)]])
    with_validation = images.load(Images("own", path=str(tmp_path), validation=3))
    assert [len(split.label) for split in (with_validation.train, *with_validation.held_out.values())] == [17, 4, 3]


def test_the_normalization_is_that_of_the_training_images(tmp_path):
    """One color in train and another in test: the mean knows the first alone."""
    from PIL import Image

    for split, level in (("train", 51), ("test", 204)):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (4, 4), (level, 0, 255)).save(tmp_path / split / name / "1.png")
    data = images.load(Images("folder", path=str(tmp_path), standardize=True))
    mean, deviation = data.normalization
    np.testing.assert_allclose(mean, [0.2, 0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(deviation, 1e-3, rtol=1e-6)  # the least; all images are equal
