"""Recording of results: run the variants of an experiment, and store their numbers, with the command, in NAME.json."""

import datetime
import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attention_jax import catalog, config as configs, provenance
from attention_jax.catalog import CHECKOUT, ROOT, Experiment
from attention_jax.config import Config, option_name
from attention_jax.config.fields import user_data
from attention_jax.errors import Diverged, InputError
from attention_jax.files import directory_lock, read_json, write_json
from attention_jax.runs import directory as run_directory, lifecycle

RESULTS = ROOT / "results"
COMPARED = 8
"""The number of variants above which the learning curve of the first one is not drawn."""
LONG = 200
"""The number of epochs above which a recorded history is thinned."""


@dataclass(frozen=True)
class Reproduction:
    """The variants and seeds of an experiment to run, and their directory."""

    scale: Literal["smoke", "full"] = "full"
    """smoke: takes seconds, gives no verdicts."""
    variant: str | None = None
    """Run only this one of the variants that the experiment compares; by default all of them."""
    seeds: int = 0
    """Number of seeds; 0 is that of the experiment."""
    root: str = "runs/reproduce"
    """The directory of the runs."""
    record: bool = True
    """Write the results of full scale into experiments/results/NAME.json, which needs a clean working tree."""

    def directory(self, experiment: Experiment, variant: str = "", seed: int | None = None) -> Path:
        """The directory of one run, or of all runs of an experiment."""
        directory = Path(self.root, self.scale, experiment.name)
        return directory if seed is None else directory / f"{variant}-seed{seed}".removeprefix("-")


def load_recorded_runs(name: str, results: Path = RESULTS) -> list[dict]:
    """Return the runs in experiments/results/NAME.json, sorted by variant and seed; none without a file."""
    path = results / f"{name}.json"
    return read_json(path)["runs"] if path.exists() else []


def present_runs(experiment: Experiment) -> list[dict]:
    """The recorded runs under the present names of their variants: former ones had the same configuration."""
    runs, names = load_recorded_runs(experiment.name, experiment.results), experiment.former_variants
    return [{**run, "variant": names.get(run["variant"], run["variant"])} for run in runs]


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
    recorded runs. A run that diverges is recorded as {"diverged": reason}, without metrics. Returns the runs:
    {"variant", "seed", "metrics", "history", ...}.
    """
    if request.seeds < 0:
        raise InputError(f"--seeds must be 0, for the experiment's own number, or more; got {request.seeds}")
    full, declared = request.scale == "full", variants_to_run(experiment, request)
    variants = {variant: override(config) for variant, config in declared.items()}
    keep = full and request.record and (CHECKOUT or experiment.results != RESULTS)
    if keep:
        check_committed(experiment)
        check_options(experiment, declared, variants)
    planned, runs = {}, []
    for variant, config in variants.items():
        for seed in range(config.train.seed, config.train.seed + ((request.seeds or experiment.seeds) if full else 1)):
            planned[variant, seed] = request.directory(experiment, variant, seed)
            run_directory.check_place(planned[variant, seed], "--root")
    for (variant, seed), directory in planned.items():
        config = configs.replace(variants[variant], **{"train.seed": seed})
        archive_other(config, directory)
        if keep and (directory / "environment.json").exists():
            check_run(experiment, directory)
        run = {"variant": variant, "seed": seed} | run_or_diverge(config, directory, experiment, full)
        print(f"{experiment.name} {variant} seed {seed}: in {directory}".replace("  ", " "), flush=True)
        if keep:
            run["history"] = thin_history(experiment, run["history"])
            run |= run_origin(experiment, directory, ["reproduce", experiment.name, *words]) | bleu_by_length(directory)
            record_run(experiment.name, run, experiment.results)
            if not runs and variant == first_variant_histories(experiment)[0]:
                for figure in sorted((directory / "figures").glob("*.png")):
                    shutil.copyfile(figure, experiment.results / f"{experiment.name}-{figure.name}")
            draw_recorded(experiment)
        runs.append(run)
    by_variant, figure = runs_by_variant(experiment, runs), request.directory(experiment) / f"{experiment.name}.png"
    complete = experiment.figure and full and not keep and by_variant.keys() == variants.keys()
    if complete and experiment.figure(by_variant, figure):
        print(f"{experiment.name}: {figure}")
    return runs


def variants_to_run(experiment: Experiment, request: Reproduction) -> dict[str, Config]:
    """The configurations to run, by variant."""
    variants = {"": experiment.smoke()} if request.scale == "smoke" else experiment.variants()
    if request.variant is None:
        return variants
    if request.variant not in variants:
        listed = ", ".join(map(repr, variants))
        raise InputError(f"--variant must be one of {listed} for {experiment.name}, got {request.variant!r}")
    return {request.variant: variants[request.variant]}


def run_or_diverge(config: Config, directory: Path, experiment: Experiment, full: bool) -> dict:
    """Return the result of `config` in `directory`: read if finished, resumed if interrupted, or {"metrics": {},
    "history": [], "diverged": reason}; in a smoke run, which judges no claim, Diverged is raised."""
    has_started = (directory / "config.json").exists()
    try:
        result = run_directory.read_result(directory) or lifecycle.start(
            config, directory, study=experiment.study, resume=has_started
        )
    except Diverged as error:
        if not full:
            raise
        print(f"  diverged: {error}", flush=True)
        return {"metrics": {}, "history": [], "diverged": str(error)}
    return {name: value for name, value in result.items() if name != "experiment"}


def archive_other(config: Config, directory: Path):
    """Rename `directory` by its time if it has a run with other options than `config`."""
    has_started = (directory / "config.json").exists()
    if has_started and configs.differences(run_directory.read_config(directory, like=config), config):
        directory.rename(directory.with_name(f"{directory.name}-{time.strftime('%Y%m%d-%H%M%S')}"))


# what may be recorded


def is_built_in(experiment: Experiment) -> bool:
    """Whether the experiment's file is in experiments/ of the checkout."""
    return experiment.file is not None and experiment.file.is_relative_to(ROOT)


