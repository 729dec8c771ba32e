"""Selection of the implementation and block sizes of `attend` on each platform, and the reasons. Measured with
`python launch.py bench attention`."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from attention_jax.errors import InputError
from attention_jax.ops import linear
from attention_jax.ops.blockwise.score_blocks import Blocks, KernelBlocks
from attention_jax.ops.kernels import cudnn, flash
from attention_jax.ops.precision import is_half
from attention_jax.ops.scores import Dot, ScaledDot

Implementation = Literal["plain", "fused", "kernel", "cudnn", "flash", "linear"]


class Choice(NamedTuple):
    """How a call of `attend` is computed on one platform."""

    implementation: Implementation
    reason: str
    """Why this is not the platform's kernel; "" if it is, and where there is none."""


KERNELS = {"cuda": ("cudnn", cudnn), "tpu": ("flash", flash)}
"""The kernel of each platform that has one: its name, and the module that takes the calls it can compute exactly."""

ON_REQUEST = {"cudnn": cudnn, "flash": flash, "linear": linear}
"""Implementations that a caller may select by name."""

SOFTMAX_ALONE = "computes the softmax alone, without its log-sum-exp and its statistics"

PRODUCTS_BY_DEFAULT = False
"""Whether kernels take scores, biases and sinks that are products of features (ops/kernels/terms.py) without being
named, beside dot products. No card has run these yet: `python -m pytest -m gpu` and `python launch.py bench card` are
to be green first."""

KERNEL_BY_DEFAULT = False
"""Whether kernels are generated (ops/kernels/generated) without being named, for "fused" calls on CUDA. No card has
run these yet, either."""

PLATFORMS = ("cpu", "cuda", "tpu", "default")
"""Platform names of `jax.lax.platform_dependent`; "default" is any other one."""

FUSED_FROM = {"cpu": 256 * 256, "cuda": 1024 * 1024, "tpu": 256 * 256, "default": 1024 * 1024}
"""Pairs Q * K, times the score's `pair_cost`, from which "fused" is taken: where its gradient is clearly faster than
the gradient of "plain". On 2 cores, 8 heads of 64: as fast at 64 x 64, 1.4x at 128 x 128, 1.5x at 256 x 256 and 5x at
512 x 512, compiling 3x as long."""

HALF_FUSED_FROM = FUSED_FROM | {"tpu": 128 * 128}
"""The same in half precision, where "fused" in one block keeps no weights for the gradient: for one v5e chip, the
gradient of 2 layers of ViT-S/16 (196 patches, batch 128) reads and writes 10.4 GB with it and 15.1 with "plain". In
float32 a TPU does not choose it where a CPU chooses "plain", which would compute its weights twice then."""

KERNEL_FROM = {"cudnn": 0, "flash": 512 * 512}
"""Pairs Q * K from which a kernel is taken. For one v5e chip, gradient of 1,024 heads of 64 at T = 256,
256 at 512 and 64 at 1,024: 3.7, 1.9 and 0.6 GB of traffic by "flash", 3.0, 2.9 and 2.9 by "plain"."""

PAIRS_PER_BLOCK = {"cpu": 512 * 256, "cuda": 4096 * 512, "tpu": 4096 * 512, "default": 4096 * 512}
"""Pairs in one block of a score that costs 1 per pair; divided by the cost of others, but not below 64 x 64."""

PAIRS_OF_ALL = {"cpu": None, "cuda": 4096 * 512, "tpu": 4096 * 512, "default": 4096 * 512}
"""Pairs in the blocks of all sequences and heads that are vmapped together, which are halved until they fit; None for
blocks that do not depend on that. Divided by the elements per pair that the score's matrix products read, which XLA
writes to memory; not below 64 x 64, or 32 x 32 for a score with such products. By XLA's plan for an H100 the gradient
of 8 x 16 causal heads of 64 at T = 2048 in bfloat16 has 256 MiB of temporaries, and 2,802 with the blocks of one head.
"""


