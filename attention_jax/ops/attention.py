"""`attend`: attention as a differentiable lookup - score, mask, normalise, pool - for any score, in one signature."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax import InputError
from attention_jax.ops import cudnn, flash, linear, resident
from attention_jax.ops.biases import Bias
from attention_jax.ops.dispatch import Implementation, choose, choose_blocks
from attention_jax.ops.dropout import is_zero
from attention_jax.ops.fused import Inputs, blockwise, shield
from attention_jax.ops.masks import Finite, Mask, as_mask
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.scores import ScaledDot, Score, prepare
from attention_jax.ops.trees import as_tree
from attention_jax.ops.weight_dropout import dropout_factor, dropout_words


def masked_softmax(
    scores: Float[Array, "... Q K"], mask: Bool[Array, "... Q K"] | None = None
) -> Float[Array, "... Q K"]:
    """Softmax over the keys that `mask` allows (all, if None): the only place where a mask meets a score.

    Forbidden keys, and those whose score is -inf, weigh exactly 0 and receive no gradient. A row without any allowed
    key is all zeros, with zero gradient: neither NaN nor a mean over what was forbidden.

    >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, True], [False, False]])).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """
    allowed = scores != -jnp.inf
    allowed = allowed if mask is None else allowed & mask
    scores = jnp.where(allowed, scores, 0.0)  # whatever was forbidden, NaN included, is gone: forward and backward
    return jax.nn.softmax(scores, axis=-1, where=allowed)


def attend(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    dropout: Float[Array, ""] | float | None = None,
    rng: Key[Array, ""] | None = None,
    query_offset: Int[Array, ""] | int = 0,
    implementation: Implementation | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Array, "Q V"]:
    """Pool the values by how well their keys answer each query:
    `softmax(score(query, key) + bias, where=mask) @ value`.

    For ONE sequence and one head: `jax.vmap` over batch and heads (and over whatever leaves of
    score, bias and mask differ there).

    * `score`, `bias`, `mask`: callable pytrees, see attention_jax/ops/{scores,biases,masks}.py, or functions without
      parameters. True in a mask = may attend.
    * `dropout`: the share of weights to drop, as the code of Vaswani et al. 2017 does; nothing without `rng`. Which
      weights are dropped depends on `rng` and on the positions alone: not on the implementation, not on the blocks.
    * `query_offset`: the position of the first query (keys start at 0), for decoding with a cache.
    * A query that may attend to nothing gets exactly zero, and zero gradients. NaN or infinity in a key or value
      that no query may attend to has no effect.
    * `implementation`: "plain" materialises the weights; "fused" computes block by block in memory linear in Q + K,
      exactly (attention_jax/ops/fused.py); "cudnn" is NVIDIA's kernel, "flash" and "resident" a TPU's, where they can
      express the call; "linear" is for products of features. None lets `dispatch.choose` decide, for the platform
      that is lowered for. `block_q` and `block_k` are for "fused"; None takes those of `dispatch.choose_blocks`.
    * Derivatives: "plain" has all (in half precision reverse mode, and forward over reverse). "fused" and the kernels
      have reverse mode, once; "fused" also forward over reverse (`jax.jacfwd` of a `jax.grad`). `jax.jvp` of "fused"
      raises JAX's TypeError about custom_vjp, and reverse over reverse its ValueError about loops. None has what its
      choices on all platforms have.

    >>> attend(jnp.eye(1, 2), 9 * jnp.eye(2), jnp.array([[1.0], [2.0]])).round(2).tolist()
    [[1.0]]
    """
    _check(query, key, value, score, bias, mask, dropout, block_q, block_k)
    score, bias, mask = as_tree(score), as_tree(bias), as_mask(mask)
    if rng is None or is_zero(dropout):
        dropout = None
    chosen = choose(query, key, value, score, bias, mask, dropout, query_offset, implementation)
    words = None
    if dropout is not None:
        words = (*dropout_words(rng, query.shape[0], key.shape[0]), jnp.asarray(dropout, jnp.float32))

    def run(kernel):
        if kernel == "cudnn":
            return cudnn.attend(query, key, value, mask)
        if kernel in ("flash", "resident", "linear"):
            module = {"flash": flash, "resident": resident, "linear": linear}[kernel]
            return module.attend(query, key, value, score, mask)
        inputs = Inputs((score, bias), query, key, value, None, mask, words, query_offset)
        return _in_blocks(inputs, chosen, block_q, block_k) if "fused" in chosen.values() else _plain(inputs)

    return by_platform(run, {p: "xla" if i in ("plain", "fused") else i for p, i in chosen.items()})


def _in_blocks(inputs, chosen, block_q, block_k):
    """Block by block on the platforms that have chosen "fused", all weights at once on the others."""
    if not (inputs.query.size and inputs.key.size):  # no block to go through
        return _plain(inputs)
    score, bias = inputs.rules
    score, query, key = prepare(score, inputs.query, inputs.key)
    blocks = choose_blocks(score, query, key, block_q, block_k)
    blocks = {platform: blocks[platform] if i == "fused" else None for platform, i in chosen.items()}
    bias_query = None if bias is None else inputs.query
    inputs = inputs._replace(rules=(score, bias), query=query, key=key, bias_query=bias_query)
    return blockwise(inputs, blocks, _plain)


def _plain(inputs: Inputs):
    """All weights at once."""
    weights, value = _weights(inputs)
    if inputs.dropout is not None:
        weights = weights * dropout_factor(*inputs.dropout).astype(weights.dtype)
    pooled = jnp.einsum("qk,kv->qv", weights.astype(value.dtype), value, preferred_element_type=weights.dtype)
    return pooled.astype(value.dtype)


def attention_weights(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    query_offset: Int[Array, ""] | int = 0,
) -> Float[Array, "Q K"]:
    """The attention map [Q, K] whose weights `attend` pools with. It takes Q * K memory.

    >>> attention_weights(jnp.ones((1, 2)), jnp.ones((4, 2))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]

    The five scores of an example of Luong attention, 0.9, -1.2, -2.4, -1.9 and -2.8, as the score of five keys:

    >>> import jax.tree_util
    >>> five = jax.tree_util.Partial(lambda scores, query, key: scores, jnp.array([[0.9, -1.2, -2.4, -1.9, -2.8]]))
    >>> [round(float(weight), 3) for weight in attention_weights(jnp.ones((1, 2)), jnp.ones((5, 2)), score=five)[0]]
    [0.803, 0.098, 0.03, 0.049, 0.02]
    """
    _check(query, key, key, score, bias, mask)
    return _weights(Inputs((score, bias), query, key, key, None, mask, None, query_offset))[0]


def _weights(inputs: Inputs):
    """Weights [Q, K], and the values without what nobody may see. A bias_query of None: the bias sees the query."""
    (score, bias), query, key, value, bias_query, mask, _, offset = inputs
    query_positions, key_positions = offset + jnp.arange(query.shape[0]), jnp.arange(key.shape[0])
    allowed = None
    if mask is not None:
        allowed = mask(query_positions, key_positions)
    if mask is not None and not isinstance(mask, Finite):
        query = shield(query, allowed.any(axis=1))
        bias_query = None if bias_query is None else shield(bias_query, allowed.any(axis=1))
        key, value = (shield(x, allowed.any(axis=0)) for x in (key, value))
    scores = score(query, key)
    if bias is not None:
        bias_query = query if bias_query is None else bias_query
        scores = scores + bias(bias_query, query_positions, key_positions).astype(scores.dtype)
    return masked_softmax(scores, allowed), value


def _check(query, key, value, score, bias, mask, dropout=None, block_q=None, block_k=None):
    if not query.ndim == key.ndim == value.ndim == 2 or key.shape[0] != value.shape[0]:
        raise InputError(
            f"attend needs query [Q, D], key [K, E] and value [K, V], "
            f"got {query.shape}, {key.shape} and {value.shape}: vmap it over batch and heads"
        )
    if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in (query, key, value)):
        raise InputError(
            f"attend needs numbers with fractions, got query {query.dtype}, key {key.dtype} and value {value.dtype}: "
            "convert whole numbers with x.astype(jnp.float32)"
        )
    if mask is not None and not callable(mask):
        kind = type(mask).__name__
        raise InputError(
            f"mask must be a rule of ops.masks (causal(), lengths(n), ...), got {kind}: wrap an array as dense(array)"
        )
    if not callable(score):
        raise InputError(f"score must be a callable pytree such as ScaledDot(), got {type(score).__name__}")
    if bias is not None and not callable(bias):
        raise InputError(
            f"bias must be a callable pytree of ops.biases, got {type(bias).__name__}: an array is not known in blocks"
        )
    if isinstance(dropout, int | float) and not 0 <= dropout <= 1:
        raise InputError(f"dropout must be a share of the weights, 0 to 1, got {dropout}")
    if any(block is not None and block < 1 for block in (block_q, block_k)):
        raise InputError(f"block_q and block_k must be at least 1, got {block_q} and {block_k}")
