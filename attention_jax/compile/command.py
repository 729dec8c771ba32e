"""`launch.py compile`: compile the programs of one experiment for one target and print their memory and cost."""

import sys
from collections.abc import Sequence
from pathlib import Path

from attention_jax import config as configs
from attention_jax.claims import catalog, record
from attention_jax.claims.catalog import Experiment
from attention_jax.compile.compared import compare_normalizers, select_normalizers
from attention_jax.compile.programs import compile_program, programs, table, to_json
from attention_jax.compile.targets import devices, parse_target
from attention_jax.errors import InputError
from attention_jax.files import write_json
from attention_jax.tasks import standin


def compile_experiment(
    experiment: Experiment,
    config: configs.Config,
    target_name: str,
    facts: Sequence[str],
    out: str = "",
    normalizers: Sequence[str] = (),
) -> dict:
    """Compile the programs of `config` for a target, print each, and write all to the JSON file `out` if it is given.

    With `normalizers` ("all", or their names) the training program is also compiled with each of them. `facts` are
    sizes of the data such as "classes=1000", which override the recorded ones. Returns the contents of the file.

    Raises InputError for an unknown target, a missing compiler, missing data, and an experiment without training.
    """
    if experiment.study:
        raise InputError(
            f"compile needs an experiment that trains; {experiment.name} is a computation without training"
        )
    target = parse_target(target_name)
    devices(target)  # a missing compiler is reported before anything is loaded
    names = select_normalizers(normalizers, config) if normalizers else ()
    facts = find_data_sizes(experiment, config) | parse_facts(facts)
    task = standin.placeholder_task(config, facts)
    if not config.data.is_local:
        print("the data are not available: arrays of zeros with their shapes replace them", file=sys.stderr)
    chip, outcomes = target.chip, []
    print(f"{config.name} for {target.devices} x {chip.name}")
    for program in programs(task, config, target):
        outcomes.append(compile_program(program, target))
        print("\n" + table(outcomes[-1]), flush=True)
    report = to_json(config.name, target, outcomes)
    if names:
        compared = compare_normalizers(config, facts, names, target)
        rows = to_json(config.name, target, list(compared.values()))["programs"]
        report["normalizers"] = dict(zip(compared, rows, strict=True))
    if out:
        write_json(Path(out), report)
    return report


def find_data_sizes(experiment: Experiment, config: configs.Config) -> dict:
    """Return the sizes of the data, by priority: from a recorded run of the experiment, from the experiment's file, or
    from a recorded run of another experiment with the same data."""
    if sizes := find_recorded_sizes(experiment, config) or experiment.facts:
        return sizes
    experiments = (catalog.load_experiment(name) for name in catalog.experiment_names())
    return next(filter(None, (find_recorded_sizes(candidate, config) for candidate in experiments)), {})


def find_recorded_sizes(experiment: Experiment, config: configs.Config) -> dict:
    """Return the data sizes that a recorded run of this experiment with the data of `config` has; {} without one."""
    variants = experiment.variants()
    for recorded in record.load_recorded_runs(experiment.name, experiment.results):
        variant = variants.get(recorded["variant"])
        if variant and variant.data == config.data:
            return recorded.get("facts", {})
    return {}


def parse_facts(facts: Sequence[str]) -> dict[str, int]:
    """Parse `--facts name=size ...`; InputError unless every size is a positive integer.

    >>> parse_facts(["classes=1000"])
    {'classes': 1000}
    """
    sizes = {}
    for fact in facts:
        name, _, number = fact.partition("=")
        if not number.isdigit() or not int(number):
            raise InputError(f"--facts needs sizes such as classes=1000 train_images=8192; got {fact!r}")
        sizes[name] = int(number)
    return sizes
