"""Selection of the implementation and block sizes of `attend` on each platform, and the reasons. Measured with
`python launch.py bench attention`."""

import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from attention_jax.errors import InputError
from attention_jax.ops import linear
from attention_jax.ops.arrays import ArrayBias
from attention_jax.ops.biases import ALiBi, Bias
from attention_jax.ops.blockwise.score_blocks import Blocks, KernelBlocks
from attention_jax.ops.kernels import cudnn, flash
from attention_jax.ops.masks import Mask
from attention_jax.ops.normalizers import Normalizer, Softmax, Sparsemax
from attention_jax.ops.precision import is_half
from attention_jax.ops.scores import Dot, Gaussian, ScaledDot, Score, SoftCap

Implementation = Literal["plain", "fused", "kernel", "cudnn", "flash", "linear"]


class Call(NamedTuple):
    """A call of `attend`, as an implementation is chosen for it."""

    query: jax.Array | jax.ShapeDtypeStruct  # [Q, D]
    key: jax.Array | jax.ShapeDtypeStruct  # [K, E]
    value: jax.Array | jax.ShapeDtypeStruct  # [K, V]
    score: Score = ScaledDot()
    bias: Bias | None = None
    mask: Mask | None = None
    dropout: jax.Array | float | None = None
    query_offset: jax.Array | int = 0
    sink: jax.Array | float | None = None
    softmax_alone: bool = True  # no other normalizer, log-sum-exp, statistics or pool
    normalizer: Normalizer = Softmax()
    kernel_reason: Callable[..., str | None] = lambda **_: None  # why no kernel can be generated: it traces the kernel
    kernel_gradient_reason: Callable[..., str | None] = lambda **_: None  # and why none for the gradient


class Choice(NamedTuple):
    """How a call of `attend` is computed on one platform."""

    implementation: Implementation
    reason: str
    """Why this is not the platform's kernel; "" if it is, and where there is none."""


PRODUCTS_BY_DEFAULT = False
"""Whether kernels take scores, biases and sinks that are products of features (ops/kernels/terms.py) without being
named, beside dot products. No card has run these yet: `python -m pytest -m gpu` and `python launch.py bench card` are
to be green first."""

KERNEL_BY_DEFAULT = {
    (ScaledDot, Softmax, None): False,
    (SoftCap, Softmax, None): False,
    (Gaussian, Softmax, None): False,
    (ScaledDot, Softmax, ALiBi): False,
    (ScaledDot, Softmax, ArrayBias): False,
    (ScaledDot, Sparsemax, None): False,
}
"""Whether kernels are generated (ops/kernels/generated) without being named, on CUDA, for calls with these types of
score, normalizer and bias; never for others. No card has run these yet, either."""

PLATFORMS = ("cpu", "cuda", "tpu", "default")
"""Platform names of `jax.lax.platform_dependent`; "default" is any other one."""

FUSED_FROM = dict.fromkeys(PLATFORMS, 256 * 256)
"""Pairs Q * K, times the score's `pair_cost`, from which "fused" is taken: where its gradient is clearly faster than
the gradient of "plain", or needs clearly less memory. On 2 cores, 8 heads of 64: as fast at 64 x 64, 1.4x at 128 x 128,
1.5x at 256 x 256 and 5x at 512 x 512, compiling 3x as long. With the blocks of a GPU, gradient of 16 x 12 heads of 64
with a soft cap in bfloat16: 59 MiB of temporaries at 128 x 128 and 60 by "plain", 107 and 228 at 256 x 256, 179 and 888
at 512 x 512 (XLA's plans for a CPU)."""

HALF_FUSED_FROM = FUSED_FROM | {"tpu": 128 * 128}
"""The same in half precision, where "fused" in one block keeps no weights for the gradient: for one v5e chip, the
gradient of 2 layers of ViT-S/16 (196 patches, batch 128) reads and writes 10.4 GB with it and 15.1 with "plain". In
float32 a TPU does not choose it where a CPU chooses "plain", which would compute its weights twice then."""

