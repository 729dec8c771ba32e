"""Attention in JAX: train, sweep and reproduce experiments.

Without a command it trains date_luong, an attention model that converts dates: about 44 s on one CPU core.
"""

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attention_jax import __version__
from attention_jax.cli.compilation_cache import keep_compiled_programs
from attention_jax.errors import Diverged, InputError, Interrupted, explain_errors, require
from attention_jax.files import check_output_files, is_utf8
from attention_jax.printing import as_typed, discard, docstrings, escape_control, outlasting_readers, prepare_streams
from attention_jax.signals import end_on_signals

MAIN_JOB = "date_luong"
OUTLASTING = ("train", "export", "import", "reproduce", "sweep", "bench")
"""Commands whose work is on the disk: they continue after the reader of their output has left; others end with 141."""
PICTURES = (".png", ".svg", ".pdf")
PATHS = dict.fromkeys(("--out", "--root", "--attention", "--latex", "--csv"), "a file or a directory")
PATHS["--from"] = "a run or a file of weights"
"""What options that name a place need: an empty name, such as of a variable that is not set, is none."""


def list_experiments(words: list[str]):
    """[NAME, WORD or RUN]: list the experiments by chapter; NAME: everything about one; RUN: the state of a run."""
    from attention_jax import catalog
    from attention_jax.claims import claim_tables
    from attention_jax.claims.verdicts import judge_claims
    from attention_jax.cli import command_options
    from attention_jax.config.fields import user_data

    name = command_options.parse(command_options.List, words).experiment
    if name and (Path(name) / "config.json").exists():
        from attention_jax.report.run_status import print_status

        return print_status(Path(name))
    experiments = (
        []
        if name in catalog.experiment_names()
        else [catalog.load_experiment(experiment_name) for experiment_name in catalog.experiment_names()]
    )
    if matches := [] if name.endswith(".py") else claim_tables.select_experiments(experiments, name):
        print(claim_tables.format_listing(matches, shutil.get_terminal_size((100, 24)).columns))
    else:
        experiment = catalog.load_experiment(name)
        print(claim_tables.experiment_page(experiment, judge_claims(experiment), user_data(experiment.config())))


def train(words: list[str]):
    """NAME [--preset base] [--model.hidden-size 128 ...] [--out DIR] [--resume]: train an experiment, or resume it."""
    from attention_jax import catalog
    from attention_jax.claims import record
    from attention_jax.cli import command_options
    from attention_jax.report.run_status import duration
    from attention_jax.runs import lifecycle

    args, config = command_options.parse_with_config(command_options.Train, words, base_config)
    check_from(args, config)
    experiment = catalog.load_experiment(args.experiment)
    from attention_jax.train import hosts

    if args.coordinator or args.hosts or args.host:
        if not args.out or experiment.study:
            raise InputError(
                "several hosts need --out, a directory that all of them see, and an experiment that trains"
            )
        hosts.join(args.coordinator, args.hosts, args.host)
    directory = directory_of(args, experiment.name)
    if args.init_weights and getattr(config.data, "pretrained", "") and not (args.resume or config.optim.rates):
        print(f"learning rate: {config.optim.learning_rate:g}; of pretrained models 1e-5 to 1e-4 is usual", flush=True)
    if args.resume and (directory / "config.json").exists() and not any(directory.glob("checkpoints/[0-9]*")):
        print("training begins at step 0: the run has no checkpoint yet (--train.save-minutes)", flush=True)
    seconds = record.estimate_seconds(experiment, config)
    expected = f"about {duration(seconds)} on one CPU core" if seconds else ""
    result = lifecycle.start(config, directory, study=experiment.study, resume=args.resume, expected=expected)
    if hosts.is_primary():
        print_result(result, directory)


def base_config(args):
    """Return the configuration before options are applied: of the experiment, or of the run to resume."""
    from attention_jax import catalog
    from attention_jax.runs import directory as run_directory, lifecycle

    experiment = catalog.load_experiment(args.experiment)
    directory, preset_config = directory_of(args, experiment.name), experiment.preset(args.preset)
    if not args.resume or (directory.is_dir() and not (directory / "config.json").exists()):
        return lifecycle.with_weights(args.init_weights, preset_config)
    stored = run_directory.read_config(directory, args.trust_code, preset_config)
    if args.init_weights not in ("", stored.train.init_weights):
        raise InputError(f"the run in {directory} has begun; --from {args.init_weights} is for a new one: leave it out")
    if args.preset:
        raise InputError(f"the run in {directory} has begun; --preset {args.preset} is for a new one: leave it out")
    return stored


