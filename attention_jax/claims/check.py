"""`launch.py reproduce --check`: repeat recorded runs within a time budget, and compare their numbers with the record.

Bit-identical numbers are expected only on the machine of the record: others round differently, and training amplifies
the difference. Every recorded metric is compared; `tolerance_interval` is the tolerance. Nothing is written to
experiments/results.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.claim import Quantity
from attention_jax.claims.record import (
    LocalSettings,
    Override,
    command_words,
    resolve_data_paths,
    runs_without_divergence,
    smallest_seconds,
)
from attention_jax.claims.verdicts import is_training_run, run_value, values_by_seed
from attention_jax.config import Config, replace
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import read_json, write_json
from attention_jax.report import intervals
from attention_jax.report.intervals import Interval
from attention_jax.report.tables import Table, number, show, span
from attention_jax.runs import directory as run_directory, lifecycle

ROOT = Path("runs")


@dataclass(frozen=True)
class Rerun:
    """A recorded run that can be run again here."""

    experiment: Experiment
    run: Mapping
    """The recorded run."""
    config: Config
    """The configuration of its variant and seed, without the options of its command."""
    words: Sequence[str]
    """Its command from the name on, with local paths of its files."""
    repeat: int
    """The number of seeds of its variant that come before it (`deciding_first`)."""
    seconds: float
    """The smallest recorded seconds of its variant."""

    @property
    def name(self) -> str:
        return " ".join(
            word for word in (self.experiment.name, self.run["variant"], f"seed {self.run['seed']}") if word
        )


@dataclass
class Outcome:
    """The results of a check so far."""

    directory: Path
    finished: list[tuple[Rerun, dict]] = field(default_factory=list)
    """Each run with its result; one that diverged has neither metrics nor a history."""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """{reason: names}"""
    seconds: float = 0.0
    interrupted: bool = False

    def skip(self, name: str, reason: str):
        names = self.skipped.setdefault(reason, [])
        if name not in names:
            names.append(name)


def check(experiments: Iterable[Experiment], minutes: float, override: Override, local_settings: LocalSettings) -> int:
    """Repeat the runs that fit into `minutes`; return the exit code, 0 if all numbers agree and 1 if any differs.

    Raises InputError if nothing can be run.
    """
    if local_settings.local_data and not Path(local_settings.local_data).is_dir():
        raise InputError(f"--local-data must be a directory; {local_settings.local_data} is not")
    outcome = Outcome(run_directory.fresh_directory("check", ROOT))
    planned = plan_runs(experiments, minutes, local_settings, outcome)
    print_plan(planned, minutes, outcome)
    run_all(planned, minutes, override, outcome)
    if not outcome.finished and not outcome.interrupted:
        raise InputError("nothing could be compared: " + next(iter(outcome.skipped)))
    comparisons = compare_runs(outcome.finished)
    show(runs_table(comparisons))
    if any(comparison.verdict == "differs" for comparison in comparisons):
        show(differences_table(comparisons))
    print("\n" + "\n".join(summary_lines(comparisons, outcome)))
    if outcome.interrupted:
        return 130
    return int(any(comparison.verdict == "differs" for comparison in comparisons))


def plan_runs(
    experiments: Iterable[Experiment], minutes: float, local_settings: LocalSettings, outcome: Outcome
) -> list[Rerun]:
    """Return the runs to repeat in their order; InputError if there are none."""
    reruns = [rerun for experiment in experiments for rerun in find_reruns(experiment, local_settings, outcome)]
    if not reruns:
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in outcome.skipped.items())
        raise InputError(f"--check needs a recorded run that can be run here; there is none ({why or 'none recorded'})")
    planned = choose_runs(reruns, 60 * minutes)
    if not planned:
        least = min(reruns, key=lambda rerun: rerun.seconds)
        cheapest = f"the cheapest here, {least.name}, takes {least.seconds:.0f} s"
        raise InputError(f"--minutes {minutes:g} is too short for any run; {cheapest}")
    return planned


def find_reruns(experiment: Experiment, local_settings: LocalSettings, outcome: Outcome) -> list[Rerun]:
    """Return the recorded runs whose data are available, those that a claim or a threshold reads and the latest seeds
    first; the others are noted as skipped.
    """
    reruns, seeds, variants = [], {}, experiment.variants()
    recorded_runs = order_by_claims(experiment)
    seconds = smallest_seconds(recorded_runs)
    if not recorded_runs:
        outcome.skip(experiment.name, "nothing is recorded")
    for run in recorded_runs:
        variant = run["variant"]
        try:
            if variant not in variants:
                raise InputError(f"{variant!r} is no variant any more")
            words = resolve_data_paths(variants[variant], command_words(run), local_settings)
        except InputError as error:
            outcome.skip(experiment.name, str(error))
            continue
        config = replace(variants[variant], **{"train.seed": run["seed"]})
        repeat = seeds[variant] = seeds.get(variant, -1) + 1
        reruns.append(Rerun(experiment, run, config, words, repeat, seconds[variant]))
    return reruns


def order_by_claims(experiment: Experiment) -> list[dict]:
    """Return the recorded runs that ended: those of variants that a claim or a threshold names, then the others; of a
    variant the latest seeds, which name their commit and processor, come first."""
    quantities = (*experiment.claims, *experiment.thresholds)
    claimed = {variant for quantity in quantities for variant in (quantity.variant, quantity.minus)}
    rank = lambda run: (run["variant"] not in claimed, -run["seed"])
    return sorted(runs_without_divergence(experiment), key=rank)


def choose_runs(reruns: Sequence[Rerun], seconds: float) -> list[Rerun]:
    """Select the cheapest run of every chapter, then of every experiment, of every variant, and all seeds, within the
    time budget; the first seed of a variant comes first.
    """
    selected, seconds_left = [], seconds
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
    return selected


def run_all(planned: Sequence[Rerun], minutes: float, override: Override, outcome: Outcome):
    """Run the plan while the next run should end in time; results are added to `outcome`."""
    began = time.monotonic()
    for count, rerun in enumerate(planned, 1):
        outcome.seconds = time.monotonic() - began
        if outcome.finished and outcome.seconds + rerun.seconds > 60 * minutes:
            outcome.skip(rerun.name, "no time was left")
            continue
        print(f"{count} of {len(planned)}: {rerun.name}, about {rerun.seconds:.0f} s", flush=True)
        try:
            outcome.finished.append((rerun, repeat_run(rerun, override, outcome.directory)))
        except InputError as error:
            outcome.skip(rerun.name, str(error))
        except (Interrupted, KeyboardInterrupt):
            outcome.interrupted = True
            break
        write_json(outcome.directory / "check.json", check_json(outcome))
    outcome.seconds = time.monotonic() - began


def repeat_run(rerun: Rerun, override: Override, root: Path) -> dict:
    """Repeat a run in a new directory below `root` and return its result."""
    variant = rerun.run["variant"].replace("/", "-")
    directory = root / rerun.experiment.name / "-".join(word for word in (variant, f"seed{rerun.run['seed']}") if word)
    config = replace(override(rerun.config, rerun.words), **{"train.seed": rerun.run["seed"]})
    try:
        result = lifecycle.start(config, directory, study=rerun.experiment.study, quiet=True)
    except Diverged as error:
        result = {"metrics": {}, "history": [], "failure": str(error)}
    environment = read_json(directory / "environment.json")
    return result | {name: rerun.run[name] for name in ("variant", "seed")} | {"environment": environment}


TRAINED, COMPUTED = 0.05, 0.02
"""The relative tolerance of a number without recorded noise: of a training, of a computation without training."""
ROUNDING, ERROR = 1e-3, 1e-5
"""This share of a number, and this much of a computed error, is never a difference."""


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


def compare_runs(finished: Sequence[tuple[Rerun, Mapping]]) -> list[ComparedNumber]:
    """Compare all numbers of repeated runs with the recorded ones."""
    comparisons = []
    for rerun, result in finished:
        experiment, run = rerun.experiment, rerun.run
        recorded_runs = runs_without_divergence(experiment)
        for quantity in quantities_of(experiment, run):
            repeated = run_value(quantity, result) if result["metrics"] else None
            interval = tolerance_interval(experiment, quantity, recorded_runs, run)
            verdict = "OK" if repeated is not None and interval.low <= repeated <= interval.high else "differs"
            if quantity.metric.startswith(experiment.times):
                verdict = "a time"
            names = experiment.name, quantity.text, run["variant"], run["seed"]
            comparisons.append(ComparedNumber(*names, run_value(quantity, run), repeated, interval, verdict))
    return comparisons


def quantities_of(experiment: Experiment, run: Mapping) -> list[Quantity]:
    """Every metric of a run's final evaluation, and what claims and thresholds read of its history."""
    variant = run["variant"]
    quantities = [Quantity(text=name, metric=name, source="", variant=variant) for name in run["metrics"]]
    for quantity in (*experiment.claims, *experiment.thresholds):
        reads_history = quantity.epoch is not None or quantity.best or quantity.last
        if reads_history and variant in (quantity.variant, quantity.minus):
            where = "best epoch" if quantity.best else f"last {quantity.last} epochs"
            where = where if quantity.epoch is None else f"epoch {quantity.epoch}"
            fields = {"epoch": quantity.epoch, "best": quantity.best, "last": quantity.last}
            text = f"{quantity.metric}, {where}"
            quantities.append(Quantity(text=text, metric=quantity.metric, source="", variant=variant, **fields))
    return [quantity for quantity in dict.fromkeys(quantities) if run_value(quantity, run) is not None]


