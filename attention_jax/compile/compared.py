"""Memory, FLOPs and bytes accessed of an experiment's training step with each normalizer, relative to softmax."""

from collections.abc import Sequence

from attention_jax import config as configs
from attention_jax.compile.programs import Outcome, amount, compile_program, size, training
from attention_jax.compile.targets import Target
from attention_jax.config.models import NORMALIZERS
from attention_jax.errors import InputError
from attention_jax.tasks import standin

ALL = tuple("top_k(8)" if name == "top_k" else name for name in NORMALIZERS)
"""The normalizers of `--normalizers all`."""


def select_normalizers(names: Sequence[str], config: configs.Config) -> tuple[str, ...]:
    """Return the normalizers to compile: the softmax as the baseline, then `names`.

    Raises InputError for an unknown normalizer, and for a model without the option `normalizer`.

    >>> select_normalizers(["sigmoid(-4)"], configs.Config("x", None, configs.ViTConfig()))
    ('softmax', 'sigmoid(-4)')
    """
    if not hasattr(config.model, "normalizer"):
        raise InputError(
            f"--normalizers needs a model with the option --model.normalizer; {type(config.model).__name__} lacks it"
        )
    names = ALL if tuple(names) == ("all",) else tuple(names)
    for name in names:
        configs.replace(config.model, normalizer=name)  # raises InputError for an unknown name
    return tuple(dict.fromkeys(("softmax", *names)))


def compare_normalizers(
    config: configs.Config, facts: dict, names: Sequence[str], target: Target
) -> dict[str, Outcome]:
    """Compile the training program with each normalizer, print a table row for each, and return {name: outcome}."""
    print(f"\ntraining with each normalizer, in brackets relative to {names[0]}; XLA counts loops once,")
    print("such as the search for a threshold")
    print(f"  {'normalizer':16} {'memory':>20} {'temporaries':>20} {'FLOP':>16} {'B accessed':>16}")
    outcomes: dict[str, Outcome] = {}
    for name in names:
        with_it = configs.replace(config, **{"model.normalizer": name})
        outcomes[name] = compile_program(training(standin.placeholder_task(with_it, facts), with_it, target), target)
        print(line(name, outcomes[name], outcomes[names[0]]), flush=True)
    return outcomes


def line(name: str, outcome: Outcome, first: Outcome) -> str:
    """Format a table row: memory, temporaries, FLOP and bytes accessed, with ratios to those of `first`."""
    if outcome.report is None:
        return f"  {name:16} {size(outcome.needs):>20}: does not fit"

    def cell(get, format_value, width):
        value, start = get(outcome), first.report and get(first)
        share = f" ({value / start:.2f})" if start and value is not None else ""
        return f"{'-' if value is None else format_value(value) + share:>{width}}"

    cells = (
        cell(lambda o: o.needs, size, 20),
        cell(lambda o: o.report.temporaries, size, 20),
        cell(lambda o: o.report.flops, amount, 16),
        cell(lambda o: o.report.bytes_accessed, amount, 16),
    )
    return f"  {name:16} {' '.join(cells)}"
