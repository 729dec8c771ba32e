"""The sweep loop: request points from the study, train them, and report the results until no point is left.

A killed sweep resumes with the same command: the study proposes the same points again, and results and checkpoints in
the run directories are reused.
"""

import contextlib
import itertools
import time
import zlib
from pathlib import Path

import optuna
from optuna.trial import TrialState

from attention_jax import catalog, config as configs
from attention_jax.config.models import AttentionOptions, TransformerLayers
from attention_jax.errors import InputError
from attention_jax.files import directory_lock, directory_removed_error, missing, read_object, write_json
from attention_jax.runs import directory as run_directory
from attention_jax.sweep import partition, plan, search, summary, worker
from attention_jax.sweep.executors import executor
from attention_jax.sweep.plan import Settings
from attention_jax.sweep.space import Point, Space, Values, format_space, grid, is_finite, parse

TRIALS = 20
"""The number of points of a search over a space that has no grid."""
COMBINATIONS = 1000
"""The maximum number of points that are tried in search of a valid model with a value."""


def settings_of(
    config: configs.Config, over: dict[str, str], method: str, trials: int, seeds: int, metric: str
) -> Settings:
    """Return checked settings. The metric's name is checked by the first worker, because metrics depend on the data."""
    space = parse(config, over)
    _check_models(config, space)
    for best_metric in space["train.best_metric"].choices if "train.best_metric" in space else ():
        configs.check_selection(configs.replace(config.train, best_metric=best_metric))
    if method == "auto":
        method = "grid" if is_finite(space) else "random"
    if seeds < 1 or trials < 0:
        raise InputError(f"--seeds must be at least 1 and --trials at least 0; got {seeds} and {trials}")
    size = len(grid(space)) if is_finite(space) or method == "grid" else None
    count = min(trials or size or TRIALS, size or trials or TRIALS)
    return Settings(config, space, method, count, seeds, selecting(config, metric))


def _check_models(config: configs.Config, space: Space):
    """Raise InputError for a value of an option of the model with which no point of the space is valid."""
    choices = {
        name: dimension.choices if isinstance(dimension, Values) else (dimension.low,)
        for name, dimension in space.items()
        if name.startswith("model.")
    }
    for name, value in ((name, value) for name, values in choices.items() for value in values):
        cause, points = "", itertools.product(*(choices | {name: (value,)}).values())
        for point in itertools.islice(points, COMBINATIONS):
            if not (cause := _model_error(config, dict(zip(choices, point)))):
                break
        if cause:
            raise InputError(f"--over {name.replace('_', '-')} cannot be {value}: {cause}")


def _model_error(config: configs.Config, point: Point) -> str:
    """Why a point has no valid parts and layers, or "", without data. They are traced: the scheduler uses no device."""
    import jax

    from attention_jax.models.blocks import Block
    from attention_jax.models.named_scores import parse_normalizer, parse_score

    def make():
        options = configs.replace(config, **point).model
        if isinstance(options, TransformerLayers):
            list(Block.of(options).of_layers(getattr(options, "num_layers", 1)))
        elif isinstance(options, AttentionOptions):
            parse_score(options.score), parse_normalizer(options.normalizer)

    try:
        jax.eval_shape(make)
    except InputError as error:
        return str(error)
    return ""


def selecting(config: configs.Config, metric: str) -> str:
    """Return the metric that a sweep selects by: `metric`, or with "" the one by which the experiment keeps
    checkpoints.

    Raises InputError unless it is of validation data, or of training data and given explicitly.
    """
    chosen = metric or config.train.best_metric.partition(",")[0]
    if not chosen.startswith(("valid", "train") if metric else "valid"):
        raise InputError(
            f"a sweep selects on validation data: give --metric valid.loss or another of them; got {chosen} "
            "(where an experiment has none, --data.validation N holds some out)"
        )
    configs.check_selection(config.train)
    return chosen


def first_points(settings: Settings) -> list[dict]:
    """The points of the first round."""
    return [trial.params for trial in _ask(search.new_study(settings), settings, 0).values()]


def _ask(study: optuna.Study, settings: Settings, number: int) -> dict[int, optuna.Trial]:
    """The trials of a round by number; InputError if a point is no valid configuration."""
    proposed = search.ask(study, settings.space, search.rounds(settings.method, settings.trials)[number])
    for trial in proposed.values():
        configs.replace(settings.config, **trial.params)  # refuses what is out of bounds
    return proposed


