"""What is read while training: the same whoever reads it, and every way in which reading can fail is one line."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attention_jax.config import Images
from attention_jax.data import batches, crops, images
from attention_jax.data.streams import Reading, Share, receive_value, send_value
from attention_jax.errors import InputError

SIDE, BATCH, CLASSES = 8, 4, "abc"
WHOLE = Share()


@pytest.fixture
def folder(tmp_path):
    """3 classes of 5 images, of different shapes."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = rng.integers(0, 256, (9 + number, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def load_stream(folder, stream="always", **options):
    config = Images("folder", path=str(folder), pixels=SIDE, stream=stream, **options)
    data = images.load(config)
    return data, images.stream(config, data.train, 3, BATCH, 2)


def read(stream, share=WHOLE, epoch=0, window=0, epochs=2):
    with contextlib.closing(Reading(stream, share, epoch, window, epochs)) as reading:
        return list(reading)


def check_equal(a, b):
    """Two readings are equal bit for bit."""
    assert [reading[:2] for reading in a] == [reading[:2] for reading in b]
    for (*_, calls_a), (*_, calls_b) in zip(a, b):
        for call_a, call_b in zip(calls_a, calls_b, strict=True):
            assert call_a.weight.tobytes() == call_b.weight.tobytes() and call_a.bucket.keys() == call_b.bucket.keys()
            assert all(np.array_equal(call_a.bucket[name], call_b.bucket[name]) for name in call_a.bucket)


def check_error(call, *fragments):
    """The InputError of `call`: one line that has all `fragments`."""
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value) and all(fragment in str(error.value) for fragment in fragments), str(
        error.value
    )


def test_stream_has_every_row_once_an_epoch(folder):
    resident, _ = load_stream(folder, "never")
    data, stream = load_stream(folder)
    assert np.array_equal(data.held_out["test"].image[:], resident.held_out["test"].image)
    assert np.array_equal(data.train.image[1:7:2], resident.train.image[1:7:2])
    epochs = {0: [], 1: []}
    for epoch, _, [call] in read(stream):
        rows = zip(call.bucket["image"].reshape(-1, SIDE, SIDE, 3), call.bucket["label"].ravel(), call.weight.ravel())
        epochs[epoch] += [(label, image.tobytes()) for image, label, weight in rows if weight]
    every = sorted(zip(resident.train.label, map(np.ndarray.tobytes, resident.train.image)))
    assert sorted(epochs[0]) == sorted(epochs[1]) == every and epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_read_the_same_as_threads(folder, workers):
    _, stream = load_stream(folder)
    _, apart = load_stream(folder, workers=workers)
    whole = read(stream)
    check_equal(read(apart), whole)
    check_equal(read(stream, epoch=1, window=1), whole[stream.windows + 1 :])


def test_the_shares_of_all_hosts_are_the_batch(folder):
    _, stream = load_stream(folder)
    for window in range(stream.windows):
        [whole] = stream.calls(1, window, WHOLE)
        for hosts, num_devices in ((2, 1), (2, 2), (3, 1)):
            shares = [
                stream.calls(1, window, Share(host * num_devices, num_devices, hosts * num_devices))[0]
                for host in range(hosts)
            ]
            label = np.concatenate([share.bucket["label"] for share in shares])  # [devices, K * b]
            steps = len(whole.weight)
            label = label.reshape(len(label), steps, -1).swapaxes(0, 1).reshape(steps, -1)
            assert np.array_equal(label[:, :BATCH], whole.bucket["label"].reshape(steps, -1))
            assert all(np.array_equal(share.weight, whole.weight) for share in shares)


def test_draws_depend_on_seed_epoch_and_record_alone(folder):
    data, _ = load_stream(folder)

    def corner(size, rng):
        left, top = rng.integers(0, 4, 2)
        return left, top, left + 5, top + 5

    rows = np.array([4, 1, 4])
    first, second = (
        data.train.image.read(rows, corner, (3, 0)).image,
        data.train.image.read(rows[1:], corner, (3, 0)).image,
    )
    assert np.array_equal(first[1:], second) and np.array_equal(first[0], first[2])
    assert not np.array_equal(first, data.train.image.read(rows, corner, (3, 1)).image)


def test_unreadable_image_is_named_or_skipped(folder, capfd):
    damaged = folder / "b" / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    for workers in (0, 1):
        data, stream = load_stream(folder, workers=workers)
        check_error(
            lambda stream=stream: read(stream),
            "cannot read the image",
            "b/2.png",
            "repair or remove it",
            "bad-record skip",
        )
    data, stream = load_stream(folder, on_bad_record="skip")
    lines = [line for *_, [call] in read(stream, epochs=1) for line in call.damaged]
    row = 4 + 2  # of each class 4 are for training
    assert len(lines) == 1 and "b/2.png" in lines[0]
    assert np.array_equal(data.train.image[row], data.train.image[row + 1])
    (folder / "b" / "3.png").write_bytes(b"")  # the last of its class: another of b, not the first of c
    assert np.array_equal(data.train.image[row + 1], data.train.image[4])
    (folder / "b" / "3.png").write_bytes((folder / "b" / "0.png").read_bytes())
    in_memory, _ = load_stream(folder, "never", on_bad_record="skip")
    assert in_memory.train.label.tolist() == [0] * 4 + [1] * 4 + [2] * 4  # 4 of b are left, none for testing
    assert in_memory.held_out["test"].label.tolist() == [0, 2] and "1 of 15 images" in capfd.readouterr().err
    for path in folder.glob("*/*.png"):
        path.write_bytes(b"")
    check_error(lambda: data.train.image[0], "none of the 4 images of a class can be read")


