"""Named arrays in safetensors, .npz and .gguf files. Pickles are rejected, by content and by suffix.

Metadata about the arrays may be JSON in a safetensors header, a text array `metadata` in an .npz file, or a
config.json in the same directory, as Hugging Face's libraries write it. A large model is in several files, the shards,
and model.safetensors.index.json names the shard of each tensor.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax.errors import InputError, explain_damage
from attention_jax.pretrained import gguf
from attention_jax.pretrained.foreign_files import WEIGHTS, StoredTensor, check_finite, json_object

OWN = "attention_jax"
"""Key of this package's metadata in a file."""
KINDS = {"safetensors": ".safetensors", "npz": ".npz"}
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
INDEX = "model.safetensors.index.json"
"""The file that names the shard of each tensor."""
FLOATS = ("F64", "F32", "F16", "BF16")
NUMBERS = (*FLOATS, "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
"""The types of a safetensors file that are read; weights are FLOATS, and buffers such as masks may be the others."""


class Tensors(NamedTuple):
    """The contents of a file of weights."""

    arrays: dict[str, np.ndarray | StoredTensor]
    """{name: float32 array, or one that is read when it is used}."""
    metadata: dict
    """Metadata that this package wrote, or {}."""
    config: dict
    """Contents of config.json in the same directory, or {}."""


def read_tensors(path: Path) -> Tensors:
    """Read a safetensors, .npz or .gguf file, or the only one in a directory, or the shards that its index names.

    Raises InputError for a damaged or truncated file, a pickle, and arrays that are not numeric or not finite; whether
    those of safetensors and .gguf files are finite is checked when they are used.
    """
    path = Path(path)
    with explain_damage(path, WEIGHTS):
        path, metadata = find_file(path), {}
        if path.suffix == gguf.SUFFIX:
            arrays, config = gguf.read_gguf(path)
            return Tensors(arrays, {}, config)
        if path.name == INDEX:
            arrays = _read_shards(path)
        else:
            arrays, metadata = _read_npz(path) if zipfile.is_zipfile(path) else _read_safetensors(path)
        config = json_object(path.parent / "config.json", needed=False)
    if not arrays:
        raise InputError(f"{path} has no tensors in it: give a file of weights")
    return Tensors(arrays, metadata, config)


def config_of(path: Path) -> dict:
    """The config.json of a model in a directory, beside a file, or in the header of a .gguf file; {} without one."""
    with explain_damage(path, WEIGHTS):
        file = find_file(Path(path))
        if file.suffix == gguf.SUFFIX:
            return gguf.config_of(gguf.header_of(file))
        return json_object(file.parent / "config.json", needed=False)


def class_names(config: dict, count: int) -> tuple[str, ...]:
    """The names in a configuration of a classifier's `count` classes; () without any.

    Raises InputError unless they are one name for each class, and different.
    """
    labels = config.get("id2label") or {}
    if not (count and labels):
        return ()
    if not isinstance(labels, dict) or {*labels} != {*map(str, range(count))} or len({*labels.values()}) < count:
        raise InputError(
            f"id2label in config.json must give each class of the weights, 0 to {count - 1}, a name of its own; "
            f"it is {str(labels)[:200]}: correct it"
        )
    return tuple(str(labels[str(number)]) for number in range(count))


def find_file(path: Path) -> Path:
    """Return `path` if it is a weight file, or the only weight file or the index in the directory `path`."""
    if path.is_dir():
        if (path / INDEX).is_file():
            return path / INDEX
        suffixes = (*KINDS.values(), gguf.SUFFIX)
        inside = sorted(file for kind in suffixes for file in path.glob(f"*{kind}") if file.is_file())
        if len(inside) != 1:
            pickled = [] if inside else sorted(file for kind in PICKLES for file in path.glob(f"*{kind}"))
            names_text = f"{', '.join(file.name for file in inside[:3]) or 'none'}: give the file"
            if pickled:
                names_text = f"{pickled[0].name}, a pickle, which is not opened: save the weights as safetensors"
            raise InputError(f"{path} must hold one file of weights, .safetensors or .npz, has {names_text}")
        return find_file(inside[0])
    if not path.is_file():
        raise InputError(f"a file of weights is needed; there is no {path}")
    with path.open("rb") as file:
        start = file.read(9)
    names = zipfile.ZipFile(path).namelist() if start[:2] == b"PK" and zipfile.is_zipfile(path) else []
    # A pickle begins with its protocol, 2 to 5. So may a safetensors file, with the length of its header, a {...}.
    raw = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and start[8:] != b"{"
    if raw or path.suffix in PICKLES or any(name.endswith(".pkl") for name in names):
        raise InputError(
            f"{path} is a pickle, or is called like one, and could execute code when it is read: it is not opened; "
            "save the weights as safetensors"
        )
    return path


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], dict]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: _float32(name, file[name]) for name in file.files if name != "metadata"}
        metadata = json.loads(str(file["metadata"])) if "metadata" in file.files else {}
    return arrays, metadata


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiubV" or array.dtype.hasobject:
        raise InputError(f"tensor {name} must hold numbers, is of type {array.dtype}")
    return check_finite(name, np.asarray(array, np.float32))


