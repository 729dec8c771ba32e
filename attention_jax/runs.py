"""A run and its directory: config.json, environment.json, metrics.jsonl, result.json, page.md, checkpoints, figures."""

import contextlib
import itertools
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_jax import Diverged, InputError, config as configs
from attention_jax.errors import explained, require
from attention_jax.files import check_regular, is_utf8, metrics_row, one_at_a_time, read_object, write_json


def numbered(name: str, root: Path) -> dict[int, Path]:
    """The directories runs/NAME/001, runs/NAME/002, ... by their numbers."""
    return {int(path.name): path for path in (root / name).glob("[0-9]*") if path.name.isdigit()}


def fresh_directory(name: str, root: Path = Path("runs")) -> Path:
    """The first unused runs/NAME/001, runs/NAME/002, ...; nothing that exists is ever written over."""
    return root / name / f"{max(numbered(name, root), default=0) + 1:03d}"


def latest_directory(name: str, root: Path = Path("runs")) -> Path:
    """The newest run of an experiment; InputError if there is none."""
    earlier = {number: path for number, path in numbered(name, root).items() if (path / "config.json").exists()}
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
    with undamaged(path):
        values = json.loads(path.read_text(encoding="utf-8"))
    configs.check_trusted(values, path, trust_code, like)
    with undamaged(path):
        config = configs.from_json(values)
        if not isinstance(config, configs.Config):
            raise ValueError(f"a {type(config).__name__} is no Config")
    return config


@contextlib.contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Within it, whatever goes wrong with the contents of a config.json becomes one InputError."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged, of another version, or of a package that cannot be imported from here "
            f"({' '.join(str(error).split())}); train again, or put your package beside launch.py"
        ) from error


def read_result(directory: Path) -> dict | None:
    """The run's result.json, or None while it has not ended."""
    path = Path(directory) / "result.json"
    return read_object(path) if path.exists() else None


def begins(directory: Path) -> bool:
    """Whether a run was to be made in `directory` and has not yet said what it is: `--resume` starts it there."""
    return directory.is_dir() and {path.name for path in directory.iterdir()} <= {"figures", ".writable"}


def check_same(stored: configs.Config, asked: configs.Config, directory: Path):
    """InputError if `asked` differs from the stored configuration in an option that is not `resumable`."""
    resumable = {name for name, info, _ in configs.walk(stored) if info.resumable}
    for name, (old, new) in configs.differences(stored, asked).items():
        if name not in resumable:
            raise InputError(
                f"the run in {directory} has {name} = {old}, asked for was {new}; "
                "resume it with its own value, or start a new run without --resume"
            )


def check_longer(config: configs.Config, directory: Path):
    """What has been trained is not undone by a shorter length."""
    done = next(reversed(history(directory)), {})
    for option, least, count in (
        ("epochs", config.train.total_epochs, "epoch"),
        ("steps", config.train.max_steps, "step"),
    ):
        if 0 < least < done.get(count, 0):
            raise InputError(
                f"the run in {directory} has {done[count]} {option} behind it, asked for were {least}: ask for more, "
                "or start a new run without --resume"
            )


def check_place(directory: Path, config: configs.Config, resume: bool):
    """InputError if a run of `config` may not begin, or go on, in `directory`."""
    if not is_utf8(str(directory.absolute())):
        raise InputError(f"the path of a run must be UTF-8, got {str(directory)!a}; give another --out DIR")
    if (directory / "config.json").exists():
        if not resume:
            raise InputError(
                f"{directory} already holds a run; add --resume to go on with it, or give another --out DIR"
            )
        check_same(read_config(directory, like=config), config, directory)
        check_longer(config, directory)
    elif (directory / "checkpoints").exists():
        raise InputError(f"{directory} has checkpoints and no config.json that says of what: give another --out DIR")
    elif resume and not begins(directory):
        raise InputError(f"--resume needs a run in {directory}; there is none: leave --resume out")


def missing(directory: Path) -> list[Path]:
    """Which of `directory`, its parent, the parent of that ... are to be made.

    >>> missing(Path("/"))
    []
    """
    return [path for path in (directory, *directory.parents) if not path.exists()]


