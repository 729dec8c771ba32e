"""What a model attended to, as plain values: views gather them (`View.attention_maps`), `report/look.py` makes a page.

One `Looked` is an input; it has an `Answer` for each thing that the model made of it, the best first; an answer has an
`Attention` for each kind that the model has. Arrays are NumPy's, and nothing here computes a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attention_jax import InputError

KINDS = {
    "encoder": "The input looks at itself: what a token is told by the others.",
    "decoder": "Each written token looks at what was read before it was written.",
    "cross": "Each written token looks at the input.",
    "pool": "The classifier looks at the image's tokens, which it pools with these weights.",
    "memory": "At each time step the heads look at locations of the memory.",
    "kernel": "At each query the kernel weighs the data points; the estimate is the mean of their outputs.",
}
"""What can be looked at, and how a page introduces it."""

LONGEST = 600
"""Tokens of an input that a page can show."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a matrix of weights: what looks, or what is looked at. [n] things in order."""

    tokens: tuple[str, ...]
    """Their names, n."""
    image: np.ndarray | None = None
    """[S, S, 1 or 3] bytes: the last G x G tokens are its patches, row by row."""
    points: np.ndarray | None = None
    """[n, 1] or [n, 2]: their places on the x axis, or in the plane."""
    channels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """{name: [n, C] in [0, 1]}: what came in and went out beside each, such as the bits of a sequence."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The weights of one kind of attention in all layers and heads."""

    kind: str
    """One of KINDS."""
    weights: np.ndarray
    """[L, H, Q, K], non-negative; a row that may look somewhere sums to one."""
    queries: Side
    keys: Side
    heads: tuple[str, ...] = ()
    """Names of the heads; by default "head 1", ..."""
    rollout: np.ndarray | None = None
    """[Q, K]: the shares of the inputs after all layers (ops/rollout.py)."""
    values: np.ndarray | None = None
    """[K]: what is pooled, where it is a number a key: the page pools it again without the keys that are off."""
    without: np.ndarray | None = None
    """[L, H]: the answer's measure when the output of one head is zero, and everything else as it was."""
    lowest: int = 1
    """The number of the first layer here."""

    def __post_init__(self):
        shape = (len(self.queries.tokens), len(self.keys.tokens))
        if self.kind not in KINDS or self.weights.ndim != 4 or self.weights.shape[2:] != shape or 0 in shape:
            raise InputError(
                f"what was looked at needs a kind of {', '.join(KINDS)} and weights [layers, heads, queries, keys] "
                f"for {shape[0]} queries and {shape[1]} keys; got {self.kind} and {self.weights.shape}"
            )


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model made of an input, and where it looked."""

    text: str
    attentions: tuple[Attention, ...]
    score: float | None = None
    """By which answers are ordered: of a beam, log p over its length penalty; of a classifier, the probability."""
    measure: str = ""
    """What `Attention.without` measures, such as "log p"; `value` is that of the whole model."""
    value: float = 0.0


@dataclass(frozen=True, eq=False)
class Looked:
    """One input and what a model made of it."""

    title: str
    answers: tuple[Answer, ...]


def check_length(tokens: Sequence, what: str) -> None:
    """Raises InputError for an input that is too long for a page to show: `what` with its `tokens`."""
    if len(tokens) > LONGEST:
        raise InputError(f"a page shows at most {LONGEST} tokens; {what[:40]!r}... has {len(tokens)}: shorten it")
