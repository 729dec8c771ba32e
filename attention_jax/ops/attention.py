"""`attend`: attention as a differentiable lookup - score, mask, normalize, pool - for any of them, in one signature."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.ops import dispatch, linear, masks
from attention_jax.ops.arrays import as_rules, as_tuple, is_array
from attention_jax.ops.biases import Bias
from attention_jax.ops.block_checks import check_tiles
from attention_jax.ops.blockwise.batched import with_blocks
from attention_jax.ops.blockwise.derivatives import attend_in_blocks
from attention_jax.ops.blockwise.score_blocks import (
    Inputs,
    Statistics,
    add_bias,
    entropy_of,
    largest_attended,
    partition,
    pool_terms,
    precision_of,
    replace_nonfinite,
    w_log_w_of,
    widen_scores,
)
from attention_jax.ops.blockwise.top_k import find_cuts
from attention_jax.ops.dispatch import (
    Implementation,
    choose_blocks,
    choose_implementation,
    choose_kernel_blocks,
    tag_with_reasons,
)
from attention_jax.ops.dropout import clip_rate, dropout_bits, dropout_factor, is_zero
from attention_jax.ops.kernels import cudnn, flash, generated
from attention_jax.ops.masks import AssumeFinite, Mask
from attention_jax.ops.meshes import loopable, vary_together, with_automatic_axes
from attention_jax.ops.normalizer_kinds import Exponential, Normalizer, check_functions
from attention_jax.ops.normalizers import Softmax, TopK, as_normalizer, log_sum_exp, without_sink
from attention_jax.ops.platforms import by_platform, choose_program
from attention_jax.ops.pooling import Mean, Pool, Terms, as_pool
from attention_jax.ops.positions import as_positions
from attention_jax.ops.scaled_logits import as_softmax
from attention_jax.ops.scores import ScaledDot, Score, prepare
from attention_jax.ops.trees import as_tree, is_leaf, with_arrays


def masked_softmax(
    scores: Float[Array, "... Q K"], mask: Bool[Array, "... Q K"] | None = None
) -> Float[Array, "... Q K"]:
    """Softmax of `scores` over the keys that `mask` allows, all if None.

    Masked keys, and those whose score is -inf, weigh exactly 0 and receive no gradient. A fully masked query has
    weights of zero, with zero gradient: neither NaN nor a mean over masked keys.

    >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, True], [False, False]])).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """
    scores = jnp.asarray(scores)
    allowed = scores != -jnp.inf
    allowed = allowed if mask is None else allowed & mask
    return Softmax().weights(scores, allowed)


def attend(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | Float[Array, "Q K"] | tuple | None = None,
    mask: Mask | Bool[Array, "Q K"] | tuple | None = None,
    normalizer: Normalizer | Callable = Softmax(),
    pool: Pool = Mean(),
    dropout: Float[Array, ""] | float = 0.0,
    rng: Key[Array, ""] | None = None,
    query_offset: Int[Array, ""] | int = 0,
    return_log_sum_exp: bool = False,
    return_statistics: bool = False,
    implementation: Implementation | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Array, "Q V"] | tuple[Float[Array, "..."], ...]:
    """Exact attention, `normalize(score(query, key) + bias, where=mask) @ value`, of ONE sequence and one head.

    For a batch and heads use `jax.vmap`, also over the leaves of score, bias, mask and normalizer that differ there, or
    `attend_heads` for arrays [B, T, H, D].

    Args (what is computed):
      query, key, value: [Q, D], [K, E] and [K, V], of a floating type. E need not be D if the score allows it.
      score: a callable pytree (`ops/scores.py`), [Q, D], [K, E] -> [Q, K], or a function. Traced arrays that
        a function captures have gradients; globals and attributes of objects are read once, as under `jax.jit`.
      bias: added to the score: a callable pytree (`ops/biases.py`), a function, a floating array [Q, K], which has a
        gradient, or a tuple of these, their sum. Row i of an array belongs to query i; an axis of 1 is broadcast.
      mask: True means that the query may attend to the key: a callable pytree (`ops/masks.py`), a function of query and
        key positions, a boolean array [Q, K], or a tuple of these, which allows what all of them allow.
      normalizer: how logits become weights: a callable pytree (`ops/normalizers.py`) whose leaves receive gradients,
        or an elementwise function.
      pool: how weights and values become outputs: a pytree of `ops/pooling.py`.
      dropout: the fraction of weights to drop, as in the code of Vaswani et al. 2017; none are dropped without `rng`.
        Which ones depends on `rng` and the indices of query and key alone, not on the implementation or its blocks.
      query_offset: the position of the first query (keys start at 0), for decoding with a cache. Traced offsets and
        rates of dropout out of range are the closest within.

    Args (how, and what else is returned):
      implementation: "plain" materializes the weights; "fused" computes block by block in memory linear in Q + K,
        exactly; "kernel" is the same in a generated GPU kernel (on a CPU interpreted, for tests; on a TPU, for some
        calls, the output alone); "cudnn" is NVIDIA's kernel and "flash" JAX's for TPUs, where they can express the
        call; "linear" is for products of features. None chooses for the platform that is lowered for;
        `explain(attend, query, key, value, ...)` returns what, and why.
      block_q, block_k: the block sizes of "fused" and, powers of two of at least 16, of "kernel"; None chooses.
      return_log_sum_exp: also return log sum_j exp(score_j) over the keys that each query may attend to, [Q], in
        float32 at least, -inf where there are none; a sink is not counted. It has a gradient. For the softmax, and the
        scalable softmax, whose scores are those after its factor, as in the statistics.
      return_statistics: also return, last, `Statistics` of each query, in float32 at least and without gradient: for
        the softmax the `largest` score + bias over the keys that it may attend to, and the `entropy` of its weights
        before dropout, divided by their sum (so without the share of a sink). "fused" needs no other pass for them. For
        the gradient of an entropy take it of `attention_weights`.

    Returns:
      [Q, V] in the type of `value`. A query that may attend to no key gets exactly zero, and zero gradients. NaN or
      infinity in a key or value that no query may attend to has no effect.

    Raises:
      InputError: for shapes, types and rules that do not fit, and for an implementation that cannot do the call.

    Derivatives: "plain", "fused" and "linear" have forward and reverse mode, of any order and in any combination;
    "fused" in memory linear in Q + K, too (`ops/blockwise/derivatives.py`). "kernel" has the derivatives of "fused",
    of which reverse mode, once, is the kernel's, or that of "fused" where a kernel cannot compute it. The kernels
    "cudnn" and "flash" have reverse mode, once: for forward mode and higher orders JAX raises a TypeError about
    custom_vjp; use "fused" there.

    >>> attend(jnp.eye(1, 2), 9 * jnp.eye(2), jnp.array([[1.0], [2.0]])).round(2).tolist()
    [[1.0]]

    The weight of the first of four equal keys, as the output of a value that is 1 there, and the entropy, log 4:

    >>> first, statistics = attend(jnp.ones((1, 2)), jnp.ones((4, 2)), jnp.eye(4, 1), return_statistics=True)
    >>> first.tolist(), round(float(statistics.entropy[0]), 4)
    ([[0.25]], 1.3863)
    """
    options = Options(implementation, block_q, block_k, return_log_sum_exp, return_statistics)
    rules = {"score": score, "bias": bias, "mask": mask, "normalizer": normalizer, "pool": pool}
    return attend_head(options, dropout, query, key, value, rules, rng, query_offset)


class Options(NamedTuple):
    """The arguments of `attend` that are static."""

    implementation: Implementation | None = None
    block_q: int | None = None
    block_k: int | None = None
    return_log_sum_exp: bool = False
    return_statistics: bool = False


def attend_head(options: Options, dropout, query, key, value, rules: dict, rng=None, query_offset=0):
    """`attend` with its score, bias, mask, normalizer and pool in a dict, as `ops.heads.over_heads` lifts it."""
    score, bias, mask, normalizer = (rules[name] for name in ("score", "bias", "mask", "normalizer"))
    check_call(query, key, value, score, bias, mask, normalizer, dropout, options.block_q, options.block_k)
    pool = as_pool(rules["pool"])
    query_offset = check_offset(query_offset, query.shape[0])
    query, key, value = map(jnp.asarray, (query, key, value))  # NumPy's float64 is float32, unless that is enabled
    bias, mask = as_rules(bias, mask, query, key, query_offset)
    if options.implementation != "plain":
        check_tiles(as_tree(score), bias, mask, query.shape[1], key.shape[1])
    call = _Call(query, key, value, as_tree(score), bias, mask, as_normalizer(normalizer), dropout, rng, query_offset)
    if type(pool) is Mean:
        program, inputs = _select_program(call, options)
        return program(inputs)
    return loopable(partial(_attend_with_pool, options))(with_arrays(pool), call)


class _Call(NamedTuple):
    """The arguments of `attend` that are pytrees of arrays, after its checks."""

    query: jax.Array  # [Q, D]
    key: jax.Array  # [K, E]
    value: jax.Array  # [K, V]
    score: Score
    bias: Bias | None
    mask: Mask | None
    normalizer: Normalizer
    dropout: jax.Array | float | None
    rng: jax.Array | None
    query_offset: jax.Array | int
    terms: Terms | None = None  # the sums of a `Pool` for each query; None: the weighted values


def _select_program(call: _Call, options: Options) -> tuple[Callable, Inputs]:
    """The program of `attend` with `Mean`, or of the weighted sums of `call.terms` (`ops/pooling.py`) of the values, on
    the platform that is lowered for, and its inputs."""
    query, key, value, score, bias, mask, normalizer, dropout, rng, query_offset, terms = call
    query, score, bias, normalizer = as_softmax(query, score, bias, mask, normalizer, query_offset, key.shape[0])
    if rng is None or is_zero(dropout):
        dropout = None
    base = normalizer.of if isinstance(normalizer, TopK) else normalizer
    if options.return_log_sum_exp and not isinstance(base, Softmax):
        raise InputError(f"return_log_sum_exp=True needs the softmax, got the normalizer {type(base).__name__}")
    has_sink = isinstance(base, Softmax) and base.sink is not None
    has_extras = options.return_log_sum_exp or options.return_statistics or terms is not None
    softmax_alone = isinstance(normalizer, Softmax) and not has_extras
    implementation = options.implementation
    if terms is not None and implementation not in ("plain", "fused"):
        implementation = None  # no kernel has the sums of a pool
    dropout_state = None
    if dropout is not None:
        dropout_state = (*dropout_bits(rng, query.shape[0], key.shape[0]), clip_rate(dropout))
    inputs = Inputs((score, bias, normalizer), query, key, value, None, mask, dropout_state, query_offset, terms=terms)
    with_log = options.return_log_sum_exp or has_sink
    reason = partial(_reason_against_kernel, options, with_log, inputs)
    sink = normalizer.sink if softmax_alone else None
    rules = score, bias, mask, dropout, query_offset, sink
    dispatched = dispatch.Call(
        query, key, value, *rules, softmax_alone, normalizer, reason, partial(reason, with_gradient=True)
    )
    choices = choose_implementation(dispatched, implementation)
    chosen = {platform: choice.implementation for platform, choice in choices.items()}
    inputs = vary_together(inputs._replace(query=tag_with_reasons(query, choices)))
    # "plain", "fused" and "kernel" are one program, which chooses between them; without keys there is no block
    by_blocks = bool({"fused", "kernel"} & set(chosen.values()) and query.size and key.size)
    plan = _Plan(chosen, by_blocks, with_log, *options[1:])
    programs = {name: partial(_attend_by_kernel, name) for name in ("cudnn", "flash", "linear")}
    general = partial(_attend_by_blocks if by_blocks else _attend_plain, plan)
    programs |= dict.fromkeys(("plain", "fused", "kernel"), general)
    run = choose_program({platform: programs[name] for platform, name in chosen.items()})
    return with_automatic_axes(run, inputs), inputs


class _Plan(NamedTuple):
    """How a call of `attend` is computed."""

    chosen: dict  # the implementation on each platform
    by_blocks: bool  # whether any of them goes block by block
    with_log: bool = False  # whether the log-sum-exp is needed
    block_q: int | None = None
    block_k: int | None = None
    return_log: bool = False  # whether the log-sum-exp is returned
    with_statistics: bool = False


def _reason_against_kernel(
    options: Options, with_log: bool, inputs: Inputs, with_gradient: bool = False, platform: str = "cuda"
) -> str | None:
    """Return why no kernel can be generated for a call, or for its gradient of all floating arrays; None if one can.
    The kernel is traced, and not lowered."""
    if generated.missing() is not None:
        return generated.missing()
    types = [x.dtype for x in (inputs.query, inputs.key, inputs.value)]
    if precision_of(inputs) != jnp.float32:
        return f"sums in float32, got {', '.join(map(str, types))}"
    if not (inputs.query.size and inputs.key.size and inputs.value.size):
        return None  # nothing is left to a kernel
    plan = _Plan({platform: "kernel"}, True, with_log, *options[1:])

    def run(inputs):
        inputs, blocks = _prepare_blocks(inputs, plan)
        results = outputs, saved, _ = generated.forward(inputs, blocks[platform])
        if with_gradient:
            moving = tuple(range(len(partition(inputs)[0])))
            generated.backward(inputs, blocks[platform]._replace(round_rows=True), outputs, saved, outputs, moving)
        return results

    try:
        jax.tree.map(_within_offsets, inputs.mask)
        jax.eval_shape(run, inputs)
    except generated.Unsupported as error:
        return str(error)
    return None


@jax.custom_batching.custom_vmap
def _within_offsets(x):
    """The identity; under `jax.vmap` it raises Unsupported for more booleans than Pallas can index: offsets are int32
    in arrays of up to 2^32 bytes."""
    return x


@_within_offsets.def_vmap
def _within_offsets_batched(size, batched, x):
    if x.dtype.itemsize == 1 and x.size > 2**31:
        raise generated.Unsupported(f"indexes masks of up to 2^31 booleans, of all heads, got {x.size:,}")
    return _within_offsets(x), True


def _attend_by_kernel(name: str, inputs: Inputs):
    """The output [Q, V] of the softmax alone by "cudnn", "flash" or "linear"."""
    (score, bias, normalizer), query, key, value, _, mask, *_ = inputs
    if name == "cudnn":
        return cudnn.attend(query, key, value, score, bias, mask, normalizer.sink)
    if name == "flash":
        return flash.attend(query, key, value, score, bias, mask)
    return linear.attend(query, key, value, score, mask)


def _attend_by_blocks(plan: _Plan, inputs: Inputs):
    """What `attend` returns, block by block on the platforms that have chosen that."""
    block_inputs, blocks = _prepare_blocks(inputs, plan)
    floats, non_floats, combine = partition(block_inputs)
    whole = partial(_attend_plain, plan)
    (out, log), _, statistics, _ = attend_in_blocks(tuple(blocks.items()), whole, combine, floats, non_floats)
    return _finish(plan, inputs.rules[2], out, log, statistics)


def _finish(plan: _Plan, normalizer: Normalizer, out, log, statistics):
    """What `attend` returns: the output [Q, V], to which the sink of a softmax is applied here, and with it, as the
    plan says, the log-sum-exp [Q] and `Statistics`."""
    extras = []
    if plan.with_log:
        out, log = finish_softmax(normalizer.of if isinstance(normalizer, TopK) else normalizer, out, log)
        extras = [log] if plan.return_log else []
    if statistics is not None:
        extras.append(jax.lax.stop_gradient(statistics))
    return (out, *extras) if extras else out


def finish_softmax(normalizer: Softmax, out, log) -> tuple[Float[Array, "Q V"], Float[Array, " Q"]]:
    """(output, log-sum-exp) for the caller, from those of blocks: there the log of a query without keys is +inf, and
    the sink has no weight yet."""
    log = jnp.where(log == jnp.inf, -jnp.inf, log)
    if normalizer.sink is None:
        return out, log
    mass = normalizer.non_sink_mass(log)
    return (out.astype(mass.dtype) * mass[:, None]).astype(out.dtype), log


def _prepare_blocks(inputs, plan):
    """The inputs of attention block by block, and the blocks on the platforms that have chosen "fused" or "kernel",
    None on others, which compute all weights at once."""
    (score, bias, normalizer), query = inputs.rules, inputs.query
    score, prepared_query, key = prepare(score, query, inputs.key)
    sizes = choose_blocks(score, prepared_query, key, plan.block_q, plan.block_k)
    sizes = {platform: size._replace(keep_statistics=plan.with_statistics) for platform, size in sizes.items()}
    bias_query = None if bias is None else query
    inputs = inputs._replace(rules=(score, bias, normalizer), query=prepared_query, key=key, bias_query=bias_query)
    if isinstance(normalizer, TopK):
        fixed_inputs = jax.lax.stop_gradient(inputs)
        if normalizer.k < key.shape[0]:
            cut = partial(find_cuts, k=normalizer.k)
            inputs = inputs._replace(cut=by_platform(lambda blocks: with_blocks(cut, blocks, fixed_inputs), sizes))
        normalizer = normalizer.of
    normalizer = without_sink(normalizer)  # which is applied afterwards
    blocks = {platform: sizes[platform] if name != "plain" else None for platform, name in plan.chosen.items()}
    if "kernel" in plan.chosen.values() and inputs.value.size:
        kernels = choose_kernel_blocks(prepared_query, inputs.value, plan.block_q, plan.block_k)
        takes_kernel = [platform for platform, name in plan.chosen.items() if name == "kernel"]
        blocks |= {platform: sizes[platform]._replace(kernel=kernels[platform]) for platform in takes_kernel}
    return inputs._replace(rules=(score, bias, normalizer)), blocks


def _attend_with_pool(options: Options, pool: Pool, call: _Call):
    """`attend` with another pooling than the mean, by attention over lifted values."""
    lifted = _lift(pool, call.key, call.value, call.mask)
    inputs = Inputs((call.score, None, None), call.query, call.key, lifted, None, call.mask, None, call.query_offset)
    sums_alone = options._replace(return_log_sum_exp=False, return_statistics=False)

    def attend_values(options, values, terms):
        program, inputs = _select_program(call._replace(value=values, terms=terms), options)
        return program(inputs)

    terms = pool.terms(
        call.query,
        lifted,
        partial(attend_values, sums_alone),
        lambda values: largest_attended(inputs._replace(value=values)),
    )
    out = attend_values(options, lifted, terms)
    out, *extras = out if isinstance(out, tuple) else (out,)
    out = pool.finish(call.query, out, terms, call.value.shape[1]).astype(call.value.dtype)
    return (out, *extras) if extras else out


def _lift(pool: Pool, key, value, mask) -> Float[Array, "K P"]:
    """`pool.lift`, in which keys with NaN or infinity have no part in gradients if there is a mask, which may hide
    them. Raises InputError unless it returns floats [K, P]."""
    lifted = pool.lift(key, value)
    if lifted.ndim != 2 or lifted.shape[0] != key.shape[0] or not jnp.issubdtype(lifted.dtype, jnp.floating):
        raise InputError(
            f"{type(pool).__name__}.lift must return floats [K, P] for the {key.shape[0]} keys, got {lifted.dtype} "
            f"{list(lifted.shape)}: one row for each key, and astype(value.dtype) for others than floats"
        )
    if mask is None:
        return lifted
    finite = (jnp.isfinite(key).all(axis=1) & jnp.isfinite(value).all(axis=1))[:, None]  # [K, 1]
    safe = pool.lift(jnp.where(finite, key, 0), jnp.where(finite, value, 0))
    return jnp.where(finite, safe, jax.lax.stop_gradient(lifted))


def _attend_plain(plan: _Plan, inputs: Inputs):
    """The same from all weights at once: score, bias and mask, normalize, pool. As a part of blocks on some platforms
    it returns (output, log-sum-exp, statistics) without a sink, and the log-sum-exp is zeros if the plan does not need
    it and None for normalizers without."""
    normalizer = inputs.rules[2]
    base = without_sink(normalizer.of if isinstance(normalizer, TopK) else normalizer)
    normalizer = TopK(normalizer.k, base) if isinstance(normalizer, TopK) else base
    positions = _positions_of(inputs)
    inputs, unmasked = _hide_masked(inputs, positions)
    score, value = inputs.rules[0], inputs.value
    scores, allowed = _mask_scores(inputs, positions, unmasked, score(inputs.query, inputs.key))
    scores = scores.astype(precision_of(inputs))
    weights = normalizer.weights(scores, allowed)
    log = None
    if isinstance(base, Exponential):
        log = log_sum_exp(scores, weights > 0 if isinstance(normalizer, TopK) else allowed)
    statistics = None
    if plan.with_statistics:
        statistics = _compute_statistics(base, *jax.lax.stop_gradient((scores, allowed, weights)))
    if inputs.dropout is not None:
        weights = weights * dropout_factor(*inputs.dropout).astype(weights.dtype)
    pool_dtype = weights.dtype
    if value.dtype == jnp.bfloat16 or (value.dtype == jnp.float16 and isinstance(base, Exponential)):
        pool_dtype = value.dtype  # weights of other normalizers may exceed 65504, the range of float16
    if inputs.terms is None:
        pooled = jnp.einsum(
            "qk,kv->qv", weights.astype(pool_dtype), value.astype(pool_dtype), preferred_element_type=weights.dtype
        )
    else:
        pooled = pool_terms(weights, value, inputs.terms)
    out = pooled.astype(value.dtype)
    if not plan.by_blocks:
        return _finish(plan, inputs.rules[2], out, log, statistics)
    return out, log if log is None or plan.with_log else jnp.zeros_like(log), statistics


def _compute_statistics(normalizer, scores, allowed, weights):
    is_softmax = isinstance(normalizer, Exponential)
    largest = jnp.max(scores, axis=1, where=allowed, initial=-jnp.inf) if is_softmax else None
    return Statistics(largest, entropy_of(weights.sum(axis=1), w_log_w_of(weights)))


def attention_weights(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | Float[Array, "Q K"] | tuple | None = None,
    mask: Mask | Bool[Array, "Q K"] | tuple | None = None,
    normalizer: Normalizer | Callable = Softmax(),
    query_offset: Int[Array, ""] | int = 0,
) -> Float[Array, "Q K"]:
    """The attention map [Q, K] of `attend`, whose arguments it takes. It needs memory for Q * K weights.

    >>> attention_weights(jnp.ones((1, 2)), jnp.ones((4, 2))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]

    The five scores of an example of Luong attention, 0.9, -1.2, -2.4, -1.9 and -2.8, as the score of five keys:

    >>> import jax.tree_util
    >>> five = jax.tree_util.Partial(lambda scores, query, key: scores, jnp.array([[0.9, -1.2, -2.4, -1.9, -2.8]]))
    >>> [round(float(weight), 3) for weight in attention_weights(jnp.ones((1, 2)), jnp.ones((5, 2)), score=five)[0]]
    [0.803, 0.098, 0.03, 0.049, 0.02]
    """
    check_call(query, key, key, score, bias, mask, normalizer)
    query_offset = check_offset(query_offset, query.shape[0])
    query, key = jnp.asarray(query), jnp.asarray(key)
    bias, mask = as_rules(bias, mask, query, key, query_offset)
    query, *rules = as_softmax(query, as_tree(score), bias, mask, as_normalizer(normalizer), query_offset, key.shape[0])

    def weights(inputs):
        positions = _positions_of(inputs)
        inputs, unmasked = _hide_masked(inputs, positions)
        score, _, normalizer = inputs.rules
        scores, allowed = _mask_scores(inputs, positions, unmasked, score(inputs.query, inputs.key))
        return normalizer.weights(scores, allowed)

    return loopable(weights)(Inputs(tuple(rules), query, key, key, None, mask, None, query_offset))


def _positions_of(inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """The positions of queries [Q] and keys [K]."""
    return inputs.offset + jnp.arange(inputs.query.shape[0]), jnp.arange(inputs.key.shape[0])


def _hide_masked(inputs: Inputs, positions) -> tuple[Inputs, jax.Array | None]:
    """The inputs, finite in fully masked queries and keys and with arrays as the leaves of score and bias, and the
    mask [Q, K] or None."""
    (score, bias, normalizer), query, key, value, bias_query, mask, *_ = inputs
    score, bias = jax.tree.map(jnp.asarray, (score, bias))
    inputs = inputs._replace(rules=(score, bias, normalizer))
    if mask is None:
        return inputs, None
    unmasked = mask(*positions)
    if isinstance(mask, AssumeFinite):
        return inputs, unmasked
    query = replace_nonfinite(query, unmasked.any(axis=1))
    bias_query = None if bias_query is None else replace_nonfinite(bias_query, unmasked.any(axis=1))
    key, value = (replace_nonfinite(x, unmasked.any(axis=0)) for x in (key, value))
    return inputs._replace(query=query, key=key, value=value, bias_query=bias_query), unmasked


def _mask_scores(inputs: Inputs, positions, unmasked, scores):
    """`scores` + bias [Q, K], and which of them are allowed. If `bias_query` is None, the bias gets `query`."""
    (score, bias, _), query, key, _, bias_query, *_ = inputs
    scores = widen_scores(score, scores, query, key)
    if bias is not None:
        scores = add_bias(scores, bias, bias(query if bias_query is None else bias_query, *positions))
    allowed = scores != -jnp.inf
    allowed = allowed if unmasked is None else allowed & unmasked
    if inputs.cut is not None:
        allowed = allowed & ~(scores < inputs.cut[:, None].astype(scores.dtype))
    return scores, allowed


def check_call(query, key, value, score, bias, mask, normalizer, dropout=None, block_q=None, block_k=None):
    """Raise an InputError for arguments that `attend` does not take."""
    shapes = f"query {query.shape}, key {key.shape} and value {value.shape}"
    if not query.ndim == key.ndim == value.ndim == 2:
        raise InputError(
            f"attend needs query [Q, D], key [K, E] and value [K, V], got {shapes}: vmap it over batch and heads, "
            "or use attend_heads for [B, T, H, D]"
        )
    if key.shape[0] != value.shape[0]:
        raise InputError(
            f"attend needs one value for each key, got {key.shape[0]} keys and {value.shape[0]} values "
            f"({shapes}): slice or pad one of them"
        )
    if not query.shape[1] or not key.shape[1]:
        raise InputError(f"attend needs queries and keys of at least one feature, got {shapes}")
    if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in (query, key, value)):
        raise InputError(
            f"attend needs floating types, got query {query.dtype}, key {key.dtype} and value {value.dtype}: "
            "convert integers with x.astype(jnp.float32)"
        )
    check_rules(score, bias, mask, normalizer)
    if not is_leaf(normalizer):  # `as_normalizer` checks a plain function
        check_functions(as_normalizer(normalizer))
    if isinstance(dropout, int | float) and not 0 <= dropout <= 1:
        raise InputError(f"dropout must be a share of the weights, 0 to 1, got {dropout}")
    if any(block is not None and block < 1 for block in (block_q, block_k)):
        raise InputError(f"block_q and block_k must be at least 1, got {block_q} and {block_k}")


def check_offset(query_offset, queries):
    """Return the position of the first query in the type of positions, in which those of all queries fit: the closest
    such number if it is traced. Raises InputError unless it is a whole number and, where it is known, in that range."""
    dtype = jnp.dtype(int) if isinstance(query_offset, int) else jnp.result_type(query_offset)
    if jnp.ndim(query_offset) or not jnp.issubdtype(dtype, jnp.integer):
        raise InputError(
            f"query_offset must be one whole number, the position of the first query, got {dtype} of shape "
            f"{jnp.shape(query_offset)}: vmap it over sequences, or use attend_heads"
        )
    queries = queries if isinstance(queries, int) else 1  # exported with any number
    least, most = -(2**30), int(jnp.iinfo(jnp.result_type(int)).max) - max(queries - 1, 0)
    if isinstance(query_offset, jax.core.Tracer):
        return jnp.clip(as_positions(query_offset), least, most)
    if not least <= int(query_offset) <= most:
        raise InputError(
            f"query_offset must be in {least}..{most} for {queries} queries, the range of positions, got {query_offset}"
        )
    return as_positions(query_offset)


def check_rules(score, bias, mask, normalizer):
    """Raise InputError unless these are rules, or arrays in place of a bias or mask: neither anything else nor the
    classes and functions that make rules."""
    if any(type(rule) is tuple and not rule for rule in (bias, mask)):
        raise InputError("a tuple of masks or biases must have a part, got (): write None for no mask or bias")
    rules_by_name = {"score": (score,), "bias": as_tuple(bias), "mask": as_tuple(mask), "normalizer": (normalizer,)}
    for name, rule in ((name, rule) for name, rules in rules_by_name.items() for rule in rules):
        if inspect.isclass(rule) or (inspect.isfunction(rule) and rule.__module__ == masks.__name__):
            raise InputError(
                f"{name} must be a rule, got what makes one: write {rule.__name__}(), with arguments if any"
            )
        if name == "mask" and rule is not None and not callable(rule) and not is_array(rule):
            raise InputError(
                f"mask must be a mask such as causal() or lengths(n), or a boolean array, got {type(rule).__name__}"
            )
        if name == "bias" and rule is not None and not callable(rule) and not is_array(rule):
            raise InputError(f"bias must be a callable pytree of ops.biases or an array, got {type(rule).__name__}")
    if not callable(score):
        raise InputError(f"score must be a callable pytree such as ScaledDot(), got {type(score).__name__}")
    if not (callable(normalizer) or isinstance(normalizer, Normalizer)):
        raise InputError(f"normalizer must be a callable pytree such as Softmax(), got {type(normalizer).__name__}")