def check_from(args, config):
    """InputError if both options that name weights are given."""
    if args.init_weights and config.train.init_weights != args.init_weights:
        raise InputError("--from and --train.init-weights are one option: give only --from, which takes the model too")


def directory_of(args, name: str) -> Path:
    """The run directory of `launch.py train`: --out, the newest one to resume, or a new one."""
    from attention_jax.runs import directory as run_directory

    if args.out:
        if not args.resume:
            run_directory.check_place(Path(args.out))
        return Path(args.out)
    return run_directory.latest_directory(name) if args.resume else run_directory.fresh_directory(name)


def print_classification(split: str, report: dict):
    """Print the metrics of a classifier, and those of each class unless there are many."""
    from attention_jax.report.class_report import class_table
    from attention_jax.report.tables import show

    first = () if split else ("examples", "loss", "accuracy", "balanced_accuracy")  # of a run they are printed already
    for name in (*first, "macro_f1", "ece"):
        print(f"{split + name:32} {report[name]:.6g}")
    if len(report["classes"]) <= 30:
        show(class_table(report, split.rstrip(".")))


def print_result(result: dict, directory: Path):
    for name, value in result["metrics"].items():
        print(f"{name:32} {value:.6g}" if isinstance(value, float) else f"{name:32} {value}")
    for split, report in result.get("classification", {}).items():
        print_classification(f"{split}.", report)
    samples = directory / "samples.txt"
    print(escape_control(samples.read_text(encoding="utf-8")) if samples.exists() else "", end="")
    print(f"{'seconds':32} {result['seconds']:.1f}\nin {directory}: result.json, metrics.jsonl, figures/")


def export(words: list[str]):
    """RUN --to safetensors|npz|huggingface|stablehlo [--naming timm|...]: write weights or programs."""
    from attention_jax.cli import command_options
    from attention_jax.runs.api import export_run

    args = command_options.parse(command_options.Export, words)
    options = {name: getattr(args, name) for name in ("to", "naming", "platforms", "trust_code")}
    print(export_run(args.run, out=args.out or None, **options))


def import_weights(words: list[str]):
    """NAME FILE [--out DIR]: create a run of an experiment from a file of weights."""
    from attention_jax import catalog
    from attention_jax.cli import command_options
    from attention_jax.runs import directory as run_directory, lifecycle

    def config_with_weights(args):
        if not args.file:
            raise InputError("import needs a file of weights, got an empty name: give its path")
        if args.out:
            run_directory.check_place(Path(args.out))
        return lifecycle.with_weights(args.file, catalog.load_experiment(args.experiment).config())

    args, config = command_options.parse_with_config(command_options.Import, words, config_with_weights)
    directory = Path(args.out) if args.out else run_directory.fresh_directory(config.name)
    lifecycle.create_run(config, directory)
    print(f"in {directory}: evaluate it, predict with it, or continue with train {args.experiment} --from {directory}")


def parse_and_open(kind: type, words: list[str], continues: bool = False) -> tuple[Any, Callable, dict | None]:
    """Return the options of a command about a run or a pretrained model, a function that loads it and, for a pretrained
    language model that `continues` texts, the options of sampling that differ from those of its files.

    The options of a pretrained model may follow those of the command.
    """
    from attention_jax import load_run
    from attention_jax.cli import command_options
    from attention_jax.config import Generation, LanguageModelConfig
    from attention_jax.pretrained import generation_config, load

    if not words or words[0].startswith("-") or not load.is_pretrained(words[0]):
        args = command_options.parse(kind, words)
        return args, lambda: load_run(args.run, trust_code=args.trust_code), None
    path, sampling = Path(words[0]), None
    weights = load.read_pretrained(path)
    if continues and isinstance(weights.options, LanguageModelConfig):
        defaults = generation_config.sampling_in(path)
        total = defaults.pop("total", None)
        sampling = Generation(**({} if total is None else {"length": total}) | defaults)
    args, options, decode = command_options.parse_with_model(kind, words, weights.options, sampling)
    changes = None if decode is None else {k: v for k, v in vars(decode).items() if v != getattr(sampling, k)}
    return args, lambda: load.build_pretrained(path, weights, options), changes


