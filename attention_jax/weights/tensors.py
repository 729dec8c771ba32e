"""Files of named arrays: safetensors and .npz. Neither is ever executed: a pickle is refused, whatever it is called.

Beside the arrays a file may say what they are: JSON in a safetensors header, a text array `metadata` in an .npz, or a
config.json in the same directory, as Hugging Face's libraries write it.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax import InputError

OWN = "attention_jax"
"""The key under which a file says what of this package it holds."""
KINDS = {"safetensors": ".safetensors", "npz": ".npz"}


class Tensors(NamedTuple):
    """The contents of a file of weights."""

    arrays: dict[str, np.ndarray]
    """In float32."""
    said: dict
    """What this package wrote about them, or {}."""
    config: dict
    """config.json beside the file, or {}."""


def read(path: Path) -> Tensors:
    """The arrays of a safetensors or .npz file, or of the one in a directory.

    Raises InputError, in one line, for everything that is not a whole such file.
    """
    path = Path(path)
    try:
        path = found(path)
        arrays, said = _read_npz(path) if zipfile.is_zipfile(path) else _read_safetensors(path)
        arrays = {name: _float32(name, array) for name, array in arrays.items()}
        beside = path.parent / "config.json"
        config = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    except InputError:
        raise
    except Exception as error:  # a damaged file makes each library raise its own kinds
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{path} must be a whole safetensors or .npz file with a whole config.json, if any, beside it; "
            f"it is damaged ({type(error).__name__}: {reason}): copy or download it again"
        ) from error
    if not arrays:
        raise InputError(f"{path} has no tensors in it: give a file of weights")
    return Tensors(arrays, said, config if isinstance(config, dict) else {})


def found(path: Path) -> Path:
    """The file of weights that `path` is, or that is in the directory `path`."""
    if path.is_dir():
        inside = sorted(file for kind in KINDS.values() for file in path.glob(f"*{kind}") if file.is_file())
        if len(inside) != 1:
            named = ", ".join(file.name for file in inside[:3]) or "none"
            raise InputError(f"{path} must hold one file of weights, .safetensors or .npz, has {named}: give the file")
        return inside[0]
    if not path.is_file():
        raise InputError(f"a file of weights is needed; there is no {path}")
    with path.open("rb") as file:
        start = file.read(2)
    names = zipfile.ZipFile(path).namelist() if start == b"PK" and zipfile.is_zipfile(path) else []
    # A pickle begins with its protocol, 2 to 5; as the length of a safetensors header that would be a very short one.
    raw = start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if raw or path.suffix in (".pt", ".pth", ".bin", ".pkl", ".ckpt") or any(name.endswith(".pkl") for name in names):
        raise InputError(
            f"{path} is a pickle, or is called like one, and could run any program when it is read: it is not opened; "
            "save the weights as safetensors"
        )
    return path


def _read_npz(path: Path):
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != "metadata"}
        said = json.loads(str(file["metadata"])) if "metadata" in file.files else {}
    return arrays, said


def _read_safetensors(path: Path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
        said = (file.metadata() or {}).get(OWN)
    return arrays, {} if said is None else json.loads(said)


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiubV" or array.dtype.hasobject:
        raise InputError(f"tensor {name} must hold numbers, is of type {array.dtype}")
    return np.asarray(array, np.float32)


def write(path: Path, arrays: Mapping[str, np.ndarray], said: dict):
    """Write arrays as float32; the ending of the name decides the format."""
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    if path.suffix == KINDS["npz"]:
        np.savez(path, metadata=np.array(json.dumps(said)), **arrays)
        return
    from safetensors.numpy import save

    content = save(arrays, metadata={"format": "pt"} | ({OWN: json.dumps(said)} if said else {}))
    path.write_bytes(_in_order(content))


def _in_order(content: bytes) -> bytes:
    """The same safetensors file with the entries of its metadata in alphabetical order, which is random otherwise."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + written.ljust(end - 8) + content[end:] if len(written) <= end - 8 else content
