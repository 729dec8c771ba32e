"""Positions of any integer type, outside of tables, and far away; and calls in which nothing is left to attend to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import attend, attend_heads, attend_sharded, causal, dense, lengths, segments, window
from attention_jax.config import LanguageModelConfig
from attention_jax.decode import beam_search, greedy
from attention_jax.errors import InputError
from attention_jax.models import LanguageModel
from attention_jax.ops import linear
from attention_jax.ops.biases import ALiBi, ShawBias, T5Bias, TransformerXLBias
from attention_jax.ops.delta import chunked_delta, recurrent_delta
from attention_jax.ops.dropin import attention_fn, dot_product_attention
from attention_jax.ops.masks import Mask
from attention_jax.ops.normalizers import ScalableSoftmax
from attention_jax.ops.pooling import LocalLinear, LogMixture, Mean, Moments
from attention_jax.ops.positions import rotary, sinusoidal
from attention_jax.ops.retention import chunked_retention, quadratic_retention, recurrent_retention
from attention_jax.sampling import generate

PLAIN, FUSED = {"implementation": "plain"}, {"implementation": "fused", "block_q": 2, "block_k": 64}
KINDS = [
    jnp.int8,
    jnp.int16,
    jnp.int32,
    jnp.uint8,
    jnp.uint16,
    jnp.uint32,
    np.int8,
    np.uint16,
    np.int64,
    np.uint64,
    int,
]


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


# --- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_bounds_may_be_integers_of_any_type(x64):
    """Four programs."""
    with jax.enable_x64(x64):
        x = normal(384, 4)
        query = x[:4]
        run = jax.jit(lambda n, at: attend(query, x, x, mask=lengths(n) & causal(), query_offset=at, **FUSED))
        kinds = [jnp.int8, jnp.uint32] + [jnp.uint64] * x64 if x64 else KINDS[:1]
        for kind in (np.int8, np.uint64, *kinds):
            n, at = kind(100), kind(101)
            actual = run(n, at) if kind in kinds else attend(query, x, x, mask=lengths(n) & causal(), query_offset=at)
            np.testing.assert_allclose(actual, attend(query, x[:100], x[:100]), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_any_type_in_blocks(kind):
    mask = lengths(kind(100)) | lengths(3)
    low, high = mask.key_range(0, 1)
    assert (int(low), int(high)) == (0, 100)
    assert jnp.asarray(high).dtype == jnp.result_type(int)


class Narrow(Mask):
    """A custom mask whose bounds are in a narrow type."""

    def __call__(self, query_positions, key_positions):
        return jnp.broadcast_to(key_positions[None, :] < 100, (len(query_positions), len(key_positions)))

    def key_range(self, first, last):
        return 0, jnp.int8(100)

    unmasked_range = key_range


jax.tree_util.register_static(Narrow)


@pytest.mark.slow
def test_custom_mask_bounds_of_narrow_types():
    x = normal(384, 4)
    np.testing.assert_allclose(attend(x[:2], x, x, mask=Narrow(), **FUSED), attend(x[:2], x[:100], x[:100]), atol=1e-6)


@pytest.mark.parametrize("call", [PLAIN, FUSED], ids=["plain", "fused"])
def test_the_last_position_of_the_type(call):
    query, all_ones = np.ones((1, 2), np.float32), np.ones((3, 2), np.float32)
    run = lambda mask: attend(query, all_ones, all_ones, mask=mask, query_offset=2**31 - 1, **call)[0, 0]
    weights = jax.jit(lambda: [run(mask) for mask in (causal(), window(5), causal() | window(1))])()
    assert [float(weight) for weight in weights] == [1, 0, 1]


@pytest.mark.parametrize("call", [PLAIN, FUSED], ids=["plain", "fused"])
def test_traced_offsets_beyond_the_type_are_the_closest(call):
    """Known ones are refused. Two queries from 2^31 - 1 on would wrap, and |-2^31| is negative."""
    all_ones = np.ones((3, 2), np.float32)
    run = lambda at: [
        attend(all_ones[:2], all_ones, all_ones, mask=mask, query_offset=at, **call)[:, 0]
        for mask in (causal(), window(5))
    ]
    for at, expected in ((2**31 - 1, [[1, 1], [0, 0]]), (-(2**31), [[0, 0], [0, 0]]), (1, [[1, 1], [1, 1]])):
        np.testing.assert_allclose(jax.jit(run)(jnp.int32(at)), expected, atol=1e-6)


@pytest.mark.parametrize("call", [pytest.param(PLAIN, marks=pytest.mark.slow), FUSED], ids=["plain", "fused"])
def test_an_offset_for_each_sequence(call):
    x = normal(2, 6, 2, 4)
    call = {"implementation": call["implementation"], "mask": causal()}
    run = jax.jit(lambda x, at: attend_heads(x[:, :2], x, x, query_offset=at, **call))
    actual = run(x, jnp.array([2, 4], jnp.int8))
    for n, at in enumerate((2, 4)):
        np.testing.assert_allclose(actual[n], run(x[n : n + 1], at)[0], atol=1e-6)


# --- outside of tables, and far away ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [pytest.param(PLAIN, marks=pytest.mark.slow), FUSED], ids=["plain", "fused"])
def test_positions_outside_of_a_table_attend_to_nothing(call):
    all_ones, values = np.ones((3, 2), np.float32), np.eye(3, dtype=np.float32)
    run = jax.jit(lambda queries, mask, at: attend(queries, all_ones, values, mask=mask, query_offset=at, **call))
    actual = run(all_ones, dense(np.tril(np.ones((3, 3), bool))), -1)
    np.testing.assert_allclose(actual, [[0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]])
    two = segments(jnp.array([0, 1], jnp.uint8), np.array([0, 0]))  # of two types, and shorter than the keys
    for at, expected in ((0, [[0.5, 0.5, 0], [0, 0, 0]]), (-1, [[0, 0, 0], [0.5, 0.5, 0]]), (2, np.zeros((2, 3)))):
        np.testing.assert_allclose(run(all_ones[:2], two, at), expected)


FAR = [4096, 10**6, 2**24 + 1, 2**31 - 1, -(2**24) - 1]


def exact(positions, width):
    """Sinusoids in NumPy, from the position modulo the period of a whole angle in float64 or wider."""
    rates = np.longdouble(10_000) ** (-2 * np.arange((width + 1) // 2, dtype=np.longdouble) / width)
    angles = np.asarray(positions, np.longdouble)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), -1)[:, :width].astype(float)


def test_the_angles_of_far_positions_are_exact():
    positions = jnp.array(FAR)
    np.testing.assert_allclose(jax.jit(sinusoidal, static_argnums=1)(positions, 6), exact(FAR, 6), atol=1e-6)
    turned = jax.jit(rotary)(np.tile(np.float32([1, 1, 1, 0, 0, 0]), (len(FAR), 1)), positions)
    np.testing.assert_allclose(turned[:, 3:], exact(FAR, 6)[:, ::2], atol=1e-6)


def test_the_angles_of_a_traced_base_are_exact():
    """And have a gradient, that of float64 differences."""
    turn = lambda base: rotary(np.tile(np.float32([1, 1, 1, 0, 0, 0]), (len(FAR), 1)), jnp.array(FAR), base)
    np.testing.assert_allclose(jax.jit(turn)(10_000.0)[:, 3:], exact(FAR, 6)[:, ::2], atol=1e-6)
    sine = lambda base: np.sin(5000 * base ** (-2 * np.arange(3) / 6)).sum()
    gradient = jax.jit(jax.grad(lambda base: rotary(jnp.eye(1, 6) + jnp.eye(1, 6, 1) + jnp.eye(1, 6, 2),
                                                    jnp.array([5000]), base)[0, 3:].sum()))(10_000.0)  # fmt: skip
    np.testing.assert_allclose(gradient, (sine(10_000.01) - sine(9_999.99)) / 0.02, rtol=1e-4)


def test_the_angles_of_positions_of_64_bits():
    positions = [2**33 + 5, -(2**34) - 3, 2**31 + 7]
    with jax.enable_x64(True):
        turned = rotary(np.tile(np.float32([1, 1, 1, 0, 0, 0]), (3, 1)), jnp.array(positions))
        np.testing.assert_allclose(turned[:, 3:], exact(positions, 6)[:, ::2], atol=1e-5)


def test_angles_of_ordinary_positions_keep_their_bits():
    positions = np.arange(4096)
    rates = jnp.float32(10_000) ** (-2.0 * jnp.arange(3, dtype=jnp.float32) / 6)
    angles = jnp.asarray(positions, jnp.float32)[:, None] * rates[None]
    np.testing.assert_array_equal(sinusoidal(jnp.asarray(positions), 6)[:, ::2], jnp.sin(angles))


@pytest.mark.slow
@pytest.mark.parametrize("at", [2**24 + 1, 2**30 + 7])
def test_relative_biases_depend_only_on_distance(at):
    query, keys = normal(1, 4), jnp.arange(at - 3, at + 3)
    for bias in (TransformerXLBias(normal(4, 6, seed=1)), ALiBi(0.5), T5Bias(normal(32)), ShawBias(normal(7, 4))):
        far = bias(query, jnp.array([at]), keys)
        np.testing.assert_allclose(far, bias(query, jnp.array([3]), jnp.arange(6)), atol=2e-5)


# --- nothing ----------------------------------------------------------------------------------------------------------

EMPTY = [(0, 3, 2, 2), (3, 0, 2, 2), (0, 0, 2, 2), (3, 3, 2, 0), (3, 0, 2, 0)]


POOLS = [LocalLinear(), *(pytest.param(pool, marks=pytest.mark.slow) for pool in (Mean(), Moments(), LogMixture()))]


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: type(pool).__name__)
@pytest.mark.parametrize("mask", [pytest.param(None, marks=pytest.mark.slow), causal()], ids=["all", "causal"])
@pytest.mark.parametrize("implementation", [pytest.param("plain", marks=pytest.mark.slow), "fused"])
def test_without_queries_keys_or_values(pool, mask, implementation):
    make_ones = lambda *shape: np.ones(shape, np.float32)
    run = lambda *x: attend(*x, pool=pool, mask=mask, implementation=implementation)
    every = jax.jit(lambda: [run(make_ones(q, d), make_ones(k, d), make_ones(k, v)) for q, k, d, v in EMPTY])()
    for (queries, keys, _, width), actual in zip(EMPTY, every):
        assert actual.shape == (queries, width * (1 + isinstance(pool, Moments)))
        if not keys:
            assert (actual == (-jnp.inf if isinstance(pool, LogMixture) else 0)).all()


def test_without_keys_on_any_device():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    ring = lambda *x: attend_sharded(*x, "d")
    ring = jax.shard_map(ring, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
    assert ring(jnp.ones((2, 2)), jnp.ones((0, 2)), jnp.ones((0, 3))).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("steps, features, width", [(0, 2, 2), (3, 0, 2), (3, 2, 0)])
def test_recurrences_over_nothing(steps, features, width):
    @jax.jit
    def every(x, v, g):
        retained = quadratic_retention(x, x, v, g), recurrent_retention(x, x, v, g)[0], chunked_retention(x, x, v, g)[0]
        written = recurrent_delta(x, x, v, g, g)[0], chunked_delta(x, x, v, g, g)[0]
        return *retained, *written, linear.recurrent(x, x, v, linear.Elu())

    outputs = every(jnp.ones((steps, features)), jnp.ones((steps, width)), jnp.zeros(steps))
    assert all(out.shape == (steps, width) and not out.any() for out in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("queries, keys, width", [(20, 20, 3), (0, 20, 3), (20, 0, 3), (20, 20, 0)])
def test_a_batch_of_no_sequences(queries, keys, width):
    """In blocks, of every rule whose bounds are shared by a batch, and their gradients."""
    ids = jnp.zeros((0, 20), jnp.int32)
    calls = {"mask": lengths(ids[:, 0]) & causal()}, {"mask": segments(ids, ids), "normalizer": ScalableSoftmax(1.0)}

    @jax.jit
    def run(*x):
        loss = lambda *x: [attend_heads(*x, implementation="fused", block_q=8, block_k=8, **call) for call in calls]
        outputs, pull = jax.vjp(loss, *x)
        return outputs, pull(outputs)

    x = np.ones((0, queries, 2, 4), np.float32), np.ones((0, keys, 2, 4), np.float32), np.ones((0, keys, 2, width))
    outputs, gradients = run(*x)
    assert [out.shape for out in outputs] == [(0, queries, 2, width)] * 2
    assert [bar.shape for bar in gradients] == [array.shape for array in x]


@pytest.mark.parametrize("mask", [causal(), lengths(3)], ids=["causal", "lengths"])
def test_the_scalable_softmax_of_no_queries(mask):
    x = jnp.ones((5, 2))
    assert attend(x[:0], x, x, mask=mask, normalizer=ScalableSoftmax(1.0)).shape == (0, 2)


def test_a_kernel_of_nothing():
    x = jnp.ones((20, 2))
    for query, key, value in ((x, x, x[:, :0]), (x[:0], x, x), (x, x[:0], x[:0])):
        out = attend(query, key, value, implementation="kernel")
        assert out.shape == (len(query), value.shape[1]) and not out.any()


@pytest.mark.parametrize("batch, queries, keys", [((0,), 4, 5), ((2, 0), 4, 5), ((2,), 0, 5), ((2,), 4, 0)])
def test_drop_ins_of_nothing(batch, queries, keys):
    query, key = jnp.ones((*batch, queries, 2, 4)), jnp.ones((*batch, keys, 2, 4))
    array = jnp.ones((*batch, 1, queries, keys), bool)
    assert not attention_fn()(query, key, key, mask=array).any()
    assert attention_fn()(query, key, key, mask=array).shape == query.shape
    if len(batch) == 1:
        expected = jax.nn.dot_product_attention(query, key, key, mask=array)
        outputs, log = dot_product_attention(query, key, key, mask=array, return_residual=True)
        assert outputs.shape == expected.shape and log.shape == query.shape[:-1]


@pytest.mark.slow
def test_models_and_positions_of_nothing():
    options = LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2, position_embedding="rotary")
    model, prompt = LanguageModel(options, vocab=11), jnp.zeros((0, 3), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((2, 3), jnp.int32))["params"]
    assert generate(model, params, prompt, jnp.zeros((0,), jnp.int32), 4, temperature=0.0).shape == (0, 4)
    assert sinusoidal(jnp.arange(0), 4).shape == (0, 4)


def test_decoders_of_no_step():
    step = lambda tokens, cache: (jnp.zeros((len(tokens), 3)), cache)
    assert greedy(step, None, 2, bos=0, eos=1, max_length=0).shape == (2, 0)
    tokens, scores = beam_search(step, None, 2, beam_size=2, bos=0, eos=1, pad=0, max_length=0)
    assert tokens.shape == (2, 1, 0) and scores.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("size, bidirectional", [(1, False), (2, False), (2, True), (3, True)])
def test_t5_table_with_one_bucket_per_direction(size, bidirectional):
    """All distances of a direction share its bucket where there is one; with two, 0 has one of its own."""
    bias = T5Bias(jnp.arange(float(size)), bidirectional=bidirectional)
    actual = jax.jit(bias)(None, jnp.array([2]), jnp.arange(4))
    assert actual.tolist() == {(1, False): [[0, 0, 0, 0]], (2, False): [[1, 1, 0, 0]]}.get(
        (size, bidirectional), [[0, 0, 0, 1]]
    )


x, h = jnp.ones((3, 2)), jnp.ones((2, 3, 1, 2))
REFUSED = {
    "no features": (lambda: attend(x[:, :0], x[:, :0], x), "at least one feature"),
    "an even table": (lambda: attend(x, x, x, bias=ShawBias(jnp.ones((4, 2)))), r"ShawBias.*odd.*\[4, 2\]"),
    "no bucket": (lambda: attend(x, x, x, bias=T5Bias(jnp.ones(1))), "T5Bias.*table of 1"),
    "a short distance": (lambda: attend(x, x, x, bias=T5Bias(jnp.ones(8), 2)), "max_distance > 2"),
    "a last position too far": (lambda: attend(x, x, x, query_offset=2**31 - 1), "query_offset.*2147483647"),
    "a first position too low": (lambda: attend(x, x, x, query_offset=-(2**40)), "query_offset"),
    "an offset of 1.0": (lambda: attend(x, x, x, query_offset=1.0), "query_offset.*float32"),
    "two offsets": (lambda: attend(x, x, x, query_offset=jnp.arange(2)), r"query_offset.*\(2,\)"),
    "three offsets of two": (lambda: attend_heads(h, h, h, query_offset=jnp.arange(3)), "query_offset.*2 sequences"),
    "ids too large": (lambda: segments(np.array([0, 2**40]), np.array([0, 1])), "segments.*int64"),
    "ids of no type": (lambda: segments(jnp.zeros(2, jnp.uint32), jnp.zeros(2, jnp.int32)), "uint32 and int32"),
    "a negative length": (lambda: greedy(None, None, 2, bos=0, eos=1, max_length=-1), "max_length.*-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_out_of_range_values_raise_one_line(name):
    call, words = REFUSED[name]
    with pytest.raises(InputError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
