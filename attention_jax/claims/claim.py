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
    deviation: float = 0.0
    """The standard deviation of its runs, where the source prints it."""
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
    registered: bool = False
    """Whether the claim was committed before any run of its configurations, and judged runs have registered seeds."""

    def __post_init__(self):
        super().__post_init__()
        if self.sign not in (-1, 1) and self.published is None:
            raise InputError(f"the claim {self.text!r} needs `published`, a number of the source, or `sign`, 1 or -1")
        if self.basis not in get_args(Basis):
            raise InputError(f"the claim {self.text!r} has the basis {self.basis!r}: choose one of {get_args(Basis)}")
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


@dataclass(frozen=True)
class Grid:
    """A table of measured numbers under the claims of an experiment: one line for each variant, without verdicts."""

    caption: str
    columns: dict[str, str]
    """{column: metric}"""
    variants: tuple[str, ...]
    minus: str | None = None
    """Show the differences to this variant, seed by seed."""
    texts: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Columns of text before the numbers: {column: {variant: text}}."""


@dataclass(frozen=True)
class Declarations:
    """The contents of NAME.toml."""

    claims: tuple[Claim, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    former_variants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{former name of a variant: its present name}: their runs have the same configuration and count together."""
    times: tuple[str, ...] = ()
    """Metrics that depend on the machine's speed, or beginnings of their names."""


def load_declarations(path: Path) -> Declarations:
    """The declarations of an experiment, of a file NAME.toml that may be missing.

    Keys of [defaults] hold for each claim and threshold that has no other value. `peer = [file, key]` takes `runs` from
    the file of the source's own runs in results/ (`peer_values`); `published` is their median by default. Raises
    InputError for a file or an entry that cannot be read.
    """
    if not path.exists():
        return Declarations()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name} is no TOML: {error}") from error
    if unknown := content.keys() - {"defaults", "claim", "threshold", "former", "times"}:
        raise InputError(f"{path.name} has {', '.join(sorted(unknown))}: it takes [[claim]], [[threshold]], [former]")
    defaults, results = content.get("defaults", {}), path.parent / "results"
    return Declarations(
        tuple(_entry(Claim, defaults, entry, path.name, results) for entry in content.get("claim", ())),
        tuple(_entry(Threshold, defaults, entry, path.name, results) for entry in content.get("threshold", ())),
        content.get("former", {}),
        tuple(content.get("times", ())),
    )


def _entry(kind: type, defaults: Mapping, entry: Mapping, name: str, results: Path):
    """A claim or threshold of the table `entry`; defaults that a threshold does not take are left out."""
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {key: value for key, value in defaults.items() if key in fields} | dict(entry)
    if peer := values.pop("peer", None):
        values["runs"] = peer_values(results / peer[0], peer[1:], values)
        values.setdefault("published", round(median(values["runs"]), 4))
    values |= {key: tuple(values[key]) for key in ("also", "runs") if key in values}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{name}: {entry.get('text', 'an entry without text')!r}: {error}") from error


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
