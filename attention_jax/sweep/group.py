"""The unit of work of a sweep: a group of runs, described by a JSON file, done here or by `python -m attention_jax.sweep.group FILE`.

A group may be done again at any time: what has ended is kept, what was begun goes on.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import Diverged, InputError, Interrupted, config as configs, ledger, runs


class Spec(NamedTuple):
    """groups/NAME.json."""

    directory: Path
    """Where the group keeps what its members share (checkpoints of populations, its log)."""
    members: list[tuple[configs.Config, Path]]
    """All that were ever in the group, with their run directories."""
    stages: list[tuple[int, list[int]]]
    """(epoch to stop at, places of those still in it), one for each comparison so far; the last one is to be done."""


def write_json(path: Path, value):
    """The whole file or the old one (train/log.py has one too, but imports JAX, which a scheduler does without)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def write(path: Path, spec: Spec):
    """Write a group's file."""
    members = [{"directory": str(directory), "config": configs.to_json(config)} for config, directory in spec.members]
    write_json(path, {"directory": str(spec.directory), "members": members, "stages": spec.stages})


def read(path: Path) -> Spec:
    """Read what `write` wrote."""
    values = json.loads(Path(path).read_text(encoding="utf-8"))
    members = [(configs.from_json(m["config"]), Path(m["directory"])) for m in values["members"]]
    return Spec(Path(values["directory"]), members, [(until, places) for until, places in values["stages"]])


def ended(directory: Path) -> bool:
    """Whether a run has its result, or its reason for having none."""
    return (directory / "result.json").exists() or (directory / "failure.json").exists()


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
      InputError: nothing can be written where the sweep is.
    """
    spec = read(path)
    until, places = spec.stages[-1]
    try:
        with _alone(path):
            together, alone = _divided(spec, [place for place in places if not ended(spec.members[place][1])])
            for number, group in together:
                _population(spec, number, group)
            for place in alone:
                _single(*spec.members[place], until, quiet)
    except OSError as error:
        said = error.strerror or error
        raise InputError(
            f"the sweep cannot write in {spec.directory}: {said}; free some space or give another --out DIR"
        ) from error


def _divided(spec: Spec, left: list[int]) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """The numbered classes of members that share a compiled call, and the members that train alone.

    What the classes are depends on the spec only, so that every stage and every restart finds the same ones.
    """
    if not left:
        return [], []
    study = getattr(ledger.load(spec.members[0][0].name), "study", None)
    if len(spec.members) == 1 or study:
        return [], left
    from attention_jax import tasks
    from attention_jax.sweep import population

    try:
        built = [tasks.build(config) for config, _ in spec.members]
        population.check_traceable(
            spec.members[0][0], list(population.varied([config for config, _ in spec.members])), built[0]
        )
        found = population.classes(built, [config.train.seed for config, _ in spec.members])
    except Exception:  # whatever it is, each member alone will say it
        return [], left
    together = [(number, group) for number, group in enumerate(found) if len(group) > 1 and set(group) & set(left)]
    return together, [place for place in left if [place] in found]


def _population(spec: Spec, number: int, everyone: list[int]):
    """The last stage of one class of members."""
    from attention_jax import tasks
    from attention_jax.sweep import population

    *before, (until, places) = spec.stages
    now = [place for place in everyone if place in places]
    members = [population.Member(*spec.members[place]) for place in now]
    earlier = None
    if before:
        last = [place for place in everyone if place in before[-1][1]]
        earlier = population.Earlier(
            _shared(spec, len(before) - 1, number), len(last), [last.index(place) for place in now]
        )
    try:
        built = [tasks.build(member.config) for member in members]
        population.fit(members, built, _shared(spec, len(before), number), until=until, earlier=earlier)
    except (Interrupted, OSError):
        raise
    except Exception as error:
        for member in members:
            fail(member.directory, error)


def _shared(spec: Spec, stage: int, number: int) -> Path:
    return spec.directory / f"stage{stage}-{number}"


class _Paused(Exception):
    """A run has come to the epoch of a comparison; its checkpoint is written."""


def _single(config: configs.Config, directory: Path, until: int, quiet: bool):
    """One run by itself, to its end or to epoch `until`."""
    study = getattr(ledger.load(config.name), "study", None)

    def pause(epoch: int, values: dict):
        if until and epoch >= until and epoch < config.train.total_epochs:
            raise _Paused

    try:
        if until and len(_epochs(directory)) >= until:
            return
        runs.start(
            config, directory, study=study, resume=(directory / "config.json").exists(), quiet=quiet, on_epoch=pause
        )
    except _Paused:
        return
    except (Interrupted, OSError):
        raise
    except Exception as error:
        fail(directory, error)


def _epochs(directory: Path) -> list[dict]:
    """The epochs a run has behind it."""
    return history(directory) if (directory / "metrics.jsonl").exists() else []


def history(directory: Path) -> list[dict]:
    """A run's history so far, whether it has ended or not; [] before its first epoch has ended."""
    result = runs.read_result(directory)
    if result is not None:
        return result["history"]
    path = directory / "metrics.jsonl"
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:  # half a line: it is being written, or its process was killed
            break
    return [row for row in rows if "seconds" in row]


def fail(directory: Path, error: Exception):
    """Keep a run's reason for having no result."""
    said = " ".join(str(error).split())
    reason = said if isinstance(error, InputError | Diverged) else f"{type(error).__name__}: {said[:300]}"
    write_json(directory / "failure.json", {"reason": reason})


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