def evaluate(words: list[str]):
    """RUN [--figures | --data FILE [--out ROWS.csv] | --text FILE]: evaluate on held-out or new data, or on a text."""
    from attention_jax.cli import command_options
    from attention_jax.cli.predictions import lines_of
    from attention_jax.data.text_tables import is_table
    from attention_jax.pretrained.load import is_pretrained

    args, load, _ = parse_and_open(command_options.Evaluate, words)
    if (args.out or args.force) and not args.data:
        raise InputError("--out and --force are for the examples of --data FILE: give it, or leave them out")
    check_output_files(args.force, out=args.out)
    if args.out and not is_table(args.out):
        raise InputError(f"--out needs a table, a .csv, .tsv, .jsonl or .parquet; got {args.out}")
    if is_pretrained(args.run) and not args.text:
        raise InputError("evaluate needs --text FILE, a text, for a pretrained model")
    if args.text:
        if args.figures or args.data:
            raise InputError("--text is evaluated alone: leave --figures and --data out")
        metrics = load().perplexity("\n".join(lines_of(args.text, "text to evaluate")))
    elif args.data:
        if args.figures:
            raise InputError("--figures are of held-out data: leave --figures or --data out")
        return print_classification("", load().evaluate_classes(args.data, args.out or None, force=args.force))
    else:
        metrics = load().evaluate(figures=args.figures)
    for name, value in metrics.items():
        print(f"{name:32} {value:.6g}")


def predict(words: list[str]):
    """RUN TEXT|FILE.txt|FILE.csv|- ... [--out FILE.csv] [--attention FILE.png]: print the output for each text."""
    from attention_jax.cli import command_options, predictions
    from attention_jax.data.text_tables import is_table

    args, load, sampling = parse_and_open(command_options.Predict, words, continues=True)
    if not args.texts:
        raise InputError("predict needs at least one text after the run")
    if args.attention and Path(args.attention).suffix not in PICTURES:
        raise InputError(f"--attention needs a file that ends in {', '.join(PICTURES)}; got {args.attention}")
    check_output_files(args.force, out=args.out, attention=args.attention)
    predictions.check_files(args.texts, args.column, args.out)
    if args.attention and is_table(args.out):
        raise InputError(f"--attention draws what is printed, not a table: leave it or --out {args.out} out")
    model, sampling = _with_sampling(load(), sampling, args)
    answer = _answer_function(model, args, sampling or {})
    batches = predictions.text_batches(args.texts, model.table_columns, args.column)
    if args.out:
        predictions.write_predictions(model, answer, args.texts, args.column, Path(args.out))
    elif sampling is not None and sys.stdout.isatty():
        for text in itertools.chain.from_iterable(batches):
            print_continuation(model, text, sampling, args.chat) if text.strip() else print()
    else:
        predictions.print_outputs(answer, batches)
    if args.attention:
        print(f"attention map: {args.attention}")


def _with_sampling(model, sampling: dict[str, Any] | None, args) -> tuple[Any, dict[str, Any] | None]:
    """(model, what `parse_and_open` returns) with --temperature, --top-k, --top-p and --length, if they are given."""
    from attention_jax.config import Generation
    from attention_jax.runs.api import FOR_LANGUAGE_MODELS, LoadedRun

    options = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "length")}
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return model, sampling
    if isinstance(model, LoadedRun):
        return model.with_sampling(**options), sampling
    if sampling is None:
        raise InputError(FOR_LANGUAGE_MODELS)
    Generation(**options)  # checks the values
    return model, sampling | options


def _answer_function(model, args, sampling: dict[str, Any]) -> Callable[[Sequence[str]], Sequence[str]]:
    """What gives the outputs of texts; it draws the attention maps of its first batch."""
    from attention_jax.pretrained.interface import Pretrained

    if not args.chat:
        attention = iter([args.attention] if args.attention else [])
        return lambda texts: model.predict(texts, next(attention, None), **sampling)
    if not isinstance(model, Pretrained):
        raise InputError(
            f"--chat is for a pretrained model with a chat template, and {args.run} is a run: leave it out"
        )
    return lambda texts: model.chat(texts, **sampling)