def refuse_to_record(experiment: Experiment, reason: str):
    """Raise InputError with the reason why an experiment is not recorded."""
    raise InputError(f"recording {experiment.name} needs {reason}, or add --no-record to run without recording")


def check_committed(experiment: Experiment):
    """Raise InputError if the working tree differs from the commit that a recorded number names.

    An experiment of the checkout needs git and all code committed. A user's file elsewhere must be committed if it is
    in a repository. An `Experiment` that was made in Python has no file, and nothing is checked.
    """
    if experiment.file is None:
        return
    if is_built_in(experiment) and provenance.commit() is None:
        refuse_to_record(experiment, "git and a clone of the repository, whose commit the record names: clone it")
    paths = () if is_built_in(experiment) else (experiment.file.parent, (experiment.file.name,))
    if changed := provenance.changes(*paths):
        listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        refuse_to_record(experiment, f"a clean working tree; not committed: {listed}; commit")


def check_options(experiment: Experiment, declared: dict[str, Config], overridden: dict[str, Config]):
    """Raise InputError if options of a built-in experiment, other than data files and the seed, are not those of its
    file: a recorded run is judged by the claims about its variant.
    """
    for variant, config in declared.items() if is_built_in(experiment) else ():
        changed = {option_name(field) for field in configs.differences(config, overridden[variant])}
        if options := ", ".join(sorted(changed - {"--train.seed", *user_data(config)})):
            refuse_to_record(experiment, f"the options of its file; got another value of {options}: leave it out")


def check_run(experiment: Experiment, directory: Path) -> str | None:
    """Raise InputError if a run was begun with code that is no commit of this repository, or is unfinished and the code
    has changed since; return the hash of the experiment's file in that commit, or of a user's file as it is."""
    if not is_built_in(experiment):
        return provenance.file_hash(experiment.file) if experiment.file else None
    environment = read_json(directory / "environment.json")
    commit, changed = environment.get("commit"), environment.get("changed")
    digest = commit and provenance.file_hash(experiment.file, commit)
    if commit is None or changed:
        reason = f"with code that is not committed ({', '.join(changed or ['no commit is known'])})"
    elif not run_directory.read_result(directory) and provenance.code_differs(commit):
        reason = f"at commit {commit[:10]}, and the code has changed since"
    elif digest is None:
        reason = f"at commit {commit[:10]}, which is not in this repository"
    else:
        return digest
    raise InputError(
        f"recording {experiment.name}: {directory} was begun {reason}; remove it to start again, or do not record it"
    )


def run_origin(experiment: Experiment, directory: Path, words: Sequence[str]) -> dict:
    """Return date, command, machine and commit of a run, and the hash of the experiment's file at that commit."""
    return {
        "date": str(datetime.date.today()),
        "command": command_of(words),
        "experiment_sha256": check_run(experiment, directory),
        "environment": read_json(directory / "environment.json"),
    }


def command_of(words: Sequence[str]) -> str:
    """Return the command `launch.py words` for the record: files without directories, and no output directory.

    >>> command_of(["reproduce", "--data.path=/home/date.txt.gz", "--root", "/tmp", "--data.source-file", "/a/x,/a/y"])
    'python launch.py reproduce --data.path date.txt.gz --data.source-file x,y'
    >>> command_of(["--variant", "d_k / 4"])
    "python launch.py --variant 'd_k / 4'"
    """
    split = [token for word in words for token in (word.split("=", 1) if word.startswith("--") else [word])]
    pairs = [pair for pair in zip(split, ["", *split]) if not {"--root", "--out"} & set(pair)]
    name = lambda word: ",".join(Path(path).name if "/" in path else path for path in word.split(","))
    names = [word if previous == "--variant" else name(word) for word, previous in pairs]
    return shlex.join(["python", "launch.py", *names])


