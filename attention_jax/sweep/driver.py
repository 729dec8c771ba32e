"""The sweep itself: propose, write down, run, compare, tell, until nothing is left. Every step may be repeated."""

import contextlib
import fcntl
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from attention_jax import InputError, catalogue, config as configs, runs
from attention_jax.files import write_json
from attention_jax.sweep import answer, partition, plan, worker
from attention_jax.sweep.executors import InProcess, Ray, Subprocesses
from attention_jax.sweep.journal import Journal
from attention_jax.sweep.plan import Round, Settings
from attention_jax.sweep.search import resolve, rounds, suggest
from attention_jax.sweep.space import grid, is_finite, parse

TRIALS = 20
"""Points of a search without an end of its own."""


def settings_of(
    config: configs.Config, over: dict[str, str], method: str, trials: int, seeds: int, metric: str
) -> Settings:
    """Checked settings; what can be wrong with them is said here, before anything starts, except for the metric: which
    there are depends on the data, so the worker of the first runs checks it."""
    space = parse(config, over)
    method = resolve(method, space)
    if seeds < 1 or trials < 0:
        raise InputError(f"--seeds must be at least 1 and --trials at least 0; got {seeds} and {trials}")
    size = len(grid(space)) if is_finite(space) or method == "grid" else None
    count = min(trials or size or TRIALS, size or trials or TRIALS)
    if method in ("halving", "hyperband") and config.train.total_epochs < 3:
        epochs = config.train.total_epochs
        raise InputError(
            f"--method {method} compares runs after 1/3 of their epochs, "
            f"so it needs --train.total-epochs 3 or more; got {epochs}"
        )
    return Settings(config, space, method, count, seeds, selecting(config, metric))


def selecting(config: configs.Config, metric: str) -> str:
    """The metric that a sweep selects by: `metric`, or with "" the one by which the experiment keeps checkpoints.

    Raises InputError for a metric of a test split, and for training loss that was not asked for.
    """
    chosen = metric or config.train.best_metric.partition(",")[0]
    if chosen.startswith("test") or (chosen.startswith("train") and not metric):
        raise InputError(
            f"a sweep selects on validation data: give --metric valid.loss or another of them; got {chosen} "
            "(where an experiment has none, --data.validation N holds some out)"
        )
    configs.check_selection(config.train)
    return chosen


def first_points(settings: Settings) -> list[dict]:
    """The points of the first round."""
    return proposed(settings, [], rounds(settings.method, settings.trials)[0])


