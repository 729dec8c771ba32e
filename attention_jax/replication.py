"""The registered replication: variants that are trained again with fresh seeds, and the command that does it.

experiments/replication.json is committed before the first of these runs. It has the "commit" at which code and claims
are frozen, and the "rows" in the order in which they are to be run: {"experiment": name, "variant": name,
"first_seed": n, "seeds": n, "options": [...]}, where the options name data files. docs/replication.md says what counts
as failure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from attention_jax import Diverged, InputError, catalogue, config as configs, ledger
from attention_jax.catalogue import ROOT
from attention_jax.check import Here, Override, current_names, with_data
from attention_jax.files import read_json
from attention_jax.ledger import Reproduction

REGISTRATION = ROOT / "replication.json"


def rows(path: Path = REGISTRATION) -> list[Mapping]:
    """Return the registered rows of a file in their order; none without a file."""
    return read_json(path)["rows"] if path.exists() else []


def registered(path: Path = REGISTRATION) -> dict[tuple[str, str], frozenset[int]]:
    """The registered seeds by experiment and variant."""
    seeds = lambda row: range(row["first_seed"], row["first_seed"] + row["seeds"])
    return {(row["experiment"], row["variant"]): frozenset(seeds(row)) for row in rows(path)}


def replicate(path: Path, asked: Reproduction, names: Sequence[str], override: Override, here: Here):
    """Run and record the rows of `path` that are not recorded yet, those of the experiments `names` if there are any.

    Several processes may do this at the same time with the same `asked.root`; each skips runs that another one has
    locked. A run whose data are not available is skipped with a line, and one that diverges is recorded as such.
    """
    if not path.exists():
        raise InputError(f"--rows needs a file of registered rows, such as {REGISTRATION.name}; {path} does not exist")
    for row in rows(path):
        if names and row["experiment"] not in names:
            continue
        for seed in range(row["first_seed"], row["first_seed"] + row["seeds"]):
            try:
                replicate_once(row, seed, asked, override, here)
            except InputError as error:
                print(f"  not recorded: {error}", flush=True)


def replicate_once(row: Mapping, seed: int, asked: Reproduction, override: Override, here: Here):
    """Run and record one row with one seed, if it is not recorded."""
    experiment, variant = catalogue.load_experiment(row["experiment"]), row["variant"]
    done = ledger.recorded_runs(experiment.name, experiment.results)
    if (variant, seed) in {(run["variant"], run["seed"]) for run in done}:
        return
    print(" ".join(filter(None, [experiment.name, variant, f"seed {seed}"])), flush=True)
    declared = experiment.variant(variant)
    words = with_data(declared, current_names(declared, row.get("options", [])), here)
    seeded = lambda config: configs.replace(override(config, words), **{"train.seed": seed})
    once = replace(asked, scale="full", variant=variant, seeds=1)
    named = ["--variant", variant] if variant else []
    recorded = [*named, *words, "--train.seed", str(seed), "--seeds", "1"]
    try:
        ledger.reproduce(experiment, once, seeded, recorded)
    except Diverged as error:
        if ledger.should_record(experiment, once):
            directory = once.directory(experiment, variant, seed)
            command = ledger.command_of(["reproduce", experiment.name, *recorded])
            ledger.record_diverged(experiment, variant, seed, error, directory, command)
        print(f"  diverged: {error}", flush=True)