def create(directory: Path, fresh: bool = False):
    """Make the directory of a run and see that it can be written. A `fresh` one was not there before: of two runs that
    begin in it at once, the second is told."""
    try:
        directory.mkdir(parents=True, exist_ok=not fresh)
        (directory / "figures").mkdir(exist_ok=True)
        (directory / ".writable").touch()
        (directory / ".writable").unlink()
    except FileExistsError as error:
        if not directory.is_dir():
            raise InputError(
                f"the output must be a directory; {directory} is a file: give another directory"
            ) from error
        raise InputError(f"{directory} was free a moment ago, but another run has taken it: start again") from error
    except OSError as error:
        raise InputError(
            f"the output directory must be writable; {directory} is not ({error.strerror}); give another one"
        ) from error


def start(
    config: configs.Config,
    directory: Path,
    *,
    study=None,
    resume: bool = False,
    quiet: bool = False,
    until: float = math.inf,
) -> dict | None:
    """Run `config` in `directory` to its end and return its result, which is also written to result.json and page.md.

    `study`, a function (config, directory) -> metrics, is run instead of training where the experiment is a
    computation; if it trains in `directory`, its result has the history. A run that stops at epoch `until` before its
    end has no result yet: None. Of several hosts (`train.hosts`) each calls this with the same arguments, and the first
    writes.
    """
    directory = Path(directory)
    configs.check_selection(config.train)
    require("train", "data", "report")
    check_place(directory, config, resume)
    from attention_jax.train import hosts, sinks

    sinks.check(config.train.log)
    fresh = missing(directory)
    hosts.together("the directory was looked at")
    if hosts.first():
        create(directory, bool(fresh))
    with one_at_a_time(directory, wait=False) if hosts.first() else contextlib.nullcontext():
        try:
            with explained():
                return run_in(config, directory, study, quiet, until)
        except InputError:
            if hosts.first() and not any((directory / "checkpoints").glob("[0-9]*")):
                withdraw(fresh)
            raise


def withdraw(fresh: list[Path]):
    """Remove a run's directory, and the parents that were made for it, where it ended before there was anything to go
    on with: bad data, batches and weights, a full disk or memory leave nothing behind. `fresh` may be empty."""
    for path in fresh[:1]:
        shutil.rmtree(path)
    with contextlib.suppress(OSError):  # another run has come into it
        for parent in fresh[1:]:
            parent.rmdir()


def run_in(config: configs.Config, directory: Path, study, quiet: bool, until: float) -> dict | None:
    """`start` in a directory that no other process is at work in."""
    import jax

    from attention_jax import tasks
    from attention_jax.train import hosts
    from attention_jax.train.loop import Interrupt, check_batches, check_metric, train_one

    (directory / "failure.json").unlink(missing_ok=True)
    task = None if study is not None else tasks.build(config)
    if task is not None:
        check_batches(task, config.train)
        check_metric(task, "--train.best-metric", config.train.best_metric)
        check_data(directory, task)
        jax.eval_shape(task.init, jax.random.PRNGKey(0))  # a model that cannot be made says so
        begin = begun_from(config, task, directory, quiet)
    if hosts.first():
        set_aside(config, directory)
        describe(config, directory, task)
    if task is None:
        started = time.perf_counter()
        metrics = study(config, directory)
        outcome = {"metrics": metrics, "history": history(directory), "seconds": time.perf_counter() - started}
        return conclude(config, directory, outcome)
    train = config.train
    run, params = train_one(task, config.optim, train, directory, begin=begin, quiet=quiet, until=until)
    if run.open:
        return None
    with Interrupt():  # what has been trained is also evaluated and written
        return finish(config, task, run, params)


def begun_from(config: configs.Config, task, directory: Path, quiet: bool = True):
    """`train.step.init_state`'s `begin`: given weights in the place of drawn ones, where the run is to begin with such.

    They are read once: a run that has a checkpoint does without them.
    """
    saved = any(path.name.isdigit() for path in (directory / "checkpoints").glob("*"))
    if saved or not config.train.init_weights:
        return lambda params: params
    import jax

    from attention_jax.train import hosts
    from attention_jax.weights import adopt

    like = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    taken = adopt.adopted(weights_of(Path(config.train.init_weights), like=config), like)
    if hosts.first() and not quiet:
        print(taken.said)
    return taken.into


