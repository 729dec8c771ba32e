"""A run in one file: JSON, arrays and safetensors in a zip. It has no pickle and no code."""

import atexit
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from attention_jax.errors import InputError
from attention_jax.files import temporary_file

PACKED = ".zip"
KEPT = (
    "config.json",
    "environment.json",
    "facts.json",
    "result.json",
    "preprocessing.json",
    "preprocessing.npz",
    "weights.safetensors",
)
"""The files of a packed run. A packed run lacks checkpoints, metrics and figures, so that it cannot be resumed."""
LARGEST = 1 << 36
"""The maximum size of an unpacked run in bytes, so that a damaged or malicious zip cannot fill the disk."""


def write_pack(directory: Path, params, out: Path) -> Path:
    """Write the finished run in `directory` with the parameters `params` to the zip file `out`, atomically.

    Raises InputError for a run without stored preprocessing (`saved.store_preprocessing`), whose predictions would
    need the training data.
    """
    from safetensors.numpy import save

    from attention_jax.pretrained.exchange import flat

    if out.exists():
        raise InputError(f"--out must be a file that does not exist yet; {out} does")
    if not (directory / "preprocessing.json").exists():
        raise InputError(
            f"--to zip needs the preprocessing.json of the run, which {directory} lacks, as its data are of a type of "
            "your own: copy the directory with its data"
        )
    arrays = {name: np.ascontiguousarray(array) for name, array in flat(params).items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(out) as temporary_path, zipfile.ZipFile(temporary_path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in KEPT:
            if (directory / name).exists():
                archive.write(directory / name, name)
        archive.writestr("weights.safetensors", save(arrays))
    return out


def check_directory(run: Path | str, command: str):
    """Raise InputError if `run` is a packed run, which lacks the log and the checkpoints that `command` needs."""
    if Path(run).is_file() and zipfile.is_zipfile(run):
        raise InputError(
            f"{command} needs the directory of a run, with its log and checkpoints; {run} is a packed run: "
            "give the directory that it was made of"
        )


def unpack_run(run: Path | str) -> Path:
    """Return the directory of a run: `run`, or the temporary directory of an unpacked run, which is deleted at the end
    of the process. Raises InputError for a file that is not a packed run."""
    run = Path(run)
    if not run.is_file():
        return run
    try:
        with zipfile.ZipFile(run) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            if "config.json" not in sizes or not sizes.keys() <= set(KEPT) or sum(sizes.values()) > LARGEST:
                raise zipfile.BadZipFile("it has other files than a packed run")
            unpacked = tempfile.TemporaryDirectory(prefix="attention_jax-")
            atexit.register(unpacked.cleanup)
            archive.extractall(unpacked.name)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{run} is not a packed run ({error}); give a directory that `launch.py train` made, or a file that "
            "`launch.py export --to zip` wrote"
        ) from error
    return Path(unpacked.name)


def read_weights(directory: Path) -> dict | None:
    """Return the parameters of an unpacked run as a tree of arrays, or None if `directory` has none."""
    path = directory / "weights.safetensors"
    if not path.exists():
        return None
    from safetensors.numpy import load_file

    from attention_jax.pretrained.exchange import nested

    try:
        return nested(load_file(path))
    except Exception as error:  # safetensors raises its own kind
        raise InputError(f"{path.name} of the packed run is damaged ({error}); export the run again") from error


def output_directory(run: Path | str) -> Path:
    """Return the directory for files derived from a run: its directory, or for a packed run or a .gguf file one of its
    name beside it.

    >>> output_directory("models/dates.zip").as_posix()
    'models/dates'
    """
    return Path(run).with_suffix("") if Path(run).suffix in (PACKED, ".gguf") else Path(run)
