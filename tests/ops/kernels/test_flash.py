"""When a TPU's kernel is taken, and that it computes what "plain" does: on a CPU, where Pallas interprets it."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as library

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.dispatch import Call, choose_implementation
from attention_jax.ops.kernels import flash
from attention_jax.ops.masks import causal, dense, lengths, window
from attention_jax.ops.scores import Dot, Gaussian, ScaledDot, SoftCap

X = jnp.ones((512, 64), jnp.bfloat16)
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal & lengths": lambda n: lengths(n) & causal(),
}
LENGTHS = jnp.array([256, 0, 100], jnp.int32)


@pytest.fixture
def interpret_kernel(monkeypatch):
    """The kernel runs on a CPU, in shapes that no other test lowers for a TPU: JAX keeps its trace."""
    monkeypatch.setattr(library.pl, "pallas_call", functools.partial(library.pl.pallas_call, interpret=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask, score",
    [
        ("none", Dot()),
        ("causal & lengths", ScaledDot()),
        ("causal & lengths", Gaussian(jnp.float32(1.5))),
        pytest.param("causal", ScaledDot(), marks=pytest.mark.slow),
        pytest.param("lengths", ScaledDot(), marks=pytest.mark.slow),
    ],
)
def test_it_equals_plain(interpret_kernel, monkeypatch, mask, score):
    """In value and gradient, over sentences and over heads at axis 1, which share their keys; two blocks of queries and
    of keys; what no query may see is NaN."""
    monkeypatch.setattr(flash, "BLOCKS", (128,))
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
    query, key, value, bar = draw(0, 3, 256, 2, 16), draw(1, 3, 256, 16), draw(2, 3, 256, 16), draw(3, 3, 256, 2, 16)
    if "lengths" in mask:
        hidden = (jnp.arange(256)[None, :] >= LENGTHS[:, None])[..., None]
        key, value = (jnp.where(hidden, jnp.bfloat16(jnp.nan), x) for x in (key, value))

    @functools.partial(jax.jit, static_argnums=0)
    def numbers(implementation, query, key, value, bar):
        bias = ALiBi(0.1) if mask == "causal & lengths" else None
        call = {"score": score, "bias": bias, "implementation": implementation}
        attend_head = lambda q, k, v, n: attend(q, k, v, mask=MASKS[mask](n), **call)
        attend_heads = lambda *qkv: jax.vmap(jax.vmap(attend_head, (1, None, None, None), 1))(*qkv, LENGTHS)
        out, pull = jax.vjp(attend_heads, query, key, value)
        return [x.astype(jnp.float32) for x in (out, *pull(bar))]

    actual, plain = (numbers(implementation, query, key, value, bar) for implementation in ("flash", "plain"))
    for a, b in zip(actual, plain):
        assert 0 < jnp.linalg.norm(a - b) < 2**-7 * jnp.linalg.norm(b)  # bfloat16 rounds by up to 2^-8


@pytest.mark.parametrize("mask", [MASKS["none"], MASKS["causal & lengths"]])
def test_tpu_chooses_flash_where_supported(mask):
    """Under vmap and gradient, with nothing but a CPU at hand; all other platforms keep what they had."""
    x, n = jax.ShapeDtypeStruct((2, 512, 3, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2,), jnp.int32)

    def loss(x, n):
        attend_head = lambda x, n: attend(x, x, x, mask=mask(n))
        return jax.vmap(jax.vmap(attend_head, (1, None), 1))(x, n).astype(jnp.float32).sum()

    program = jax.jit(jax.grad(loss)).trace(x, n)
    calls = {
        p: program.lower(lowering_platforms=(p,)).as_text().count("tpu_custom_call") for p in ("cpu", "cuda", "tpu")
    }
    assert calls == {"cpu": 0, "cuda": 0, "tpu": 3}  # forwards, and backwards to the queries and to keys and values


@pytest.mark.parametrize(
    "change",
    [
        {"score": SoftCap()},
        {"bias": ALiBi(0.1)},
        {"sink": 0.0},
        {"dropout": 0.1},
        {"mask": window(3)},
        {"mask": causal() & window(3)},
        {"mask": dense(jnp.ones((512, 512), bool))},
        {"mask": causal() | lengths(3)},
        {"mask": lengths(3) & lengths(4)},
        {"mask": causal(), "query_offset": 1},
        {"mask": causal(), "query": X[:256]},
        {"query": X[:500]},
        {"query": X.astype(jnp.float32)},
        {"value": jnp.concatenate([X, X, X], axis=1)},
    ],
    ids=lambda change: ", ".join(change),
)
def test_everything_else_is_refused_and_goes_elsewhere(change):
    call = Call(X, X, X)._replace(**change)
    assert flash.unsupported_reason(call) is not None
    assert choose_implementation(call)["tpu"].implementation != "flash"
    with pytest.raises(InputError, match=r'implementation="flash" '):
        choose_implementation(call, "flash")


def test_short_ones_are_not_worth_it():
    choose = lambda x: {name: choice.implementation for name, choice in choose_implementation(Call(x, x, x)).items()}
    assert choose(X)["tpu"] == "flash" and choose(X[:384])["tpu"] != "flash"
    assert {choose(X)[platform] for platform in ("cpu", "default")} == {"fused"}
