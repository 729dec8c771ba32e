"""`launch.py reproduce --check`: repeat recorded runs within a time budget, and compare their numbers with the record.

Bit-identical numbers are expected only on the machine of the record: others round differently, and training amplifies
the difference. Every recorded metric is compared; `tolerance_interval` is the tolerance. Nothing is written to
experiments/results.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from attention_jax.catalog import Experiment
from attention_jax.claims.record import present_runs
from attention_jax.claims.verdicts import run_value, values_by_seed
from attention_jax.config import Config, replace
from attention_jax.config.fields import user_data
from attention_jax.declarations import Quantity
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import data_home, read_json, write_json
from attention_jax.report import intervals
from attention_jax.report.intervals import Interval
from attention_jax.report.tables import Table, number, show, span
from attention_jax.runs import directory as run_directory, lifecycle

ROOT = Path("runs")
TRAINED, COMPUTED = 0.05, 0.02
"""The relative tolerance of a number without recorded noise: of a training, of a computation without training."""
ROUNDING, ERROR = 1e-3, 1e-5
"""This share of a number, and this much of a computed error, is never a difference."""

Override = Callable[[Config, Sequence[str]], Config]
"""(configuration, words of a command) -> the configuration with these options."""


class Rerun(NamedTuple):
    """A recorded run that can be run again here."""

    experiment: Experiment
    run: Mapping
    """The recorded run."""
    config: Config
    """The configuration of its variant, without the options of its command."""
    words: Sequence[str]
    """Its command from the name on, with local paths of its files."""
    repeat: int
    """The number of seeds of its variant that come before it."""
    seconds: float
    """The smallest recorded seconds of its variant."""

    @property
    def name(self) -> str:
        words = self.experiment.name, self.run["variant"], f"seed {self.run['seed']}"
        return " ".join(filter(None, words))


class ComparedNumber(NamedTuple):
    """A number of a run, as recorded and as measured again."""

    experiment: str
    metric: str
    """The metric, with its epoch if it is not of the final evaluation."""
    variant: str
    seed: int
    recorded: float
    repeated: float | None
    """The number of the new run; None if it diverged."""
    expected: Interval
    verdict: Literal["OK", "differs", "a time"]
    """Whether the number lies in the expected interval; a time depends on the machine and is not judged."""


def check(experiments: Iterable[Experiment], minutes: float, override: Override, local_data: str = "") -> int:
    """Repeat the runs that fit into `minutes`, the next one while it should end in time.

    `local_data` is a directory with the data files of recorded commands. Returns the exit code: 0 if all numbers agree,
    1 if any differs, 130 after an interrupt. Raises InputError if nothing can be run.
    """
    if local_data and not Path(local_data).is_dir():
        raise InputError(f"--local-data must be a directory; {local_data} is not")
    directory, skipped = run_directory.fresh_directory("check", ROOT), {}
    reruns = [rerun for experiment in experiments for rerun in find_reruns(experiment, local_data, skipped)]
    planned = plan_runs(reruns, minutes, skipped)
    total = sum(rerun.seconds for rerun in planned) / 60
    print(f"{len(planned)} runs take about {total:.1f} minutes on one core; --minutes {minutes:g}, in {directory}")
    began, finished, compared, interrupted = time.monotonic(), [], [], False
    for count, rerun in enumerate(planned, 1):
        if finished and time.monotonic() - began + rerun.seconds > 60 * minutes:
            skip(skipped, rerun.name, "no time was left")
            continue
        print(f"{count} of {len(planned)}: {rerun.name}, about {rerun.seconds:.0f} s", flush=True)
        try:
            result = repeat_run(rerun, override, directory)
        except InputError as error:
            skip(skipped, rerun.name, str(error))
            continue
        except (Interrupted, KeyboardInterrupt):
            interrupted = True
            break
        finished.append((rerun, result))
        compared += (numbers := compare_run(rerun, result))
        print(f"  {counts_text(numbers)}", flush=True)
        write_json(directory / "check.json", check_json(finished, compared, skipped))
    if not finished and not interrupted:
        raise InputError("nothing could be compared: " + next(iter(skipped)))
    differences = [row for row in compared if row.verdict == "differs"]
    if differences:
        show(differences_table(differences))
    ended = f"{len(finished)} runs in {(time.monotonic() - began) / 60:.1f} minutes"
    print(f"\n{counts_text(compared)}; {ended}{'; interrupted' if interrupted else ''}")
    reasons = [f"skipped, {reason}: {', '.join(names)}" for reason, names in skipped.items()]
    print("\n".join([*reasons, *machine_lines(finished), f"{directory}/check.json"]))
    return 130 if interrupted else int(bool(differences))


def skip(skipped: dict[str, list[str]], name: str, reason: str):
    """Note in {reason: names} why something is not run."""
    names = skipped.setdefault(reason, [])
    names += [name] if name not in names else []


def find_reruns(experiment: Experiment, local_data: str, skipped: dict[str, list[str]]) -> list[Rerun]:
    """Return the recorded runs that ended and whose data are available: those of variants that a claim or a threshold
    names, then the others; of a variant the latest seeds, which name their commit and processor, come first."""
    quantities = (*experiment.claims, *experiment.thresholds)
    claimed = {variant for quantity in quantities for variant in (quantity.variant, quantity.minus)}
    runs = [run for run in present_runs(experiment) if not run.get("diverged")]
    timed = sorted((run for run in runs if "seconds" in run), key=lambda run: -run["seconds"])
    seconds = {run["variant"]: run["seconds"] for run in timed}
    reruns, seeds, variants = [], {}, experiment.variants()
    if not runs:
        skip(skipped, experiment.name, "nothing is recorded")
    for run in sorted(runs, key=lambda run: (run["variant"] not in claimed, -run["seed"])):
        variant = run["variant"]
        try:
            if variant not in variants:
                raise InputError(f"{variant!r} is no variant any more")
            words = resolve_data_paths(variants[variant], command_words(run), local_data)
        except InputError as error:
            skip(skipped, experiment.name, str(error))
            continue
        repeat = seeds[variant] = seeds.get(variant, -1) + 1
        reruns.append(Rerun(experiment, run, variants[variant], words, repeat, seconds[variant]))
    return reruns


def plan_runs(reruns: Sequence[Rerun], minutes: float, skipped: Mapping[str, Sequence[str]]) -> list[Rerun]:
    """Select the cheapest run of every chapter, then of every experiment, of every variant, and all seeds, within the
    time budget; the first seed of a variant comes first. InputError if there is none."""
    if not reruns:
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in skipped.items())
        raise InputError(f"--check needs a recorded run that can be run here; there is none ({why or 'none recorded'})")
    selected, seconds_left = [], 60 * minutes
    for kind in (
        lambda rerun: rerun.experiment.about("Chapter"),
        lambda rerun: rerun.experiment.name,
        lambda rerun: (rerun.experiment.name, rerun.run["variant"]),
        lambda rerun: rerun.name,
    ):
        covered = {kind(rerun) for rerun in selected}
        for rerun in sorted(reruns, key=lambda rerun: (rerun.repeat, rerun.seconds)):
            if kind(rerun) not in covered and rerun.seconds <= seconds_left:
                selected.append(rerun)
                covered.add(kind(rerun))
                seconds_left -= rerun.seconds
    if not selected:
        least = min(reruns, key=lambda rerun: rerun.seconds)
        cheapest = f"the cheapest here, {least.name}, takes {least.seconds:.0f} s"
        raise InputError(f"--minutes {minutes:g} is too short for any run; {cheapest}")
    return selected


def command_words(run: Mapping) -> list[str]:
    """Return a run's command from the experiment's name on, without its variant.

    >>> command_words({"command": "python launch.py reproduce x --variant 'a b' --seeds 1"})
    ['x', '--seeds', '1']
    """
    words = shlex.split(run["command"])[3:]
    return [word for previous, word in zip(["", *words], words) if "--variant" not in (previous, word)]


def resolve_data_paths(config: Config, words: Sequence[str], local_data: str) -> list[str]:
    """Return the words of a command with the paths of data files on this machine.

    `words` come from a recorded run (`command_words`) and name data files without their directories: `local_data` and
    its subdirectories are searched. A file that is not found is left out if the same data have been downloaded. Raises
    InputError if the data are not available.
    """
    words, options = list(words), [option for option in user_data(config) if option != "--data.dataset"]
    downloads = config.data.downloads if config.data else ""
    cached = bool(downloads) and (Path(data_home()) / downloads).is_dir()
    if downloads and not cached and not any(option in words for option in options):
        raise InputError(f"needs a download of {downloads.partition('/')[0]}: run it once without --check")
    for option in filter(words.__contains__, options):
        at = words.index(option)
        directory, name = Path(local_data), words[at + 1]
        paths = [directory / name, *sorted(directory.glob(f"*/{name}"))] if local_data else []
        if path := next((path for path in paths if path.exists()), None):
            words[at + 1] = str(path)
        elif cached:
            del words[at : at + 2]
        else:
            raise InputError(f"needs {name}: --local-data DIR, a directory that has it")
    return words


def repeat_run(rerun: Rerun, override: Override, root: Path) -> dict:
    """Repeat a run in a new directory below `root` and return its result; without metrics if it diverges."""
    seed, variant = rerun.run["seed"], rerun.run["variant"].replace("/", "-")
    directory = root / rerun.experiment.name / f"{variant}-seed{seed}".removeprefix("-")
    config = replace(override(rerun.config, rerun.words), **{"train.seed": seed})
    try:
        result = lifecycle.start(config, directory, study=rerun.experiment.study, quiet=True)
    except Diverged as error:
        print(f"  diverged: {error}", flush=True)
        result = {"metrics": {}, "history": []}
    return result | {"environment": read_json(directory / "environment.json")}


def compare_run(rerun: Rerun, result: Mapping) -> list[ComparedNumber]:
    """Compare all numbers of a repeated run with the recorded ones."""
    experiment, run, compared = rerun.experiment, rerun.run, []
    recorded_runs = [run for run in present_runs(experiment) if not run.get("diverged")]
    for quantity in quantities_of(experiment, run):
        repeated = run_value(quantity, result) if result["metrics"] else None
        interval = tolerance_interval(experiment, quantity, recorded_runs, run)
        verdict = "OK" if repeated is not None and interval.low <= repeated <= interval.high else "differs"
        if quantity.metric.startswith(experiment.times):
            verdict = "a time"
        names = experiment.name, quantity.text, run["variant"], run["seed"]
        compared.append(ComparedNumber(*names, run_value(quantity, run), repeated, interval, verdict))
    return compared


def quantities_of(experiment: Experiment, run: Mapping) -> list[Quantity]:
    """Every metric of a run's final evaluation, and what claims and thresholds read of its history."""
    variant = run["variant"]
    quantities = [Quantity(text=name, metric=name, source="", variant=variant) for name in run["metrics"]]
    for quantity in (*experiment.claims, *experiment.thresholds):
        if quantity.reads_history and variant in (quantity.variant, quantity.minus):
            where = "best epoch" if quantity.best else f"last {quantity.last} epochs"
            where = where if quantity.epoch is None else f"epoch {quantity.epoch}"
            fields = {"epoch": quantity.epoch, "best": quantity.best, "last": quantity.last, "variant": variant}
            text = f"{quantity.metric}, {where}"
            quantities.append(Quantity(text=text, metric=quantity.metric, source="", **fields))
    return [quantity for quantity in dict.fromkeys(quantities) if run_value(quantity, run) is not None]


