"""What all files of other libraries need: JSON objects, and tensors that are read on use."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention_jax.errors import InputError, explain_damage

WEIGHTS = ", a whole safetensors, .npz or .gguf file with a whole config.json, if any, beside it"


def json_object(path: Path, needed: bool = True) -> dict:
    """The JSON object in a file; {} if there is no file and it is not `needed`, otherwise InputError."""
    if not path.is_file() and not needed:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} must be a JSON object ({error}); copy the whole directory of the model") from error


def check_finite(name: str, array: np.ndarray) -> np.ndarray:
    """Return `array`; InputError if a value of it is NaN or infinite."""
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):  # both are NaN if one value is
        raise InputError(
            f"tensor {name} has values that are NaN or infinite: the file is damaged, or training diverged"
        )
    return array


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in a file. `np.asarray` reads it as float32; until then it takes no memory.

    Raises InputError when it is read and a value is NaN or infinite.
    """

    name: str
    kind: str
    """Its type in the file, as safetensors names it: F32, BF16, I8, ..."""
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def then(self, change: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...] | None = None) -> "StoredTensor":
        """The tensor after a change, which is made when it is read."""
        original = lambda: np.asarray(self)
        return StoredTensor(self.name, self.kind, self.shape if shape is None else shape, lambda: change(original()))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        with explain_damage(self.name):
            array = np.asarray(self.load(), np.float32)
        if array.shape != self.shape:
            raise InputError(f"tensor {self.name} must be {list(self.shape)}, is {list(array.shape)}")
        return check_finite(self.name, array).astype(np.float32 if dtype is None else dtype, copy=False)