def choose_implementation(
    query,
    key,
    value,
    score,
    bias,
    mask,
    dropout,
    query_offset,
    implementation: Implementation | None,
    softmax_alone: bool = True,
    sink=None,
    reason_against_kernel: Callable[[], str | None] = lambda: None,
) -> dict[str, Implementation]:
    """Choose the implementation on each of `PLATFORMS`, in this order:

    1. the one that the caller names, if it can compute the call, and "plain" where the length is left open by
       `jax.export`;
    2. the platform's kernel, if it can compute the call exactly (`unsupported_reason` of cudnn and flash) and pays;
    3. "plain" where the matrix is small;
    4. "linear" where the score is a product of features (`linear.unsupported_reason`);
    5. "kernel" on CUDA, where `reason_against_kernel` returns None and KERNEL_BY_DEFAULT is set;
    6. "fused".

    The platforms' kernels and "linear" compute only the softmax: no other normalizer, no log-sum-exp and no statistics.
    "kernel" by name is JAX's interpreter of kernels on a CPU, for tests, and "fused" on platforms without one.
    """
    if implementation not in (None, *get_args(Implementation)):
        raise InputError(
            f"implementation must be one of {', '.join(get_args(Implementation))} or None, got {implementation!r}"
        )
    if implementation is None and not all(isinstance(size, int) for size in (*query.shape, *key.shape)):
        return dict.fromkeys(PLATFORMS, "plain")  # exported with any length: no size to choose by
    if implementation in ("plain", "fused"):
        return dict.fromkeys(PLATFORMS, implementation)
    if implementation == "kernel":
        reason = reason_against_kernel()
        if reason is not None:
            raise InputError(f'implementation="kernel" {reason}: take "fused", or None to choose by itself')
        return dict.fromkeys(PLATFORMS, "fused") | {"cpu": "kernel", "cuda": "kernel"}
    call = (query, key, value, score, bias, mask, dropout, query_offset, sink)
    if implementation in ON_REQUEST:
        reason = ON_REQUEST[implementation].unsupported_reason(*call)
        if not softmax_alone:
            reason = SOFTMAX_ALONE
        if reason is not None:
            raise InputError(f'implementation="{implementation}" {reason}: take "fused", or None to choose by itself')
        return dict.fromkeys(PLATFORMS, implementation)
    chosen = _by_size(score, query, key, HALF_FUSED_FROM if is_half(query.dtype) else FUSED_FROM)
    if not softmax_alone:
        return _with_kernel(chosen, reason_against_kernel)
    if linear.unsupported_reason(*call) is None:
        chosen = {platform: "linear" if i == "fused" else i for platform, i in chosen.items()}
    chosen |= {platform: name for platform, (name, _) in KERNELS.items() if not refusal_reason(platform, call)}
    return _with_kernel(chosen, reason_against_kernel)


def _with_kernel(chosen, reason_against_kernel):
    takes_kernel = KERNEL_BY_DEFAULT and chosen["cuda"] == "fused" and reason_against_kernel() is None
    return chosen | {"cuda": "kernel"} if takes_kernel else chosen


def refusal_reason(platform: str, call: tuple, softmax_alone: bool = True) -> str:
    """Return why `attend` does not take the kernel of a platform by itself for a call, the arguments of
    `unsupported_reason`; "" if it does."""
    name, kernel = KERNELS[platform]
    reason = kernel.unsupported_reason(*call) if softmax_alone else SOFTMAX_ALONE
    pairs = call[0].shape[0] * call[1].shape[0]
    if reason is None and pairs < KERNEL_FROM[name]:
        reason = f"pays from {KERNEL_FROM[name]:,} pairs of query and key, got {pairs:,}"
    score, bias, sink = call[3], call[4], call[8]
    is_dot_product = type(score) in (Dot, ScaledDot) and bias is None and sink is None
    if reason is None and not (is_dot_product or PRODUCTS_BY_DEFAULT):
        reason = f'computes this call if it is named, implementation="{name}": no card has tested it'
    return f"{name} {reason}" if reason else ""