def take(config: configs.Config, directory: Path):
    """Make a run in `directory` that has not trained: the weights of `train.init_weights`, fitted to the data."""
    import jax

    from attention_jax import tasks
    from attention_jax.train.checkpoint import save_params

    if directory.exists():
        raise InputError(f"--out must be a directory that does not exist yet; {directory} does")
    task = tasks.build(config)
    begin = begun_from(config, task, directory, quiet=False)
    fresh, _ = jax.random.split(jax.random.PRNGKey(config.train.seed))
    create(directory, fresh=True)
    save_params(directory / "final", begin(task.init(fresh)))
    describe(config, directory, task)


def set_aside(config: configs.Config, directory: Path):
    """A run that ended and is to be longer has not ended: what it ended with is kept as earlier_result.json and
    earlier_final/ until it ends anew."""
    if read_result(directory) and configs.differences(read_config(directory, like=config), config):
        if (directory / "final").is_dir():
            shutil.rmtree(directory / "earlier_final", ignore_errors=True)
            (directory / "final").replace(directory / "earlier_final")
        (directory / "result.json").replace(directory / "earlier_result.json")


def describe(config: configs.Config, directory: Path, task=None):
    """Write what a run is before it begins: config.json, environment.json, and of a task facts.json, its data."""
    from attention_jax.train.log import environment

    write_json(directory / "config.json", configs.to_json(config))
    write_json(directory / "environment.json", environment())
    if task is not None:
        write_json(directory / "facts.json", task.describe())


def finish(config: configs.Config, task, run, params, *, figures: bool = True, **facts) -> dict:
    """What a run that has ended leaves, alone or in a population: final/, figures, result.json and page.md."""
    import jax

    from attention_jax.train import hosts
    from attention_jax.train.checkpoint import save_params

    evaluation = task.evaluate(params, True)
    outcome = {
        "metrics": evaluation.metrics,
        "history": run.history,
        "steps": run.step,
        "seconds": run.seconds(),
        "examples_per_second": run.examples / max(run.seconds(), 1e-9),
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "facts": task.describe(),
    }
    save_params(run.directory / "final", params)
    result = conclude(config, run.directory, outcome | facts)
    if figures and hosts.first():  # a figure that cannot be drawn does not cost the result
        draw(task, params, evaluation, run.directory)
    return result


def conclude(config: configs.Config, directory: Path, outcome: dict) -> dict:
    """Write result.json and its page."""
    from attention_jax.report.run_page import run_page
    from attention_jax.train import hosts

    result = {"experiment": config.name, "seed": config.train.seed, **outcome}
    if hosts.first():
        write_json(directory / "result.json", result)
        run_page(directory)
    return result


def fail(directory: Path, error: Exception):
    """Keep a run's reason for having no result, in failure.json."""
    said = " ".join(str(error).split())
    reason = said if isinstance(error, InputError | Diverged) else f"{type(error).__name__}: {said[:300]}"
    write_json(directory / "failure.json", {"reason": reason})


def failure(directory: Path) -> str:
    """The reason that `fail` kept, or nothing."""
    path = directory / "failure.json"
    return str(read_object(path).get("reason", "")) if path.exists() else ""


def ended(directory: Path) -> bool:
    """Whether a run has its result, or its reason for having none."""
    return (directory / "result.json").exists() or (directory / "failure.json").exists()


def history(directory: Path) -> list[dict]:
    """A run's history so far, whether it has ended or not; [] before its first epoch has ended."""
    result = read_result(directory)
    if result is not None:
        return result["history"]
    path = directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    rows = itertools.takewhile(lambda row: row is not None, map(metrics_row, lines))  # half a line: it is being written
    return [row for row in rows if "seconds" in row]