def tolerance_interval(experiment: Experiment, quantity: Quantity, runs: Sequence[Mapping], run: Mapping) -> Interval:
    """Return the interval in which the number of `run`, one of the `runs`, is expected: the union of its known noise.

    They are the interval for another seed (Student's t of three or more recorded ones, or the range of two), that for
    other test examples (`sampling_interval`) or, if neither this nor three seeds are known, TRAINED or COMPUTED. A
    computed error is rounding up to ERROR and to a tenth of its threshold.
    """
    values = values_by_seed(quantity, runs)
    value, seeds = values[run["seed"]], list(values.values())
    computed = not is_training_run(run)
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


def runs_table(comparisons: Sequence[ComparedNumber]) -> Table:
    """Tabulate how many numbers of each repeated run agree."""
    runs = {}
    for comparison in comparisons:
        runs.setdefault((comparison.experiment, comparison.variant, comparison.seed), []).append(comparison)
    rows = []
    for (name, variant, seed), numbers in runs.items():
        verdicts = [comparison.verdict for comparison in numbers]
        equal = sum(comparison.recorded == comparison.repeated for comparison in numbers)
        counts = (len(numbers), equal, verdicts.count("OK"), verdicts.count("differs"))
        rows.append((name, variant or "-", str(seed), *map(str, counts)))
    columns = ("experiment", "variant", "seed", "numbers", "same bits", "OK", "differ")
    return Table("Re-run compared with the recorded results", columns, rows, right=columns[2:])


