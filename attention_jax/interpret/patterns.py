"""Scores of attention heads: how much of its attention a head gives to positions of one kind."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.interpret.sites import Batch, as_arrays, split_lengths

KINDS = ("induction", "previous token", "duplicate token", "first token")


def head_scores(
    weights: Float[Array, "... H T T"], tokens: Int[Array, "B T"] | Batch
) -> dict[str, Float[Array, "... H"]]:
    """Score attention heads by the keys that they attend to: {kind: [..., H]}.

    `weights` [B, ..., H, T, T] are self-attention weights of a batch of tokens; of a `Batch` only its texts count. A
    score is the attention that a query gives to keys of a kind, averaged over the batch and the queries that have such
    keys.

    "induction" keys follow an earlier occurrence of the query's token (Olsson et al. 2022), "duplicate token" keys are
    these occurrences, "previous token" is the key before the query, and "first token" the first one.

    >>> weights = jnp.eye(4, k=-1)[None, None]  # each query attends to the one before it
    >>> scores = head_scores(weights, jnp.array([[5, 6, 5, 6]]))
    >>> {kind: round(score[0].item(), 2) for kind, score in scores.items()}
    {'induction': 1.0, 'previous token': 1.0, 'duplicate token': 0.0, 'first token': 0.33}
    """
    (weights, tokens), lengths = split_lengths(as_arrays((weights, tokens)))
    square = weights.ndim >= 4 and weights.shape[-2] == weights.shape[-1]
    fits = square and tokens.shape == (weights.shape[0], weights.shape[-1])
    if not fits or not tokens.size or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise InputError(
            "head_scores needs weights [B, ..., H, T, T] and integer tokens [B, T], got "
            f"{weights.shape} and {tokens.dtype} {tokens.shape}"
        )
    lengths = jnp.full(len(tokens), tokens.shape[1]) if lengths is None else lengths
    return dict(zip(KINDS, _scores(weights, tokens, lengths), strict=True))


def top_heads(values: Float[Array, "L H"], count: int, stack: str = "decoder") -> list[str]:
    """The names of the heads with the largest values, such as one kind of `head_scores` of all layers.

    >>> top_heads(jnp.array([[0.1, 0.9], [0.5, 0.2]]), 2)
    ['decoder.0.head.1', 'decoder.1.head.0']
    """
    values = np.asarray(values)
    if values.ndim != 2 or not 1 <= count <= values.size:
        raise InputError(f"top_heads needs values [L, H] and a count up to {values.size}, got {values.shape}, {count}")
    layers, heads = np.unravel_index(np.argsort(-values, axis=None, kind="stable")[:count], values.shape)
    return [f"{stack}.{layer}.head.{head}" for layer, head in zip(layers.tolist(), heads.tolist(), strict=True)]


@jax.jit
def _scores(weights, tokens, lengths) -> list[Array]:
    is_query = (jnp.arange(tokens.shape[1])[None] < lengths[:, None])[:, :, None]  # [B, T, 1]
    return [_score(weights, keys & is_query) for keys in _keys(tokens)]


def _keys(tokens) -> tuple[Array, ...]:
    """The keys of each of `KINDS` for every query, [B, T, T]."""
    length = tokens.shape[1]
    query, key = jnp.arange(length)[:, None], jnp.arange(length)[None]
    same = tokens[:, :, None] == tokens[:, None, :]
    earlier = same & (key < query)[None]
    broadcast = lambda keys: jnp.broadcast_to(keys[None], same.shape)
    follows = jnp.pad(earlier, ((0, 0), (0, 0), (1, 0)))[:, :, :length] & (key <= query)[None]
    first = broadcast((key == 0) & (query > 0))
    return follows, broadcast(key == query - 1), earlier, first


def _score(weights, keys):
    key_mask = keys.reshape(keys.shape[0], *(1,) * (weights.ndim - 3), *keys.shape[1:])  # [B, 1 ..., T, T]
    mass = jnp.where(key_mask, weights, 0).sum(-1)  # [B, ..., H, T]
    queries = key_mask.any(-1)  # [B, 1 ..., T]
    num_queries = jnp.maximum(queries.sum().astype(mass.dtype), 1)
    return jnp.where(queries, mass, 0).sum((0, -1)) / num_queries


def check_rng(rng):
    """Raise InputError unless it is a key of jax.random, or None."""
    if rng is not None and not hasattr(rng, "dtype"):
        raise InputError(f"rng is a key, as jax.random.key(0), got a {type(rng).__name__}")


def repeated_tokens(rng: Key[Array, ""], vocab: int, length: int, batch: int = 1, first: int | None = None):
    """Draw random tokens and repeat them, [B, 2 `length`], after `first` if given: only induction predicts them.

    >>> tokens = repeated_tokens(jax.random.key(0), vocab=11, length=3)
    >>> tokens.shape, bool((tokens[:, :3] == tokens[:, 3:]).all())
    ((1, 6), True)
    """
    check_rng(rng)
    if min(vocab, length, batch) < 1:
        raise InputError(f"repeated_tokens needs a vocab, length and batch of at least 1, got {vocab, length, batch}")
    tokens = jnp.tile(jax.random.randint(rng, (batch, length), 0, vocab), (1, 2))
    return tokens if first is None else jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=first)
