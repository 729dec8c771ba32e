"""The directory of a run: its name, its files, and the checks before a run starts or resumes in it.

config.json, environment.json, facts.json, metrics.jsonl, checkpoints/, final/, result.json, page.md, figures/.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from attention_jax import (
    catalog,  # noqa: F401  imports the options in experiments/papers, which runs may name
    config as configs,
)
from attention_jax.errors import Diverged, InputError
from attention_jax.files import (
    LOCK,
    check_output,
    check_regular,
    has_keys,
    metrics_row,
    read_object,
    remove_empty,
    write_json,
)

FORMAT = 1
"""The format version of config.json."""
FAILURES = ("failure.json", "earlier_failure.json")
"""The files of `record_failure`: of a run's last attempt, and of one after which a sweep trained it again."""
RUN = "config.json", ("name", "data", "model", "optim", "train")
"""The file by which a run is recognized, of any version of this package, and its keys."""
LEFT_IN_EMPTY = {".DS_Store", "Thumbs.db", "desktop.ini", ".gitkeep", "lost+found", LOCK, ".writable"}
"""Names in a directory that counts as empty: of operating systems, of git, and of runs that ended before they began."""
PARAMETERS = re.compile(r"_.*|d|ocdbt\..*|manifest\.ocdbt|array_metadatas|commit_success\.txt")
"""The names of files in a directory of final parameters, which orbax writes."""


def runs_by_number(name: str, root: Path) -> dict[int, Path]:
    """The directories runs/NAME/001, runs/NAME/002, ... by their numbers."""
    return {int(path.name): path for path in (root / name).glob("[0-9]*") if path.name.isdigit()}


def fresh_directory(name: str, root: Path = Path("runs")) -> Path:
    """Return the first unused runs/NAME/001, runs/NAME/002, ...; existing directories are never overwritten."""
    return root / name / f"{max(runs_by_number(name, root), default=0) + 1:03d}"


def latest_directory(name: str, root: Path = Path("runs")) -> Path:
    """Return the newest run of an experiment; InputError if there is none."""
    earlier = {number: path for number, path in runs_by_number(name, root).items() if (path / "config.json").exists()}
    if not earlier:
        where = f"an earlier run of {name} in {root / name}"
        raise InputError(f"--resume needs {where}; there is none: leave --resume out, or give --out DIR")
    return earlier[max(earlier)]


def read_config(directory: Path, trust_code: bool = False, like: configs.Config | None = None) -> configs.Config:
    """The configuration of the run in `directory`, checked; `trust_code` and `like` are for `config.check_trusted`."""
    path = Path(directory) / "config.json"
    if not path.exists():
        raise InputError(
            f"{directory} is not a run: it needs a config.json; "
            "give a directory that `launch.py train` made, such as runs/date_luong/001"
        )
    check_regular(path)
    with explain_damage(path):
        values = json.loads(path.read_text(encoding="utf-8"))
        stored_format = values.pop("format", FORMAT)
    check_format(path, stored_format, FORMAT)
    configs.check_trusted(values, path, trust_code, like)
    with explain_damage(path):
        config = configs.from_json(values)
        if not isinstance(config, configs.Config):
            raise ValueError(f"a {type(config).__name__} is no Config")
    return config


def check_format(path: Path, stored, supported: int):
    """Raise InputError if the file `path` of a run has a format other than the `supported` one."""
    if stored != supported:
        raise InputError(
            f"{path} has format {stored}, this version reads {supported}: install the version that wrote it"
        )


@contextlib.contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Context in which any error in the contents of a config.json becomes an InputError."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged, of another version, or of a package that cannot be imported from here "
            f"({' '.join(str(error).split())}); train again, or add the directory of your package to PYTHONPATH"
        ) from error


def read_result(directory: Path) -> dict | None:
    """Return the contents of the run's result.json, or None while the run is unfinished (`check_result`)."""
    path = Path(directory) / "result.json"
    return check_result(read_object(path), path) if path.exists() else None


