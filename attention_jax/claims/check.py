"""`launch.py reproduce --check`: repeat recorded runs within a time budget, and compare their numbers with the record.

Bit-identical numbers are expected only on the machine of the record: others round differently, and training amplifies
the difference. `comparison.expected` is the tolerance. Nothing is written to experiments/results.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attention_jax.claims import catalog
from attention_jax.claims.catalog import Experiment
from attention_jax.claims.comparison import Compared, compared, machine, table
from attention_jax.claims.cost import smallest_seconds
from attention_jax.claims.judged import judged
from attention_jax.claims.record import ended
from attention_jax.claims.recorded_command import current_names, recorded_words
from attention_jax.claims.verdicts import runs_of
from attention_jax.config import Config, replace
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import data_home, read_json, write_json
from attention_jax.report.tables import Table, show
from attention_jax.runs import directory as run_directory, lifecycle

COMPILING = 10.0
"""Seconds, about: members of a population share one compiled program."""
ROOT = Path("runs")


@dataclass(frozen=True)
class Again:
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
            part for part in (self.experiment.name, self.run["variant"], f"seed {self.run['seed']}") if part
        )


@dataclass
class Outcome:
    """The results of a check so far."""

    directory: Path
    done: list[tuple[Again, dict]] = field(default_factory=list)
    """Each run with its result; one that diverged has neither metrics nor a history."""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """{reason: names}"""
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def results(self) -> list[tuple[Experiment, dict]]:
        """The results of finished runs."""
        return [(again.experiment, result) for again, result in self.done]

    def skip(self, name: str, reason: str):
        names = self.skipped.setdefault(reason, [])
        if name not in names:
            names.append(name)


@dataclass(frozen=True)
class Here:
    """Local settings that are added to recorded commands."""

    local: str = ""
    """A directory with data files."""
    options: tuple[str, ...] = ()
    """Options that replace recorded ones: ("--data.path", "date.txt")."""


Override = Callable[[Config, Sequence[str]], Config]
"""(configuration, words of a command) -> the configuration with these options."""


def check(experiments: Iterable[Experiment], minutes: float, override: Override, here: Here) -> int:
    """Repeat the runs that fit into `minutes`; return the exit code, 0 if all numbers agree and 1 if any differs.

    Raises InputError if nothing can be run.
    """
    if here.local and not Path(here.local).is_dir():
        raise InputError(f"--local-data must be a directory; {here.local} is not")
    outcome = Outcome(run_directory.fresh_directory("check", ROOT))
    planned = runs_to_do(experiments, minutes, here, outcome)
    announce(planned, minutes, outcome)
    run_all(planned, minutes, override, outcome)
    if not outcome.done and not outcome.interrupted:
        raise InputError("nothing could be compared: " + next(iter(outcome.skipped)))
    found = compared(outcome.results)
    show(table(found))
    print("\n" + "\n".join(summary(found, outcome)))
    if outcome.interrupted:
        return 130
    return int(any(one.verdict == "differs" for one in found))


def runs_to_do(experiments: Iterable[Experiment], minutes: float, here: Here, outcome: Outcome) -> list[Again]:
    """Return the runs to repeat in their order; InputError if there are none."""
    able = [again for experiment in experiments for again in candidates(experiment, here, outcome)]
    if not able:
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in outcome.skipped.items())
        raise InputError(f"--check needs a recorded run that can be run here; there is none ({why or 'none recorded'})")
    planned = chosen(able, 60 * minutes)
    if not planned:
        least = min(able, key=lambda again: again.seconds)
        cheapest = f"the cheapest here, {least.name}, takes {least.seconds:.0f} s"
        raise InputError(f"--minutes {minutes:g} is too short for any run; {cheapest}")
    return planned


def candidates(experiment: Experiment, here: Here, outcome: Outcome) -> list[Again]:
    """Return the recorded runs with a claim whose data are available, those that decide a verdict first; the others are
    noted as skipped.
    """
    found, seeds, variants = [], {}, experiment.variants()
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
            words = current_names(variants[variant], recorded_words(run))
            words = with_data(variants[variant], words, here)
        except InputError as error:
            outcome.skip(experiment.name, str(error))
            continue
        config = replace(variants[variant], **{"train.seed": run["seed"]})
        repeat = seeds[variant] = seeds.get(variant, -1) + 1
        found.append(Again(experiment, run, config, words, repeat, seconds[variant]))
    return found


def deciding_first(experiment: Experiment) -> list[dict]:
    """Return the recorded runs that ended, those on which a verdict rests before the others.

    The verdict of a claim whose replication is complete rests on the replication, and no longer on the original runs.
    """
    identity = lambda run: (run["variant"], run["seed"])
    deciding = {identity(run) for one in judged(experiment) for run in runs_of(one.claim, one.runs)}
    return sorted(ended(experiment), key=lambda run: identity(run) not in deciding)


def with_data(config: Config, words: Sequence[str], here: Here) -> list[str]:
    """Return the words of a command with the paths of data files on this machine.

    `words` come from a recorded run (`recorded_words`) or from a row of the replication, and name data files without
    their directories: `here.local` and the directories in it are searched for them. A file that is not found is left
    out if the same data have been downloaded. Raises InputError if the data are not available.
    """
    words = list(words)
    files = [option for option in catalog.user_data(config) if option != "--data.dataset"]
    downloads = config.data.downloads if config.data else ""
    cached = bool(downloads) and (Path(data_home()) / downloads).is_dir()
    if downloads and not cached and not any(option in (*words, *here.options) for option in files):
        raise InputError(f"needs a download of {downloads.partition('/')[0]}: run it once without --check")
    for option in files:
        if option not in words:
            continue
        at = words.index(option)
        path = located(words[at + 1], here.local)
        if path:
            words[at + 1] = str(path)
        elif not cached and option not in here.options:
            raise InputError(f"needs {words[at + 1]}: --local-data DIR, a directory that has it")
        if option in here.options or not path:
            del words[at : at + 2]
    return [*words, *here.options]


def located(name: str, local: str) -> Path | None:
    """The file or directory called `name` in the directory `local`, or in one of the directories in it."""
    paths = (Path(local, name), *sorted(Path(local).glob(f"*/{name}"))) if local else ()
    return next((path for path in paths if path.exists()), None)


def chosen(able: Sequence[Again], seconds: float) -> list[Again]:
    """Select the cheapest run of every chapter, then of every experiment, of every variant, and all seeds, within the
    time budget; the first seed of a variant comes first.
    """
    taken, left = [], seconds
    for kind in (
        lambda again: again.experiment.about("Chapter"),
        lambda again: again.experiment.name,
        lambda again: (again.experiment.name, again.run["variant"]),
        lambda again: again.name,
    ):
        covered = {kind(again) for again in taken}
        for again in sorted(able, key=lambda again: (again.repeat, again.seconds)):
            if kind(again) not in covered and again.seconds <= left:
                taken.append(again)
                covered.add(kind(again))
                left -= again.seconds
    return taken


def run_all(planned: Sequence[Again], minutes: float, override: Override, outcome: Outcome):
    """Run the plan while the next run should end in time; results are added to `outcome`."""
    began = time.monotonic()
    for count, again in enumerate(planned, 1):
        outcome.seconds = time.monotonic() - began
        if outcome.done and outcome.seconds + again.seconds > 60 * minutes:
            outcome.skip(again.name, "no time was left")
            continue
        print(f"{count} of {len(planned)}: {again.name}, about {again.seconds:.0f} s", flush=True)
        try:
            outcome.done.append((again, run_again(again, override, outcome.directory)))
        except InputError as error:
            outcome.skip(again.name, str(error))
        except (Interrupted, KeyboardInterrupt):
            outcome.interrupted = True
            break
        write_json(outcome.directory / "check.json", as_json(outcome))
    outcome.seconds = time.monotonic() - began


def run_again(again: Again, override: Override, root: Path) -> dict:
    """Repeat a run in a new directory below `root` and return its result."""
    variant = again.run["variant"].replace("/", "-")
    directory = root / again.experiment.name / "-".join(part for part in (variant, f"seed{again.run['seed']}") if part)
    config = replace(override(again.config, again.words), **{"train.seed": again.run["seed"]})
    try:
        result = lifecycle.start(config, directory, study=again.experiment.study, quiet=True)
    except Diverged as error:
        result = {"metrics": {}, "history": [], "failure": str(error)}
    environment = read_json(directory / "environment.json")
    return result | {name: again.run[name] for name in ("variant", "seed")} | {"environment": environment}


def announce(planned: Sequence[Again], minutes: float, outcome: Outcome):
    """Print what will be run and what will be skipped."""
    chapters = {again.experiment.about("Chapter") for again in planned}
    total = sum(again.seconds for again in planned) / 60
    rows = [(again.name, f"{again.seconds:.0f}", again.experiment.about("Chapter")) for again in planned]
    show(Table("", ("run", "seconds", "chapter"), rows, right=("seconds",)))
    print(
        f"\n{len(planned)} runs of {len({again.experiment.name for again in planned})} experiments of {len(chapters)} "
        f"chapters take about {total:.1f} minutes on one core; --minutes {minutes:g}, in {outcome.directory}"
    )
    print("\n".join(left_out(outcome)))


def left_out(outcome: Outcome) -> list[str]:
    """A line for each reason for which something is not run."""
    return [f"skipped, {reason}: {', '.join(names)}" for reason, names in outcome.skipped.items()]


def summary(found: Sequence[Compared], outcome: Outcome) -> list[str]:
    """Print the summary: counts, time, skipped runs, both machines, and the path of the JSON."""
    verdicts = [one.verdict for one in found]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts)) or "nothing compared"
    exact = sum(one.recorded == one.here for one in found)
    then = sum(again.seconds for again, _ in outcome.done) / 60
    ended = f"{len(outcome.done)} runs in {outcome.seconds / 60:.1f} minutes, expected {then:.1f}"
    here = {machine(result["environment"]) for _, result in outcome.done}
    there = {machine(again.run["environment"]) for again, _ in outcome.done}
    same = "the same kind of machine" if here == there else "another machine or version: the last digits may differ"
    failed = [f"{again.name}: {result['failure']}" for again, result in outcome.done if "failure" in result]
    return [
        f"{counts}; {exact} the same to the last bit; {ended}" + ("; interrupted" if outcome.interrupted else ""),
        *failed,
        *left_out(outcome),
        f"here: {'; '.join(sorted(here))}",
        f"recorded on: {'; '.join(sorted(there))} ({same})",
        f"{outcome.directory}/check.json",
    ]


def as_json(outcome: Outcome) -> dict:
    """Return the contents of check.json: each run with both environments, each number with its expected interval."""
    one_run = lambda again, result: {
        "run": again.name,
        "seconds": {"recorded": again.run["seconds"], "here": result.get("seconds")},
        "environment": {"recorded": again.run["environment"], "here": result["environment"]},
    }
    one_number = lambda one: {
        "experiment": one.experiment,
        "claim": one.claim.text,
        "metric": one.claim.metric,
        "seed": one.seed,
        "recorded": one.recorded,
        "here": one.here,
        "expected": one.expected._asdict(),
        "verdict": one.verdict,
    }
    return {
        "runs": [one_run(again, result) for again, result in outcome.done],
        "numbers": [one_number(one) for one in compared(outcome.results)],
        "skipped": outcome.skipped,
    }
