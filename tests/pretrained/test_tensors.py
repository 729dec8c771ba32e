"""Files that are damaged, hostile or something else are refused in one line, and nothing of them is run."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tiny  # noqa: F401  (its models are known by name)

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange, tensors

safetensors = pytest.importorskip("safetensors.numpy")


class Bomb:
    """Unpickling it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def read_error(path) -> str:
    with pytest.raises(InputError) as error:
        exchange.read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize("name", ["model.pt", "model.bin", "weights.pkl", "model.safetensors", "model.npz", "model"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_is_refused_whatever_it_is_called(tmp_path, name, wrapped):
    ran, path = tmp_path / "ran", tmp_path / name
    bomb = pickle.dumps(Bomb(str(ran)))
    path.write_bytes(bomb)
    if wrapped:  # as torch.save does
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", bomb)
    assert "is a pickle, or is called like one" in read_error(path)
    assert not ran.exists()


@pytest.mark.parametrize("length", [640, 896, 1152, 1408])
def test_a_header_length_like_a_pickle_is_read(tmp_path, length):
    """Lengths whose first bytes are those of the protocols 2 to 5."""
    arrays = {f"tensor_{i}": np.full(3, i, np.float32) for i in range(5)}
    content = safetensors.save(arrays)
    end = 8 + int.from_bytes(content[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", length) + content[8:end].ljust(length) + content[end:]
    )
    stored = tensors.read_tensors(tmp_path / "model.safetensors").arrays
    assert {name: np.asarray(array).tolist() for name, array in stored.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    ran, path = tmp_path / "ran", tmp_path / "model.npz"
    np.savez(path, cls=np.array([Bomb(str(ran))], dtype=object))
    assert "is damaged (ValueError: Object arrays cannot be loaded" in read_error(path)
    assert not ran.exists()


def files(place) -> dict[str, bytes]:
    """Whole files of both kinds."""
    options, arrays = configs.ViTConfig(2, 4, 4, 1, 1), {"class_token": np.arange(300, dtype=np.float32)}
    for form in tensors.KINDS:
        exchange.write(exchange.Weights(options, arrays, ""), place / form, form)
    return {form: (place / form / f"model.{form}").read_bytes() for form in tensors.KINDS}


def test_damage_anywhere_is_one_line(tmp_path):
    for form, whole in files(tmp_path).items():
        path = tmp_path / f"model.{form}"
        for length in (0, 1, 7, 9, 60, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert read_error(path)
        path.write_bytes(whole.replace(b"PK\1\2", b"PK\1\0") if form == "npz" else b"{}")
        assert "is damaged" in read_error(path)
        path.write_bytes(b"\0" * len(whole))
        assert read_error(path)
    header = struct.pack("<Q", 2**60) + b"{}"
    (tmp_path / "model.safetensors").write_bytes(header)
    assert "is damaged" in read_error(tmp_path / "model.safetensors")


def test_a_compressed_array_whose_bytes_were_changed(tmp_path):
    path = tmp_path / "model.npz"
    np.savez_compressed(path, cls=np.random.default_rng(0).standard_normal(1000))
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 0xFF
    path.write_bytes(changed)
    assert "is damaged (" in read_error(path)


def test_array_declared_larger_than_memory(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as file:
        file.writestr("cls.npy", header.getvalue())
    assert "is damaged (" in read_error(tmp_path / "model.npz")


def test_what_is_no_file_of_weights(tmp_path):
    assert "there is no" in read_error(tmp_path / "nothing.npz")
    assert "must hold one file of weights, .safetensors or .npz, has none: give the file" in read_error(tmp_path)
    (tmp_path / "text.npz").write_text("weights")
    assert "is damaged" in read_error(tmp_path / "text.npz")
    np.savez(tmp_path / "empty.npz")
    assert "has no tensors in it" in read_error(tmp_path / "empty.npz")
    np.savez(tmp_path / "words.npz", cls=np.array(["a", "b"]))
    assert "tensor cls must hold numbers" in read_error(tmp_path / "words.npz")


SAID = {"type": "ViTConfig", "patch_size": 2, "hidden_size": 4, "mlp_dim": 4, "num_layers": 1, "num_heads": 1}


@pytest.mark.parametrize(
    "metadata",
    [
        {"model": {"type": "antigravity:Options"}},
        {"model": {"type": "TransformerConfig", "score": "antigravity:Score"}},
        {"model": SAID | {"num_layers": 10**9}},
        {"model": SAID | {"num_layers": "many"}},
        {"model": SAID | {"hidden_size": -4}},
        {"model": SAID | {"pool": "all"}},
        {"model": SAID | {"surprise": 1}},
        {"model": {"type": "Train"}},
        {"model": [1, 2]},
        {"other": 1},
        [1],
        7,
    ],
    ids=str,
)
def test_file_metadata_names_no_code(tmp_path, metadata):
    import sys

    np.savez(tmp_path / "model.npz", metadata=np.array(json.dumps(metadata)), cls=np.ones(2))
    read_error(tmp_path / "model.npz")
    assert "antigravity" not in sys.modules


def test_a_damaged_config_beside_the_file(tmp_path):
    files(tmp_path)
    (tmp_path / "npz" / "config.json").write_text("{")
    assert "config.json must be a JSON object" in read_error(tmp_path / "npz")


def test_half_precision_is_read_as_float32(tmp_path):
    import ml_dtypes

    x = np.array([1.0, 2.5], ml_dtypes.bfloat16)
    safetensors.save_file({"a": x, "b": np.ones(2, np.float16)}, tmp_path / "model.safetensors")
    stored = tensors.read_tensors(tmp_path / "model.safetensors").arrays
    arrays = {name: np.asarray(array) for name, array in stored.items()}
    assert arrays["a"].tolist() == [1.0, 2.5] and {array.dtype for array in arrays.values()} == {np.dtype("float32")}


def test_nothing_half_written_stays(tmp_path):
    def fill(place):
        (place / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        exchange.make_directory(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").touch()
    with pytest.raises(InputError, match="--out cannot be .*out: it must be new or empty, and has theirs"):
        exchange.make_directory(tmp_path / "out", fill)


def test_the_same_weights_are_the_same_file(tmp_path):
    options, arrays = configs.ViTConfig(2, 4, 4, 1, 1), {"class_token": np.arange(5, dtype=np.float32)}
    contents = set()
    for _ in range(10):  # the order of the metadata was random
        tensors.write_tensors(
            tmp_path / "model.safetensors", arrays, {"model": configs.to_json(options), "number": "\u00e9"}
        )
        contents.add((tmp_path / "model.safetensors").read_bytes())
    assert len(contents) == 1 and (safetensors.load(contents.pop())["class_token"] == arrays["class_token"]).all()


def shards(place) -> dict:
    """A model in two files, as transformers writes large ones; the contents of its index."""
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        safetensors.save_file({f"part{number}": np.full(2, number, np.float32)}, place / name)
    return {f"part{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}


def test_shards_are_read_as_their_index_says(tmp_path):
    (tmp_path / tensors.INDEX).write_text(json.dumps({"weight_map": shards(tmp_path)}))
    safetensors.save_file(
        {"part1": np.zeros(2)}, tmp_path / "consolidated.safetensors"
    )  # as Mistral's directories have
    arrays = tensors.read_tensors(tmp_path).arrays
    assert {name: np.asarray(array).tolist() for name, array in arrays.items()} == {"part1": [1, 1], "part2": [2, 2]}


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "AttributeError"),
        ({}, "must have a weight_map"),
        ({"part1": 1}, "must have a weight_map"),
        ({"part1": FIRST, "part2": "absent.safetensors"}, "names 1 files that are not there (absent.safetensors)"),
        ({"part1": FIRST, "part2": "../inside/" + SECOND}, "must name .safetensors files in its own directory"),
        ({"part1": FIRST, "part2": "/etc/passwd"}, "must name .safetensors files in its own directory"),
        ({"part1": FIRST, "part2": "config.json"}, "must name .safetensors files in its own directory"),
        ({"part1": FIRST}, ""),
        ({"part1": FIRST, "part2": SECOND, "part3": SECOND}, "only one of them has part3"),
        ({"part1": FIRST, "part2": FIRST}, "only one of them has part2"),
        ({"part1": FIRST, "part2": SECOND, "again": "twice.safetensors"}, "tensor part1 must be in one file"),
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_its_shards(tmp_path, index, message):
    shards(tmp_path)
    (tmp_path / "inside").mkdir()
    safetensors.save_file({"again": np.ones(2), "part1": np.ones(2)}, tmp_path / "twice.safetensors")
    content = {"weight_map": index} if isinstance(index, dict) else index
    (tmp_path / tensors.INDEX).write_text(json.dumps(content))
    if message:
        assert message in read_error(tmp_path)
    else:  # one file of two is a whole model as far as names go; which tensors it needs says its family
        assert list(tensors.read_tensors(tmp_path).arrays) == ["part1"]


def test_nonfinite_values_are_an_error_by_name(tmp_path):
    for value in (np.nan, np.inf, -np.inf):
        arrays_to_write = {"whole": np.ones(2, np.float32), "broken": np.array([1, value], np.float16)}
        safetensors.save_file(arrays_to_write, tmp_path / "model.safetensors")
        np.savez(tmp_path / "model.npz", **arrays_to_write)
        arrays = tensors.read_tensors(tmp_path / "model.safetensors").arrays
        assert np.asarray(arrays["whole"]).tolist() == [1, 1]
        with pytest.raises(InputError, match="tensor broken has values that are NaN or infinite"):
            np.asarray(arrays["broken"])
        assert "tensor broken has values" in read_error(tmp_path / "model.npz")


def test_a_directory_of_pickles_is_named(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert "has pytorch_model.bin, a pickle, which is not opened" in read_error(tmp_path)


@pytest.mark.parametrize("kind", [np.float16, "bfloat16", np.float64, np.int64, np.uint8, np.bool_], ids=str)
def test_tensor_takes_no_memory_before_use(tmp_path, kind):
    """The peak is one tensor and its float32 copy, whatever else is in the file, as tracemalloc counts it."""
    import tracemalloc

    import ml_dtypes

    kind = ml_dtypes.bfloat16 if kind == "bfloat16" else kind
    values = (np.arange(2**16) % 1000).astype(kind)
    safetensors.save_file({str(i): values for i in range(8)}, tmp_path / "model.safetensors")
    tracemalloc.start()
    arrays = tensors.read_tensors(tmp_path / "model.safetensors").arrays
    for array in arrays.values():
        assert (np.asarray(array) == values.astype(np.float32)).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * values.size * (4 + values.itemsize)


@pytest.mark.parametrize(
    "labels",
    [
        dict(zip("01", "ab")),
        dict(zip("0123", "abcd")),
        dict(zip("123", "abc")),
        dict(zip("012", "aac")),
        ["a", "b", "c"],
    ],
    ids=str,
)
def test_names_of_classes_that_contradict_the_weights_are_refused(labels):
    """Of three classes; no names at all are none."""
    with pytest.raises(InputError, match="each class of the weights, 0 to 2, a name of its own"):
        tensors.class_names({"id2label": labels}, 3)
    assert tensors.class_names({"id2label": {"1": "b", "0": "a"}}, 2) == ("a", "b")
    assert tensors.class_names({}, 3) == ()
