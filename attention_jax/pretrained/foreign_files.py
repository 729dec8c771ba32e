"""What all files of other libraries need: JSON objects, tensors that are read on use, one line for a damaged file."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention_jax.errors import InputError

WEIGHTS = ", a whole safetensors, .npz or .gguf file with a whole config.json, if any, beside it"


@contextlib.contextmanager
def explain_damage(path: Path | str, needed: str = "") -> Iterator[None]:
    """A context in which any error but an InputError means that the file at `path`, or one beside it, is damaged."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # libraries raise types of their own; a panic of `tokenizers` is no Exception
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise InputError(f"{path} is damaged ({reason}): copy or download it again{needed}") from error


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
