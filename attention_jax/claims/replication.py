"""`launch.py reproduce --rows`: run and record what a file of experiments/registered/ has.

The file is committed before the first of these runs. It has the "commit" at which code and claims are frozen, and the
"rows" in the order in which they are to be run: {"experiment": name, "variant": name, "first_seed": n, "seeds": n,
"options": [...]}, where the options name data files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attention_jax import config as configs, provenance
from attention_jax.claims import catalog, record
from attention_jax.claims.catalog import CHECKOUT
from attention_jax.claims.record import Reproduction, current_names
from attention_jax.config import Config
from attention_jax.errors import InputError
from attention_jax.files import data_home, read_json


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
        raise InputError(
            f"--rows needs a file of registered rows, such as {record.REGISTRATION.name}; {path} does not exist"
        )
    frozen = read_json(path)["commit"]
    if request.record and CHECKOUT and provenance.code_differs(frozen):
        raise InputError(
            f"--rows records from the commit at which {path.name} froze the code, {frozen[:10]}, and the code of this "
            "checkout is another: check that commit out in a clone, or add --no-record to run without recording"
        )
    for row in record.load_rows(path):
        if names and row["experiment"] not in names:
            continue
        for seed in record.seeds_of_row(row):
            try:
                replicate_once(row, seed, request, override, local_settings)
            except InputError as error:
                print(f"  not recorded: {error}", flush=True)


def replicate_once(row: Mapping, seed: int, request: Reproduction, override: Override, local_settings: LocalSettings):
    """Run and record one row with one seed, if it is not recorded."""
    experiment, variant = catalog.load_experiment(row["experiment"]), row["variant"]
    recorded = record.load_recorded_runs(experiment.name, experiment.results)
    if (variant, seed) in {(run["variant"], run["seed"]) for run in recorded}:
        return
    print(" ".join(filter(None, [experiment.name, variant, f"seed {seed}"])), flush=True)
    declared = experiment.variant(variant)
    words = resolve_data_paths(declared, current_names(declared, row.get("options", [])), local_settings)
    with_seed = lambda config: configs.replace(override(config, words), **{"train.seed": seed})
    once = replace(request, scale="full", variant=variant, seeds=1)
    variant_words = ["--variant", variant] if len(experiment.variants()) > 1 else []
    record.reproduce(experiment, once, with_seed, [*variant_words, *words, "--train.seed", str(seed), "--seeds", "1"])


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