def explain(function: Callable, *args, **kwargs) -> list[dict[str, Choice]]:
    """Return by which implementation each call of `attend` in `function(*args, **kwargs)` is computed, and why.

    The result has a dict {platform: `Choice`} for each call. The function may be `attend`, `attend_heads`, a model's
    `apply`, a loss or its gradient. It is traced as by `jax.jit` and not computed: `jax.ShapeDtypeStruct`s may replace
    arrays, and the body of a loop counts once. Calls of `attend_sharded` are not listed.

    >>> x = jax.ShapeDtypeStruct((64, 8), jax.numpy.float32)
    >>> from attention_jax.ops.attention import attend
    >>> [choices] = explain(attend, x, x, x)
    >>> choices["cpu"]
    Choice(implementation='plain', reason='')
    >>> choices["tpu"].reason
    'flash needs query, key and value in bfloat16, got float32, float32 and float32'
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct)}

    def run(arrays):
        args, kwargs = jax.tree.unflatten(structure, [arrays.get(i, x) for i, x in enumerate(leaves)])
        return function(*args, **kwargs)

    names = _names(jax.make_jaxpr(run)(arrays).jaxpr)
    calls = [json.loads(name.removeprefix(MARK)) for name in names if name.startswith(MARK)]
    return [{platform: Choice(*choice) for platform, choice in choices.items()} for choices in calls]


MARK = "attend: "
"""The beginning of the name by which `explain` recognizes a call of `attend` in a trace."""


def tag_with_reasons(
    query,
    chosen: dict[str, Implementation],
    call: tuple,
    implementation,
    softmax_alone: bool,
    reason_against_kernel: Callable[[], str | None] = lambda: None,
):
    """Return `query`, with what was chosen for the call and why in the name that it has in traces (`checkpoint_name`);
    compiled programs do not have it."""
    reasons = dict.fromkeys(chosen, "")
    if implementation is not None:
        reasons = dict.fromkeys(chosen, f'implementation="{implementation}"')
    elif not all(isinstance(size, int) for size in (*call[0].shape, *call[1].shape)):
        reasons = dict.fromkeys(chosen, "the length is left open by jax.export")
    else:
        reasons |= {platform: refusal_reason(platform, call, softmax_alone) for platform in KERNELS}
        if KERNEL_BY_DEFAULT and chosen["cuda"] == "fused":
            reasons["cuda"] += f"; kernel {reason_against_kernel()}"
    return checkpoint_name(query, MARK + json.dumps({p: Choice(chosen[p], reasons[p]) for p in chosen}))


def _names(jaxpr) -> Iterator[str]:
    """The names that `checkpoint_name` gave to values in a trace."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"]
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns"):
                yield from _names(inner)


def _by_size(score, query, key, fused_from) -> dict[str, Implementation]:
    pairs = query.shape[0] * key.shape[0]
    # the weights are hardly more than the keys, or there is one block at most and nothing to save
    if min(query.shape[0], key.shape[0]) < 16 or pairs < 64 * 64:
        return dict.fromkeys(PLATFORMS, "plain")
    if pairs < max(fused_from.values()):
        pairs = pairs * pair_cost(score, query, key)
    return {platform: "fused" if pairs >= threshold else "plain" for platform, threshold in fused_from.items()}