KERNEL_FROM = {"cudnn": 0, "flash": 512 * 512, "kernel": 128 * 128}
"""Pairs Q * K from which a kernel is taken. A generated one writes no weights to memory, as "plain" does. For one v5e
chip, gradient of 1,024 heads of 64 at T = 256, 256 at 512 and 64 at 1,024: 3.7, 1.9 and 0.6 GB of traffic by "flash",
3.0, 2.9 and 2.9 by "plain"."""

PAIRS_PER_BLOCK = {"cpu": 512 * 256, "cuda": 4096 * 512, "tpu": 4096 * 512, "default": 4096 * 512}
"""Pairs in one block of a score that costs 1 per pair; divided by the cost of others, but not below 64 x 64."""

PAIRS_OF_ALL = {"cpu": None, "cuda": 4096 * 512, "tpu": 4096 * 512, "default": 4096 * 512}
"""Pairs in the blocks of all sequences and heads that are vmapped together, which are halved until they fit; None for
blocks that do not depend on that. Divided by the elements per pair that the score's matrix products read, which XLA
writes to memory; not below 64 x 64, or 32 x 32 for a score with such products. By XLA's plan for an H100 the gradient
of 8 x 16 causal heads of 64 at T = 2048 in bfloat16 has 256 MiB of temporaries, and 2,802 with the blocks of one head.
"""


# --- the implementation -----------------------------------------------------------------------------------------------


def _against_library(name: str, module, call: Call) -> str | None:
    """Why a library's kernel, a module with `unsupported_reason`, is not taken without being named."""
    pairs = call.query.shape[0] * call.key.shape[0]
    is_dot_product = type(call.score) in (Dot, ScaledDot) and call.bias is None and call.sink is None
    if (reason := _against_by_name(module, call)) is not None:
        return reason
    if pairs < KERNEL_FROM[name]:
        return f"pays from {KERNEL_FROM[name]:,} pairs of query and key, got {pairs:,}"
    if not (is_dot_product or PRODUCTS_BY_DEFAULT):
        return f'computes this call if it is named, implementation="{name}": no card has tested it'
    return None


def _against_by_name(module, call: Call) -> str | None:
    """Why a module that computes the softmax alone cannot compute a call."""
    if not call.softmax_alone:
        return "computes the softmax alone, without its log-sum-exp and its statistics"
    return module.unsupported_reason(call)


def _against_kernel(call: Call, *_) -> str | None:
    """Why no kernel is generated without being named; "" where that is no question. The kernel is traced last."""
    queries, keys = call.query.shape[0], call.key.shape[0]
    rules = type(call.score), type(call.normalizer), None if call.bias is None else type(call.bias)
    if min(queries, keys) < 16 or queries * keys < KERNEL_FROM["kernel"] or not KERNEL_BY_DEFAULT.get(rules):
        return ""
    return call.kernel_reason()


def _against_plain(call: Call, platform: str, cost: Callable[[], int]) -> str | None:
    """Why not all weights at once: there are many, and `cost` is `pair_cost`, which is traced where it decides."""
    queries, keys = call.query.shape[0], call.key.shape[0]
    # the weights are hardly more than the keys, or there is one block at most and nothing to save
    if min(queries, keys) < 16 or queries * keys < 64 * 64:
        return None
    least = (HALF_FUSED_FROM if is_half(call.query.dtype) else FUSED_FROM)[platform]
    return "is slow" if queries * keys >= least or queries * keys * cost() >= least else None


class Row(NamedTuple):
    """An implementation, and the platforms that may take it without its name."""

    name: Implementation
    platforms: tuple[str, ...]
    reason_against: Callable[[Call, str, Callable[[], int]], str | None]
    """None: take it. A text: why not, which `explain` shows for a platform's own kernel. "": not, nothing to show."""