def print_continuation(model, text: str, sampling: dict[str, Any], chat: bool):
    """Print a text and its continuation, or the answer in a `chat`, while it is written."""
    show = lambda piece: print(escape_control(piece), end="", flush=True)
    show(f"{text} -> " if chat else f"{text} -> {text}")
    (model.chat if chat else model.generate)([text], stream=show, **sampling)
    print()


def look(words: list[str]):
    """RUN [TEXT or FILE ...] [--out page.html]: show attention maps in one page for a browser."""
    from attention_jax.cli import command_options
    from attention_jax.cli.predictions import text_batches
    from attention_jax.pretrained.load import is_pretrained
    from attention_jax.runs import directory as run_directory

    args, load, _ = parse_and_open(command_options.Look, words)
    if args.out and not args.out.endswith((".html", ".htm")):
        raise InputError(f"--out needs a file that ends in .html; got {args.out}")
    if is_pretrained(args.run) and not args.texts:
        raise InputError("look needs at least one text, or image file, after a pretrained model")
    if is_pretrained(args.run):
        usual = f"{Path(args.run).resolve().name.removesuffix('.gguf')}.html"
    else:
        usual = Path(args.run) / "figures" / ("look-own.html" if args.texts else "look.html")
    path, is_its_own = Path(args.out or usual), not args.out and run_directory.is_run(Path(args.run))
    check_output_files(args.force, out="" if is_its_own else str(path))
    model = load()
    batches = text_batches(args.texts, model.table_columns) if args.texts else ()
    page = model.look([text for text in itertools.chain.from_iterable(batches) if text.strip()])
    page.save(path)
    print(f"{page.note}\n{path}" if page.note else path)


def reproduce(words: list[str]):
    """NAME ... [--scale smoke|full] [--check --minutes 30]: run experiments and evaluate their claims."""
    from attention_jax import catalog
    from attention_jax.claims import check, claim_tables, record, verdicts
    from attention_jax.cli import command_options
    from attention_jax.report.tables import show

    args, options = command_options.parse_known(command_options.Reproduce, words)
    experiments = [catalog.load_experiment(name) for name in args.names or catalog.experiment_names()]
    if options:  # report a misspelled one before anything runs
        [override_config(experiment.config(), options) for experiment in experiments]
    if args.check:
        refuse_options(args, "--check runs what is recorded", "scale", "variant", "seeds", "root", "record")
        if options:
            raise InputError(f"--check runs what is recorded: leave {' '.join(options)} out")
        if not args.minutes > 0:
            raise InputError(f"--minutes must be a positive number, got {args.minutes:g}")
        raise SystemExit(check.check(experiments, args.minutes, override_config, args.local_data))
    refuse_options(args, "these options belong to --check", "minutes", "local_data")
    if not args.names and args.scale == "full":
        raise InputError(
            "reproduce needs the NAME of an experiment: all of them take days and are recorded anew; `launch.py list` "
            "shows them, and --scale smoke and --check take all"
        )
    rows, override = [], lambda config: override_config(config, options)
    earlier_runs = {
        experiment.name: record.load_recorded_runs(experiment.name, experiment.results) for experiment in experiments
    }
    for experiment in experiments:
        runs = record.reproduce(experiment, args, override, [word for word in words if word not in args.names])
        judged_runs = [] if args.scale == "smoke" else runs
        rows += verdicts.judge_claims(experiment, judged_runs)
        if experiment.thresholds:
            show(claim_tables.thresholds_table(experiment, judged_runs))
            print()
    if rows:
        show(claim_tables.claims_table(rows, None if args.scale == "smoke" else earlier_runs))
        print(f"\n{claim_tables.tally_line(rows)}")
    raise SystemExit(1 if any(row.verdict in ("differs", "opposite") for row in rows) else 0)


def override_config(config, words: Sequence[str]):
    """The configuration with the options of an experiment in the words of `reproduce`."""
    from attention_jax.cli import command_options

    return command_options.parse_with_config(command_options.Reproduce, words, lambda _: config)[1]


def refuse_options(args, reason: str, *names: str):
    """Raise InputError if some of these options of a command are not their defaults."""
    changed = [name for name in names if getattr(args, name) != getattr(type(args), name)]
    if changed:
        raise InputError(f"{reason}: leave {', '.join('--' + name.replace('_', '-') for name in changed)} out")


def show_in_columns(table):
    """Print a table, divided into several where it is wider than the terminal."""
    from attention_jax.report.tables import show, split_columns

    for section in split_columns(table, shutil.get_terminal_size((100, 24)).columns):
        show(section)


