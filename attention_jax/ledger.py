"""Finding experiments, and holding their measured results against their claims (`launch.py list` and `reproduce`)."""

import datetime
import difflib
import importlib
import json
import re
import shutil
import time
from pathlib import Path

from attention_jax import InputError, config as configs, runs
from attention_jax.files import write_json

ROOT = Path(__file__).resolve().parents[1] / "experiments"
RESULTS = ROOT / "results"


def names() -> list[str]:
    """The names of all experiment files, sorted."""
    return sorted(path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_"))


def load(name: str):
    """The module experiments/NAME.py; InputError with suggestions for a name that does not exist."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
        hint = f"perhaps you meant {' or '.join(near)}" if near else "`launch.py list` shows them all"
        raise InputError(f"there is no experiment {name!r}; {hint}")
    return importlib.import_module(f"experiments.{name}")


def variants(module) -> dict[str, configs.Config]:
    """The configurations an experiment compares, by name; most have one, named ""."""
    return module.variants() if hasattr(module, "variants") else {"": module.config()}


def headline(module) -> dict[str, str]:
    """The first line of an experiment's docstring (its claim) and its "Source:", "Data:" and "Cost:" lines."""
    found = {"claim": "", "source": "", "data": "", "cost": ""}
    for paragraph in (module.__doc__ or "").strip().split("\n\n"):
        for part in re.split(r"\n(?=[A-Z][a-z]+: )", paragraph):
            key, _, text = part.partition(": ")
            if key in ("Source", "Data", "Cost"):
                found[key.lower()] = " ".join(text.split())
    found["claim"] = (module.__doc__ or "").strip().partition("\n")[0]
    return found


def recorded(name: str) -> dict:
    """The committed results of an experiment: {"experiment": name, "runs": [...]}."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"experiment": name, "runs": []}


def record(name: str, run: dict):
    """Put `run` into experiments/results/NAME.json, in the place of an earlier run of the same variant and seed."""
    kept = [old for old in recorded(name)["runs"] if (old["variant"], old["seed"]) != (run["variant"], run["seed"])]
    RESULTS.mkdir(exist_ok=True)
    write_json(
        RESULTS / f"{name}.json",
        {"experiment": name, "runs": sorted([*kept, run], key=lambda r: (r["variant"], r["seed"]))},
    )


def reproduce(
    name: str, override, only: str, seeds: int | None, scale: str, root: Path, arguments: list[str]
) -> list[dict]:
    """Run every variant of an experiment, or `only` the one named, with every seed (what has ended is kept, what was interrupted goes on).

    `override(config)` applies the command line's options. At scale "full" the results are recorded, and the experiment's own figure, a
    function `figure(directories, path)`, compares the first run of each variant that has ended.
    """
    module = load(name)
    chosen = {"": module.smoke()} if scale == "smoke" else variants(module)
    if only and only not in chosen:
        raise InputError(f"--variant must be one of {', '.join(map(repr, chosen))} for {name}, got {only!r}")
    chosen = {only: chosen[only]} if only else chosen
    place = lambda variant, seed: root / scale / name / (f"{variant}-seed{seed}" if variant else f"seed{seed}")
    done = []
    for variant, default in chosen.items():
        first = default.train.seed
        for seed in range(first, first + (1 if scale == "smoke" else seeds or getattr(module, "SEEDS", 1))):
            config = configs.replace(override(default), **{"train.seed": seed})
            directory = place(variant, seed)
            result = run_once(config, directory, getattr(module, "study", None))
            run = {"variant": variant, "seed": seed} | {
                k: v for k, v in result.items() if k not in ("experiment", "seed")
            }
            if scale == "full":
                shown = [
                    Path(a).name if "/" in a else a
                    for a, before in zip(arguments, ["", *arguments])
                    if "--root" not in (a, before)
                ]
                run |= {
                    "date": str(datetime.date.today()),
                    "command": " ".join(["python launch.py reproduce", name, *shown]),
                }
                run["environment"] = json.loads((directory / "environment.json").read_text(encoding="utf-8"))
                record(name, run)
                if not done:
                    keep_figures(name, directory)
            done.append(run)
    if scale == "full" and hasattr(module, "figure"):
        firsts = {variant: place(variant, config.train.seed) for variant, config in variants(module).items()}
        module.figure({variant: d for variant, d in firsts.items() if runs.read_result(d)}, RESULTS / f"{name}.png")
    return done


def run_once(config: configs.Config, directory: Path, study) -> dict:
    """The result of `config` in `directory`: read if it is there, gone on with if it was begun, else run from the start."""
    result = runs.read_result(directory)
    begun = (directory / "config.json").exists()
    if begun and configs.differences(runs.read_config(directory), config):
        directory.rename(
            directory.with_name(f"{directory.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        )  # of other options: kept aside
        result, begun = None, False
    return result or runs.start(config, directory, study=study, resume=begun)


def keep_figures(name: str, directory: Path):
    """Copy the figures of the first run beside its results."""
    for figure in sorted((directory / "figures").glob("*.png")):
        shutil.copyfile(figure, RESULTS / f"{name}-{figure.name}")
