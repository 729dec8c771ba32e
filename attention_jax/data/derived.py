"""Files in the data home that are made of a user's file, once for each content."""

import contextlib
import glob
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from attention_jax.files import data_home, home_written, one_at_a_time, temporary


@home_written()
def derived(path: str, directory: str, suffix: str, write: Callable[[Path], object], words: Sequence[str] = ()) -> str:
    """Return a file in `directory` of the data home that `write` makes of the file at `path`.

    It is made once for each size and modification time of that file, and for each choice of `words`, by one process
    while others wait; then those of earlier contents are removed.
    """
    home = os.path.join(data_home(), "attention_jax", directory)
    key = "\0".join([os.path.abspath(path), *words])
    name = os.path.join(home, hashlib.sha256(key.encode()).hexdigest()[:16])
    made = f"{name}-{stamp(path)}{suffix}"
    if os.path.exists(made):
        return made
    os.makedirs(home, exist_ok=True)
    with one_at_a_time(Path(home)):
        older = glob.glob(f"{glob.escape(name)}-*{suffix}")
        if made not in older:
            with temporary(Path(made)) as part:
                write(part)
            for file in older:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(file)
    return made


def stamp(path: str) -> str:
    """The size and the modification time of a file, by which its content is recognized."""
    status = os.stat(path)
    return f"{status.st_size}-{status.st_mtime_ns}"
