"""When a TPU's kernel for short sequences is taken, and that it computes what "plain" does: on a CPU, where Pallas
interprets it."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.experimental import pallas

from attention_jax import InputError
from attention_jax.ops import resident
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.dispatch import choose
from attention_jax.ops.masks import causal, dense, lengths, window
from attention_jax.ops.scores import Dot, Gaussian, ScaledDot

X = jnp.ones((48, 64), jnp.bfloat16)
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal & lengths": lambda n: lengths(n) & causal(),
}


@pytest.fixture
def interpreted(monkeypatch):
    """The kernel runs on a CPU, in shapes that no other test lowers for a TPU: JAX keeps its trace."""
    monkeypatch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))


@pytest.mark.parametrize(
    "mask, score, batch, queries, keys, heads, width",
    [
        ("causal & lengths", ScaledDot(), 8, 32, 32, 3, 64),  # two groups of four sentences; half a tile of zeros
        pytest.param("none", Dot(), 2, 132, 196, 2, 128, marks=pytest.mark.slow),  # one head is a tile
        pytest.param("lengths", ScaledDot(), 6, 16, 48, 4, 32, marks=pytest.mark.slow),  # two sentences are one
        pytest.param("causal", ScaledDot(), 3, 32, 32, 2, 64, marks=pytest.mark.slow),
        pytest.param("none", ScaledDot(), 8, 48, 32, 2, 64, marks=pytest.mark.slow),
    ],
)
def test_it_equals_plain(interpreted, mask, score, batch, queries, keys, heads, width):
    """In value and gradient, over sentences and over heads at axis 1; one sentence is empty; what no query may see is
    NaN."""
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
    query, bar = draw(0, batch, queries, heads, width), draw(3, batch, queries, heads, width)
    key, value = draw(1, batch, keys, heads, width), draw(2, batch, keys, heads, width)
    real = jnp.arange(batch) * 7 % keys
    if "lengths" in mask:
        hidden = (jnp.arange(keys)[None, :] >= real[:, None])[..., None, None]
        key, value = (jnp.where(hidden, jnp.bfloat16(jnp.nan), x) for x in (key, value))

    @functools.partial(jax.jit, static_argnums=0)
    def numbers(implementation, query, key, value, bar):
        one = lambda q, k, v, n: attend(q, k, v, score=score, mask=MASKS[mask](n), implementation=implementation)
        pooled = lambda *qkv: jax.vmap(jax.vmap(one, (1, 1, 1, None), 1))(*qkv, real)
        out, pull = jax.vjp(pooled, query, key, value)
        return [x.astype(jnp.float32) for x in (out, *pull(bar))]

    ours, plain = (numbers(implementation, query, key, value, bar) for implementation in ("resident", "plain"))
    differences = [jnp.linalg.norm(a - b) / jnp.linalg.norm(b) for a, b in zip(ours, plain)]
    assert sum(differences) > 0 and max(differences) < 2**-7, differences  # bfloat16 rounds by up to 2^-8


@pytest.mark.slow
def test_further_axes_are_mapped_as_well(interpreted):
    """Three, or none."""
    x = jax.random.normal(jax.random.key(0), (2, 3, 2, 16, 32), jnp.bfloat16)
    run = lambda implementation: lambda q, k: attend(q, k, k, implementation=implementation)
    for axes, k in ((3, x), (2, x[0]), (0, x[0, 0, 0])):
        ours, plain = run("resident"), run("plain")
        for _ in range(axes):
            ours, plain = jax.vmap(ours), jax.vmap(plain)
        difference = (ours(k, k) - plain(k, k)).astype(jnp.float32)
        assert jnp.linalg.norm(difference) < 2**-7 * jnp.linalg.norm(plain(k, k).astype(jnp.float32))


@pytest.mark.parametrize("implementation, calls", [(None, 0), ("resident", 2)])  # forwards and backwards
def test_it_is_taken_on_request_alone(implementation, calls):
    """Under vmap and gradient, with nothing but a CPU at hand. The kernel has not run on a TPU yet."""
    x, n = jax.ShapeDtypeStruct((2, 64, 3, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2,), jnp.int32)

    def loss(x, n):
        one = lambda x, n: attend(x, x, x, mask=causal() & lengths(n), implementation=implementation)
        return jax.vmap(jax.vmap(one, (1, None), 1))(x, n).astype(jnp.float32).sum()

    program = jax.jit(jax.value_and_grad(loss)).trace(x, n)
    assert program.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") == calls


def test_an_exported_batch_may_be_of_any_size():
    (rows,) = export.symbolic_shape("rows")
    run = jax.jit(jax.vmap(lambda x: attend(x, x, x, implementation="resident")))
    text = export.export(run, platforms=["tpu"])(jax.ShapeDtypeStruct((rows, 80, 64), jnp.bfloat16)).mlir_module()
    assert text.count("tpu_custom_call") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"score": Gaussian()},
        {"bias": ALiBi(0.1)},
        {"dropout": 0.1},
        {"mask": window(3)},
        {"mask": dense(jnp.ones((48, 48), bool))},
        {"mask": lengths(3) & lengths(4)},
        {"mask": causal(), "query_offset": 1},
        {"mask": causal(), "query": X[:32]},
        {"query": X[:40]},
        {"query": jnp.ones((641, 64), jnp.bfloat16)},
        {"query": X.astype(jnp.float32)},
        {"value": X[:, :32]},
    ],
    ids=lambda change: ", ".join(change),
)
def test_everything_else_is_refused_and_goes_elsewhere(change):
    call = {"query": X, "key": X, "value": X, "score": ScaledDot(), "bias": None, "mask": None, "dropout": None}
    call |= {"query_offset": 0} | change
    assert resident.unsupported_reason(**call) is not None
    assert choose(**call, asked=None)["tpu"] in ("plain", "fused")
    with pytest.raises(InputError, match=r'implementation="resident" '):
        choose(**call, asked="resident")
