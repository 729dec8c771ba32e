"""`launch.py reproduce --check`: repeat recorded runs within a time budget, and compare their numbers with the record.

Bit-identical numbers are expected only on the machine of the record: others round differently, and training amplifies
the difference. `comparison.tolerance_interval` is the tolerance. Nothing is written to experiments/results.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attention_jax.claims import catalog
from attention_jax.claims.catalog import Experiment
from attention_jax.claims.comparison import ComparedNumber, compare_runs, comparison_table, describe_machine
from attention_jax.claims.cost import smallest_seconds
from attention_jax.claims.judged import judge_claims
from attention_jax.claims.record import runs_without_divergence
from attention_jax.claims.recorded_command import command_words, current_names
from attention_jax.claims.verdicts import runs_with_value
from attention_jax.config import Config, replace
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import data_home, read_json, write_json
from attention_jax.report.tables import Table, show
from attention_jax.runs import directory as run_directory, lifecycle

COMPILING = 10.0
"""Seconds, about: members of a population share one compiled program."""
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
    quickest: float
    """The smallest recorded seconds of its variant."""

    @property
    def seconds(self) -> float:
        """The seconds it is expected to take: the smallest of its variant, plus what was saved in a population."""
        return self.quickest + (COMPILING if self.run.get("population", 1) > 1 else 0.0)

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

    @property
    def results(self) -> list[tuple[Experiment, dict]]:
        """The results of finished runs."""
        return [(rerun.experiment, result) for rerun, result in self.finished]

    def skip(self, name: str, reason: str):
        names = self.skipped.setdefault(reason, [])
        if name not in names:
            names.append(name)


@dataclass(frozen=True)
class LocalSettings:
    """Local settings that are added to recorded commands."""

    local_data: str = ""
    """A directory with data files."""
    options: tuple[str, ...] = ()
    """Options that replace recorded ones: ("--data.path", "date.txt")."""


Override = Callable[[Config, Sequence[str]], Config]
"""(configuration, words of a command) -> the configuration with these options."""


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
    comparisons = compare_runs(outcome.results)
    show(comparison_table(comparisons))
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
    """Return the recorded runs with a claim whose data are available, those that decide a verdict first; the others are
    noted as skipped.
    """
    reruns, seeds, variants = [], {}, experiment.variants()
    claimed = {variant for claim in experiment.claims for variant in (claim.variant, claim.minus)}
    recorded_runs = deciding_first(experiment)
    seconds = smallest_seconds(recorded_runs)
    if experiment.claims and not recorded_runs:
        outcome.skip(experiment.name, "nothing is recorded")
    for run in recorded_runs:
        variant = run["variant"]
        if variant not in claimed:
            continue
        try:
            if variant not in variants:
                raise InputError(f"{variant!r} is no variant any more")
            words = current_names(variants[variant], command_words(run))
            words = resolve_data_paths(variants[variant], words, local_settings)
        except InputError as error:
            outcome.skip(experiment.name, str(error))
            continue
        config = replace(variants[variant], **{"train.seed": run["seed"]})
        repeat = seeds[variant] = seeds.get(variant, -1) + 1
        reruns.append(Rerun(experiment, run, config, words, repeat, seconds[variant]))
    return reruns


def deciding_first(experiment: Experiment) -> list[dict]:
    """Return the recorded runs that ended, those on which a verdict rests before the others.

    The verdict of a claim whose replication is complete rests on the replication, and no longer on the original runs.
    """
    identity = lambda run: (run["variant"], run["seed"])
    deciding = {identity(run) for row in judge_claims(experiment) for run in runs_with_value(row.claim, row.runs)}
    return sorted(runs_without_divergence(experiment), key=lambda run: identity(run) not in deciding)


def resolve_data_paths(config: Config, words: Sequence[str], local_settings: LocalSettings) -> list[str]:
    """Return the words of a command with the paths of data files on this machine.

    `words` come from a recorded run (`command_words`) or from a row of the replication, and name data files without
    their directories: `local_settings.local_data` and its subdirectories are searched. A file that is not found is left
    out if the same data have been downloaded. Raises InputError if the data are not available.
    """
    words = list(words)
    files = [option for option in catalog.user_data(config) if option != "--data.dataset"]
    downloads = config.data.downloads if config.data else ""
    cached = bool(downloads) and (Path(data_home()) / downloads).is_dir()
    if downloads and not cached and not any(option in (*words, *local_settings.options) for option in files):
        raise InputError(f"needs a download of {downloads.partition('/')[0]}: run it once without --check")
    for option in files:
        if option not in words:
            continue
        at = words.index(option)
        path = find_path(words[at + 1], local_settings.local_data)
        if path:
            words[at + 1] = str(path)
        elif not cached and option not in local_settings.options:
            raise InputError(f"needs {words[at + 1]}: --local-data DIR, a directory that has it")
        if option in local_settings.options or not path:
            del words[at : at + 2]
    return [*words, *local_settings.options]


def find_path(name: str, directory: str) -> Path | None:
    """The file or directory called `name` in `directory`, or in one of its subdirectories."""
    paths = (Path(directory, name), *sorted(Path(directory).glob(f"*/{name}"))) if directory else ()
    return next((path for path in paths if path.exists()), None)


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
    number_json = lambda comparison: {
        "experiment": comparison.experiment,
        "claim": comparison.claim.text,
        "metric": comparison.claim.metric,
        "seed": comparison.seed,
        "recorded": comparison.recorded,
        "here": comparison.repeated,
        "expected": comparison.expected._asdict(),
        "verdict": comparison.verdict,
    }
    return {
        "runs": [run_json(rerun, result) for rerun, result in outcome.finished],
        "numbers": [number_json(comparison) for comparison in compare_runs(outcome.results)],
        "skipped": outcome.skipped,
    }
