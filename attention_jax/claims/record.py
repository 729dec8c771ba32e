"""Recording of results: run the variants of an experiment, and store their numbers with the command.

experiments/results/NAME.json has the recorded runs. A file in experiments/registered/ is committed before the first of
its runs: it has the "commit" at which code and claims are frozen, and the "rows" in the order in which they are to be
run: {"experiment": name, "variant": name, "first_seed": n, "seeds": n, "options": [...]}, options being data files.
"""

import dataclasses
import datetime
import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attention_jax import config as configs, provenance
from attention_jax.claims import catalog
from attention_jax.claims.catalog import CHECKOUT, ROOT, Experiment
from attention_jax.config import Config, option_name
from attention_jax.errors import Diverged, InputError
from attention_jax.files import data_home, directory_lock, read_json, write_json
from attention_jax.runs import directory as run_directory, lifecycle

RESULTS = ROOT / "results"
REGISTRATION = ROOT / "registered" / "replication.json"
"""The first registration, of the replication of all results."""
REGISTRATIONS = tuple(sorted(REGISTRATION.parent.glob("*.json")))
"""All files in experiments/registered/: each froze the code at a commit."""
LONG = 200
"""The number of epochs above which a recorded history is thinned."""


@dataclass(frozen=True)
class Reproduction:
    """The variants and seeds of an experiment to run, and their directory."""

    scale: Literal["smoke", "full", "recorded"] = "full"
    """smoke: takes seconds, gives no verdicts; recorded: only shows committed results."""
    variant: str | None = None
    """Run only this one of the variants that the experiment compares; by default all of them."""
    seeds: int = 0
    """Number of seeds; 0 is that of the experiment."""
    root: str = "runs/reproduce"
    """The directory of the runs."""
    record: bool = True
    """Write the results of full scale into experiments/results/NAME.json, which needs a clean working tree."""

    def directory(self, experiment: Experiment, variant: str, seed: int) -> Path:
        """The directory of one run."""
        return Path(self.root, self.scale, experiment.name, f"{variant}-seed{seed}" if variant else f"seed{seed}")


def load_recorded_runs(name: str, results: Path = RESULTS) -> list[dict]:
    """Return the runs in experiments/results/NAME.json, sorted by variant and seed; none without a file."""
    path = results / f"{name}.json"
    return read_json(path)["runs"] if path.exists() else []


def load_rows(path: Path = REGISTRATION) -> list[dict]:
    """Return the registered rows of a file in their order; none without a file."""
    return read_json(path)["rows"] if path.exists() else []


def seeds_of_row(row: Mapping) -> range:
    """The registered seeds of a row."""
    return range(row["first_seed"], row["first_seed"] + row["seeds"])


def record_run(name: str, run: dict, results: Path = RESULTS):
    """Write `run` to experiments/results/NAME.json, replacing an earlier run of the same variant and seed."""
    identity = lambda run: (run["variant"], run["seed"])
    results.mkdir(exist_ok=True)
    with directory_lock(results):
        other_runs = [old for old in load_recorded_runs(name, results) if identity(old) != identity(run)]
        write_json(results / f"{name}.json", {"experiment": name, "runs": sorted([*other_runs, run], key=identity)})


