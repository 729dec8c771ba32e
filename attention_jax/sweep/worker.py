"""One group of runs, as a sweep hands them out: done here, or by `python -m attention_jax.sweep.worker FILE`.

FILE describes the group. It may be done again at any time: what has ended is kept, what was begun goes on.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import InputError, Interrupted, catalogue, config as configs, runs
from attention_jax.files import write_json
from attention_jax.signals import end_on_sigterm

SLOW = "one_by_one.json"
"""The file, in a group's directory, that says why its members are no population."""


class Group(NamedTuple):
    """groups/NAME.json."""

    directory: Path
    """Where the group keeps what its members share (checkpoints of populations, its log)."""
    members: list[tuple[configs.Config, Path]]
    """All that were ever in the group, with their run directories."""
    stages: list[tuple[int, list[int]]]
    """(epoch to stop at, places of those still in it), one for each comparison so far; the last one is to be done."""
    metric: str = ""
    """What the sweep compares; "" is not checked."""


def write(path: Path, group: Group):
    """Write a group's file."""
    members = [{"directory": str(directory), "config": configs.to_json(config)} for config, directory in group.members]
    directory = str(group.directory)
    write_json(path, {"directory": directory, "members": members, "stages": group.stages, "metric": group.metric})


def read(path: Path) -> Group:
    """Read what `write` wrote."""
    values = json.loads(Path(path).read_text(encoding="utf-8"))
    members = [(configs.from_json(m["config"]), Path(m["directory"])) for m in values["members"]]
    stages = [(until, places) for until, places in values["stages"]]
    return Group(Path(values["directory"]), members, stages, values["metric"])


@contextlib.contextmanager
def _alone(path: Path):
    """Wait until no other worker is at this group (one may outlive its killed sweep by half a second)."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_group(path: Path, quiet: bool = True):
    """Do the last stage of a group. A run that fails gets a failure.json and stops no other.

    Raises:
      Interrupted: on SIGINT or SIGTERM, with a checkpoint written.
      InputError: nothing can be written where the sweep is, or no run will have the metric.
    """
    group = read(path)
    until, places = group.stages[-1]
    try:
        with _alone(path):
            _check_metric(group)
            left = [place for place in places if not runs.ended(group.members[place][1])]
            populations, alone = _divided(path, group, left)
            for number, members in populations:
                _population(group, number, members)
            for place in alone:
                _single(*group.members[place], until, quiet)
    except OSError as error:
        said = error.strerror or error
        raise InputError(
            f"the sweep cannot write in {group.directory}: {said}; free some space or give another --out DIR"
        ) from error


def _check_metric(group: Group):
    """InputError before the first run of a group that will not have the sweep's metric, if that can be known. What else
    is wrong with a run is its own reason to fail."""
    config, until = group.members[0][0], group.stages[-1][0]
    begun = any((directory / "config.json").exists() for _, directory in group.members)
    if begun or not group.metric or config.model is None or catalogue.load_experiment(config.name).study:
        return
    from attention_jax import tasks
    from attention_jax.train.loop import check_metric

    try:
        task = tasks.build(config)
    except Exception:
        return
    check_metric(task, "--metric", group.metric, full=until >= config.train.total_epochs)


def _divided(path: Path, group: Group, left: list[int]) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """The numbered populations among the members, and the members of `left` that train alone.

    What the populations are depends on the group only, so that every stage and every restart finds the same ones.
    """
    if not left or len(group.members) == 1 or catalogue.load_experiment(group.members[0][0].name).study:
        return [], left
    from attention_jax import tasks
    from attention_jax.sweep import population

    members = [config for config, _ in group.members]
    try:
        built = [tasks.build(config) for config in members]
        population.check_traceable(members[0], list(population.varied(members)), built[0])
        classes = population.classes(built, [config.train.seed for config in members])
    except Exception as error:  # slower, but the runs are the same; an error of their own they say themselves
        _say_slow(path, group, error)
        return [], left
    (group.directory / SLOW).unlink(missing_ok=True)
    populations = [(number, one) for number, one in enumerate(classes) if len(one) > 1 and set(one) & set(left)]
    return populations, [place for place in left if [place] in classes]


def _say_slow(path: Path, group: Group, error: Exception):
    """Why the members cannot be one population: in the group's log, for the report, and at once."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    write_json(group.directory / SLOW, {"runs": len(group.members), "reason": reason})
    with path.with_suffix(".log").open("a", encoding="utf-8") as log:
        log.write(f"these runs train one by one, as they cannot be one population:\n{traceback.format_exc()}")
    print(f"group {path.stem} trains its {len(group.members)} runs one by one: {reason}", file=sys.stderr)


def slow(directory: Path) -> list[str]:
    """A line for each group of the sweep in `directory` that could not be a population."""
    said = {
        p.parent.name: json.loads(p.read_text(encoding="utf-8")) for p in sorted(directory.glob(f"groups/*/{SLOW}"))
    }
    return [f"group {name} trains its {one['runs']} runs one by one: {one['reason']}" for name, one in said.items()]


def _population(group: Group, number: int, everyone: list[int]):
    """The last stage of one population."""
    from attention_jax import tasks
    from attention_jax.sweep import population

    *before, (until, places) = group.stages
    now = [place for place in everyone if place in places]
    members = [population.Member(*group.members[place]) for place in now]
    earlier = None
    if before:
        last = [place for place in everyone if place in before[-1][1]]
        checkpoints = _stage(group, len(before) - 1, number) / "checkpoints"
        earlier = population.Earlier(checkpoints, [last.index(place) for place in now])
    try:
        built = [tasks.build(member.config) for member in members]
        stage = _stage(group, len(before), number)
        population.train_many(members, built, stage, until=until, earlier=earlier)
    except (Interrupted, OSError):
        raise
    except Exception as error:
        for member in members:
            if not runs.ended(member.directory):
                runs.fail(member.directory, error)


def _stage(group: Group, stage: int, number: int) -> Path:
    """The directory of what a population shares in a stage."""
    return group.directory / f"stage{stage}-{number}"


def _single(config: configs.Config, directory: Path, until: int, quiet: bool):
    """One run by itself, to its end or to epoch `until`."""
    if until < config.train.total_epochs and len(runs.history(directory)) >= until:
        return
    begun, study = (directory / "config.json").exists(), catalogue.load_experiment(config.name).study
    try:
        runs.start(config, directory, study=study, resume=begun, quiet=quiet, until=until)
    except (Interrupted, OSError):
        raise
    except Exception as error:
        if not runs.read_result(directory):  # a figure that cannot be drawn does not cost the result
            runs.fail(directory, error)


def _end_with_parent():
    """End this worker when the process that started it has ended: the sweep that goes on starts another."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]):
    """What a worker process does."""
    end_on_sigterm()
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
