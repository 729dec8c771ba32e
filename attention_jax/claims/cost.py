"""What a run costs: the smallest recorded seconds of its variant, as other seeds may have shared the machine."""

from collections.abc import Mapping, Sequence

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.record import load_recorded_runs
from attention_jax.config import Config, replace


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
        name: replace(variant_config, **{"train.seed": config.train.seed})
        for name, variant_config in experiment.variants().items()
    }
    seconds = smallest_seconds(load_recorded_runs(experiment.name, experiment.results))
    for name, variant_config in seeded.items():
        if variant_config == config:
            alone = 60 * experiment.minutes / experiment.seeds if experiment.minutes and len(seeded) == 1 else None
            return seconds.get(name, alone)
    return None


def duration(seconds: float) -> str:
    """Format a duration for people.

    >>> duration(3.2), duration(44), duration(95), duration(8711)
    ('a few seconds', 'about 44 seconds', 'about 1.6 minutes', 'about 2.4 hours')
    """
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {seconds:.0f} seconds"
    return f"about {seconds / 60:.2g} minutes" if seconds < 5400 else f"about {seconds / 3600:.2g} hours"