def reproduce(
    experiment: Experiment,
    request: Reproduction,
    override: Callable[[Config], Config] = lambda config: config,
    words: Sequence[str] = (),
) -> list[dict]:
    """Run the variants of an experiment with every seed; finished runs are kept, interrupted ones resume.

    `override` applies the options of the command line, `words`, to a configuration. At scale "full" the results are
    recorded with these words, with figures of the first variant's first run and those that `draw_recorded` plots of all
    recorded runs. A run that diverges is recorded as {"diverged": reason}, without metrics. At "recorded" nothing is
    run. Returns the runs: {"variant", "seed", "metrics", "history", ...}.
    """
    if request.seeds < 0:
        raise InputError(f"--seeds must be 0, for the experiment's own number, or more; got {request.seeds}")
    declared = variants_to_run(experiment, request)
    variants = {variant: override(config) for variant, config in declared.items()}
    if request.scale == "recorded":
        recorded = load_recorded_runs(experiment.name, experiment.results)
        return [run for run in recorded if request.variant in (None, run["variant"])]
    keep, command = should_record(experiment, request), command_of(["reproduce", experiment.name, *words])
    if keep:
        check_committed(experiment)
        check_options(experiment, declared, variants)
    finished_runs = []
    for variant, config in variants.items():
        for seed in seeds_of(experiment, request, config):
            directory, run_config = (
                request.directory(experiment, variant, seed),
                configs.replace(config, **{"train.seed": seed}),
            )
            archive_other(run_config, directory)
            if keep:
                check_started_run(experiment, directory)
            run = {"variant": variant, "seed": seed} | run_or_diverge(run_config, directory, experiment, request)
            print(f"{experiment.name} {variant} seed {seed}: in {directory}".replace("  ", " "), flush=True)
            if keep:
                run["history"] = thin_history(experiment, run["history"])
                run |= run_origin(experiment, directory, command) | bleu_by_length(directory)
                record_run(experiment.name, run, experiment.results)
                if not finished_runs and variant == first_variant(experiment):
                    keep_figures(experiment.name, directory, experiment.results)
                draw_recorded(experiment)
            finished_runs.append(run)
    if experiment.figure and not keep and request.scale == "full":
        by_variant = {
            variant: [run for run in finished_runs if run["variant"] == variant and run["metrics"]]
            for variant in variants
        }
        figure = Path(request.root, request.scale, experiment.name, f"{experiment.name}.png")
        if all(by_variant.values()) and experiment.figure(by_variant, figure):
            print(f"{experiment.name}: {figure}")
    return finished_runs


def run_or_diverge(config: Config, directory: Path, experiment: Experiment, request: Reproduction) -> dict:
    """Return the result of `run_once`, or {"metrics": {}, "history": [], "diverged": reason}; in a smoke run, which
    judges no claim, Diverged is raised."""
    try:
        result = run_once(config, directory, experiment.study)
    except Diverged as error:
        if request.scale == "smoke":
            raise
        print(f"  diverged: {error}", flush=True)
        return {"metrics": {}, "history": [], "diverged": str(error)}
    return {name: value for name, value in result.items() if name != "experiment"}


def variants_to_run(experiment: Experiment, request: Reproduction) -> dict[str, Config]:
    """The configurations to run, by variant."""
    variants = {"": experiment.smoke()} if request.scale == "smoke" else experiment.variants()
    if request.variant is None:
        return variants
    if request.variant not in variants:
        listed = ", ".join(map(repr, variants))
        raise InputError(f"--variant must be one of {listed} for {experiment.name}, got {request.variant!r}")
    return {request.variant: variants[request.variant]}


def seeds_of(experiment: Experiment, request: Reproduction, config: Config) -> range:
    """Return the seeds of a configuration, which count up from that in it."""
    count = 1 if request.scale == "smoke" else request.seeds or experiment.seeds
    return range(config.train.seed, config.train.seed + count)


def should_record(experiment: Experiment, request: Reproduction) -> bool:
    """Whether to record the results: at full scale, and in a checkout, not for an installed package."""
    return request.scale == "full" and request.record and (CHECKOUT or experiment.results != RESULTS)


def is_built_in(experiment: Experiment) -> bool:
    """Whether the experiment's file is in experiments/ of the checkout."""
    return experiment.file is not None and experiment.file.is_relative_to(ROOT)


def check_committed(experiment: Experiment):
    """Raise InputError if the working tree differs from the commit that a recorded number names.

    An experiment of the checkout needs git and all code committed. A user's file elsewhere must be committed if it is
    in a repository. An `Experiment` that was made in Python has no file, and nothing is checked.
    """
    if experiment.file is None:
        return
    if is_built_in(experiment):
        changed = provenance.changes()
        if provenance.commit() is None:
            raise InputError(
                f"recording {experiment.name} needs git and a clone of the repository, whose commit the record names; "
                "add --no-record to run without recording"
            )
    else:
        changed = provenance.changes(experiment.file.parent, (experiment.file.name,))
    if changed:
        listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise InputError(
            f"recording {experiment.name} needs a clean working tree; not committed: {listed}; "
            "commit, or add --no-record to run without recording"
        )


