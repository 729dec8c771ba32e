"""The rule of `implementation=None`, and the blocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from attention_jax.errors import InputError
from attention_jax.ops import attention, dispatch, linear, scores
from attention_jax.ops.attention import _attend_plain, _Plan, attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.blockwise import derivatives
from attention_jax.ops.blockwise.score_blocks import Blocks, Inputs, partition
from attention_jax.ops.dispatch import PLATFORMS, Call, Choice, choose_blocks, choose_implementation, explain, pair_cost
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.kernels import cudnn, flash
from attention_jax.ops.masks import causal
from attention_jax.ops.normalizers import Sigmoid, Softmax, Sparsemax, StickBreaking, TopK

SCALED_DOT = scores.ScaledDot()
ADDITIVE = scores.Additive.init(jax.random.key(0), 8, 8, 128)
at_once = functools.partial(_attend_plain, _Plan({}, by_blocks=True))


def choose_on_platforms(queries, keys, score=SCALED_DOT, implementation=None, elsewhere="default", dtype=jnp.float32):
    """On a CPU, and elsewhere."""
    query, key = (jax.ShapeDtypeStruct((rows, 8), dtype) for rows in (queries, keys))
    choices = choose_implementation(Call(query, key, key, score), implementation)
    by_platform = {platform: choice.implementation for platform, choice in choices.items()}
    assert tuple(by_platform) == PLATFORMS
    assert dtype == jnp.bfloat16 or by_platform["cuda"] == by_platform["default"]
    return by_platform["cpu"], by_platform[elsewhere]


def test_small_is_plain_and_large_is_fused():
    assert choose_on_platforms(128, 128) == ("plain", "plain")
    assert choose_on_platforms(255, 256) == ("plain", "plain") and choose_on_platforms(256, 256) == ("fused", "fused")
    assert choose_on_platforms(1, 10**6) == (
        "plain",
        "plain",
    )  # a decoding step: the weights are no larger than the keys
    assert choose_on_platforms(32, 64, ADDITIVE) == ("plain", "plain")
    assert choose_on_platforms(64, 64, ADDITIVE) == ("fused", "fused")
    assert choose_on_platforms(4096, 4096, implementation="plain") == ("plain", "plain")
    assert choose_on_platforms(2, 2, implementation="fused") == ("fused", "fused")


def test_tpu_thresholds_of_fused():
    on_tpu = functools.partial(choose_on_platforms, elsewhere="tpu")
    assert on_tpu(196, 196) == ("plain", "plain") and on_tpu(256, 256) == ("fused", "fused")
    assert on_tpu(196, 196, dtype=jnp.bfloat16, score=scores.Cosine()) == ("plain", "fused")
    assert on_tpu(196, 196, dtype=jnp.bfloat16) == ("plain", "fused")


def lower(function, platform, *inputs):
    return jax.jit(function).trace(*inputs).lower(lowering_platforms=(platform,)).as_text()


def test_none_is_the_chosen_one():
    x = jax.random.normal(jax.random.key(0), (300, 8))
    attention = lambda implementation: lambda x: attend(x, x, x, implementation=implementation, mask=causal())
    loops = lambda implementation: lower(attention(implementation), "cpu", x).count("stablehlo.while")
    assert loops(None) == loops("fused") > loops("plain") == 0


@pytest.mark.parametrize("length, on_cpu, elsewhere", [(300, "300x256", "300x300"), (1100, "512x256", "1100x1024")])
def test_each_platform_gets_its_blocks(length, on_cpu, elsewhere):
    x = jax.ShapeDtypeStruct((length, 8), jnp.float32)
    for function in (lambda x: attend(x, x, x), jax.grad(lambda x: attend(x, x, x).sum())):
        texts = [lower(function, platform, x) for platform in ("cpu", "cuda", "tpu")]
        assert [f"<{on_cpu}xf32>" in text for text in texts] == [True, False, False]
        assert [f"<{elsewhere}xf32>" in text for text in texts] == [False, True, True]


def in_blocks(inputs, blocks):
    """The outputs of `derivatives.attend_in_blocks` with the same blocks on every platform."""
    floats, non_floats, combine = partition(inputs)
    return derivatives.attend_in_blocks((("default", blocks),), at_once, combine, floats, non_floats)[0]


def test_gradients_without_blocks_equal_plain():
    """A platform without blocks computes the whole again for the gradient: `attend_in_blocks` with blocks of None."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 300, 8))
    call = lambda query, bias: Inputs((SCALED_DOT, bias, Softmax()), query, key, value, query, causal(), None, 0)
    bias = ALiBi(jnp.float32(0.3))
    whole = lambda query, bias: jnp.sin(in_blocks(call(query, bias), None)[0]).sum()
    plain = lambda query, bias: jnp.sin(at_once(call(query, bias))[0]).sum()
    actual, expected = (jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(query, bias) for f in (whole, plain))
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_recomputed_scores_give_plain_result(dtype, tolerance):
    query, key, value = jax.random.normal(jax.random.key(0), (3, 20, 8)).astype(dtype)

    def once(arrays, run):
        query, key, value = arrays
        return jnp.sin(run(Inputs((SCALED_DOT, None, Softmax()), query, key, value, None, causal(), None, 0))).sum()

    again = lambda inputs: in_blocks(inputs, Blocks(20, 20, recompute_scores=True))[0]
    actual = jax.jit(jax.value_and_grad(functools.partial(once, run=again)))((query, key, value))
    expected = jax.jit(jax.value_and_grad(functools.partial(once, run=lambda inputs: at_once(inputs)[0])))(
        tuple(x.astype(jnp.float32) for x in (query, key, value))
    )
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=0, atol=tolerance * np.abs(b).max())


