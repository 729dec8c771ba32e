"""A run and its directory: config.json, environment.json, metrics.jsonl, result.json, page.md, checkpoints/, figures/."""

import json
import shutil
import time
from pathlib import Path

from attention_jax import InputError, config as configs

RESUMABLE = (
    "train.total_epochs",
    "train.max_steps",
    "train.patience",
    "train.keep_last",
    "train.average_last",
    "train.use_best",
)


def fresh_directory(name: str, root: Path = Path("runs")) -> Path:
    """The first unused runs/NAME/001, runs/NAME/002, ...; nothing that exists is ever written over."""
    taken = [int(path.name) for path in (root / name).glob("[0-9]*") if path.name.isdigit()]
    return root / name / f"{max(taken, default=0) + 1:03d}"


def latest_directory(name: str, root: Path = Path("runs")) -> Path:
    """The newest run of an experiment; InputError if there is none."""
    found = sorted(path for path in (root / name).glob("[0-9]*") if (path / "config.json").exists())
    if not found:
        raise InputError(
            f"--resume needs an earlier run of {name} in {root / name}; there is none: leave --resume out, or give --out DIR"
        )
    return found[-1]


def read_config(directory: Path) -> configs.Config:
    """The configuration of the run in `directory`."""
    path = Path(directory) / "config.json"
    if not path.exists():
        raise InputError(
            f"{directory} is not a run: it needs a config.json; give a directory that `launch.py train` made, such as runs/date_luong/001"
        )
    try:
        return configs.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is damaged or of another version ({' '.join(str(error).split())}); train again"
        ) from error


def read_result(directory: Path) -> dict | None:
    """The run's result.json, or None while it has not ended."""
    path = Path(directory) / "result.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def check_same(stored: configs.Config, wanted: configs.Config, directory: Path):
    """A run is resumed as what it is: only its length may change."""
    for name, (old, new) in configs.differences(stored, wanted).items():
        if name not in RESUMABLE:
            raise InputError(
                f"the run in {directory} has {name} = {old}, asked for was {new}; resume it with its own value, or start a new run without --resume"
            )


def create(directory: Path):
    """Make the directory of a run and see that it can be written."""
    try:
        (directory / "figures").mkdir(parents=True, exist_ok=True)
        (directory / ".writable").touch()
        (directory / ".writable").unlink()
    except OSError as error:
        raise InputError(
            f"the output directory must be writable; {directory} is not ({error.strerror}); give another --out DIR"
        ) from error


def start(
    config: configs.Config,
    directory: Path,
    *,
    study=None,
    resume: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    on_epoch=None,
) -> dict:
    """Run `config` in `directory` to its end and return its result, which is also written to result.json and, to be read, page.md.

    `study`, a function (config, directory) -> metrics, is run instead of training where the experiment is a computation.
    Of several hosts (`train.hosts`) each calls this with the same arguments, and the first writes.
    """
    directory = Path(directory)
    if (directory / "config.json").exists():
        if not resume:
            raise InputError(
                f"{directory} already holds a run; add --resume to go on with it, or give another --out DIR"
            )
        check_same(read_config(directory), config, directory)
    elif resume:
        raise InputError(f"--resume needs a run in {directory}; there is none: leave --resume out")
    from attention_jax import tasks
    from attention_jax.report.run_page import run_page
    from attention_jax.train import hosts
    from attention_jax.train.log import environment, write_json

    fresh = not directory.exists()
    hosts.together("the directory was looked at")
    if hosts.first():
        create(directory)
    try:
        task = None if study is not None else tasks.build(config)
    except InputError:
        if fresh and hosts.first():  # bad data leave no directory behind
            shutil.rmtree(directory)
        raise
    if hosts.first():
        write_json(directory / "config.json", configs.to_json(config))
        write_json(directory / "environment.json", environment())
    if study is not None:
        started = time.perf_counter()
        outcome = {"metrics": study(config, directory), "history": [], "seconds": time.perf_counter() - started}
    else:
        outcome = train(task, config, directory, resume=resume, tensorboard=tensorboard, quiet=quiet, on_epoch=on_epoch)
    result = {"experiment": config.name, "seed": config.train.seed, **outcome}
    if hosts.first():
        write_json(directory / "result.json", result)
        run_page(directory)
    return result


def train(
    task, config: configs.Config, directory: Path, *, resume: bool, tensorboard: bool, quiet: bool, on_epoch
) -> dict:
    """Fit the task, keep its parameters, draw its figures."""
    import jax

    from attention_jax.train import hosts
    from attention_jax.train.checkpoint import save_params
    from attention_jax.train.loop import fit

    outcome = fit(
        task,
        config.optim,
        config.train,
        directory,
        resume=resume,
        tensorboard=tensorboard,
        quiet=quiet,
        on_epoch=on_epoch,
    )
    params = jax.device_get(outcome.pop("params"))
    outcome["parameters"] = sum(x.size for x in jax.tree.leaves(params))
    outcome["facts"] = task.describe()
    save_params(directory / "final", params)
    if hosts.first():
        draw(task, params, directory)
    return outcome


def draw(task, params, directory: Path) -> list[Path]:
    """The learning curves and the figures of the task's family."""
    from attention_jax.report.figures import learning_curves

    curves = learning_curves([directory / "metrics.jsonl"], directory / "figures" / "learning_curve.png")
    return [curves, *task.report(params, directory / "figures")]


def load(directory: Path):
    """(config, task, params) of a finished run."""
    import jax

    from attention_jax import tasks
    from attention_jax.train.checkpoint import load_params

    config = read_config(directory)
    final = Path(directory) / "final"
    if not final.is_dir():
        raise InputError(
            f"the run in {directory} has not ended; end it with `launch.py train {config.name} --resume --out {directory}`"
        )
    task = tasks.build(config)
    return config, task, load_params(final, jax.eval_shape(task.init, jax.random.PRNGKey(0)))