def check_options(experiment: Experiment, declared: dict[str, Config], overridden: dict[str, Config]):
    """Raise InputError if options of a built-in experiment, other than data files and the seed, are not those of its
    file: a recorded run is judged by the claims about its variant.
    """
    if not is_built_in(experiment):
        return
    for variant, config in declared.items():
        allowed = {"--train.seed", *catalog.user_data(config)}
        changed = [option_name(field) for field in configs.differences(config, overridden[variant])]
        if options := ", ".join(option for option in changed if option not in allowed):
            raise InputError(
                f"recording {experiment.name} needs the options of its file; got another value of {options}: leave it "
                "out, or add --no-record to run without recording"
            )


def check_started_run(experiment: Experiment, directory: Path):
    """Raise InputError if `directory` has a run that was begun with code other than a commit's.

    A finished run may be recorded if its code was committed. An interrupted one must also resume with the same code.
    """
    if not is_built_in(experiment) or not (directory / "environment.json").exists():
        return
    commit = check_run(experiment, directory)["commit"]
    if not run_directory.read_result(directory) and provenance.code_differs(commit):
        raise InputError(
            f"recording {experiment.name}: {directory} was begun at commit {commit[:10]}, and the code has changed "
            "since; remove it to start again, or add --no-record"
        )


def check_run(experiment: Experiment, directory: Path) -> dict:
    """Return the environment of a run; InputError if it was begun with code that was not committed."""
    then = read_json(directory / "environment.json")
    if is_built_in(experiment) and (then.get("commit") is None or then.get("changed")):
        listed = ", ".join(then.get("changed") or ["no commit is known"])
        raise InputError(
            f"recording {experiment.name}: {directory} was begun with code that is not committed ({listed}); "
            "remove it to start again, or do not record it"
        )
    return then


def run_origin(experiment: Experiment, directory: Path, command: str) -> dict:
    """Return date, command, machine and commit of a run, and the hash of the experiment's file at that commit."""
    environment, digest = read_json(directory / "environment.json"), None
    if is_built_in(experiment):
        digest = provenance.file_hash(experiment.file, environment["commit"])
        if digest is None:
            raise InputError(
                f"recording {experiment.name}: the commit {environment['commit'][:10]} of {directory} is not in this "
                "repository; remove it to start again, or do not record it"
            )
    elif experiment.file:
        digest = provenance.file_hash(experiment.file)
    return {
        "date": str(datetime.date.today()),
        "command": command,
        "experiment_sha256": digest,
        "environment": environment,
    }


def archive_other(config: Config, directory: Path):
    """Rename `directory` by its time if it has a run with other options than `config`."""
    has_started = (directory / "config.json").exists()
    if has_started and configs.differences(run_directory.read_config(directory, like=config), config):
        directory.rename(directory.with_name(f"{directory.name}-{time.strftime('%Y%m%d-%H%M%S')}"))


def run_once(config: Config, directory: Path, study) -> dict:
    """Return the result of `config` in `directory`: read it if finished, resume it if interrupted, or run it."""
    has_started = (directory / "config.json").exists()
    return run_directory.read_result(directory) or lifecycle.start(config, directory, study=study, resume=has_started)


def thin_history(experiment: Experiment, history: list[dict]) -> list[dict]:
    """Return the epochs to record: all; of more than LONG every 10th, 100th, ... and the last.

    Seeds of different lengths then share most epochs. A history stays whole if a claim reads single epochs of it.
    """
    by_epoch = any(bound.epoch or bound.best or bound.last for bound in (*experiment.claims, *experiment.thresholds))
    if by_epoch or len(history) <= LONG:
        return history
    every = 10 ** math.ceil(math.log10(len(history) / LONG))
    return [row for number, row in enumerate(history, 1) if number % every == 0 or number == len(history)]


def keep_figures(name: str, directory: Path, results: Path = RESULTS):
    """Copy the figures of the first run to the directory of the results."""
    for figure in sorted((directory / "figures").glob("*.png")):
        shutil.copyfile(figure, results / f"{name}-{figure.name}")


