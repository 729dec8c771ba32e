"""When cuDNN is taken, and that the call it gets is well formed. Where there is no NVIDIA GPU
the program is traced, not run; what the kernel is asked for is computed by `jax.nn`'s XLA implementation."""

import functools
import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.dispatch import PLATFORMS, Call, choose_implementation
from attention_jax.ops.kernels import cudnn
from attention_jax.ops.masks import causal, dense, lengths, window
from attention_jax.ops.scores import ScaledDot, SoftCap
from benchmarks._targets import compile_for, parse_target

X = jnp.ones((16, 64), jnp.bfloat16)
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal & lengths": lambda n: lengths(n) & causal(),
    "causal & window": lambda n: causal() & window(3),
}


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_what_cudnn_can_do_goes_there(cudnn_installed, mask):
    """Batched over any axes, with operands that are not batched, and gradients from outside and inside of the vmap."""
    many, shared, n = (
        jnp.ones((3, 16, 4, 64), jnp.bfloat16),
        jnp.ones((16, 64), jnp.bfloat16),
        jnp.array([16, 0, 9], jnp.int32),
    )

    def pool_head(query, key, n):
        return attend(query, key, key, mask=mask(n))

    def outside(query, key):
        heads = jax.vmap(pool_head, (1, None, None), 1)
        return jax.vmap(heads, (0, None, 0))(query, key, n).astype(jnp.float32).sum()

    inside = jax.vmap(
        jax.vmap(jax.grad(lambda q, k, n: pool_head(q, k, n).astype(jnp.float32).sum(), (0, 1)), (1, None, None), 1),
        (0, None, 0),
    )
    for function, arguments in ((jax.grad(outside, (0, 1)), (many, shared)), (inside, (many, shared, n))):
        program = jax.jit(function).trace(*arguments)
        assert program.out_info[0].shape == many.shape
        text = {p: program.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda", "tpu")}
        assert {p: "cudnn$fmhaSoftmaxBackward" in text[p] for p in text} == {"cpu": False, "cuda": True, "tpu": False}


BATCHINGS = {
    "one sequence": (lambda f: f, "T D", "T D", ""),
    "heads": (lambda f: jax.vmap(f, (1, 1, 1, None), 1), "T H D", "T H D", ""),
    "batch and heads": (lambda f: jax.vmap(jax.vmap(f, (1, 1, 1, None), 1)), "B T H D", "B T H D", "B"),
    "shared keys": (lambda f: jax.vmap(f, (1, None, None, None), 1), "T H D", "T D", ""),
    "grouped heads": (
        lambda f: jax.vmap(jax.vmap(jax.vmap(f, (1, None, None, None), 1), (1, 1, 1, None), 1)),
        "B T G H D",
        "B T G D",
        "B",
    ),
}
"""How `attend` is vmapped, and the axes of queries, of keys and of the number of keys."""
LENGTHS, HEAD_SIZES = (1, 64, 1023), (8, 40, 64, 72, 96, 128, 136, 256)


def attend_loss(mask, length, head_size, batching, dtype):
    """A loss of `attend` by default, mapped, and the shapes of its query, key, value and number of keys."""
    lift, *axes = BATCHINGS[batching]
    sizes = {"B": 2, "G": 2, "H": 3, "T": length, "D": head_size}
    query, key, number = (tuple(sizes[axis] for axis in names.split()) for names in axes)
    mapped = lift(lambda q, k, v, n: attend(q, k, v, mask=MASKS[mask](n)))
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in (query, key, key)]
    loss = lambda *arrays: mapped(*arrays).astype(jnp.float32).sum()
    return loss, (*shapes, jax.ShapeDtypeStruct(number, jnp.int32))


def trace_gradient(*case):
    """Trace a gradient, with the branch of every platform in it."""
    loss, shapes = attend_loss(*case)
    gradients = jax.eval_shape(jax.grad(loss, (0, 1, 2)), *shapes)
    assert [x.shape for x in gradients] == [x.shape for x in shapes[:3]]


PAIRS = [
    (mask, length, HEAD_SIZES[(i + 3 * j) % 8], list(BATCHINGS)[(2 * i + j) % 5], ("bfloat16", "float16")[(i + j) % 2])
    for (i, mask), (j, length) in itertools.product(enumerate(MASKS), enumerate(LENGTHS))
]
"""Every mask at every length, in one way to map it each."""


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_gradient_of_every_route_traces(cudnn_installed, length):
    """JAX's wrapper of cuDNN has conditions that only a gradient meets, such as even lengths."""
    for case in PAIRS:
        if case[1] == length:
            trace_gradient(*case)


