"""Scores and normalizers by name, with their weights owned by a module."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.config import SCORES
from attention_jax.config.models import NORMALIZERS, POOLS
from attention_jax.errors import InputError
from attention_jax.models.parts import ConstantPart, PartFactory, make_part, parse_part
from attention_jax.ops import scores
from attention_jax.ops.biases import Bias, Location
from attention_jax.ops.normalizer_kinds import Normalizer, Threshold
from attention_jax.ops.normalizers import ScalableSoftmax, Sigmoid, Softmax, as_normalizer, q_exponential, q_logarithm
from attention_jax.ops.pooling import LogMixture, Pool
from attention_jax.ops.precision import as_type
from attention_jax.ops.trees import on_examples, pytree

POSITIONS = 128
"""Maximum number of source positions of the score "location"."""


@pytree
@dataclass(frozen=True)
class ScaledGeneral(scores.Bilinear):
    """q^T W k / sqrt(D): "general" with the scale of Vaswani et al. 2017, eq. 1; of `experiments/input_feeding.py`."""

    def __call__(self, query, key):
        return super().__call__(query, key) * query.shape[-1] ** -0.5

    def prepare_key(self, key):
        return scores.ScaledDot(), super().prepare_key(key)[1]


SAME_WIDTH = ("dot", "scaled_dot", "cosine", "gaussian", "qk_norm", "soft_cap")


def parse_score(name: str) -> PartFactory:
    """The score that `name` names (`parts.parse_part`): a key of `config.models.SCORES` or an import path."""
    if name.partition("(")[0] not in SCORES and ":" not in name:
        raise InputError(f"score must be one of {', '.join(SCORES)} or package.file:Class of your own, got {name!r}")
    return parse_part("score", name, SCORES, scores.Score)


@dataclass(frozen=True)
class LearnedNormalizer:
    """Base class: a normalizer with one number that each head learns, `start` at first."""

    start: float
    kind: ClassVar[type[Normalizer]]

    def init(self, rng: Array, query_width: int, key_width: int, hidden: int) -> Normalizer:
        return self.kind(jnp.asarray(self.start, jnp.float32))


@dataclass(frozen=True)
class LearnedSink(LearnedNormalizer):
    """A softmax with a sink of a learned score (OpenAI 2025, GPT-OSS)."""

    start: float = 0.0
    kind = Softmax


@dataclass(frozen=True)
class LearnedScale(LearnedNormalizer):
    """Scalable softmax, softmax(s log(n) score), with a learned s (Nakanishi 2025). At first it is 1 / (the mean of
    log n for n = 1 to 1024), so that the scores of a causal text of 1024 tokens are multiplied by 1 in the mean."""

    start: float = 0.168
    kind = ScalableSoftmax


@dataclass(frozen=True)
class LearnedSigmoid(LearnedNormalizer):
    """sigmoid(score + b) with a learned bias b (Ramapuram et al. 2024). -log of the number of keys is a good start."""

    start: float = -4.0
    kind = Sigmoid


@pytree
@dataclass(frozen=True)
class AdaptiveEntmax(Threshold):
    """Entmax with alpha = 1 + sigmoid(`logit`), between softmax and sparsemax (Correia et al. 2019, section 3)."""

    logit: Float[Array, ""]

    def __call__(self, x):
        return q_exponential(x, as_type(jax.nn.sigmoid(self.logit), x.dtype))

    def inverse(self, value):
        return q_logarithm(value, as_type(jax.nn.sigmoid(self.logit), value.dtype))


@dataclass(frozen=True)
class LearnedEntmax(LearnedNormalizer):
    """Entmax with a learned alpha, 1.5 where the logit `start` is 0."""

    start: float = 0.0
    kind = AdaptiveEntmax


def parse_normalizer(name: str) -> PartFactory:
    """The normalizer that `name` names (`parts.parse_part`): a key of `config.models.NORMALIZERS`, or the import path
    of a class or of an elementwise function."""
    return parse_part("normalizer", name, NORMALIZERS, Normalizer, as_normalizer)


def parse_pool(name: str) -> PartFactory:
    """The pooling that `name` names (`parts.parse_part`): a key of `config.models.POOLS` or an import path."""
    return parse_part("head_pool", name, POOLS, Pool)


def check_pool(pool: str, normalizer: str):
    """Raise InputError for names that are none of a pooling and of a normalizer, and for the logarithm of a mixture
    that may have no weights: the probe is a query with one key, of score -1."""
    parsed_pool, parsed = parse_pool(pool), parse_normalizer(normalizer)
    if not (isinstance(parsed, ConstantPart) and isinstance(getattr(parsed_pool, "value", None), LogMixture)):
        return
    with on_examples():
        has_weight = bool((parsed.value.weights(-jnp.ones((1, 1)), jnp.ones((1, 1), bool)) > 0).all())
    if not has_weight:
        raise InputError(
            f"--model.head-pool {pool} needs a normalizer with weights above 0 for every query, got --model.normalizer "
            f"{normalizer}, which gives scores below 0 none: use another, such as softmax or sparsemax"
        )


def prepare_keys(score: scores.Score, hidden: Float[Array, "B S H"]) -> Float[Array, "B S F"]:
    """Features of the keys that a score computes once for all queries."""
    return jax.vmap(lambda row: scores.prepare_key(score, row)[1])(hidden)  # [B, S, F]


def make_score(module: nn.Module, name: str, query_width: int, key_width: int, hidden: int) -> scores.Score:
    """The score called `name`; its weights become the parameter "score" of `module` (in its setup)."""
    parsed = parse_score(name)
    if name.partition("(")[0] in SAME_WIDTH and query_width != key_width:
        raise InputError(
            f"score {name} compares vectors of one width, got queries of {query_width} and keys of {key_width}: "
            "use general"
        )
    return make_part(module, "score", parsed, query_width, key_width, hidden)


class Rules(NamedTuple):
    """Score, bias and normalizer with which a recurrent decoder attends to the source."""

    score: scores.Score
    bias: Bias | None
    normalizer: Normalizer


def make_rules(module: nn.Module, options, query_width: int, key_width: int) -> Rules:
    """The rules that `options.score` and `options.normalizer` name, with their weights owned by `module`. Only the
    score "location" has a bias, since it depends on the positions of the keys alone."""
    name, hidden = options.score, options.hidden_size
    normalizer = make_normalizer(module, options.normalizer, query_width, key_width, hidden)
    if name == "location":
        location = make_part(module, "score", Location, query_width, POSITIONS)
        return Rules(scores.Constant(), location, normalizer)
    return Rules(make_score(module, name, query_width, key_width, hidden), None, normalizer)


def make_normalizer(
    module: nn.Module, name: str, query_width: int, key_width: int, hidden: int, prefix: str = "normaliser"
) -> Normalizer:
    """Create the normalizer `name`; its learned parameter, if any, becomes the parameter `prefix` of `module`."""
    return make_part(module, prefix, parse_normalizer(name), query_width, key_width, hidden)