def check_result(result, path: Path) -> dict:
    """Return a result in the file `path`; InputError unless it has numbers as metrics, and a history of epochs."""
    metrics, history = (result.get(name) for name in ("metrics", "history")) if isinstance(result, dict) else (0, 0)
    numbers = isinstance(metrics, dict) and all(isinstance(value, int | float) for value in metrics.values())
    if not numbers or not isinstance(history, list) or not all(isinstance(x, dict) and "epoch" in x for x in history):
        raise InputError(f"{path} is damaged or of another program (no metrics and history): put it back, or delete it")
    return result


def has_checkpoint(directory: Path) -> bool:
    """Whether a run has a checkpoint from which it would resume."""
    return any(path.name.isdigit() for path in (directory / "checkpoints").glob("*"))


def final_of(directory: Path, config: configs.Config) -> Path:
    """Return the directory of a run's final parameters; InputError while the run is unfinished."""
    if config.model is None:
        raise InputError(f"{config.name} is a computation without a model; what it found is in {directory}/result.json")
    final = Path(directory) / "final"
    if not final.is_dir():
        raise InputError(
            f"the run in {directory} has not ended; "
            f"end it with `launch.py train {config.name} --resume --out {directory}`"
        )
    return final


def is_run(directory: Path) -> bool:
    """Whether a run has begun in `directory`."""
    return has_keys(directory / RUN[0], RUN[1])


def check_place(directory: Path, option: str = "--out", of: tuple[str, Iterable[str]] = RUN):
    """Raise InputError if `directory` is neither new, nor empty, nor one with the file and the keys `of` a run or of a
    sweep, nor that of a run that failed before it wrote it; and if a file that is not of this package would be lost."""
    if not has_keys(directory / of[0], of[1]):
        entries = {name for name in FAILURES if has_keys(directory / name, ("reason", "diverged"))} | LEFT_IN_EMPTY
        entries |= set() if any((directory / "figures").glob("*")) else {"figures"}
        check_output(directory, "directory", option, entries=entries)
    for path in (*directory.glob("final/*"), *directory.glob("earlier_final/*")):
        if not PARAMETERS.fullmatch(path.name) and path.name not in LEFT_IN_EMPTY:
            raise InputError(f"{path} is not of the run and would be lost: move it to another directory")


def check_same(stored: configs.Config, requested: configs.Config, directory: Path):
    """Raise InputError if `requested` differs from the stored configuration in an option that is not `resumable`."""
    resumable = {name for name, info, _ in configs.walk(stored) if info.resumable}
    for name, (old, new) in configs.differences(stored, requested).items():
        if name not in resumable:
            raise InputError(
                f"the run in {directory} has {name} = {old}, got {new}; "
                "resume it with its own value, or start a new run without --resume"
            )


def check_longer(config: configs.Config, directory: Path):
    """Raise InputError if the run has already trained longer than `config` sets, by its metrics.jsonl."""
    progress = next(reversed(read_history(directory)), {})
    progress |= {"step": max((row["step"] for row in read_rows(directory) if "step" in row), default=0)}
    for option, least, count in (
        ("epochs", config.train.total_epochs, "epoch"),
        ("steps", config.train.max_steps, "step"),
    ):
        if 0 < least < progress.get(count, 0):
            raise InputError(
                f"the run in {directory} has {progress[count]} {option} behind it, got {least}: give more, "
                "or start a new run without --resume"
            )


def check_directory(directory: Path, config: configs.Config, resume: bool):
    """Raise InputError if a run of `config` may not start, or resume, in `directory`."""
    stored = read_config(directory, like=config) if resume and (directory / "config.json").exists() else None
    check_place(directory)
    if stored:
        check_same(stored, config, directory)
        check_longer(config, directory)
    elif is_run(directory):
        raise InputError(f"{directory} already holds a run; add --resume to continue it, or give another --out DIR")
    elif resume and not directory.is_dir():
        raise InputError(f"--resume needs a run in {directory}; there is none: leave --resume out")


def facts_of(task) -> dict:
    """`Task.describe`, with a fingerprint of the arrays and texts of the task's data unless that has one, and of the
    vocabularies and tokenizers of data that have some."""
    from attention_jax.data import data_summary

    facts = task.describe()
    if "fingerprint" not in facts:
        facts = facts | {"fingerprint": data_summary.fingerprint(data_summary.contents(task.data))}
    tokens = [*data_summary.tokenization(task.data)]
    return facts | ({"tokenizer_fingerprint": data_summary.fingerprint(tokens)} if tokens else {})