@pytest.mark.slow
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_compile_for_an_h100(mask, batching):
    """One program for all lengths and head sizes. XLA leaves cuDNN's own plan to the card."""
    if not importlib.util.find_spec("jax_cuda12_plugin"):
        pytest.skip("needs jax[cuda12], which compiles for a GPU without one")
    cases = [
        attend_loss(mask, length, head_size, batching, dtype)
        for length in (1, 63, 197, 1024)
        for head_size, dtype in ((8, "bfloat16"), (72, "float16"), (128, "bfloat16"), (136, "bfloat16"))
    ]
    losses, shapes = zip(*cases)
    program = lambda *arrays: [jax.grad(loss, (0, 1, 2))(*call) for loss, call in zip(losses, arrays, strict=True)]
    assert "cudnn$fmhaSoftmaxBackward" in compile_for(parse_target("h100"), program, *shapes).as_text()


@pytest.mark.slow
@pytest.mark.parametrize("queries, keys", [(1, 1), (5, 5), (5, 8), (8, 5)])
def test_padding_to_even_lengths_changes_nothing(cudnn_installed, monkeypatch, queries, keys):
    """Output and gradients are those of the definition under every mask, also with NaN beyond the lengths, and the
    kernel sees even lengths only. One program."""
    by_library, lengths_seen = jax.nn.dot_product_attention, []

    def by_xla(query, key, value, **call):
        lengths_seen.extend((query.shape[1], key.shape[1]))
        return by_library(query, key, value, **(call | {"implementation": "xla"}))

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    random = np.random.default_rng(0)
    query, key, value, bar = (random.normal(size=(n, 8)).astype(np.float32) for n in (queries, keys, keys, queries))

    def both(name, query, key, value, bar):
        number = keys // 2 if "lengths" in name else keys
        mask, hidden = MASKS[name](number), jnp.arange(keys)[:, None] >= number
        arrays = query, jnp.where(hidden, jnp.nan, key), jnp.where(hidden, jnp.nan, value)
        by_kernel = lambda q, k, v: cudnn.attend(q, k, v, ScaledDot(), None, mask)
        by_definition = lambda q, k, v: attend(q, k, v, mask=mask, implementation="plain")
        pairs = (jax.vjp(attention, *arrays) for attention in (by_kernel, by_definition))
        return [(out, *pull(bar)) for out, pull in pairs]

    names = [name for name in MASKS if queries == keys or "causal" not in name]
    results = jax.jit(lambda *arrays: {name: both(name, *arrays) for name in names})(query, key, value, bar)
    for name, (kernel, definition) in results.items():
        for x, y in zip(kernel, definition, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5, err_msg=name)
    assert lengths_seen and not any(n % 2 for n in lengths_seen)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "causal & lengths"])
def test_log_sum_exp_does_not_come_from_cudnn(cudnn_installed, mask):
    """`jax.nn` returns cuDNN's log-sum-exp without its gradient: the gradient here is that of the definition, the
    weights times the keys, and no program that needs it calls cuDNN."""
    random = np.random.default_rng(0)
    query, key = (jnp.asarray(random.normal(size=(16, 8)), jnp.bfloat16) for _ in range(2))
    call = functools.partial(attend, key=key, value=key, mask=MASKS[mask](9))
    log_sum = lambda query: call(query, return_log_sum_exp=True)[1].sum()
    text = jax.jit(jax.grad(log_sum)).trace(query).lower(lowering_platforms=("cuda",)).as_text()
    assert "cudnn" not in text
    expected = call(query, value=key, implementation="plain").astype(jnp.float32) / np.sqrt(8)
    np.testing.assert_allclose(jax.grad(log_sum)(query).astype(jnp.float32), expected, atol=2e-2)
    program = jax.jit(functools.partial(call, return_statistics=True)).trace(query)
    assert "cudnn" not in program.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    "change",
    [
        {"score": SoftCap()},
        {"bias": ALiBi(0.1)},  # |i - j| without a causal mask
        {"dropout": 0.1},
        {"mask": window(3)},
        {"mask": dense(jnp.ones((16, 16), bool))},
        {"mask": causal() | lengths(3)},
        {"mask": causal() & window(3) & lengths(4)},
        {"mask": lengths(3) & lengths(4)},
        {"mask": causal(), "query_offset": 1},
        {"mask": causal(), "key": X[:8], "value": X[:8]},
        {"query": X.astype(jnp.float32)},
        {"value": jnp.concatenate([X, X, X], axis=1)},
        {"sink": 0.0, "mask": causal() & window(3)},
    ],
)
def test_what_cudnn_cannot_do_goes_elsewhere(cudnn_installed, change):
    call = Call(X, X, X)
    names = lambda call: {platform: choice.implementation for platform, choice in choose_implementation(call).items()}
    small = dict.fromkeys(PLATFORMS, "plain")
    assert names(call) == small | {"cuda": "cudnn"}
    assert names(call._replace(**change)) == small


def test_without_the_library_there_is_no_cudnn():
    call = Call(X, X, X)
    if cudnn.missing() is None:
        assert cudnn.unsupported_reason(call) is None
    else:
        assert "cuDNN" in cudnn.missing() and cudnn.missing() in cudnn.unsupported_reason(call)
        assert {choice.implementation for choice in choose_implementation(call).values()} == {"plain"}
