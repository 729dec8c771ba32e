"""Reading and writing of named arrays in safetensors and .npz files. Pickles are refused, by content and by suffix.

Metadata about the arrays may be JSON in a safetensors header, a text array `metadata` in an .npz file, or a
config.json in the same directory, as Hugging Face's libraries write it.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax.errors import InputError

OWN = "attention_jax"
"""Key of this package's metadata in a file."""
KINDS = {"safetensors": ".safetensors", "npz": ".npz"}


class Tensors(NamedTuple):
    """The contents of a file of weights."""

    arrays: dict[str, np.ndarray]
    """{name: float32 array}."""
    said: dict
    """Metadata that this package wrote, or {}."""
    config: dict
    """Contents of config.json in the same directory, or {}."""


def read(path: Path) -> Tensors:
    """Read a safetensors or .npz file, or the only one in a directory.

    Raises InputError for a damaged or truncated file, a pickle, and arrays that are not numeric.
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
    except Exception as error:  # libraries raise different types for a damaged file
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{path} must be a whole safetensors or .npz file with a whole config.json, if any, beside it; "
            f"it is damaged ({type(error).__name__}: {reason}): copy or download it again"
        ) from error
    if not arrays:
        raise InputError(f"{path} has no tensors in it: give a file of weights")
    return Tensors(arrays, said, config if isinstance(config, dict) else {})


def found(path: Path) -> Path:
    """Return `path` if it is a weight file, or the only weight file in the directory `path`."""
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
            f"{path} is a pickle, or is called like one, and could execute code when it is read: it is not opened; "
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
    """Write arrays as float32, in the format of the file name's suffix."""
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    if path.suffix == KINDS["npz"]:
        np.savez(path, metadata=np.array(json.dumps(said)), **arrays)
        return
    from safetensors.numpy import save

    content = save(arrays, metadata={"format": "pt"} | ({OWN: json.dumps(said)} if said else {}))
    path.write_bytes(_in_order(content))


def _in_order(content: bytes) -> bytes:
    """Sort the metadata of a serialized safetensors file, whose order is random otherwise, to make it reproducible."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + written.ljust(end - 8) + content[end:] if len(written) <= end - 8 else content