def _settle(directory: Path, settings: Settings):
    """Write the settings of a new sweep; InputError if the directory holds another one in which a run has begun."""
    if not any(directory.glob("trials/*/*/config.json")):  # a new one, or such as after a mistyped file of data
        for path in sorted(directory.glob("trials/**/*"), reverse=True):  # reasons, then directories that are empty
            if path.name in run_directory.FAILURES:
                path.unlink()
            elif path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()
        write_json(directory / "settings.json", plan.settings_json(settings))
    stored = plan.read_settings(directory, like=settings.config)
    short = lambda value: format_space(value) if isinstance(value, dict) else value
    for name, old, new in zip(Settings._fields, stored, settings):
        if name == "config":
            old, new = next(((f"{k} = {a}", b) for k, (a, b) in configs.differences(old, new).items()), (None, None))
        if old != new:
            change = f"has {name} {short(old)}, got {short(new)}"
            raise InputError(f"the sweep in {directory} {change}; repeat its own command, or give another --out DIR")


def sweep(
    settings: Settings,
    directory: Path,
    *,
    jobs: int = 0,
    ray: str = "",
    population: int = 64,
) -> list[plan.Trial]:
    """Run or resume a sweep in `directory` and write its summary.

    `jobs` worker processes or the Ray cluster at `ray` train the runs, of which at most `population` are compiled into
    one program. Runs that failed before without diverging are trained again, from their last checkpoints.
    """
    directory, began = Path(directory).absolute(), time.perf_counter()
    if population < 1:
        raise InputError(f"--population must be at least 1, got {population}")
    run_directory.check_place(directory, of=("settings.json", Settings._fields))
    fresh = missing(directory)
    with contextlib.closing(executor(jobs, ray)) as where:
        run_directory.create_directory(directory, bool(fresh))
        created = directory.stat()
        try:
            with worker.writing(directory), directory_lock(directory, wait=False):
                return _train_all(settings, directory, where, population, began)
        except InputError:
            if not (directory / "trials").exists():  # refused before the first run
                run_directory.withdraw(fresh, created)
            raise


def _train_all(settings: Settings, directory: Path, where, population: int, began: float) -> list[plan.Trial]:
    """`sweep` in a directory that no other process is at work in."""
    _settle(directory, settings)
    for failure in directory.glob("trials/*/*/failure.json"):
        if not read_object(failure).get("diverged"):
            failure.replace(failure.with_name(run_directory.FAILURES[1]))
    study = search.new_study(settings, directory / "journal.log")
    for number in range(len(search.rounds(settings.method, settings.trials))):
        if proposed := _ask(study, settings, number):
            _run_round(directory, settings, study, proposed, where, population)
    print(f"all runs have ended ({time.perf_counter() - began:.0f} s since this command began)")
    trials = summary.current_trials(directory, settings, study)
    summary.write(directory, settings, trials)
    return trials


def _run_round(directory, settings: Settings, study: optuna.Study, proposed: dict, where, population: int):
    """Train the trials of a round; each is trained to its own end."""
    paths = _groups(directory, settings, proposed, where.slots, population)
    for group_number, _ in enumerate(where.run(paths), 1):
        if not (directory / "settings.json").exists():
            raise directory_removed_error(directory)
        best = summary.best_trial(settings, _tell(directory, settings, study, proposed))
        best_so_far = f"; best so far: {summary.in_words(settings, best)}" if best else ""
        print(f"group {group_number} of {len(paths)} has ended{best_so_far}", flush=True)
    _tell(directory, settings, study, proposed)  # of runs that had ended before


def _tell(directory: Path, settings: Settings, study: optuna.Study, proposed: dict) -> list[plan.Trial]:
    """Report finished trials to the study and remove them from `proposed`; return the states of all trials."""
    trials = summary.current_trials(directory, settings, study)
    for trial in trials:
        if trial.number in proposed and trial.state in ("done", "failed"):
            finished = proposed.pop(trial.number)
            if trial.reason:
                finished.set_user_attr("reason", trial.reason)
            value = None if plan.is_late(settings, trial) else plan.rank_value(settings, trial)
            study.tell(finished, value, TrialState.FAIL if value is None else TrialState.COMPLETE)
    return trials


def _groups(directory: Path, settings: Settings, proposed: dict, slots: int, population: int) -> list[Path]:
    """Write the files of the groups of runs that are still to be trained."""
    members = [
        (plan.run_config(settings, trial.params, seed), plan.trial_directory(directory, number, seed))
        for number, trial in proposed.items()
        for seed in plan.seeds(settings)
    ]
    if catalog.load_experiment(settings.config.name).study:
        population = 1
    elif population > 1:
        for reason in sorted({partition.why_alone(config) for config, _ in members} - {""}):
            print(f"runs train one by one: {reason}", flush=True)
    paths = []
    for indices in partition.groups([config for config, _ in members], population, slots):
        group = worker.Group([members[index] for index in indices], settings.metric)
        if not all(run_directory.has_ended(run) for _, run in group.members):
            names = " ".join(str(run.relative_to(directory)) for _, run in group.members)
            paths.append(directory / "groups" / f"{indices[0]:04d}-{zlib.crc32(names.encode()):08x}.json")
            worker.write(paths[-1], group)
    return paths