def first_variant(experiment: Experiment) -> str:
    """Return the main variant of an experiment: the first recorded one, or the first to be run. It may be one that the
    experiment no longer has, if only such are recorded."""
    measured = {run["variant"] for run in load_recorded_runs(experiment.name, experiment.results)}
    return next(
        (variant for variant in experiment.variants() if variant in measured or not measured), min(measured, default="")
    )


def bleu_by_length(directory: Path) -> dict:
    """{"bleu_by_length": {split: bins}} of a translation run, from its SPLIT.bleu.json files; {} for others."""
    files = {path.name.removesuffix(".bleu.json"): read_json(path) for path in sorted(directory.glob("*.bleu.json"))}
    bins = {split: file["by_length"] for split, file in files.items() if "by_length" in file}
    return {"bleu_by_length": bins} if bins else {}


def first_variant_histories(experiment: Experiment) -> tuple[str, list[list[dict]]]:
    """The first variant, and the recorded histories of its seeds, which its learning curves show; none of one epoch."""
    first = first_variant(experiment)
    runs = load_recorded_runs(experiment.name, experiment.results)
    return first, [run["history"] for run in runs if run["variant"] == first and len(run.get("history", ())) > 1]


def runs_without_divergence(experiment: Experiment) -> list[dict]:
    """Return the recorded runs that did not diverge, under the present names of their variants."""
    runs = load_recorded_runs(experiment.name, experiment.results)
    return [run for run in present_names(experiment, runs) if not run.get("diverged")]


def present_names(experiment: Experiment, runs: Sequence[Mapping]) -> list[dict]:
    """Return the runs with the present names of their variants: former ones had the same configuration."""
    former = experiment.former_variants
    return [{**run, "variant": former.get(run["variant"], run["variant"])} for run in runs]


def runs_by_variant(experiment: Experiment) -> dict[str, list[dict]]:
    """Return the recorded runs of each variant that has some, for the experiment's figure."""
    runs = runs_without_divergence(experiment)
    variants = {variant: [run for run in runs if run["variant"] == variant] for variant in experiment.variants()}
    return {variant: its_runs for variant, its_runs in variants.items() if its_runs}


def draw_recorded(experiment: Experiment):
    """Plot the recorded runs of an experiment: learning curves, with the seeds of the first variant as a band, and the
    experiment's figure."""
    first, histories = first_variant_histories(experiment)
    if histories:
        from attention_jax.report.curves import learning_curves

        path = experiment.results / f"{experiment.name}-learning_curve.png"
        learning_curves(histories, path, experiment.variants().get(first), title=first)
    if experiment.figure:
        experiment.figure(runs_by_variant(experiment), experiment.results / f"{experiment.name}.png")


def draw_all():
    """`make figures`: the figures of all recorded experiments and of the published numbers, from stored data alone."""
    from attention_jax.claims import pages

    for name in catalog.experiment_names():
        draw_recorded(catalog.load_experiment(name))
    pages.draw_published()


def smallest_seconds(runs: Sequence[Mapping]) -> dict[str, float]:
    """Return {variant: the smallest seconds of its recorded runs}, without runs that diverged.

    >>> smallest_seconds([{"variant": "", "seed": 0, "seconds": 40.0}, {"variant": "", "seed": 1, "seconds": 30.0}])
    {'': 30.0}
    """
    timed = sorted((run for run in runs if "seconds" in run), key=lambda run: -run["seconds"])
    return {run["variant"]: run["seconds"] for run in timed}


def estimate_seconds(experiment: Experiment, config: Config) -> float | None:
    """Return the seconds that one run of `config` takes on one core, or None if no such run is recorded and the
    experiment states no minutes; only the seed may differ from a variant's configuration."""
    seeded = {
        name: configs.replace(variant_config, **{"train.seed": config.train.seed})
        for name, variant_config in experiment.variants().items()
    }
    seconds = smallest_seconds(load_recorded_runs(experiment.name, experiment.results))
    for name, variant_config in seeded.items():
        if variant_config == config:
            alone = 60 * experiment.minutes / experiment.seeds if experiment.minutes and len(seeded) == 1 else None
            return seconds.get(name, alone)
    return None


