"""What an experiment states about its numbers, in NAME.toml beside its file: claims, thresholds and former names.

A claim compares with something published, a number or the sign of a difference; `rule.py` judges it. A threshold is a
bound of this project or a statement of theory, which tests hold against the recorded runs.
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Literal, get_args

from attention_jax.errors import InputError
from attention_jax.files import read_json

Basis = Literal["printed", "decoded", "code", "count"]
"""Where a published number comes from: the source prints it; it was decoded from a curve that the source shows; our run
of the source's own code; or a count, without training."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of an experiment's runs; the fields that `Claim` and `Threshold` share."""

    text: str
    metric: str
    """The metric in the run's result, such as "test.bleu"."""
    source: str
    """The paper with its table, figure or equation."""
    variant: str = ""
    """The variant of the experiment whose runs have the number."""
    also: tuple[str, ...] = ()
    """More metrics of the final evaluation: the mean of all of them and `metric` is taken."""
    minus: str | None = None
    """Take the difference `variant` - `minus`, seed by seed."""
    epoch: int | None = None
    """Take the metric after this epoch instead of the final evaluation."""
    best: bool = False
    """Take the metric of its best epoch."""
    last: int = 0
    """Take the mean of the metric over the last N epochs."""

    @property
    def reads_history(self) -> bool:
        """Whether the number is one of epochs, not of the final evaluation."""
        return bool(self.epoch is not None or self.best or self.last)

    def __post_init__(self):
        if sum(map(bool, (self.also, self.epoch is not None, self.best, self.last))) > 1:
            raise InputError(f"{self.text!r} has more than one of `also`, `epoch`, `best` and `last`")
        if self.best and self.metric.startswith("test"):
            raise InputError(f"{self.text!r} takes the best epoch of {self.metric}, a test split: name an epoch")


@dataclass(frozen=True, kw_only=True)
class Claim(Quantity):
    """A number of a source, or with a `sign` the order of two, beside ours.

    Raises InputError where there is nothing to compare with.

    >>> Claim(text="BLEU", metric="test.bleu", source="table 2", published=28.4).basis
    'printed'
    >>> Claim(text="BLEU", metric="test.bleu", source="table 2")
    Traceback (most recent call last):
    attention_jax.errors.InputError: the claim 'BLEU' needs `published`, a number of the source, or `sign`, 1 or -1
    """

    published: float | None = None
    """The number that the source prints, or the median of its runs."""
    runs: tuple[float, ...] = ()
    """The numbers of the source's own runs, where they are known."""
    mean_of: int = 1
    """The number of runs of which the source prints the mean, with their `deviation`."""
    deviation: float = 0.0
    """The standard deviation of these runs."""
    best_of: int = 0
    """The number of runs or epochs of which the source prints the best, which is not judged."""
    rounding: float = 0.0
    """The largest error of rounding of the printed number."""
    sign: Literal[-1, 0, 1] = 0
    """The sign of the number in the source, which makes the claim one about an order."""
    basis: Basis = "printed"
    differs: str = ""
    """What differs from the source, in a line; empty if data, metric, budget and selection are the same."""
    cause: str = ""
    """The suspected cause of a difference or an opposite sign, in a line."""
    headline: str = ""
    """The name of the number in the figure of published numbers; empty leaves it out."""
    in_readme: bool = False
    """Whether README's table has it."""

    @property
    def label(self) -> str:
        """The name of the number in tables of all experiments."""
        return self.headline or self.text

    def __post_init__(self):
        super().__post_init__()
        if self.sign not in (-1, 1) and self.published is None:
            raise InputError(f"the claim {self.text!r} needs `published`, a number of the source, or `sign`, 1 or -1")
        if self.basis not in get_args(Basis):
            raise InputError(f"the claim {self.text!r} has the basis {self.basis!r}: choose one of {get_args(Basis)}")
        if (self.mean_of > 1) != (self.deviation > 0):
            raise InputError(f"the claim {self.text!r} needs `mean_of` and `deviation` together")
        if self.runs and not min(self.runs) <= self.published <= max(self.runs):
            raise InputError(f"the claim {self.text!r} needs a published number among its runs; got {self.published}")


@dataclass(frozen=True, kw_only=True)
class Threshold(Quantity):
    """Bounds that the median of the recorded runs meets, or with `missed` does not; a test says if that changes.

    Raises InputError without bounds.
    """

    at_least: float | None = None
    at_most: float | None = None
    theory: bool = False
    """Whether it is a theorem or a closed form."""
    missed: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.at_least is None and self.at_most is None:
            raise InputError(f"the threshold {self.text!r} needs `at_least` or `at_most`")

    def is_met(self, value: float) -> bool:
        """Whether a number lies within the bounds; NaN does not."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


def load_declarations(path: Path) -> dict:
    """The fields of an `Experiment` that its file NAME.toml states: `claims`, `thresholds`, `former_variants` and
    `times`, all empty if the file is missing.

    Keys of [defaults] hold for each claim and threshold that has no other value. `peer = [file, key]` takes `runs` from
    the file of the source's own runs in results/ (`peer_values`); `published` is their median by default. Raises
    InputError for a file or an entry that cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name} is no TOML: {error}") from error
    if unknown := content.keys() - {"defaults", "claim", "threshold", "former", "times"}:
        raise InputError(f"{path.name} has {', '.join(sorted(unknown))}: it takes [[claim]], [[threshold]], [former]")
    defaults = content.get("defaults", {})
    return {
        "claims": tuple(_entry(Claim, defaults, entry, path) for entry in content.get("claim", ())),
        "thresholds": tuple(_entry(Threshold, defaults, entry, path) for entry in content.get("threshold", ())),
        "former_variants": content.get("former", {}),
        "times": tuple(content.get("times", ())),
    }


def _entry(kind: type, defaults: Mapping, entry: Mapping, path: Path):
    """A claim or threshold of the table `entry`; defaults that a threshold does not take are left out."""
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {key: value for key, value in defaults.items() if key in fields} | dict(entry)
    if peer := values.pop("peer", None):
        values["runs"] = peer_values(path.parent / "results" / peer[0], peer[1:], values)
        values.setdefault("published", round(median(values["runs"]), 4))
    values |= {key: tuple(values[key]) for key in ("also", "runs") if key in values}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{path.name}: {entry.get('text', 'an entry without text')!r}: {error}") from error


def peer_values(path: Path, keys: Sequence[str], selection: Mapping) -> tuple[float, ...]:
    """The numbers of the source's own runs in results/FILE_peer.json.

    `keys` are (key,) of {"seeds": [{key: number}]}, (name, key) of {"runs": {name: [{key: number}]}}, where (name, key,
    setting, value) takes the runs with this value of a setting, or (name,) of {"histories": {name: [numbers by epoch, a
    list a run]}}: after the epoch of `selection`, or the mean of its `last`.
    """
    content = read_json(path)
    if "histories" in content:
        epoch, last = selection.get("epoch"), selection.get("last", 0)
        number = lambda history: fmean(history[-last:]) if last else history[-1 if epoch is None else epoch - 1]
        values = [number(history) for history in content["histories"][keys[0]]]
    else:
        key, *setting = keys[-1:] if len(keys) == 1 else keys[1:]
        runs = content["seeds"] if len(keys) == 1 else content["runs"][keys[0]]
        values = [run[key] for run in runs if not setting or run[setting[0]] == setting[1]]
    return tuple(round(value, 4) for value in values)