def test_what_all_choose_is_traced_once():
    traces = []

    def score(query, key):
        traces.append(len(query))
        return query @ key.T

    jax.make_jaxpr(lambda x: attend(x, x, x, score=score))(jnp.ones((60, 8)))
    assert traces.count(60) == 1  # and five times, untraced, on the examples of two queries


@pytest.mark.parametrize(
    "score, cost", [(scores.ScaledDot(), 1), (scores.Gaussian(), 1), (scores.Cosine(), 1), (ADDITIVE, 128)]
)
def test_costs_and_blocks(score, cost):
    x = jnp.ones((1000, 8))
    assert pair_cost(score, x, x) == cost
    on_cpu, elsewhere = ((512, 256), (1000, 1000)) if cost == 1 else ((64, 64), (128, 128))
    again = cost == 1  # where one block is all, and cheap
    blocks = {platform: chosen[:3] for platform, chosen in choose_blocks(score, x, x).items()}
    expected = dict.fromkeys(PLATFORMS, (*elsewhere, False))
    assert blocks == expected | {"cpu": (*on_cpu, False), "tpu": (*elsewhere, again)}
    assert choose_blocks(score, x, x, 10, 20) == dict.fromkeys(PLATFORMS, Blocks(10, 20))


@pytest.mark.parametrize("width", [64, 128, 512])
def test_dot_product_pair_cost_is_one(width):
    x = jnp.ones((1000, width))
    assert pair_cost(scores.ScaledDot(), x, x) == 1


def test_pair_cost_of_custom_score_from_trace():
    def absolute(query, key):
        return -jnp.abs(query[:, None, :] - key[None, :, :]).sum(axis=-1)

    assert pair_cost(absolute, jnp.ones((5, 8)), jnp.ones((5, 8))) == 8


@pytest.mark.parametrize("normalizer", [Softmax(), Softmax(0.0), Sparsemax(), Sigmoid(), TopK(4), StickBreaking(), abs])
def test_kernels_are_chosen_for_the_softmax_alone(monkeypatch, normalizer):
    """Even those that refuse no score, mask or shape: they would compute the softmax instead."""
    for module in (cudnn, flash, linear):
        monkeypatch.setattr(module, "unsupported_reason", lambda call: None)
    monkeypatch.setattr(dispatch, "PRODUCTS_BY_DEFAULT", True)
    choices, plain = [], dict.fromkeys(PLATFORMS, Choice("plain", ""))
    record_choice = lambda *call: choices.append(choose_implementation(*call)) or plain
    monkeypatch.setattr(attention, "choose_implementation", record_choice)
    x = jax.ShapeDtypeStruct((1024, 64), jnp.bfloat16)
    call = lambda implementation: jax.eval_shape(
        lambda x: attend(x, x, x, normalizer=normalizer, implementation=implementation), x
    )
    call(None)
    alone = isinstance(normalizer, Softmax)  # a sink is up to the kernel
    implementations = {choices[0][platform].implementation for platform in ("cuda", "tpu")}
    assert implementations == ({"cudnn", "flash"} if alone else {"fused"})
    for kernel in ("cudnn", "flash", "linear"):
        if alone:
            call(kernel)
        else:
            with pytest.raises(InputError, match=f'"{kernel}".* softmax alone'):
                call(kernel)


