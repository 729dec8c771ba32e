"""Errors that a user can fix, optional packages, and the direction of metrics. Standard library only."""

import errno
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

EXTRAS = {
    "optax": "train", "orbax": "train", "rich": "train", "tensorboardX": "train",
    "wandb": "wandb", "mlflow": "mlflow",
    "tensorflow_datasets": "data", "importlib_resources": "data", "array_record": "data", "PIL": "data",
    "babel": "data", "sentencepiece": "data", "sklearn": "data", "pyarrow": "data",
    "spacy": "spacy",
    "matplotlib": "report", "sacrebleu": "report",
    "optuna": "sweep", "ray": "ray", "torch": "torch",
    "flatbuffers": "weights", "tokenizers": "pretrained", "gguf": "pretrained", "jinja2": "pretrained",
}  # fmt: skip
"""{import name of an optional package: extra of pyproject.toml that installs it}"""
DISTRIBUTIONS = {
    "orbax": "orbax-checkpoint", "tensorflow_datasets": "tensorflow-datasets", "PIL": "pillow",
    "sklearn": "scikit-learn",
}  # fmt: skip
"""{import name: distribution name} if they differ"""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file system without room."""
DEFECTS = (errno.ENOENT, errno.EBADF, errno.EFAULT, errno.EPIPE, errno.EINTR, errno.EAGAIN, errno.ECHILD, errno.ESRCH)
"""Errors that are about this program, a pipe or a process, and not about a file system."""


class InputError(ValueError):
    """Invalid input. The message is one line: what was required, what was given, what to do.

    `launch.py` prints it as `error: ...` and exits with code 2, without a traceback.

    >>> from attention_jax.config import Train
    >>> Train(batch_size=0)
    Traceback (most recent call last):
    attention_jax.errors.InputError: --train.batch-size must be at least 1, got 0
    """


@contextmanager
def explain_damage(path: Path | str, needed: str = "") -> Iterator[None]:
    """A context in which any error but an InputError means that the file at `path`, or one beside it, is damaged."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # libraries raise types of their own; a panic of `tokenizers` is no Exception
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise InputError(f"{path} is damaged ({reason}): copy or download it again{needed}") from error


class Interrupted(Exception):
    """Interruption by SIGINT or a signal of signals.py; all up to `step` is in a checkpoint if it was `saved`.

    >>> print(Interrupted(500))
    interrupted; the checkpoint of step 500 is complete
    """

    def __init__(self, step: int, saved: bool = True):
        super().__init__(
            f"interrupted; the checkpoint of step {step} " + ("is complete" if saved else "could not be written")
        )
        self.step = step


class Diverged(Exception):
    """The loss at `step`, or with `loss` None the parameters after it, are not finite, or too large.

    A loss is too large if its square overflows float32.

    >>> print(Diverged(7, float("nan")))
    the loss was nan at step 7; a smaller --optim.learning-rate or --optim.clip-norm 1 usually helps
    """

    def __init__(self, step: int, loss: float | None):
        cause = f"the parameters are not finite after step {step}" if loss is None else ""
        super().__init__(
            f"{cause or f'the loss was {loss:.4g} at step {step}'}; "
            "a smaller --optim.learning-rate or --optim.clip-norm 1 usually helps"
        )
        self.step, self.loss = step, loss


def how_to_install(packages: list[str]) -> str:
    """The command that installs these optional packages.

    >>> how_to_install(["PIL", "optax"])
    "pip install pillow optax (in a checkout pip install '.[data,train]')"
    """
    distributions = " ".join(DISTRIBUTIONS.get(package, package) for package in packages)
    extras = ",".join(dict.fromkeys(EXTRAS[package] for package in packages))
    return f"pip install {distributions} (in a checkout pip install '.[{extras}]')"


def require(*extras: str):
    """Raise InputError if packages of these extras are missing, with the command that installs them.

    Training calls it before the first step, so that nothing is missing for evaluation and figures.
    """
    missing = [package for package, extra in EXTRAS.items() if extra in extras and not is_installed(package)]
    if missing:
        raise InputError(f"this needs {', '.join(missing)}, not installed: {how_to_install(missing)}")


def is_installed(package: str) -> bool:
    """Whether a top-level package can be imported."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(package) is not None
    return False


@contextmanager
def explain_errors() -> Iterator[None]:
    """Context in which a missing optional package becomes an InputError with the command that installs it.

    So do the errors of a file system, such as a full disk or a file without permission, and insufficient memory.

    >>> with explain_errors():
    ...     raise ModuleNotFoundError(name="optuna.storages")
    Traceback (most recent call last):
    ...
    attention_jax.errors.InputError: this needs optuna, which is not installed: pip install optuna (in a checkout pip install '.[sweep]')
    """  # noqa: E501
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise InputError(f"this needs {package}, which is not installed: {how_to_install([package])}") from error
    except OSError as error:
        if error.errno is None or error.errno in DEFECTS:
            raise
        advice = "free disk space" if error.errno in FULL else "make it accessible or give another path"
        raise InputError(
            f"{error.filename or 'a file'} could not be read or written ({error.strerror}): {advice} and repeat the "
            "command, with --resume if it was training"
        ) from error
    except (MemoryError, RuntimeError) as error:  # NumPy raises the one, JAX the other
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        message = " ".join(str(error).split())[:160]
        raise InputError(
            f"the memory is too small ({message}): give smaller sizes of the model or the batch"
        ) from error


def lower_is_better(metric: str) -> bool:
    """Whether lower is better for a metric, by its name.

    >>> lower_is_better("valid.loss"), lower_is_better("valid.bleu")
    (True, False)
    """
    return any(word in metric for word in ("loss", "perplexity", "error", "bits"))
