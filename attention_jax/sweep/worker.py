"""Worker that trains one group of runs of a sweep, in this process or as `python -m attention_jax.sweep.worker FILE`.

FILE describes the group. Training it again is safe: finished runs are kept, others resume.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import catalog, config as configs
from attention_jax.errors import InputError, Interrupted, explain_errors
from attention_jax.files import directory_lock, write_json
from attention_jax.runs import directory as run_directory, lifecycle
from attention_jax.signals import end_on_signals
from attention_jax.sweep.partition import Member


class Group(NamedTuple):
    """The contents of FILE."""

    members: list[Member]
    metric: str = ""
    """The metric that the sweep selects by; "" is not checked."""


def write(path: Path, group: Group):
    """Write a group's file."""
    members = [{"directory": str(directory), "config": configs.to_json(config)} for config, directory in group.members]
    write_json(path, group._asdict() | {"members": members})


def read(path: Path) -> Group:
    """Read a file of `write`."""
    values = json.loads(Path(path).read_text(encoding="utf-8"))
    members = [Member(configs.from_json(m["config"]), Path(m["directory"])) for m in values.pop("members")]
    return Group(members, **values)


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Make `directory`; within this, an OSError is an InputError that names it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"the sweep cannot write in {directory}: {reason}; free some space or give another --out DIR"
        ) from error


def run_group(path: Path):
    """Train a group. A run that fails gets a failure.json and does not stop the others.

    Raises:
      Interrupted: on a signal that ends a process (signals.py), with a checkpoint written.
      InputError: the sweep's directory is not writable, its data cannot be read and no run has begun, no run will have
        the metric, or the data have changed.
    """
    from attention_jax.sweep import batch

    group, shared = read(path), path.with_suffix("")
    with writing(shared), directory_lock(shared):  # a worker may outlive its killed sweep by half a second
        _check(group, any(path.parents[1].glob("trials/*/*/config.json")))
        for number, members in enumerate(batch.populations(group.members)):
            if not all(run_directory.has_ended(directory) for _, directory in members):
                _train(members, shared / str(number))


def _check(group: Group, has_runs: bool):
    """Raise InputError before a group is trained on other data than the runs of its sweep so far; before the first run
    of a sweep whose data cannot be read (it `has_runs` if one has begun), such as after a mistyped path; and before the
    first run of a group that will not have the sweep's metric, if that is known. Other errors make the run fail."""
    config = group.members[0][0]
    if config.model is None or catalog.load_experiment(config.name).study:
        return
    from attention_jax import tasks
    from attention_jax.train.loop import check_metric

    try:
        with explain_errors():
            data = configs.import_object(config.model.task).load(config)
    except Exception as error:
        if isinstance(error, InputError) and not has_runs:
            raise
        return  # each run records the error as its failure
    try:
        task = tasks.build(config, data)
    except Exception:  # each run records it as its failure
        return
    has_started = any((directory / "config.json").exists() for _, directory in group.members)
    if group.metric and not has_started:
        check_metric(task, "--metric", group.metric, full=True)
    if earlier := _on_same_data(*group.members[0]):
        run_directory.check_data(earlier, task, only="fingerprint")


def _on_same_data(config: configs.Config, directory: Path) -> Path | None:
    """Return a run of the same sweep whose data should be the same: that of the same options, and of the same seed,
    which generated data depend on, unless they are read from a file."""
    from_file = any(info.user_data and value for _, info, value in configs.walk(config))
    for facts in sorted(directory.parents[1].glob("*/*/facts.json")):
        earlier_config = run_directory.read_config(facts.parent, like=config)
        if earlier_config.data == config.data and (from_file or earlier_config.train.seed == config.train.seed):
            return facts.parent
    return None


def _train(members: list[Member], directory: Path):
    """Train one run, or several in one compiled program, which has its checkpoints in `directory`."""
    from attention_jax import tasks
    from attention_jax.sweep import batch

    try:
        if len(members) == 1:
            [(config, run)] = members
            study = catalog.load_experiment(config.name).study
            lifecycle.start(config, run, study=study, resume=(run / "config.json").exists(), quiet=True)
        else:
            batch.train_batch(members, [tasks.build(member.config) for member in members], directory)
    except (Interrupted, OSError):
        raise
    except Exception as error:
        for member in members:
            if not run_directory.has_ended(member.directory):  # a result is kept if plotting fails
                run_directory.record_failure(member.directory, error)


def _end_with_parent():
    """End this worker when its parent process has ended; a resumed sweep starts another."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]):
    """Train the group of a file, in a worker process."""
    end_on_signals()
    _end_with_parent()
    try:
        run_group(Path(arguments[0]))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (Interrupted, KeyboardInterrupt):
        raise SystemExit(130) from None


if __name__ == "__main__":
    main(sys.argv[1:])