def _read_safetensors(path: Path) -> tuple[dict[str, StoredTensor], dict]:
    from safetensors import safe_open

    def load(name: str) -> np.ndarray:
        with safe_open(path, framework="numpy") as file:  # one tensor of the mapped file is in memory at a time
            return file.get_tensor(name)

    arrays = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (it is no dictionary)
            tensor_slice = file.get_slice(name)
            if (kind := str(tensor_slice.get_dtype())) not in NUMBERS:
                raise InputError(f"tensor {name} must hold numbers of {', '.join(NUMBERS)}, is of type {kind}")
            arrays[name] = StoredTensor(name, kind, tuple(tensor_slice.get_shape()), lambda name=name: load(name))
        metadata = (file.metadata() or {}).get(OWN)
    return arrays, {} if metadata is None else json.loads(metadata)


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards; InputError unless they are those that the index names, each in one shard."""
    names = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(shard, str) for shard in names.values()):
        raise InputError(f"{index} must have a weight_map, {{tensor: file}}: copy or download it again")
    shards, arrays = sorted(set(names.values())), {}
    if strange := [shard for shard in shards if Path(shard).name != shard or not shard.endswith(KINDS["safetensors"])]:
        raise InputError(f"{index} must name .safetensors files in its own directory; it names {strange[0]!r}")
    if absent := [shard for shard in shards if not (index.parent / shard).is_file()]:
        raise InputError(f"{index} names {len(absent)} files that are not there ({', '.join(absent[:3])}): copy them")
    for shard in shards:
        with explain_damage(index.parent / shard, WEIGHTS):
            inside, _ = _read_safetensors(find_file(index.parent / shard))
        if twice := sorted(inside.keys() & arrays.keys()):
            raise InputError(f"{index.parent}: tensor {twice[0]} must be in one file, is also in {shard}")
        arrays |= inside
        expected = {name for name, place in names.items() if place == shard}
        if differ := sorted(expected ^ inside.keys()):
            raise InputError(f"{index} and {shard} must name the same tensors; only one of them has {differ[0]}")
    return arrays


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: dict):
    """Write arrays as float32, in the format of the file name's suffix."""
    if path.suffix == KINDS["npz"]:
        arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
        np.savez(path, metadata=np.array(json.dumps(metadata)), **arrays)
        return
    path.write_bytes(safetensors_bytes(arrays, metadata))


def safetensors_bytes(arrays: Mapping[str, np.ndarray], metadata: dict) -> bytes:
    """The content of a safetensors file with these float32 arrays."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    return _sort_metadata(save(arrays, {"format": "pt"} | ({OWN: json.dumps(metadata)} if metadata else {})))


def _sort_metadata(content: bytes) -> bytes:
    """Sort the metadata of a serialized safetensors file, whose order is random otherwise, to make it reproducible."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + written.ljust(end - 8) + content[end:] if len(written) <= end - 8 else content