def choose_blocks(score, query, key, block_q: int | None = None, block_k: int | None = None) -> dict[str, Blocks]:
    """Choose block sizes for each of `PLATFORMS`: powers of two, as many queries as keys or twice as many, with about
    PAIRS_PER_BLOCK / `pair_cost` pairs; no larger than the matrix.

    Tall, because a block of queries is loaded once and the keys go by. On 2 cores, gradient of 8 heads of 64,
    T = 2048: 512 x 256 0.121 s, 512 x 512 0.150, 256 x 256 0.164; `Additive` with 128 hidden units, 512 x 512:
    64 x 64 0.033 s, 32 x 32 0.050. Where one block is all, a TPU computes products again sooner than it writes them.
    """
    cost, blocks = pair_cost(score, query, key), {}
    for platform, limit in PAIRS_PER_BLOCK.items():
        pairs = max(limit // cost, 64 * 64)
        width = 2 ** (int(math.log2(pairs)) // 2)
        height = 2 ** int(math.log2(pairs // width))
        size = min(block_q or height, query.shape[0]), min(block_k or width, key.shape[0])
        is_single_block = size == (query.shape[0], key.shape[0])
        blocks[platform] = Blocks(*size, recompute_scores=platform == "tpu" and is_single_block and cost == 1)
    if block_q is None and block_k is None:
        stored = 1 if cost == 1 else pair_cost(score, query, key, operands=True)
        cell = tuple(min(64 if stored == 1 else 32, x.shape[0]) for x in (query, key))
        for platform, size in blocks.items():
            max_pairs = None if size.recompute_scores else PAIRS_OF_ALL[platform]  # scores that are not written
            blocks[platform] = size._replace(pairs=max_pairs and max_pairs // stored, cell=cell)
    return blocks


def choose_kernel_blocks(
    query, value, block_q: int | None = None, block_k: int | None = None
) -> dict[str, KernelBlocks]:
    """Choose the blocks of generated kernels for each of `PLATFORMS`: the largest of those whose registers hold a dot
    product's gradient on Hopper and Ampere (`python launch.py bench registers`). Four warps share a block of 64
    queries: eight would each compute products again, as 16 rows are the least that a warp multiplies."""
    size = max(x.shape[1] * x.dtype.itemsize for x in (query, value))
    blocks = KernelBlocks(64, 64) if size <= 128 else KernelBlocks(64, 32) if size <= 256 else KernelBlocks(32, 32)
    for name, size in (("block_q", block_q), ("block_k", block_k)):
        if size is not None and (size < 16 or size & (size - 1)):
            raise InputError(f'{name} of implementation="kernel" must be a power of two of at least 16, got {size}')
    blocks = blocks._replace(query=block_q or blocks.query, key=block_k or blocks.key)
    return {platform: blocks._replace(interpret=platform == "cpu") for platform in PLATFORMS}


def pair_cost(score, query, key, operands: bool = False) -> int:
    """Elements that the score's largest intermediate has per pair: 1 for dot products, H for
    `Additive`. Read off its trace. With `operands` of those alone that a matrix product reads.

    >>> from jax import numpy as jnp
    >>> from attention_jax.ops.scores import Additive, ScaledDot
    >>> x = jnp.ones((100, 8))
    >>> pair_cost(ScaledDot(), x, x), pair_cost(Additive.init(jax.random.key(0), 8, 8, 32), x, x)
    (1, 32)
    """
    size = 64
    jaxpr = jax.make_jaxpr(score)(*(jax.ShapeDtypeStruct((size, x.shape[1]), x.dtype) for x in (query, key)))
    return max(1, _largest(jaxpr.jaxpr, size * max(query.shape[1], key.shape[1]) + 1, operands) // size**2)


def _largest(jaxpr, floor: int, operands: bool) -> int:
    """The most elements of any result inside, or of any operand of a matrix product; 0 if none has `floor`."""
    sizes = [0]
    for equation in jaxpr.eqns:
        counted = equation.outvars
        if operands:
            counted = equation.invars if equation.primitive.name == "dot_general" else ()
        sizes += [math.prod(getattr(x.aval, "shape", ())) for x in counted]
        sizes += [
            _largest(getattr(inner, "jaxpr", inner), floor, operands)
            for inner in equation.params.values()
            if hasattr(inner, "eqns")
        ]
    return max(size if size >= floor else 0 for size in sizes)