def tolerance_interval(experiment: Experiment, quantity: Quantity, runs: Sequence[Mapping], run: Mapping) -> Interval:
    """Return the interval in which the number of `run`, one of the `runs`, is expected: the union of its known noise.

    They are the interval for another seed (Student's t of three or more recorded ones, or the range of two), that for
    other test examples (`sampling_interval`) or, if neither this nor three seeds are known, TRAINED or COMPUTED. A
    computed error is rounding up to ERROR and to a tenth of its threshold.
    """
    values = values_by_seed(quantity, runs)
    value, seeds = values[run["seed"]], list(values.values())
    computed = not ("steps" in run or run.get("history"))  # a study that trains has a history
    sources = [intervals.prediction_interval(seeds)] if len(seeds) > 2 else []
    if len(seeds) == 2:
        sources = [Interval(min(seeds), max(seeds), "2 seeds")]
    if sampled := intervals.sampling_interval(quantity.metric, value, run):
        sources.append(sampled)
    elif len(seeds) < 3:
        sources.append(intervals.relative_interval(value, COMPUTED if computed else TRAINED))
    bounds = [t.at_most for t in experiment.thresholds if t.metric == quantity.metric and t.at_least is None]
    rounding = max([ERROR if "error" in quantity.metric else 0.0, *(bound / 10 for bound in bounds)])
    if computed and 0 <= value <= rounding:
        sources.append(Interval(0.0, rounding, "rounding"))
    low, high, why = intervals.interval_union(sources)
    around = Interval(low - ROUNDING * abs(value), high + ROUNDING * abs(value), why)
    return intervals.clip_to_scale(around, quantity.metric, value)


