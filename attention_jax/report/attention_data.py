"""Attention maps as plain values: `Task.attention_maps` computes them, and `report/attention_page.py` shows them.

An `AttentionRecord` is one input with its predictions, best first; a `Prediction` has one `Attention` for each kind of
attention of the model. Arrays are NumPy's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from attention_jax.errors import InputError

KINDS = {
    "encoder": "Self-attention of the input: each token attends to the tokens of the input.",
    "decoder": "Self-attention of the output: each generated token attends to the tokens before it.",
    "cross": "Cross-attention: each generated token attends to the input.",
    "pool": "Attention pooling: the classifier averages the tokens with these weights.",
    "memory": "Memory addressing: at each time step the heads attend to memory locations.",
    "kernel": "Kernel regression: at each query the estimate is the mean of the outputs of the data points, weighted.",
}
"""{kind of attention: its explanation on the page}"""

PROBABILITY = "the probability"
"""The measure of a classifier's prediction."""

LONGEST = 600
"""The largest number of tokens of an input that a page can show."""


@dataclass(frozen=True, eq=False)
class Axis:
    """The queries or the keys of an attention map: n tokens in order."""

    tokens: tuple[str, ...]
    """The n labels."""
    image: np.ndarray | None = None
    """[S, S, 1 or 3] bytes: the last G x G tokens are its patches, row by row."""
    points: np.ndarray | None = None
    """[n, 1] or [n, 2]: coordinates on the x axis, or in the plane."""
    channels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """{name: [n, C] in [0, 1]}: inputs and outputs at each position, such as the bits of a sequence."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The weights of one kind of attention in all layers and heads."""

    kind: str
    """One of KINDS."""
    weights: np.ndarray
    """[L, H, Q, K] in [0, 1]; with the softmax, a query's weights sum to one, or to zero if it is fully masked."""
    queries: Axis
    keys: Axis
    heads: tuple[str, ...] = ()
    """The names of the heads; "head 1", ... by default."""
    rollout: np.ndarray | None = None
    """[Q, K]: attention rollout through all layers (tasks/attention_maps.py)."""
    values: np.ndarray | None = None
    """[K]: scalar values; the page recomputes their weighted average without the keys that are switched off."""
    head_ablation: np.ndarray | None = None
    """[L, H]: the prediction's `measure` with the output of one head set to zero."""
    head_scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    """{kind: [L, H]}: scores of the heads on this input, by which the page sorts them (interpret/patterns.py)."""
    lens: tuple[tuple[str, ...], ...] = ()
    """[L][Q]: the most probable next token at each query by the logit lens after each layer; () without a lens."""
    first_layer: int = 1
    """The number of the first layer in `weights`."""
    without_key: Literal["divided", "unchanged", "unknown"] = "divided"
    """What the other weights of a query are without one key: divided by the rest of the sum, as with the softmax and
    other `Ratio` normalizers without a `summand`; unchanged, with a `Pointwise` one; or not a function of the weights
    alone."""

    def __post_init__(self):
        shape = (len(self.queries.tokens), len(self.keys.tokens))
        if self.kind not in KINDS or self.weights.ndim != 4 or self.weights.shape[2:] != shape or 0 in shape:
            raise InputError(
                f"an attention map needs a kind of {', '.join(KINDS)} and weights [layers, heads, queries, keys] "
                f"for {shape[0]} queries and {shape[1]} keys; got {self.kind} and {self.weights.shape}"
            )
        layers, heads = self.weights.shape[:2]
        read = {(len(self.lens), len(row)) for row in self.lens}
        if read - {(layers, shape[0])} or any(np.shape(x) != (layers, heads) for x in self.head_scores.values()):
            raise InputError(
                f"an attention map of {layers} layers, {heads} heads and {shape[0]} queries needs head scores [layers, "
                "heads], and a lens of a token for each layer and query, or none"
            )


@dataclass(frozen=True, eq=False)
class Prediction:
    """One output of a model for an input, and its attention maps."""

    text: str
    attentions: tuple[Attention, ...]
    score: float | None = None
    """The rank criterion: log p with length penalty for a beam, the probability for a classifier."""
    measure: str = ""
    """What `Attention.head_ablation` measures, such as "log p"; `value` is that of the full model."""
    value: float = 0.0


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """One input and the predictions for it."""

    title: str
    predictions: tuple[Prediction, ...]


def check_length(tokens: Sequence, text: str) -> None:
    """Raise InputError if the input `text` has too many `tokens` for a page."""
    if len(tokens) > LONGEST:
        raise InputError(f"a page shows at most {LONGEST} tokens; {text[:40]!r}... has {len(tokens)}: shorten it")
