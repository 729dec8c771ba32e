"""The life of a run, from `start` to `finish`: checks, training, the final evaluation, and the files it leaves."""

import contextlib
import re
import shutil
import sys
import time
from pathlib import Path

from attention_jax import config as configs
from attention_jax.errors import Diverged, InputError, Interrupted, explain_errors, require
from attention_jax.files import directory_lock, directory_removed_error, missing, read_object, write_json
from attention_jax.printing import escape_control
from attention_jax.runs import directory as run_directory, saved
from attention_jax.runs.header import header
from attention_jax.signals import Interrupt


def start(
    config: configs.Config,
    directory: Path,
    *,
    study=None,
    resume: bool = False,
    quiet: bool = False,
    expected: str = "",
) -> dict:
    """Run `config` in `directory` to its end and return its result, which is also written to result.json and page.md.

    `study`, a function (config, directory) -> metrics, is called instead of training for an experiment without
    training; if it trains in `directory`, its result has the history. `expected` is how long it takes, for the lines
    that are printed first. With several hosts (`train.hosts`) each calls this with the same arguments, and host 0
    writes.
    """
    directory = Path(directory)
    configs.check_selection(config.train)
    require("train", "data", "report")
    run_directory.check_directory(directory, config, resume)
    from attention_jax.train import hosts, sinks

    sinks.check(config.train.log)
    fresh = missing(directory)
    hosts.barrier("the directory was checked")
    if hosts.is_primary():
        run_directory.create_directory(directory, bool(fresh))
        created = directory.stat()
    with directory_lock(directory, wait=False) if hosts.is_primary() else contextlib.nullcontext():
        try:
            with explain_errors():
                return run_in(config, directory, study, quiet, expected)
        except InputError:
            if hosts.is_primary() and not run_directory.has_trained(directory):
                run_directory.withdraw(fresh, created)
            raise
        except (SystemExit, KeyboardInterrupt):  # stopped by a signal
            if hosts.is_primary() and not (directory / "config.json").exists():
                run_directory.withdraw(fresh, created)
            raise


def run_in(config: configs.Config, directory: Path, study, quiet: bool, expected: str) -> dict:
    """`start` in a directory that no other process is at work in."""
    import jax

    from attention_jax import tasks
    from attention_jax.train import hosts
    from attention_jax.train.loop import check_batches, check_metric, train_one

    (directory / "failure.json").unlink(missing_ok=True)
    task, parameters = None if study is not None else tasks.build(config), 0
    if task is not None:
        check_batches(task, config.train)
        check_metric(task, "--train.best-metric", config.train.best_metric)
        run_directory.check_data(directory, task)
        shapes = jax.eval_shape(task.init, jax.random.PRNGKey(0))  # InputError for an invalid model
        parameters = sum(x.size for x in jax.tree.leaves(shapes))
        begin = initial_params(config, task, directory, quiet)
    if hosts.is_primary():
        set_aside(config, directory)
        describe(config, directory, task)
        if not quiet:
            facts, calls = ({}, ()) if task is None else (run_directory.facts_of(task), task.attention_calls(shapes))
            print(escape_control(header(config, directory, facts, parameters, expected, calls)), flush=True)
    if task is None:
        return run_study(config, directory, study)
    train = config.train
    run, params = train_one(task, config.optim, train, directory, begin=begin, quiet=quiet)
    try:
        with Interrupt() as interrupt:  # what has been trained is also evaluated and written
            result = finish(config, task, run, params)
    except BaseException:
        run.log.sinks.close("FAILED")
        raise
    if interrupt.requested:
        raise Interrupted(run.step)
    return result


def run_study(config: configs.Config, directory: Path, study) -> dict:
    """Call a study and write its result, whose seconds include those of processes that were interrupted."""
    interrupted, started = directory / "interrupted.json", time.perf_counter()
    past = read_object(interrupted)["seconds"] if interrupted.exists() else 0.0
    try:
        metrics = study(config, directory)
    except (Interrupted, KeyboardInterrupt, SystemExit):
        with contextlib.suppress(OSError):  # the directory was removed
            write_json(interrupted, {"seconds": past + time.perf_counter() - started})
        raise
    seconds = past + time.perf_counter() - started
    interrupted.unlink(missing_ok=True)
    history = run_directory.read_history(directory)
    return conclude(config, directory, {"metrics": metrics, "history": history, "seconds": seconds})


def initial_params(config: configs.Config, task, directory: Path, quiet: bool = True):
    """Return `begin` of `train.step.init_state`, which replaces initial parameters by pretrained weights, if given.

    They are read once: a run with a checkpoint does not need them. Of arrays that are re-initialized beside a
    head, a line tells also if `quiet`.
    """
    if run_directory.has_checkpoint(directory) or not config.train.init_weights:
        return lambda params: params
    import jax

    from attention_jax.pretrained import adopt
    from attention_jax.train import hosts

    like = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    weights = saved.weights_of(Path(config.train.init_weights), like=config)
    adoption = adopt.adopt_params(weights, like, *adopt.match_names(weights, task, like))
    if hosts.is_primary() and not quiet:
        print(adoption.summary)
    elif hosts.is_primary() and re.search(
        r"\d (\w+ )*re-initialized", adoption.summary
    ):  # other sizes; a head is expected
        print(f"note: {directory} begins {adoption.summary}", file=sys.stderr, flush=True)
    return adoption.into