def thin_history(experiment: Experiment, history: list[dict]) -> list[dict]:
    """Return the epochs to record: all; of more than LONG every 10th, 100th, ... and the last.

    Seeds of different lengths then share most epochs. A history stays whole if a claim reads single epochs of it.
    """
    by_epoch = any(quantity.reads_history for quantity in (*experiment.claims, *experiment.thresholds))
    if by_epoch or len(history) <= LONG:
        return history
    every = 10 ** math.ceil(math.log10(len(history) / LONG))
    return [row for number, row in enumerate(history, 1) if number % every == 0 or number == len(history)]


def bleu_by_length(directory: Path) -> dict:
    """{"bleu_by_length": {split: bins}} of a translation run, from its SPLIT.bleu.json files; {} for others."""
    files = {path.name.removesuffix(".bleu.json"): read_json(path) for path in sorted(directory.glob("*.bleu.json"))}
    bins = {split: file["by_length"] for split, file in files.items() if "by_length" in file}
    return {"bleu_by_length": bins} if bins else {}


# figures of what is recorded


def first_variant_histories(experiment: Experiment) -> tuple[str, list[list[dict]]]:
    """The main variant, which is the first recorded one, and the recorded histories of its seeds, which the learning
    curves show; none of one epoch, and none of an experiment of more than `COMPARED` variants, which one of them does
    not stand for. It may be one that the experiment no longer has, if only such are recorded."""
    runs = load_recorded_runs(experiment.name, experiment.results)
    measured = {run["variant"] for run in runs}
    first = next((variant for variant in experiment.variants() if variant in measured), min(measured, default=""))
    runs = runs if len(measured) <= COMPARED else []
    return first, [run["history"] for run in runs if run["variant"] == first and len(run.get("history", ())) > 1]


def runs_by_variant(experiment: Experiment, runs: Sequence[Mapping] | None = None) -> dict[str, list[Mapping]]:
    """Return the runs of each variant that has some which did not diverge, for the experiment's figure; by default the
    recorded ones."""
    finished = [run for run in (present_runs(experiment) if runs is None else runs) if not run.get("diverged")]
    variants = {variant: [run for run in finished if run["variant"] == variant] for variant in experiment.variants()}
    return {variant: its_runs for variant, its_runs in variants.items() if its_runs}


def draw_recorded(experiment: Experiment):
    """Plot the recorded runs of an experiment: learning curves, with the seeds of the first variant as a band, and the
    experiment's figure."""
    first, histories = first_variant_histories(experiment)
    if histories:
        from attention_jax.report.curves import learning_curves

        path = experiment.results / f"{experiment.name}-learning_curve.png"
        learning_curves(histories, path, experiment.variants().get(first), title=first)
    if not experiment.figure:
        draw_bleu_by_length(experiment)
    else:
        experiment.figure(runs_by_variant(experiment), experiment.results / f"{experiment.name}.png")


def draw_bleu_by_length(experiment: Experiment):
    """Plot BLEU by length on the test split of the first run of each variant that records it."""
    from attention_jax.report.bleu import LengthBin, length_figure

    bins = {}
    for variant, runs in runs_by_variant(experiment).items():
        for run in runs[:1]:
            of_test = run.get("bleu_by_length", {}).get("test", ())
            bins[variant or experiment.name] = [LengthBin(**length_bin) for length_bin in of_test]
    length_figure(bins, experiment.results / f"{experiment.name}-bleu_by_length.png", inputs=bins)


def draw_all():
    """`make figures`: the figures of all recorded experiments, from stored data alone."""
    for name in catalog.experiment_names():
        draw_recorded(catalog.load_experiment(name))


def estimate_seconds(experiment: Experiment, config: Config) -> float | None:
    """Return the seconds that one run of `config` takes on one core: the smallest recorded ones of the variant that
    has these options but for the seed, or what an experiment of one variant states; None for other options."""
    variants, seed = experiment.variants(), {"train.seed": config.train.seed}
    matching = [name for name, variant in variants.items() if configs.replace(variant, **seed) == config]
    runs = load_recorded_runs(experiment.name, experiment.results)
    if seconds := [run["seconds"] for run in runs if run["variant"] in matching and "seconds" in run]:
        return min(seconds)
    states = matching and len(variants) == 1 and experiment.minutes
    return 60 * experiment.minutes / experiment.seeds if states else None


if __name__ == "__main__":
    draw_all()
