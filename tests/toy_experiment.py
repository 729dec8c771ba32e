"""An experiment without training, for tests of what is done with its results."""

from pathlib import Path

from attention_jax import config as configs
from attention_jax.catalog import Experiment

CONFIG = configs.Config("toy", configs.Dates(), configs.LuongSeq2seqConfig())


def toy(results: Path, **fields) -> Experiment:
    """The experiment "toy" with one variant and no study; `fields` replace what an `Experiment` has."""
    defaults = {
        "name": "toy",
        "doc": "A toy.",
        "config": lambda: CONFIG,
        "smoke": lambda: CONFIG,
        "variants": lambda: {"": CONFIG},
        "presets": dict,
        "results": results,
    }
    return Experiment(**defaults | fields)