def command_words(run: Mapping) -> list[str]:
    """Return a run's command from the experiment's name on, without its variant.

    >>> command_words({"command": "python launch.py reproduce x --variant 'a b' --seeds 1"})
    ['x', '--seeds', '1']
    """
    words = shlex.split(run["command"])[3:]
    return [word for previous, word in zip(["", *words], words) if "--variant" not in (previous, word)]


def command_of(words: Sequence[str]) -> str:
    """Return the command `launch.py words` for the record."""
    return shlex.join(["python", "launch.py", *strip_directories(words)])


def strip_directories(words: Sequence[str]) -> list[str]:
    """Return the words of a command for the record: files without their directories, and no output directory.

    >>> strip_directories(["--data.path=/home/date.txt.gz", "--root", "/tmp", "--data.source-file", "/a/x.de,/a/y.de"])
    ['--data.path', 'date.txt.gz', '--data.source-file', 'x.de,y.de']
    >>> strip_directories(["--variant", "d_k / 4"])
    ['--variant', 'd_k / 4']
    """
    split = [token for word in words for token in (word.split("=", 1) if word.startswith("--") else [word])]
    pairs = [pair for pair in zip(split, ["", *split]) if not {"--root", "--out"} & set(pair)]
    name = lambda word: ",".join(Path(path).name if "/" in path else path for path in word.split(","))
    return [word if previous == "--variant" else name(word) for word, previous in pairs]


@dataclass(frozen=True)
class LocalSettings:
    """Local settings that are added to recorded commands."""

    local_data: str = ""
    """A directory with data files."""
    options: tuple[str, ...] = ()
    """Options that replace recorded ones: ("--data.path", "date.txt")."""


Override = Callable[[Config, Sequence[str]], Config]
"""(configuration, words of a command) -> the configuration with these options."""


def replicate(
    path: Path, request: Reproduction, names: Sequence[str], override: Override, local_settings: LocalSettings
):
    """Run and record the rows of `path` that are not recorded yet, of the experiments `names` or, if empty, of all.

    Several processes may do this at the same time with the same `request.root`; each skips runs that another one has
    locked. A run whose data are not available is skipped with a line, and one that diverges is recorded as such.
    Raises InputError if it would record from code other than that of the registered commit.
    """
    if not path.exists():
        raise InputError(f"--rows needs a file of registered rows, such as {REGISTRATION.name}; {path} does not exist")
    frozen = read_json(path)["commit"]
    if request.record and CHECKOUT and provenance.code_differs(frozen):
        raise InputError(
            f"--rows records from the commit at which {path.name} froze the code, {frozen[:10]}, and the code of this "
            "checkout is another: check that commit out in a clone, or add --no-record to run without recording"
        )
    for row in load_rows(path):
        if names and row["experiment"] not in names:
            continue
        for seed in seeds_of_row(row):
            try:
                replicate_once(row, seed, request, override, local_settings)
            except InputError as error:
                print(f"  not recorded: {error}", flush=True)


def replicate_once(row: Mapping, seed: int, request: Reproduction, override: Override, local_settings: LocalSettings):
    """Run and record one row with one seed, if it is not recorded."""
    experiment, variant = catalog.load_experiment(row["experiment"]), row["variant"]
    recorded = load_recorded_runs(experiment.name, experiment.results)
    if (variant, seed) in {(run["variant"], run["seed"]) for run in recorded}:
        return
    print(" ".join(filter(None, [experiment.name, variant, f"seed {seed}"])), flush=True)
    declared = experiment.variant(variant)
    words = resolve_data_paths(declared, row.get("options", []), local_settings)
    with_seed = lambda config: configs.replace(override(config, words), **{"train.seed": seed})
    once = dataclasses.replace(request, scale="full", variant=variant, seeds=1)
    variant_words = ["--variant", variant] if len(experiment.variants()) > 1 else []
    reproduce(experiment, once, with_seed, [*variant_words, *words, "--train.seed", str(seed), "--seeds", "1"])


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


if __name__ == "__main__":
    draw_all()
