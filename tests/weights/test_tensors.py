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
from attention_jax.weights import exchange, tensors

safetensors = pytest.importorskip("safetensors.numpy")


class Bomb:
    """Unpickling it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def refused(path) -> str:
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
    assert "is a pickle, or is called like one" in refused(path)
    assert not ran.exists()


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    ran, path = tmp_path / "ran", tmp_path / "model.npz"
    np.savez(path, cls=np.array([Bomb(str(ran))], dtype=object))
    assert "is damaged (ValueError: Object arrays cannot be loaded" in refused(path)
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
            assert refused(path)
        path.write_bytes(whole.replace(b"PK\1\2", b"PK\1\0") if form == "npz" else b"{}")
        assert "is damaged" in refused(path)
        path.write_bytes(b"\0" * len(whole))
        assert refused(path)
    header = struct.pack("<Q", 2**60) + b"{}"
    (tmp_path / "model.safetensors").write_bytes(header)
    assert "is damaged" in refused(tmp_path / "model.safetensors")


def test_a_compressed_array_whose_bytes_were_changed(tmp_path):
    path = tmp_path / "model.npz"
    np.savez_compressed(path, cls=np.random.default_rng(0).standard_normal(1000))
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 0xFF
    path.write_bytes(changed)
    assert "is damaged (" in refused(path)


def test_an_array_that_says_it_is_larger_than_memory(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as file:
        file.writestr("cls.npy", header.getvalue())
    assert "is damaged (" in refused(tmp_path / "model.npz")


def test_what_is_no_file_of_weights(tmp_path):
    assert "there is no" in refused(tmp_path / "nothing.npz")
    assert "must hold one file of weights, .safetensors or .npz, has none: give the file" in refused(tmp_path)
    (tmp_path / "text.npz").write_text("weights")
    assert "is damaged" in refused(tmp_path / "text.npz")
    np.savez(tmp_path / "empty.npz")
    assert "has no tensors in it" in refused(tmp_path / "empty.npz")
    np.savez(tmp_path / "words.npz", cls=np.array(["a", "b"]))
    assert "tensor cls must hold numbers" in refused(tmp_path / "words.npz")


SAID = {"type": "ViTConfig", "patch_size": 2, "hidden_size": 4, "mlp_dim": 4, "num_layers": 1, "num_heads": 1}


@pytest.mark.parametrize(
    "said",
    [
        {"model": {"type": "antigravity:Options"}},
        {"model": {"type": "Transformer", "score": "antigravity:Score"}},
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
def test_what_a_file_says_of_itself_names_no_code_and_no_nonsense(tmp_path, said):
    import sys

    np.savez(tmp_path / "model.npz", metadata=np.array(json.dumps(said)), cls=np.ones(2))
    refused(tmp_path / "model.npz")
    assert "antigravity" not in sys.modules


def test_a_damaged_config_beside_the_file(tmp_path):
    files(tmp_path)
    (tmp_path / "npz" / "config.json").write_text("{")
    assert "with a whole config.json, if any, beside it" in refused(tmp_path / "npz")


def test_half_precision_is_read_as_float32(tmp_path):
    import ml_dtypes

    x = np.array([1.0, 2.5], ml_dtypes.bfloat16)
    safetensors.save_file({"a": x, "b": np.ones(2, np.float16)}, tmp_path / "model.safetensors")
    arrays = tensors.read(tmp_path / "model.safetensors").arrays
    assert arrays["a"].tolist() == [1.0, 2.5] and {array.dtype for array in arrays.values()} == {np.dtype("float32")}


def test_nothing_half_written_stays(tmp_path):
    def fill(place):
        (place / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        exchange.make_directory(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="--out must be a directory that does not exist yet"):
        exchange.make_directory(tmp_path / "out", fill)


def test_the_same_weights_are_the_same_file(tmp_path):
    options, arrays = configs.ViTConfig(2, 4, 4, 1, 1), {"class_token": np.arange(5, dtype=np.float32)}
    made = set()
    for _ in range(10):  # the order of the metadata was random
        tensors.write(tmp_path / "model.safetensors", arrays, {"model": configs.to_json(options), "number": "\u00e9"})
        made.add((tmp_path / "model.safetensors").read_bytes())
    assert len(made) == 1 and (safetensors.load(made.pop())["class_token"] == arrays["class_token"]).all()


def test_weights_in_several_files_are_refused(tmp_path):
    """As transformers writes large models: parts and an index."""
    for part in (1, 2):
        safetensors.save_file({f"part{part}": np.ones(2)}, tmp_path / f"model-0000{part}-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "must hold one file of weights, .safetensors or .npz, has model-00001-of-00002.saf" in refused(tmp_path)