def proposed(settings: Settings, history: list, count: int) -> list[dict]:
    """The points of a round, each checked by the typed configuration."""
    points = suggest(settings.space, settings.method, settings.config.train.seed, history, count)
    for point in points:
        configs.replace(settings.config, **point)  # refuses what is out of bounds
    return points


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """One sweep at a time in a directory; the system frees the lock of a process that was killed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("w")
    except OSError as error:
        raise InputError(
            f"the output directory must be writable; {directory} is not ({error.strerror}); give another --out DIR"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is sweeping in {directory}; wait for it, or give another --out DIR"
            ) from None
        yield


def _settle(directory: Path, settings: Settings):
    """Write the settings of a new sweep; InputError if the directory holds another one."""
    if not (directory / "settings.json").exists():
        write_json(directory / "settings.json", plan.settings_json(settings))
    stored = plan.read_settings(directory, like=settings.config)
    for name, old, new in zip(Settings._fields, stored, settings):
        if name == "config":
            old, new = next(((f"{k} = {a}", b) for k, (a, b) in configs.differences(old, new).items()), (None, None))
        if old != new:
            change = f"has {name} {_short(old)}, asked for was {_short(new)}"
            raise InputError(f"the sweep in {directory} {change}; repeat its own command, or give another --out DIR")


def _short(value) -> str:
    from attention_jax.sweep.space import spelled

    return str(spelled(value) if isinstance(value, dict) else value)


def executor(jobs: int, address: str):
    """Where to run: Ray if there is an address, worker processes if a number of jobs is asked for, else here."""
    if address and jobs:
        raise InputError("--jobs is for this machine and --ray for a cluster; give one of them")
    return Ray(address) if address else Subprocesses(jobs) if jobs else InProcess()


def sweep(
    settings: Settings, directory: Path, *, jobs: int = 0, ray: str = "", population: int = 64
) -> list[plan.Trial]:
    """Run a sweep in `directory`, or go on with the one that is there, and write its answer."""
    directory = Path(directory).absolute()
    if jobs < 0:
        raise InputError(f"--jobs must be at least 0, got {jobs}")
    if population < 1:
        raise InputError(f"--population must be at least 1, got {population}")
    where, fresh = executor(jobs, ray), not directory.exists()
    with _lock(directory):
        _settle(directory, settings)
        try:
            journal, started = Journal(directory, settings.space, settings.lower), time.perf_counter()
            for number, count in enumerate(rounds(settings.method, settings.trials)):
                done = plan.read_rounds(directory)
                if number == len(done):
                    trials = plan.trials(directory, settings, done)
                    value = lambda trial: settings.sign(trial.value) if trial.state == "done" else None
                    history = [(trial.point, value(trial)) for trial in trials]
                    points = proposed(settings, history, count)
                    if not points:
                        break
                    plan.write_round(
                        directory, number, _new_round(settings, len(trials), points, population, where.slots)
                    )
                _run_round(directory, settings, number, where, journal)
            print(f"all runs have ended ({time.perf_counter() - started:.0f} s since this command began)")
        except OSError as error:
            said = error.strerror or error
            raise InputError(
                f"the sweep cannot write in {directory}: {said}; free some space or give another --out DIR"
            ) from error
        except InputError:
            if fresh and not (directory / "trials").exists():  # refused before the first run
                shutil.rmtree(directory)
            raise
        finally:
            where.close()
        trials = plan.trials(directory, settings, plan.read_rounds(directory))
        answer.write(directory, settings, trials)
        return trials


def _new_round(settings: Settings, first: int, points: list[dict], population: int, slots: int) -> Round:
    """A round before its first run: its groups, and its first stage."""
    every = [(number, seed) for number in range(first, first + len(points)) for seed in plan.seeds(settings)]
    members = [plan.run_config(settings, points[number - first], seed) for number, seed in every]
    staged = len(plan.rungs(settings)) > 1
    together = partition.groups(members, population, slots, staged)
    if population > 1:
        for reason in sorted({partition.why_alone(config, staged) for config in members} - {""}):
            print(f"runs train one by one: {reason}", flush=True)
    if catalogue.load_experiment(settings.config.name).study:
        together = [[place] for members in together for place in members]
    trials = list(range(first, first + len(points)))
    groups = [[every[place] for place in places] for places in together]
    return Round(first, points, groups, [(plan.rungs(settings)[0], trials)])


def _run_round(directory: Path, settings: Settings, number: int, where, journal: Journal):
    """Run a round to its end, comparing trials on the way; tell the journal what has ended."""
    rungs = plan.rungs(settings)
    while True:
        now = plan.read_rounds(directory)[number]
        journal.add(now.points if not number else [*_points(directory, number), *now.points], settings.config.name)
        paths = _groups_to_do(directory, settings, number, now)
        for done, _ in enumerate(where.run(paths), 1):
            trials = _tell(directory, settings, journal)
            best = answer.best(settings, trials)
            said = f"; best so far: {answer.in_words(settings, best)}" if best else ""
            print(f"group {done} of {len(paths)} has come to epoch {now.stages[-1][0]}{said}", flush=True)
        trials = _tell(directory, settings, journal)
        if len(now.stages) == len(rungs):
            return
        epoch, active = now.stages[-1]
        stages = [*now.stages, (rungs[len(now.stages)], plan.go_on(settings, trials, active, epoch))]
        plan.write_round(directory, number, now._replace(stages=stages))


def _points(directory: Path, number: int) -> list[dict]:
    return [point for round_ in plan.read_rounds(directory)[:number] for point in round_.points]


def _groups_to_do(directory: Path, settings: Settings, number: int, now: Round) -> list[Path]:
    """The files of the groups that have something left to do in the last stage."""
    paths = []
    for place, members in enumerate(now.groups):
        path = directory / "groups" / f"{number:03d}-{place:03d}.json"
        points = [now.points[trial - now.first] for trial, _ in members]
        described = [
            (plan.run_config(settings, p, s), plan.run_directory(directory, t, s)) for p, (t, s) in zip(points, members)
        ]
        stages = [
            (epoch, [i for i, (trial, _) in enumerate(members) if trial in active]) for epoch, active in now.stages
        ]
        if not all(runs.ended(described[i][1]) for i in stages[-1][1]):
            worker.write(path, worker.Group(path.with_suffix(""), described, stages, settings.metric))
            paths.append(path)
    return paths


def _tell(directory: Path, settings: Settings, journal: Journal) -> list[plan.Trial]:
    """Tell the journal of every trial that has ended; return how all stand."""
    trials = plan.trials(directory, settings, plan.read_rounds(directory))
    for trial in trials:
        if trial.state in ("done", "failed", "pruned"):
            curve = answer.mean_curve(settings, trial)
            journal.tell(trial.number, trial.value if trial.state == "done" else None, trial.reason, curve)
    return trials