def sweep(words: list[str]):
    """NAME [--over PARAMETER=VALUES ...] [--from RUN] [--trials N] [--jobs N | --ray ADDRESS]: search its options."""
    from attention_jax import catalog
    from attention_jax.claims import record
    from attention_jax.cli import command_options
    from attention_jax.runs import lifecycle

    load_config = lambda args: lifecycle.with_weights(
        args.init_weights, catalog.load_experiment(args.experiment).config()
    )
    args, config = command_options.parse_with_config(command_options.Sweep, words, load_config)
    check_from(args, config)
    experiment = catalog.load_experiment(args.experiment)
    if experiment.file.resolve().parent != catalog.ROOT.resolve():
        raise InputError(
            f"the workers of a sweep find an experiment by its name: put {args.experiment} into {catalog.ROOT}"
        )
    require("train", "data", "report", "sweep")
    from attention_jax.sweep import driver, summary
    from attention_jax.sweep.space import assignments

    directory = Path(args.out or f"runs/sweeps/{experiment.name}")
    if args.report:
        ineffective = {f.name for f in dataclasses.fields(args)} - {"experiment", "init_weights", "out", "report"}
        refuse_options(args, "--report is of a sweep as it is", *sorted(ineffective))
        return summary.report(directory, like=config)
    over = assignments(sum(args.over, ())) or experiment.sweep()
    word_options = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("--")}
    if both := sorted(word_options & {name.replace("_", "-") for name in over}):
        raise InputError(f"--{both[0]} is an option that the sweep varies: give its values by --over, or leave it out")
    settings = driver.settings_of(config, over, args.method, args.trials, args.seeds, args.metric)
    if args.dry_run:
        return summary.show_points(settings, driver.first_points(settings))
    if args.record:
        if not catalog.CHECKOUT:
            raise InputError("--record needs a checkout of the repository, where results are kept: leave it out")
        record.check_committed(experiment)
    try:
        trials = driver.sweep(settings, directory, jobs=args.jobs, ray=args.ray, population=args.population)
    except (Interrupted, KeyboardInterrupt):
        print(f"interrupted; the same command resumes the sweep in {directory}", file=sys.stderr)
        raise SystemExit(130) from None
    if args.record:
        summary.record(directory, settings, trials, words)
    if trials and all(trial.state == "failed" for trial in trials):
        raise SystemExit(1)


def compare(words: list[str]):
    """RUN ... [--metric M] [--out fig.pdf] [--latex table.tex] [--csv runs.csv]: runs side by side, by variant."""
    from attention_jax.cli import command_options
    from attention_jax.files import write_atomically
    from attention_jax.report.curves import curves_and_differences

    args = command_options.parse(command_options.Compare, words)
    require("report", "sweep")
    from attention_jax.sweep import comparison

    if args.out and Path(args.out).suffix not in PICTURES:
        raise InputError(f"--out needs a file that ends in {', '.join(PICTURES)}; got {args.out}")
    check_output_files(args.force, out=args.out, latex=args.latex, csv=args.csv)
    groups, variants, metric = comparison.compare(args.runs, args.metric)
    curves = comparison.curves_of(groups, variants, metric, args.curve) if args.out else {}
    table = comparison.table(variants, metric)
    show_in_columns(table)
    if args.latex:
        write_atomically(Path(args.latex), comparison.latex(table) + "\n")
    if args.csv:
        write_atomically(Path(args.csv), comparison.comma_separated(groups, metric))
    if args.out:
        labels = {"ylabel": args.curve or metric, "xlabel": f"{metric},\nminus that of the first (95 %)"}
        curves_and_differences(curves, comparison.difference_rows(variants), args.out, **labels)


def check(words: list[str]):
    """mine:Score [--symmetric]: what must hold for a part of attention, or laws that a function of it obeys."""
    from attention_jax.cli import command_options
    from attention_jax.models import part_checks
    from attention_jax.report.tables import Table, number, show

    args = command_options.parse(command_options.Check, words)
    properties = part_checks.check(args.rule, symmetric=args.symmetric)
    result = lambda line: "-" if line.difference is None else "ok" if line.holds else number(line.difference)
    rows = [(line.name, result(line), line.evidence if result(line) != "ok" else "") for line in properties]
    show(Table(args.rule, ("property", "difference", "where, or why not"), rows, right=("difference",)))
    if {line.name for line in properties} <= part_checks.LAWS.keys():
        return  # that a law does not hold is no fault
    raise SystemExit(int(not all(line.holds for line in properties)))


