"""Loading of runs: the task with its parameters, or the weights only.

A run stores the part of its data that predictions need (`Task.excerpt`) in preprocessing.json and preprocessing.npz, so
that `predict`, `look` and `export` need no training data. The data of custom types are loaded again.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.files import check_regular, read_object, temporary_file, write_json
from attention_jax.runs.directory import check_data, check_format, final_of, has_checkpoint, read_config

FORMAT = 1
"""The format version of preprocessing.json."""


def store_preprocessing(directory: Path, task):
    """Store what predictions need of a task's data; nothing for a task without an `excerpt`, or for custom data
    types."""
    from attention_jax.data import stored

    excerpt, arrays = task.excerpt(), {}
    if excerpt is None:
        return
    try:
        data = stored.encode(excerpt, arrays)
    except stored.NotStored:
        return
    with temporary_file(directory / "preprocessing.npz") as temporary_path, temporary_path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    write_json(directory / "preprocessing.json", {"format": FORMAT, "data": data})


def read_preprocessing(directory: Path, config: configs.Config):
    """Return the data of `store_preprocessing`, or None, of a run with this configuration."""
    path = directory / "preprocessing.json"
    if not path.exists():
        return None
    from attention_jax.data import stored

    content = read_object(path)
    check_format(path, content.get("format"), FORMAT)
    check_regular(path.with_suffix(".npz"))
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            configs.import_object(config.model.task)  # with it the types of its data
            return stored.decode(content["data"], dict(arrays))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, zipfile.BadZipFile) as error:
        raise InputError(f"{path} or preprocessing.npz is damaged ({error}): put them back, or delete both") from error


def load_trained(directory: Path, config: configs.Config | None = None, whole_data: bool = True):
    """Return (config, task, params) of a run; `config` is its configuration if that was read before.

    With `whole_data` the task has its dataset, for evaluation; otherwise the stored preprocessing.
    """
    config = config or read_config(directory)
    task = load_task(directory, config, whole_data)
    return config, task, params_of(directory, config, task)


def load_task(directory: Path, config: configs.Config, whole_data: bool = True):
    """Return the task of a run that is finished or has a checkpoint; `whole_data` as in `load_trained`."""
    from attention_jax import tasks

    check_usable(directory, config)
    data = None if whole_data else read_preprocessing(directory, config)
    task = tasks.build(config, data)
    if data is None:
        check_data(directory, task)
        if not whole_data and type(task).excerpt is not tasks.Task.excerpt:
            print(f"note: {directory} keeps no preprocessing; its training data were loaded", file=sys.stderr)
    return task


def check_usable(directory: Path, config: configs.Config):
    """Raise InputError if a run is neither finished nor has a checkpoint."""
    if config.model is None or not has_checkpoint(directory):
        final_of(directory, config)


def params_of(directory: Path, config: configs.Config, task):
    """Return the parameters of a run as a tree of JAX arrays; InputError if they do not fit the model of the task."""
    import jax

    return read_parameters(directory, config, jax.eval_shape(task.init, jax.random.PRNGKey(0)))


def read_parameters(directory: Path, config: configs.Config, like=None):
    """Return a run's final parameters. For an interrupted run, print a note and return those of its best epoch or,
    before the first epoch ends, of its latest checkpoint. They must be finite and, with `like`, have its shapes."""
    from attention_jax.train.checkpoint import load_params, read_checkpoint, read_params

    if (directory / "final").is_dir() or not has_checkpoint(directory):
        final = final_of(directory, config)
        return check_finite(read_params(final) if like is None else load_params(final, like), directory)
    description, params = read_checkpoint(directory / "checkpoints", like)
    print(f"note: {directory} has not ended; the parameters are those of {description}", file=sys.stderr)
    return check_finite(params, directory)


def check_finite(params, directory: Path):
    """Return parameters; InputError if one is NaN or infinite."""
    import jax

    for path, x in jax.tree.leaves_with_path(params):
        if not np.isfinite(x).all():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise InputError(
                f"the parameters of the run in {directory} are not finite ({name}): its training diverged; train again "
                "with a smaller --optim.learning-rate or with --optim.clip-norm 1"
            )
    return params


def load_weights(directory: Path, **trusted):
    """Return (config, params) of a run, whose data need not be available; `trusted` is for `read_config`."""
    config = read_config(directory, **trusted)
    return config, read_parameters(directory, config)


def weights_of(path: Path, **trusted):
    """Return the weights (pretrained/exchange.py) of a run, of a file, or of a directory with one; `trusted` is passed
    to `read_config`."""
    from attention_jax.pretrained import exchange

    is_run = (path / "environment.json").exists()  # `lifecycle.describe` writes it before a run begins
    if not is_run and not any((path / name).exists() for name in ("checkpoints", "final")):
        return exchange.read(path)
    config, params = load_weights(path, **trusted)
    return exchange.from_run(params, config.model, str(path), read_preprocessing(path, config))


def source_of(path: Path, **trusted) -> Path:
    """Return the pretrained model that a run, or a run before it, began with, or itself if it is one; InputError if
    there is none, or if it is not there any more. `trusted` is for `read_config`."""
    from attention_jax.pretrained.load import is_pretrained

    start = path
    while not is_pretrained(path):
        if path != start and not path.exists():
            raise InputError(
                f"{start} began with the model in {path}, which is not there: put it back, or use --naming"
            )
        if path != start and path.is_file():  # of weights, in the directory of a model
            return path
        config = read_config(path, **trusted)
        source = getattr(config.data, "pretrained", "") or config.train.init_weights
        if not source:
            raise InputError(
                f"{start} did not begin with a model of Hugging Face, to which --to huggingface returns: use --naming"
            )
        path = Path(source)
    return path