HALF = jax.ShapeDtypeStruct((1024, 64), jnp.bfloat16)


@pytest.mark.parametrize(
    "platform, call, implementation, reason",
    [
        ("cuda", {}, "cudnn", ""),
        ("cuda", {"score": scores.SoftCap(20.0)}, "fused", "cudnn computes scores that say their terms, not SoftCap"),
        ("cuda", {"bias": ALiBi(0.5)}, "fused", "cudnn adds biases of the key alone, not ALiBi without causal()"),
        ("cuda", {"bias": ALiBi(0.5), "mask": causal(), "score": scores.Gaussian(0.5)}, "cudnn", ""),
        ("cuda", {"normalizer": Softmax(sink=0.5), "score": scores.Cosine(8.0)}, "cudnn", ""),
        ("cuda", {"normalizer": Sparsemax()}, "fused", "cudnn computes the softmax alone"),
        ("cuda", {"return_statistics": True}, "fused", "cudnn computes the softmax alone"),
        ("cuda", {"implementation": "plain"}, "plain", 'implementation="plain"'),
        ("tpu", {"mask": causal()}, "flash", ""),
        ("tpu", {"score": scores.Cosine()}, "flash", ""),
        ("tpu", {"score": scores.Boxcar()}, "fused", "flash computes scores that say their terms, not Boxcar"),
        ("tpu", {"normalizer": Softmax(sink=0.5)}, "fused", "flash knows no sink"),
        ("cpu", {}, "fused", ""),
        ("default", {}, "fused", ""),
    ],
)
def test_a_choice_is_explained(platform, call, implementation, reason, monkeypatch):
    monkeypatch.setattr(dispatch, "PRODUCTS_BY_DEFAULT", True)
    monkeypatch.setattr(cudnn, "missing", lambda: None)
    monkeypatch.setattr(cudnn, "attend", lambda query, key, value, *rules: value)  # no card, nothing to trace
    [choices] = explain(attend, HALF, HALF, HALF, **call)
    assert tuple(choices) == PLATFORMS and choices[platform].implementation == implementation
    assert choices[platform].reason.startswith(reason) and bool(choices[platform].reason) == bool(reason)


@pytest.mark.parametrize("length", [512, 1023])
def test_no_gpu_has_a_matrix_of_soft_capped_scores(length):
    """Language models of up to 1,023 tokens, whose scores no library's kernel computes."""
    x = jax.ShapeDtypeStruct((length, 64), jnp.bfloat16)
    [choices] = explain(attend, x, x, x, mask=causal(), score=scores.SoftCap(20.0))
    assert choices["cuda"].implementation == choices["default"].implementation == "fused"


@pytest.mark.parametrize(
    "call, rules, implementation, reason",
    [
        (
            {"score": scores.SoftCap(20.0)},
            (scores.SoftCap, Softmax, None),
            "kernel",
            "cudnn computes scores that say their terms, not SoftCap",
        ),
        (
            {"normalizer": Sparsemax()},
            (scores.ScaledDot, Sparsemax, None),
            "kernel",
            "cudnn computes the softmax alone",
        ),
        ({"normalizer": Sparsemax()}, (scores.SoftCap, Softmax, None), "fused", "cudnn computes the softmax alone"),
        ({"bias": ALiBi(0.5)}, (scores.ScaledDot, Softmax, ALiBi), "kernel", "cudnn adds biases of the key alone"),
        ({"bias": ALiBi(0.5)}, (scores.ScaledDot, Softmax, None), "fused", "cudnn adds biases of the key alone"),
        (
            {"normalizer": StickBreaking()},
            (scores.ScaledDot, StickBreaking, None),
            "fused",
            "kernel knows no normalizer StickBreaking",
        ),
        (
            {"score": lambda query, key: jnp.sort(query[:, :1]) @ key[:, :1].T},
            (Partial, Softmax, None),
            "fused",
            "kernel knows no sort",
        ),
        ({}, (scores.ScaledDot, Softmax, None), "cudnn", ""),
    ],
)
def test_generated_kernels_take_what_cudnn_does_not(call, rules, implementation, reason, monkeypatch):
    """Calls of the rules that are in the table, and no others."""
    monkeypatch.setattr(cudnn, "missing", lambda: None)
    monkeypatch.setattr(cudnn, "attend", lambda query, key, value, *rules: value)
    by_default = lambda: explain(attend, HALF, HALF, HALF, **call)[0]
    assert by_default()["cuda"].implementation != "kernel"  # no card has run one yet
    monkeypatch.setitem(dispatch.KERNEL_BY_DEFAULT, rules, True)
    choices = by_default()
    assert choices["cuda"].implementation == implementation and reason in choices["cuda"].reason
    assert all(choices[platform].implementation != "kernel" for platform in PLATFORMS if platform != "cuda")