def draw(task, params, evaluation, directory: Path) -> list[Path]:
    """The learning curves, the figures of the task's family, and the page of where the model looks; page.md shows
    them."""
    from attention_jax.report.run_page import run_page

    curves = draw_curves([directory / "metrics.jsonl"], directory / "figures" / "learning_curve.png", task.config)
    figures = [curves, *task.report(params, evaluation, directory / "figures")]
    try:
        page = look(task, params)
    except InputError:  # held-out inputs that are too long for a page; `launch.py look` says which
        page = None
    if page is not None:
        figures.append(page.save(directory / "figures" / "look.html"))
    run_page(directory)
    return figures


def look(task, params, texts: Sequence[str] = ()):
    """The page (report/look.py) of where a model looks at `texts`, or at some held-out inputs; None if it looks
    nowhere."""
    from attention_jax.report.look import page

    found = looked(task, params, texts)
    return page(found, task.config.name) if found else None


def looked(task, params, texts: Sequence[str] = ()) -> tuple:
    """Where a model looks, as values (report/attended.py); () if it looks nowhere or its task does not say."""
    return task.looked(params, list(texts)) if hasattr(task, "looked") else ()


def draw_curves(histories: list, path: Path, config: configs.Config | None = None, title: str = "") -> Path:
    """The learning curves of one run, or of all seeds of a configuration: files (metrics.jsonl) or their rows."""
    from attention_jax.report.figures import learning_curves

    return learning_curves(histories, path, title=title, training=in_training_alone(config) if config else "")


def in_training_alone(config: configs.Config) -> str:
    """What is part of the training loss and of no other: label smoothing, dropout, and the variation of images.

    >>> in_training_alone(configs.Config("x", configs.Images(mixup=0.2), configs.Vit()))
    'mixup'
    """
    rates = [rate for name, rate in vars(config.model).items() if name.endswith(("dropout", "stochastic_depth"))]
    found = ["label smoothing"] * (config.train.label_smoothing > 0) + ["dropout"] * any(rates)
    return ", ".join([*found, *(name for name in ("mixup", "cutmix") if getattr(config.data, name, 0))])


def check_data(directory: Path, task):
    """Raises InputError if the data that are there now are not those that the run was trained on: another vocabulary
    gives the same numbers another meaning."""
    path = directory / "facts.json"
    then = read_object(path) if path.exists() else (read_result(directory) or {}).get("facts", {})
    now = json.loads(json.dumps(task.describe()))
    for name in then.keys() & now.keys():
        if then[name] != now[name]:
            raise InputError(
                f"the data of the run in {directory} have changed since it was trained: {name} was {then[name]} and is "
                f"{now[name]}; put the files back, or train again"
            )


def final_of(directory: Path, config: configs.Config) -> Path:
    """Where the parameters are that a run ended with; InputError while it has not ended."""
    if config.model is None:
        raise InputError(f"{config.name} is a computation without a model; what it found is in {directory}/result.json")
    final = Path(directory) / "final"
    if not final.is_dir():
        raise InputError(
            f"the run in {directory} has not ended; "
            f"end it with `launch.py train {config.name} --resume --out {directory}`"
        )
    return final


def load(directory: Path, config: configs.Config | None = None):
    """(config, task, params) of a finished run; `config` is its configuration if that was read before."""
    import jax

    from attention_jax import tasks
    from attention_jax.train.checkpoint import load_params

    config = config or read_config(directory)
    final = final_of(directory, config)
    task = tasks.build(config)
    check_data(directory, task)
    return config, task, load_params(final, jax.eval_shape(task.init, jax.random.PRNGKey(0)))


def load_weights(directory: Path, **trusted):
    """(config, params) of a finished run, whose data need not be at hand; `trusted` is for `read_config`."""
    from attention_jax.train.checkpoint import read_params

    config = read_config(directory, **trusted)
    return config, read_params(final_of(directory, config))


def weights_of(place: Path, **trusted):
    """The weights (weights/exchange.py) in a run that has ended, in a file or in a directory with one; `trusted` is for
    `read_config`."""
    from attention_jax.weights import exchange

    if not (place / "checkpoints").is_dir() and not (place / "final").is_dir():
        return exchange.read(place)
    config, params = load_weights(place, **trusted)
    return exchange.Weights(config.model, exchange.flat(params), str(place))