def counts_text(compared: Sequence[ComparedNumber]) -> str:
    """Count verdicts and numbers that are equal bit for bit."""
    verdicts = [row.verdict for row in compared]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    exact = sum(row.recorded == row.repeated for row in compared)
    return f"{counts or 'nothing compared'}; {exact} the same to the last bit"


def differences_table(differences: Sequence[ComparedNumber]) -> Table:
    """Tabulate the numbers that differ, with what was expected and why."""
    rows = []
    for row in differences:
        low, high, why = row.expected
        numbers = number(row.recorded), number(row.repeated), f"{span(low, high)} ({why})"
        rows.append((row.experiment, row.metric, str(row.seed), *numbers))
    columns = ("experiment", "number", "seed", "recorded", "here", "expected")
    return Table("Numbers that differ", columns, rows, right=columns[2:5])


def describe_machine(environment: Mapping) -> str:
    """Return the properties of a machine that affect numbers."""
    processor = environment.get("processor") or "processor not recorded"
    return f"{processor}, {environment['machine']}, {', '.join(environment['devices'])}, jax {environment['jax']}"


def machine_lines(finished: Sequence[tuple[Rerun, Mapping]]) -> list[str]:
    """Name this machine and those of the record."""
    current = {describe_machine(result["environment"]) for _, result in finished}
    recorded = {describe_machine(rerun.run["environment"]) for rerun, _ in finished}
    note = "" if current == recorded else " (another machine or version: the last digits may differ)"
    return [f"here: {'; '.join(sorted(current))}", f"recorded on: {'; '.join(sorted(recorded))}{note}"]


def check_json(
    finished: Sequence[tuple[Rerun, Mapping]], compared: Sequence[ComparedNumber], skipped: Mapping[str, Sequence[str]]
) -> dict:
    """Return the contents of check.json: each run with both environments, each number with its expected interval."""
    both = lambda name, rerun, result: {"recorded": rerun.run.get(name), "here": result.get(name)}
    number_json = lambda repeated, expected, **fields: fields | {"here": repeated, "expected": expected._asdict()}
    return {
        "runs": [
            {"run": pair[0].name, "seconds": both("seconds", *pair), "environment": both("environment", *pair)}
            for pair in finished
        ],
        "numbers": [number_json(**row._asdict()) for row in compared],
        "skipped": skipped,
    }