def differences_table(comparisons: Sequence[ComparedNumber]) -> Table:
    """Tabulate the numbers that differ, with what was expected and why."""
    rows = []
    for comparison in comparisons:
        if comparison.verdict == "differs":
            low, high, why = comparison.expected
            numbers = number(comparison.recorded), number(comparison.repeated), f"{span(low, high)} ({why})"
            rows.append((comparison.experiment, comparison.metric, str(comparison.seed), *numbers))
    columns = ("experiment", "number", "seed", "recorded", "here", "expected")
    return Table("Numbers that differ", columns, rows, right=("seed", "recorded", "here"))


def describe_machine(environment: Mapping) -> str:
    """Return the differences between two machines that affect numbers."""
    processor = environment.get("processor") or "processor not recorded"
    return f"{processor}, {environment['machine']}, {', '.join(environment['devices'])}, jax {environment['jax']}"


def print_plan(planned: Sequence[Rerun], minutes: float, outcome: Outcome):
    """Print what will be run and what will be skipped."""
    chapters = {rerun.experiment.about("Chapter") for rerun in planned}
    total = sum(rerun.seconds for rerun in planned) / 60
    rows = [(rerun.name, f"{rerun.seconds:.0f}", rerun.experiment.about("Chapter")) for rerun in planned]
    show(Table("", ("run", "seconds", "chapter"), rows, right=("seconds",)))
    print(
        f"\n{len(planned)} runs of {len({rerun.experiment.name for rerun in planned})} experiments of {len(chapters)} "
        f"chapters take about {total:.1f} minutes on one core; --minutes {minutes:g}, in {outcome.directory}"
    )
    print("\n".join(skip_lines(outcome)))


def skip_lines(outcome: Outcome) -> list[str]:
    """Lines with the reason why runs are skipped, one for each reason."""
    return [f"skipped, {reason}: {', '.join(names)}" for reason, names in outcome.skipped.items()]


def summary_lines(comparisons: Sequence[ComparedNumber], outcome: Outcome) -> list[str]:
    """Print the summary: counts, time, skipped runs, both machines, and the path of the JSON."""
    verdicts = [comparison.verdict for comparison in comparisons]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts)) or "nothing compared"
    exact = sum(comparison.recorded == comparison.repeated for comparison in comparisons)
    expected_minutes = sum(rerun.seconds for rerun, _ in outcome.finished) / 60
    ended = f"{len(outcome.finished)} runs in {outcome.seconds / 60:.1f} minutes, expected {expected_minutes:.1f}"
    current_machines = {describe_machine(result["environment"]) for _, result in outcome.finished}
    recorded_machines = {describe_machine(rerun.run["environment"]) for rerun, _ in outcome.finished}
    same = (
        "the same kind of machine"
        if current_machines == recorded_machines
        else "another machine or version: the last digits may differ"
    )
    failed = [f"{rerun.name}: {result['failure']}" for rerun, result in outcome.finished if "failure" in result]
    return [
        f"{counts}; {exact} the same to the last bit; {ended}" + ("; interrupted" if outcome.interrupted else ""),
        *failed,
        *skip_lines(outcome),
        f"here: {'; '.join(sorted(current_machines))}",
        f"recorded on: {'; '.join(sorted(recorded_machines))} ({same})",
        f"{outcome.directory}/check.json",
    ]


def check_json(outcome: Outcome) -> dict:
    """Return the contents of check.json: each run with both environments, each number with its expected interval."""
    run_json = lambda rerun, result: {
        "run": rerun.name,
        "seconds": {"recorded": rerun.run["seconds"], "here": result.get("seconds")},
        "environment": {"recorded": rerun.run["environment"], "here": result["environment"]},
    }
    number_json = lambda repeated, expected, **fields: fields | {"here": repeated, "expected": expected._asdict()}
    return {
        "runs": [run_json(rerun, result) for rerun, result in outcome.finished],
        "numbers": [number_json(**comparison._asdict()) for comparison in compare_runs(outcome.finished)],
        "skipped": outcome.skipped,
    }