def test_file_removed_while_training_is_named(folder):
    data, _ = load_stream(folder)
    (folder / "a" / "3.png").unlink()
    check_error(lambda: data.train.image[:], "no image file", "a/3.png")


def test_dead_worker_is_one_line(folder):
    _, stream = load_stream(folder, workers=2)
    reading = Reading(stream, WHOLE, 0, 0, 100)
    first, second = (reader.process for reader in reading.readers)
    next(iter(reading))
    os.kill(first.pid, signal.SIGINT)  # not for it to hear
    os.kill(first.pid, signal.SIGKILL)
    check_error(lambda: list(reading), "a process that reads the data died", "-9", "--resume")
    reading.close()
    assert not second.is_alive()


def test_processes_end_with_the_one_that_reads(folder):
    reading = Reading(load_stream(folder, workers=1)[1], WHOLE, 0, 0, 100)
    [reader] = reading.readers
    next(iter(reading))
    reader.pipe.close()  # which is what the end of a killed process closes
    reader.process.join(10)
    assert reader.process.exitcode == 0


FORGOTTEN = """
import sys
from attention_jax.config import Images
from attention_jax.data import batches, crops, images
from attention_jax.data.streams import Reading, Share
if __name__ == "__main__":
    config = Images("folder", path=sys.argv[1], pixels=8, stream="always", workers=1)
    reading = Reading(images.stream(config, images.load(config).train, 0, 4, 2), Share(), 0, 0, 100)
    print(next(iter(reading))[:2], reading.readers[0].process.pid)
"""


@pytest.mark.slow
def test_unclosed_reading_does_not_block_exit(folder, tmp_path):
    script = tmp_path / "forgotten.py"
    script.write_text(FORGOTTEN)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, env=environment, timeout=60
    )
    assert ended.returncode == 0 and ended.stdout.startswith("(0, 0)"), ended.stderr
    assert not Path(f"/proc/{ended.stdout.split()[-1]}").exists()


def test_what_goes_through_a_pipe_comes_out():
    from multiprocessing import Pipe

    sender, receiver = Pipe()
    value = {"a": np.arange(5), "b": [np.ones((2, 3), np.float32)[:, ::2], "text"], "c": InputError("one line")}
    send_value(sender, value)
    received = receive_value(receiver)
    assert np.array_equal(received["a"], value["a"]) and np.array_equal(received["b"][0], value["b"][0])
    assert received["b"][1] == "text" and str(received["c"]) == "one line"


@pytest.mark.slow
def test_records_that_tfds_has_prepared_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    whole = images.load(Images())  # prepares them
    directory = tmp_path / "digits" / "1.0.0"
    config = Images("tfds", path=str(directory), pixels=SIDE, workers=1)
    data = images.load(config)
    assert data.names == whole.names
    for actual, expected in ((data.train, whole.train), (data.held_out["test"], whole.held_out["test"])):
        assert np.array_equal(actual.label, expected.label)
        assert np.array_equal(actual.image[5:40], np.repeat(expected.image[5:40], 3, axis=3))
    [*_, [call]] = next(iter(read(images.stream(config, data.train, 0, 8, 1), epochs=1)))
    assert call.bucket["image"].shape == (1, 8, SIDE, SIDE, 3)
    check_error(
        lambda: images.load(Images("tfds", path="nothing_such", pixels=8)), "--data.path nothing_such", "array_record"
    )
    check_error(lambda: images.load(Images("tfds", path=str(directory))), "--data.pixels")


@pytest.mark.parametrize(
    "options, fragments",
    [({"pixels": 0}, ("--data.pixels",)), ({"path": "nowhere"}, ("nowhere", "not a directory"))],
)
def test_a_stream_needs_a_size_and_a_directory(folder, options, fragments):
    options = {"path": str(folder), "pixels": SIDE} | options
    check_error(lambda: images.load(Images("folder", stream="always", **options)), *fragments)


def test_an_empty_class_is_named(folder):
    for path in (folder / "b").iterdir():
        path.unlink()
    check_error(lambda: load_stream(folder), "the class b", "no images")


def test_inception_crops_and_center_crops(folder):
    data, stream = load_stream(folder, inception_crop=True, resize_pixels=SIDE + 1)
    assert data.train.image.shape[1:] == (SIDE + 1, SIDE + 1, 3)
    first = read(stream)[0][-1][0]
    rows = batches.plan(3, 0, [len(data.train.label)], [BATCH], 2)[0].indices.reshape(-1)
    for row, image in zip(rows, np.asarray(first.bucket["image"]).reshape(-1, SIDE, SIDE, 3)):
        file = Image.open(data.train.image.source.open(row)[0])
        expected = crops.resize_box(file, crops.inception_box(file.size, np.random.default_rng([3, 0, row])), SIDE)
        np.testing.assert_array_equal(image, np.asarray(expected))
    file = Image.open(data.held_out["test"].image.source.open(0)[0])
    np.testing.assert_array_equal(data.held_out["test"].image[0], np.asarray(crops.center_crop(file, SIDE + 1)))
    resident, none = load_stream(folder, "never", inception_crop=True, resize_pixels=SIDE + 1)
    assert none is None and np.array_equal(resident.train.image, data.train.image[:])
