"""`launch.py compile`: compile the programs of one experiment for one target and print their memory and cost."""

import sys
from collections.abc import Sequence
from pathlib import Path

from attention_jax import config as configs
from attention_jax.claims import catalog, record
from attention_jax.claims.catalog import Experiment
from attention_jax.compile.compared import chosen, compare
from attention_jax.compile.programs import compiled, programs, table, to_json
from attention_jax.compile.targets import devices, parse
from attention_jax.errors import InputError
from attention_jax.files import write_json
from attention_jax.tasks import standin


def run(
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
    target = parse(target_name)
    devices(target)  # a missing compiler is reported before anything is loaded
    names = chosen(normalizers, config) if normalizers else ()
    facts = known(experiment, config) | given(facts)
    task = standin.task(config, facts)
    if not config.data.is_local:
        print("the data are not available: arrays of zeros with their shapes replace them", file=sys.stderr)
    chip, outcomes = target.chip, []
    print(f"{config.name} for {target.devices} x {chip.name}")
    for program in programs(task, config, target):
        outcomes.append(compiled(program, target))
        print("\n" + table(outcomes[-1]), flush=True)
    found = to_json(config.name, target, outcomes)
    if names:
        compared = compare(config, facts, names, target)
        rows = to_json(config.name, target, list(compared.values()))["programs"]
        found["normalizers"] = dict(zip(compared, rows, strict=True))
    if out:
        write_json(Path(out), found)
    return found


def known(experiment: Experiment, config: configs.Config) -> dict:
    """Return the sizes of the data, by priority: from a recorded run of the experiment, from the experiment's file, or
    from a recorded run of another experiment with the same data."""
    if found := recorded_facts(experiment, config) or experiment.facts:
        return found
    others = (catalog.load_experiment(name) for name in catalog.names())
    return next(filter(None, (recorded_facts(other, config) for other in others)), {})


def recorded_facts(experiment: Experiment, config: configs.Config) -> dict:
    """Return the data sizes that a recorded run of this experiment with the data of `config` has; {} without one."""
    variants = experiment.variants()
    for recorded in record.recorded_runs(experiment.name, experiment.results):
        variant = variants.get(recorded["variant"])
        if variant and variant.data == config.data:
            return recorded.get("facts", {})
    return {}


def given(facts: Sequence[str]) -> dict[str, int]:
    """Parse `--facts name=size ...`; InputError unless every size is a positive integer.

    >>> given(["classes=1000"])
    {'classes': 1000}
    """
    sizes = {}
    for fact in facts:
        name, _, number = fact.partition("=")
        if not number.isdigit() or not int(number):
            raise InputError(f"--facts needs sizes such as classes=1000 train_images=8192; got {fact!r}")
        sizes[name] = int(number)
    return sizes