def with_weights(weights: str, config: configs.Config) -> configs.Config:
    """A configuration that begins with the weights in a file or a run, and with the model they are of; a pretrained
    model of texts brings its tokenizer and its dropout rates. Without `weights` it is `config`."""
    if not weights:
        return config
    from attention_jax.pretrained import adopt
    from attention_jax.pretrained.load import with_scan

    loaded_weights = saved.weights_of(Path(weights), like=config)
    model = with_scan(adopt.options_from(loaded_weights, config.model))
    changes = {"model": model, "train.init_weights": weights}
    has_tokenizer = type(model) is not type(config.model) or (Path(weights) / "tokenizer.json").is_file()
    if hasattr(config.data, "pretrained") and (has_tokenizer or weights.endswith(".gguf")):
        name = "sequence_length" if hasattr(config.data, "sequence_length") else "max_length"
        configured_length = getattr(config.data, name)
        changes |= {
            "data.pretrained": weights,
            f"data.{name}": min(configured_length, model.longest_input or configured_length),
        }
        changes |= {f"model.{rate}": getattr(loaded_weights.options, rate) for rate in ("dropout", "attention_dropout")}
    return configs.replace(config, **changes)


def create_run(config: configs.Config, directory: Path):
    """Make a run in `directory` that has not trained: the weights of `train.init_weights`, fitted to the data."""
    import jax

    from attention_jax import tasks
    from attention_jax.train.checkpoint import save_params
    from attention_jax.train.initial import with_ranges

    run_directory.check_place(directory)
    if run_directory.is_run(directory):
        raise InputError(f"{directory} already holds a run: give another --out DIR")
    task = tasks.build(config)
    begin = initial_params(config, task, directory, quiet=False)
    fresh, _ = jax.random.split(jax.random.PRNGKey(config.train.seed))
    run_directory.create_directory(directory, fresh=not directory.exists())
    save_params(directory / "final", begin(with_ranges(task.init, config.train)(fresh)))
    describe(config, directory, task)


def set_aside(config: configs.Config, directory: Path):
    """Reopen a finished run that is to be trained longer: its result is kept as earlier_result.json and earlier_final/
    until it is finished again."""
    if run_directory.read_result(directory) and configs.differences(
        run_directory.read_config(directory, like=config), config
    ):
        if (directory / "final").is_dir():
            shutil.rmtree(directory / "earlier_final", ignore_errors=True)
            (directory / "final").replace(directory / "earlier_final")
        (directory / "result.json").replace(directory / "earlier_result.json")


def describe(config: configs.Config, directory: Path, task=None):
    """Write config.json, environment.json and, for a task, facts.json about its data, before a run begins."""
    from attention_jax.train.log import environment

    write_json(directory / "config.json", {"format": run_directory.FORMAT, **configs.to_json(config)})
    write_json(directory / "environment.json", environment())
    if task is not None:
        write_json(directory / "facts.json", run_directory.facts_of(task))
        saved.store_preprocessing(directory, task)


def finish(config: configs.Config, task, run, params, *, figures: bool = True, **facts) -> dict:
    """Write the results of a finished run, alone or in a population: final/, figures, result.json and page.md.

    Raises:
      Diverged: no loss of the final evaluation is finite; nothing is written.
    """
    import jax

    from attention_jax.train import hosts
    from attention_jax.train.checkpoint import save_params
    from attention_jax.train.run import divergent_loss

    evaluation = task.evaluate(params, True)
    if (loss := divergent_loss(evaluation.metrics)) is not None:
        run.failure = Diverged(run.step, loss)
        run.write_status()
        raise run.failure
    outcome = {
        "metrics": evaluation.metrics,
        "history": run.history,
        "steps": run.step,
        "seconds": run.seconds(),
        "processor_seconds": float(run.both_seconds()[1]),
        "examples_per_second": run.examples / max(run.seconds(), 1e-9),
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "facts": run_directory.facts_of(task),
    }
    if evaluation.classification:
        outcome["classification"] = dict(evaluation.classification)
    run.log.check()
    save_params(run.directory / "final", params)
    if hosts.is_primary() and not (run.directory / "preprocessing.json").exists():  # of a population
        saved.store_preprocessing(run.directory, task)
    result = conclude(config, run.directory, outcome | facts)
    if figures and hosts.is_primary():  # the result is kept if plotting fails
        from attention_jax.tasks.run_figures import draw_figures

        draw_figures(task, params, evaluation, run.directory)
    return result


def conclude(config: configs.Config, directory: Path, outcome: dict) -> dict:
    """Write result.json and its page."""
    from attention_jax.report.run_page import run_page
    from attention_jax.train import hosts

    if not (directory / "config.json").exists():
        raise directory_removed_error(directory)
    result = {"experiment": config.name, "seed": config.train.seed, **outcome}
    if hosts.is_primary():
        write_json(directory / "result.json", result)
        run_page(directory)
    return result
