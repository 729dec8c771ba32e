"""Claims of experiments: a number, its bounds, and the kind of its comparison."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from attention_jax.errors import InputError

Kind = Literal["same protocol", "other protocol", "exact", "order", "aim", "measurement"]


@dataclass(frozen=True)
class Bound:
    """A number of an experiment's runs with its bounds; the fields that `Claim` and `Withdrawn` share.

    With several seeds the median is judged, or the `seeds_needed`-th best.
    """

    text: str
    metric: str
    """The metric in the run's result, such as "test.bleu"."""
    published: float | None
    """The number in the source, or None."""
    source: str
    """The paper with its table, figure or equation."""
    variant: str = ""
    """The variant of the experiment whose runs have the number."""
    also: tuple[str, ...] = ()
    """More metrics of the final evaluation: the mean of all of them and `metric` is judged."""
    minus: str | None = None
    """Judge the difference `variant` - `minus`, seed by seed."""
    epoch: int | None = None
    """Take the metric after this epoch instead of the final evaluation."""
    best: bool = False
    """Take the metric of its best epoch."""
    last: int = 0
    """Take the mean of the metric over the last N epochs."""
    at_least: float | None = None
    at_most: float | None = None
    seeds_needed: int = 0
    """Judge the n-th best seed: 4 of five seeds means "on at least 4 of 5"; 0 judges the median."""

    @property
    def has_bounds(self) -> bool:
        """Whether a result could miss this."""
        return self.at_least is not None or self.at_most is not None


@dataclass(frozen=True, kw_only=True)
class _ClaimFields:
    kind: Kind
    """The kind of comparison:

    same protocol: a published number obtained with the same data, preprocessing, metric, training budget and model
    selection; other protocol: a published number where something differs (`differs`); exact: a theorem or a closed
    form; order: only a sign or an order; aim: a bound of our own; measurement: no bound.
    """
    differs: str = ""
    """The difference from the source, in one line, if the kind is "other protocol"."""
    spread: tuple[float, float] | None = None
    """The lowest and the highest of the source's own runs, editions or seeds."""
    since: str = ""
    """The day on which the bounds were committed, as YYYY-MM-DD."""
    after: str = ""
    """The results that were known on that day; empty if there were none."""
    timed: bool = False
    """The number is a time, which another machine changes: `reproduce --check` shows it without a verdict."""


@dataclass(frozen=True)
class Claim(_ClaimFields, Bound):
    """A number with the bounds within which it is met.

    Raises InputError where the kind does not fit the other fields.

    >>> Claim("error", "test.error", 0.0, "theorem 1", kind="exact", at_most=1e-6).has_bounds
    True
    >>> Claim("BLEU", "test.bleu", 28.4, "table 2", kind="other protocol", at_least=27.0)
    Traceback (most recent call last):
    attention_jax.errors.InputError: the claim 'BLEU' of another protocol needs `differs`: say what differs in a line
    """

    def __post_init__(self):
        if self.kind not in get_args(Kind):
            raise InputError(f"the claim {self.text!r} has the kind {self.kind!r}: choose one of {get_args(Kind)}")
        if (self.kind == "measurement") == self.has_bounds:
            raise InputError(f"the claim {self.text!r} is of kind {self.kind!r}: only a measurement has no bounds")
        if self.kind in ("same protocol", "other protocol") and self.published is None:
            raise InputError(f"the claim {self.text!r} is of kind {self.kind!r}, which needs a published number")
        if self.kind == "other protocol" and not self.differs:
            raise InputError(f"the claim {self.text!r} of another protocol needs `differs`: say what differs in a line")
        if sum(map(bool, (self.also, self.epoch is not None, self.best, self.last))) > 1:
            raise InputError(f"the claim {self.text!r} has more than one of `also`, `epoch`, `best` and `last`")
        if self.best and self.metric.startswith("test"):
            raise InputError(
                f"the claim {self.text!r} takes the best epoch of {self.metric}, a test split: name an epoch"
            )

    @property
    def near_intervals(self) -> list[tuple[float, float]]:
        """The intervals of reproduced numbers of the same protocol: the source's spread, and 5 % around its number."""
        share = 0.05 * abs(self.published)
        return [(self.published - share, self.published + share), *([self.spread] if self.spread else [])]


@dataclass(frozen=True, kw_only=True)
class _WithdrawnFields:
    since: str
    """The day on which the bounds were first committed, as YYYY-MM-DD."""
    until: str
    """The day on which they were replaced or removed."""
    reason: str
    """Why, in one sentence."""
    bar: float | None = None
    """A former bar: the value from which the record once said "beaten"."""
    today: str | None = None
    """The present name of the variant, if it has been renamed."""


@dataclass(frozen=True)
class Withdrawn(_WithdrawnFields, Bound):
    """A former bound that no longer decides a status; docs/results/NAME.md compares it with the recorded results.

    The bounds of built-in experiments are in experiments/withdrawn.json.
    """

    @property
    def on_record(self) -> "Withdrawn":
        """The withdrawn bound, applied to the variant of today's record."""
        return self if self.today is None else dataclasses.replace(self, variant=self.today)


@dataclass(frozen=True)
class Grid:
    """A table of measured numbers under the claims of an experiment: one line for each variant, without verdicts."""

    caption: str
    columns: dict[str, str]
    """{column: metric}"""
    variants: tuple[str, ...]
    minus: str | None = None
    """Show the differences to this variant, seed by seed."""
