#!/usr/bin/env python3
"""Attention in JAX: launch, sweep and reproduce experiments.

With no arguments, the main job: train date_luong, an attention model that learns to read dates, in under a minute on two cores.
"""

import contextlib
import io
import re
import signal
import sys
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Literal

from attention_jax import Diverged, InputError, Interrupted

MAIN_JOB = "date_luong"


def parse(kind, arguments: list[str], prog: str):
    """tyro's parser with its boxed complaint made one line. `--help` passes through."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=arguments, prog=f"launch.py {prog}")
    except SystemExit as stop:
        if not stop.code:
            raise
        words = [re.sub(r"^[│╭╰─\s]+|[│╮╯─\s]+$", "", line) for line in said.getvalue().splitlines()]
        words = [word for word in words if word and not word.startswith("For full helptext")]
        text = re.sub(r"\s+", " ", "; ".join(words[1:])).replace("meant:;", "meant")
        raise InputError(f"{text}; see launch.py {prog} --help") from None


def configured(default, arguments: list[str], prog: str, **extra):
    """The command line of an experiment: the options of `default`, and `extra` = {name: (type, default, help)}."""
    import tyro

    from attention_jax import config as configs

    kind = Annotated[tyro.conf.SuppressFixed[configs.concrete(default)], tyro.conf.arg(name="")]
    options = [
        (n, Annotated[t, tyro.conf.arg(help=text)], field(default=value)) for n, (t, value, text) in extra.items()
    ]
    parsed = parse(make_dataclass("options", [("config", kind, field(default=default)), *options]), arguments, prog)
    configs.validate(parsed.config)
    return parsed


def say_result(result: dict, directory: Path):
    for name, value in result["metrics"].items():
        print(f"{name:32} {value:.6g}" if isinstance(value, float) else f"{name:32} {value}")
    samples = directory / "samples.txt"
    print(samples.read_text(encoding="utf-8") if samples.exists() else "", end="")
    print(f"{'seconds':32} {result['seconds']:.1f}\nin {directory}: result.json, metrics.jsonl, figures/")


def list_experiments(arguments: list[str]):
    """The experiments: name, what each shows, source, data, cost."""
    from attention_jax import ledger
    from attention_jax.report.tables import experiments_table, show

    parse(make_dataclass("list", []), arguments, "list")
    show(experiments_table([{"name": name} | ledger.headline(ledger.load(name)) for name in ledger.names()]))


def train(arguments: list[str]):
    """NAME [--model.hidden-size 128 ...] [--out DIR] [--resume] [--coordinator HOST:PORT --hosts N --host I]: train an experiment."""
    from attention_jax import ledger, runs

    name, rest = positional(arguments, "train", "NAME")
    module = ledger.load(name)
    default = module.config()
    if "--resume" in rest:  # what is not said again stays as it was
        out = [rest[i + 1] for i, word in enumerate(rest[:-1]) if word == "--out"]
        default = runs.read_config(Path(out[0]) if out else runs.latest_directory(name))
    asked = configured(
        default,
        rest,
        f"train {name}",
        out=(str, "", "Directory of the run; by default a fresh runs/NAME/001, 002, ..."),
        resume=(bool, False, "Go on with the run in --out, or with the newest one."),
        tensorboard=(bool, False, "Also write TensorBoard files."),
        coordinator=(
            str,
            "",
            "Several hosts: HOST:PORT of the first, or auto (Slurm, Open MPI, Kubernetes, TPU pods).",
        ),
        hosts=(int, 0, "How many hosts there are (not with auto)."),
        host=(int, 0, "Which of them this is, from 0 (not with auto)."),
    )
    from attention_jax.train import hosts

    if asked.coordinator or asked.hosts or asked.host:
        if not asked.out or hasattr(module, "study"):
            raise InputError(
                "several hosts need --out, a directory that all of them see, and an experiment that trains"
            )
        hosts.join(asked.coordinator, asked.hosts, asked.host)
    directory = (
        Path(asked.out) if asked.out else runs.latest_directory(name) if asked.resume else runs.fresh_directory(name)
    )
    result = runs.start(
        asked.config,
        directory,
        study=getattr(module, "study", None),
        resume=asked.resume,
        tensorboard=asked.tensorboard,
    )
    if hosts.first():
        say_result(result, directory)


def positional(arguments: list[str], command: str, what: str) -> tuple[str, list[str]]:
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        raise InputError(f"launch.py {command} needs {what} first; `launch.py list` shows the experiments")
    if arguments[0] in ("-h", "--help"):
        print(
            f"usage: launch.py {command} {COMMANDS[command].__doc__}\nThe options of one: launch.py {command} {what} --help"
        )
        raise SystemExit(0)
    return arguments[0], arguments[1:]


def evaluate(arguments: list[str]):
    """RUN: evaluate a finished run on its held-out data."""
    from attention_jax import runs

    run, rest = positional(arguments, "evaluate", "RUN")
    parse(make_dataclass("evaluate", []), rest, f"evaluate {run}")
    _, task, params = runs.load(Path(run))
    for name, value in task.evaluate(params, True).metrics.items():
        print(f"{name:32} {value:.6g}")


def predict(arguments: list[str]):
    """RUN TEXT ... [--attention FILE.png]: what the model of a run makes of each text."""
    from attention_jax import runs

    run, rest = positional(arguments, "predict", "RUN")
    texts, figure = [], None
    while rest:
        word = rest.pop(0)
        if word == "--attention":
            if not rest:
                raise InputError("--attention needs a file name, such as --attention alignment.png")
            figure = Path(rest.pop(0))
        elif word.startswith("--"):
            raise InputError(f"launch.py predict has no option {word}; it has --attention FILE.png")
        else:
            texts.append(word)
    if not texts:
        raise InputError("launch.py predict needs at least one text after the run")
    _, task, params = runs.load(Path(run))
    for text, output in zip(texts, task.predict(params, texts, figure), strict=True):
        print(f"{text} -> {output}")


def translate(arguments: list[str]):
    """RUN FILE [--out FILE]: translate a text file line by line (standard output without --out)."""
    from attention_jax import runs
    from attention_jax.data.text_files import read_lines

    run, rest = positional(arguments, "translate", "RUN")
    source, rest = positional(rest, "translate", "FILE")
    out = parse(make_dataclass("translate", [("out", str, field(default=""))]), rest, f"translate {run} {source}").out
    lines = read_lines(source, "file to translate")
    if out and not Path(out).resolve().parent.is_dir():
        raise InputError(f"--out needs a directory that exists, got {out}")
    _, task, params = runs.load(Path(run))
    full = [line for line in lines if line.strip()]
    translated = iter(task.predict(params, full, None) if full else [])
    text = "".join((next(translated) if line.strip() else "") + "\n" for line in lines)
    Path(out).write_text(text, encoding="utf-8") if out else sys.stdout.write(text)


def plot(arguments: list[str]):
    """RUN: draw the figures of a finished run again."""
    from attention_jax import runs

    run, rest = positional(arguments, "plot", "RUN")
    parse(make_dataclass("plot", []), rest, f"plot {run}")
    _, task, params = runs.load(Path(run))
    for path in runs.draw(task, params, task.evaluate(params, True), Path(run)):
        print(path)


def reproduce(arguments: list[str]):
    """[NAME ...] [--scale smoke|full|recorded] [--variant V] [--seeds N] [--data.path P ...]: run experiments and judge their claims."""
    from attention_jax import ledger
    from attention_jax.report.tables import claims_table, judge, markdown, show

    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    chosen, rest = arguments[:count] or ledger.names(), arguments[count:]
    extra = {
        "scale": (
            Literal["smoke", "full", "recorded"],
            "full",
            "smoke: seconds, no verdict; recorded: only show what is committed.",
        ),
        "seeds": (int, 0, "Number of seeds; 0 is the experiment's own."),
        "variant": (str, "", "Run only this one of the variants the experiment compares."),
        "root": (str, "runs/reproduce", "Where the runs are kept."),
        "markdown": (
            bool,
            False,
            "Print the table as markdown: experiments/results/README.md is this of --scale recorded.",
        ),
    }
    rows = []
    for name in chosen:
        module = ledger.load(name)
        asked = configured(module.config(), rest, f"reproduce {name}", **extra)
        if asked.scale == "recorded":
            done = ledger.recorded(name)["runs"]
        else:
            done = ledger.reproduce(
                name,
                lambda c, name=name: configured(c, rest, f"reproduce {name}", **extra).config,
                asked.variant,
                asked.seeds or None,
                asked.scale,
                Path(asked.root),
                rest,
            )
        rows.append((name, module.CLAIMS, done if asked.scale != "smoke" else []))
    table = claims_table(rows)
    print(markdown(table)) if asked.markdown else show(table)
    verdicts = [judge(claim, done)[1] for _, claims, done in rows for claim in claims]
    print("\n" + ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts)))
    raise SystemExit(1 if "missed" in verdicts else 0)


def sweep(arguments: list[str]):
    """NAME [--over PARAMETER=VALUES ...] [--seeds N] [--trials N] [--method M] [--jobs N | --ray ADDRESS] [--dry-run]: search."""
    from attention_jax import ledger
    from attention_jax.sweep import answer, driver
    from attention_jax.sweep.search import Method
    from attention_jax.sweep.space import assignments

    name, rest = positional(arguments, "sweep", "NAME")
    module = ledger.load(name)
    asked = configured(
        module.config(), rest, f"sweep {name}",
        over=(tuple[str, ...], (), "optim.learning-rate=1e-4..1e-2:log model.hidden-size=64,128 ...; by default the experiment's own."),
        seeds=(int, 1, "Runs of each trial, with seeds from --train.seed on; their mean counts."),
        trials=(int, 0, "Points to try; 0: the whole grid, or 20."),
        method=(Method, "auto", "auto: a grid of lists, otherwise random."),
        metric=(str, "", "What is best, such as test.exact_match; by default --train.best-metric."),
        jobs=(int, 0, "Worker processes; 0 runs everything in this one."),
        ray=(str, "", "auto, or HOST:PORT of a Ray cluster."),
        population=(int, 64, "Most runs in one compiled program; 1: every run by itself."),
        out=(str, "", "Directory of the sweep, by default runs/sweeps/NAME. A sweep that is there goes on."),
        dry_run=(bool, False, "Only show the trials and estimate the time."),
        record=(bool, False, "Keep the results in experiments/results, as reproduce does."),
    )  # fmt: skip
    over = assignments(asked.over) or (module.sweep() if hasattr(module, "sweep") else {})
    settings = driver.settings_of(asked.config, over, asked.method, asked.trials, asked.seeds, asked.metric)
    if asked.dry_run:
        return answer.announce(settings, driver.first_points(settings))
    directory = Path(asked.out or f"runs/sweeps/{name}")
    try:
        found = driver.sweep(settings, directory, jobs=asked.jobs, ray=asked.ray, population=asked.population)
    except (Interrupted, KeyboardInterrupt):
        print(f"interrupted; the same command goes on with the sweep in {directory}", file=sys.stderr)
        raise SystemExit(130) from None
    if asked.record:
        answer.record(directory, settings, found)


def sweep_report(arguments: list[str]):
    """DIR: the table, figures and best command of a sweep, also while it is running."""
    from attention_jax.sweep import answer

    directory, rest = positional(arguments, "sweep-report", "DIR")
    parse(make_dataclass("sweep_report", []), rest, f"sweep-report {directory}")
    answer.report(Path(directory))


def bench(arguments: list[str]):
    """attention | date | translation | transformer | vision | ntm | sweep: measure side by side with its peers."""
    import importlib

    name, rest = positional(arguments, "bench", "WHAT")
    known = sorted(
        path.stem.removeprefix("bench_")
        for path in (Path(__file__).parent / "attention_jax" / "bench").glob("bench_*.py")
    )
    if name not in known:
        raise InputError(f"there is no benchmark {name!r}; choose one of {', '.join(known)}")
    parse(importlib.import_module(f"attention_jax.bench.bench_{name}").main, rest, f"bench {name}")


COMMANDS = {
    "list": list_experiments, "train": train, "evaluate": evaluate, "predict": predict, "translate": translate,
    "plot": plot, "reproduce": reproduce, "sweep": sweep, "sweep-report": sweep_report, "bench": bench,
}  # fmt: skip


def main(arguments: list[str]):
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__.strip() + "\n\nusage: python launch.py COMMAND ...\n")
        for name, command in COMMANDS.items():
            print(f"  {name:12} {command.__doc__}")
        return
    command, *rest = arguments or ["train", MAIN_JOB]
    if command not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(command, COMMANDS, n=1)
        raise InputError(
            f"there is no command {command!r}; {f'perhaps you meant {near[0]}' if near else 'choose one of ' + ', '.join(COMMANDS)}"
        )
    COMMANDS[command](rest)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except Interrupted as error:
        print(f"{error}; go on with --resume", file=sys.stderr)
        raise SystemExit(130) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