def read_facts(directory: Path) -> dict:
    """What `facts_of` was when the run began; {} of a run that does not store it."""
    path = directory / "facts.json"
    return read_object(path) if path.exists() else {}


def check_data(directory: Path, task, only: str = ""):
    """Raise InputError if the data have changed since the run was trained: with another vocabulary, the same token ids
    mean other tokens. Of the facts about them those are compared whose names end in `only`."""
    then = read_facts(directory)
    now = json.loads(json.dumps(facts_of(task)))
    changed = [name for name in then if name.endswith(only) and name in now and then[name] != now[name]]
    if changed:
        name = min(changed, key=lambda name: len(str(then[name])))
        raise InputError(
            f"the data of the run in {directory} have changed since it was trained ({name} was {str(then[name])[:40]}, "
            f"now {str(now[name])[:40]}): put the files back, or train again"
        )


def create_directory(directory: Path, fresh: bool = False):
    """Create the directory of a run, to which `check_place` has agreed. A `fresh` one must not exist yet: of two runs
    that start in it at the same time, the second gets an InputError."""
    try:
        Path(os.path.realpath(directory)).mkdir(parents=True, exist_ok=not fresh)
        (directory / "figures").mkdir(exist_ok=True)
    except FileExistsError as error:
        raise InputError(f"{directory} was free a moment ago, but another run has taken it: start again") from error
    except OSError as error:
        raise InputError(
            f"the output directory must be writable; {directory} is not ({error.strerror}); give another one"
        ) from error


def has_trained(directory: Path) -> bool:
    """Whether a run has a checkpoint, or a log of its steps: then its directory is kept, whatever ends the run."""
    return has_checkpoint(directory) or bool(read_rows(directory))


def withdraw(fresh: list[Path], created: os.stat_result):
    """Remove the directory of a run that failed before its first step, and the parents that were created for it.

    Invalid data, batches or weights, a full disk and a lack of memory then leave no files. `fresh` may be empty; a
    directory other than that `created` is of another run, and is left alone."""
    with contextlib.suppress(OSError):  # it was removed, or another run has come into a parent
        for path in fresh[:1]:
            if os.path.samestat(path.stat(), created):
                shutil.rmtree(path)
        remove_empty(fresh[1:])


def record_failure(directory: Path, error: Exception):
    """Keep a run's reason for having no result, in failure.json, and whether it diverged, as it would again."""
    message = " ".join(str(error).split())
    reason = message if isinstance(error, InputError | Diverged) else f"{type(error).__name__}: {message[:300]}"
    write_json(directory / "failure.json", {"reason": reason, "diverged": isinstance(error, Diverged)})


def read_failure(directory: Path) -> str:
    """Return the reason that `record_failure` stored, or ""."""
    path = directory / "failure.json"
    return str(read_object(path).get("reason", "")) if path.exists() else ""


def has_diverged(directory: Path) -> bool:
    """Whether a run without a result diverged, by its failure.json or progress.json."""
    files = {"failure.json": ("diverged", True), "progress.json": ("state", "diverged")}
    paths = {directory / name: entry for name, entry in files.items()}
    return any(path.exists() and read_object(path).get(key) == value for path, (key, value) in paths.items())


def has_ended(directory: Path) -> bool:
    """Whether a run has its result, or its reason for having none."""
    return (directory / "result.json").exists() or (directory / "failure.json").exists()


def read_history(directory: Path) -> list[dict]:
    """Return a run's history so far; [] before its first epoch has ended."""
    result = read_result(directory)
    if result is not None:
        return result["history"]
    return [row for row in read_rows(directory) if "seconds" in row]


def read_rows(directory: Path) -> list[dict]:
    """Return the rows of a run's metrics.jsonl, up to an incomplete line that is being written."""
    path = directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return list(itertools.takewhile(lambda row: row is not None, map(metrics_row, lines)))