def bench(words: list[str]):
    """attention | attribution | card | date | normalizers | pretrained | registers | transformer | ...: benchmarks."""
    import importlib

    from attention_jax import catalog
    from attention_jax.cli import command_options

    args, options = command_options.parse_known(command_options.Bench, words)
    checkout = catalog.ROOT.parent
    names = sorted(path.stem for path in (checkout / "benchmarks").glob("[!_]*.py"))
    if not names:
        raise InputError("bench needs a checkout of the repository: the benchmarks are not part of the package")
    if args.benchmark not in names:
        raise InputError(f"there is no benchmark {args.benchmark!r}; choose one of {', '.join(names)}")
    sys.path.insert(0, str(checkout))
    command_options.parse_call(
        importlib.import_module(f"benchmarks.{args.benchmark}").main, options, "bench", args.benchmark
    )()


COMMANDS = {
    "list": list_experiments, "train": train, "evaluate": evaluate, "predict": predict, "look": look,
    "export": export, "import": import_weights, "reproduce": reproduce, "sweep": sweep,
    "check": check, "compare": compare, "bench": bench,
}  # fmt: skip
"""The commands in the order in which --help lists them."""


def main(words: list[str]):
    """Dispatch to the command that the first word names; without one, options are those of `train date_luong`."""
    if words[:1] == ["help"] and words[1:]:
        words = [words[1], "--help"]
    if words and words[0] in ("-h", "--help", "help"):
        from attention_jax.cli.help import overview

        return print(overview(docstrings(__file__)[""], COMMANDS))
    if words and words[0] in ("-V", "-v", "--version", "version"):
        return print(f"attention_jax {__version__}")
    if bad := [word for word in words if not is_utf8(word)]:
        raise InputError(f"what is on the command line must be UTF-8; got {bad[0]!a}")
    for option, value in itertools.pairwise(piece for word in (*words, "-") for piece in word.split("=", 1)):
        if option in PATHS and not value:
            raise InputError(f"{option} needs {PATHS[option]}, got an empty name: give its path, or leave it out")
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise InputError("the working directory was deleted: change to another one") from error
    if not words or words[0].startswith("-"):
        words = ["train", MAIN_JOB, *words]
    name, *arguments = words
    if name not in COMMANDS:
        from attention_jax import catalog
        from attention_jax.cli.command_options import suggest_commands

        hint = "choose one of " + ", ".join(COMMANDS)
        if name in catalog.experiment_names():
            hint = f"to train the experiment of this name: launch.py train {name}"
        elif near := suggest_commands(name, COMMANDS):
            hint = f"perhaps you meant {' or '.join(near)}"
        raise InputError(f"there is no command {name!r}; {hint}")
    outlasts = name in OUTLASTING and not {"-h", "--help", "--help-all"} & set(arguments)
    with outlasting_readers() if outlasts else contextlib.nullcontext(), explain_errors():
        COMMANDS[name](arguments)


def run():
    """Run the command on the command line; the entry point of launch.py, `attention-jax` and `python -m attention_jax`.

    The exit code is 0 for success, 1 where a claim is missed, the loss diverges or no trial of a sweep has ended, 2 for
    bad input, 130 after an interruption that was saved or Ctrl-C, and 128 and its number after another signal.
    """
    prepare_streams()
    end_on_signals()
    keep_compiled_programs()
    try:
        with explain_errors():
            main(sys.argv[1:])
            sys.stdout.flush()
    except InputError as error:
        print(f"error: {escape_control(as_typed(str(error)))}", file=sys.stderr)
        raise SystemExit(2) from None
    except Diverged as error:
        print(f"error: {escape_control(str(error))}", file=sys.stderr)
        raise SystemExit(1) from None
    except Interrupted as error:
        how = "the same command resumes" if sys.argv[1:2] == ["reproduce"] else "resume with --resume"
        print(f"{error}; {how}", file=sys.stderr)
        raise SystemExit(130) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader has left, as in `launch.py list | head`
        raise SystemExit(128 + signal.SIGPIPE) from None
    finally:
        flush_output()


def flush_output():
    """Print what is left; if standard output cannot be written, drop it: `main` has said so."""
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)