ROWS = (
    Row("cudnn", ("cuda",), lambda call, *_: _against_library("cudnn", cudnn, call)),
    Row("flash", ("tpu",), lambda call, *_: _against_library("flash", flash, call)),
    Row("kernel", ("cuda",), _against_kernel),
    Row("plain", PLATFORMS, _against_plain),
    Row("linear", PLATFORMS, lambda call, *_: _against_by_name(linear, call)),
    Row("fused", PLATFORMS, lambda *_: None),
)
"""A platform takes the first row without a reason against it. Later rows are not asked: a generated kernel's reason
traces it."""

BY_NAME = {
    "cudnn": lambda call: _against_by_name(cudnn, call),
    "flash": lambda call: _against_by_name(flash, call),
    "linear": lambda call: _against_by_name(linear, call),
    "kernel": lambda call: call.kernel_reason(),
}
"""Why an implementation that is named cannot compute a call; "plain" and "fused" can compute all."""


def choose_implementation(call: Call, implementation: Implementation | None = None) -> dict[str, Choice]:
    """Choose the implementation on each of `PLATFORMS`: the one that the caller names, if it can compute the call;
    "plain" where the length is left open by `jax.export`; else the first of `ROWS` without a reason against it.

    "kernel" by name is JAX's interpreter of kernels on a CPU, for tests, and "fused" on platforms without one, as on a
    TPU for what `ops/kernels/generated/tpu.py` cannot compute.
    """
    if implementation not in (None, *get_args(Implementation)):
        raise InputError(
            f"implementation must be one of {', '.join(get_args(Implementation))} or None, got {implementation!r}"
        )
    if implementation is not None:
        reason = BY_NAME[implementation](call) if implementation in BY_NAME else None
        if reason is not None:
            raise InputError(f'implementation="{implementation}" {reason}: take "fused", or None to choose by itself')
        name = f'implementation="{implementation}"'
        choices = dict.fromkeys(PLATFORMS, Choice(implementation, _with_gradient_reason(implementation, call, name)))
        if implementation == "kernel":
            reason = call.kernel_reason(platform="tpu")
            on_tpu = ("kernel", f'{name}; the gradient is that of "fused"'), ("fused", f"{name} {reason}")
            choices |= {"tpu": Choice(*on_tpu[reason is not None]), "default": Choice("fused", name)}
        return choices
    if not all(isinstance(size, int) for size in (*call.query.shape, *call.key.shape)):
        return dict.fromkeys(PLATFORMS, Choice("plain", "the length is left open by jax.export"))
    cost = functools.cache(lambda: pair_cost(call.score, call.query, call.key))
    return {platform: _choose_on(platform, call, cost) for platform in PLATFORMS}


def _choose_on(platform: str, call: Call, cost: Callable[[], int]) -> Choice:
    reasons = []
    for row in ROWS:
        if platform not in row.platforms:
            continue
        reason = row.reason_against(call, platform, cost)
        if reason is None:
            return Choice(row.name, _with_gradient_reason(row.name, call, *reasons))
        if reason and row.platforms != PLATFORMS:  # of the kernels of this platform
            reasons.append(f"{row.name} {reason}")
    raise AssertionError("fused computes every call")


def _with_gradient_reason(name: Implementation, call: Call, *reasons: str) -> str:
    """The reasons, and why the gradient of a generated kernel is that of "fused", if it is."""
    reason = call.kernel_gradient_reason() if name == "kernel" else None
    return "; ".join(reasons if reason is None else (*reasons, f'the gradient is that of "fused": kernel {reason}'))


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


def tag_with_reasons(query, choices: dict[str, Choice]):
    """Return `query`, with what was chosen for the call and why in the name that it has in traces (`checkpoint_name`);
    compiled programs do not have it."""
    return checkpoint_name(query, MARK + json.dumps(choices))


def _names(jaxpr) -> Iterator[str]:
    """The names that `checkpoint_name` gave to values in a trace."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"]
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns"):
                yield from _names(inner)


# --- its blocks -------------------------------------------------------------------------------------------------------


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
    by_platform = {platform: blocks._replace(interpret=platform == "cpu") for platform in PLATFORMS}
    return by_platform | {"tpu": KernelBlocks(block_q or 256, block_k or 256, is_for_tpu=True)}


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