def test_no_kernel_is_traced_that_is_not_needed(monkeypatch):
    """The reason against a generated kernel traces it: it is asked once, where every row before it has a reason."""
    traces = []
    kernel_reason = lambda: traces.append("kernel") or "is refused"
    choose = lambda size, **call: choose_implementation(
        Call(*[jnp.zeros((size, 8))] * 3, kernel_reason=kernel_reason, **call)
    )
    choose(2048)
    assert not traces  # as no kernel is taken by default
    monkeypatch.setitem(dispatch.KERNEL_BY_DEFAULT, (scores.ScaledDot, Softmax, None), True)
    choose(127)
    choose(2048, score=linear.Elu())
    assert not traces
    assert choose(128)["cuda"].implementation == "plain" and traces.pop() == "kernel"
    assert choose(2048)["cuda"].reason.endswith("; kernel is refused") and traces == ["kernel"]


def test_a_kernel_by_name_is_interpreted_on_cpus_and_in_blocks_where_there_is_none():
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    [choices] = explain(attend, x, x, x, implementation="kernel")
    chosen = {platform: choice.implementation for platform, choice in choices.items()}
    assert chosen == {"cpu": "kernel", "cuda": "kernel", "tpu": "fused", "default": "fused"}
    with pytest.raises(InputError, match='implementation="kernel" sums in float32, got float64'), jax.enable_x64(True):
        attend(*[jnp.ones((32, 8), jnp.float64)] * 3, implementation="kernel")


@pytest.mark.parametrize(
    "bias, reason",
    [
        (jnp.ones((1, 64)), "kernel knows no dynamic_update_slice"),
        (
            Partial(lambda table, query, i, j: table[i[:, None] + j[None]], jnp.ones(127)),
            "a table of more than 64 numbers",
        ),
        (ALiBi(0.5), ""),
    ],
)
def test_the_route_of_a_kernel_gradient_is_explained(bias, reason):
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    [choices] = explain(attend, x, x, x, bias=bias, implementation="kernel")
    assert ("fused" in choices["cuda"].reason) == bool(reason) and reason in choices["cuda"].reason


def test_short_calls_do_not_use_flash():
    short = jax.ShapeDtypeStruct((256, 64), jnp.bfloat16)
    [choices] = explain(attend, short, short, short)
    assert choices["tpu"].reason == "flash pays from 262,144 pairs of query and key, got 65,536"
    assert choices["tpu"].implementation == choose_on_platforms(256, 256, elsewhere="tpu", dtype=jnp.bfloat16)[1]


def test_calls_are_explained_wherever_they_are():
    """In a compiled function that was traced before, a loop, a branch, a checkpoint, a gradient and under vmap."""
    query = jnp.ones((2, 20, 4, 8))
    heads = lambda x, implementation: attend_heads(x, x, x, implementation=implementation)
    compiled = jax.jit(lambda x: heads(x, "plain"))
    compiled(query)

    def loss(x):
        x = jax.checkpoint(lambda x: heads(compiled(x), "fused"))(x)
        x = jax.lax.scan(lambda x, _: (heads(x, None), None), x, length=3)[0]
        return jax.lax.cond(x[0, 0, 0, 0] > 0, lambda x: heads(x, "fused"), lambda x: x, x).sum()

    reasons = [choices["cpu"].reason for choices in explain(loss, query)]
    assert reasons == ['implementation="plain"', 'implementation="fused"', "", 'implementation="fused"']
    assert {*reasons} == {choices["cpu"].reason for choices in explain(jax.grad(loss), query)}
    assert explain(jnp.sin, query) == []


def test_what_is_explained_is_not_in_the_program():
    x = jax.ShapeDtypeStruct((300, 8), jnp.float32)
    assert dispatch.MARK in str(jax.make_jaxpr(lambda x: attend(x, x, x))(x))
    assert dispatch.MARK not in lower(lambda x: attend(x, x, x), "cpu", x)
