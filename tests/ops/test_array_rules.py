"""Arrays as masks and biases, against NumPy in float64 and `jax.nn.dot_product_attention`. About 20 programs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.blockwise.ring import attend_sharded
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import causal, dense
from attention_jax.ops.normalizers import Sigmoid, Sparsemax, StickBreaking, TopK
from attention_jax.ops.scores import Dot

B, T, S, H, G, D = 2, 7, 9, 4, 2, 5
DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (DRAW.standard_normal(n).astype(np.float32) for n in ((B, T, H, D), (B, S, G, D), (B, S, G, 3)))
BLOCKS = {"plain": {}, "fused": {"block_q": 4, "block_k": 4}}


def oracle(allowed, added, query=QUERY, key=KEY, value=VALUE):
    """softmax(q k / sqrt(D) + added, where=allowed) v in float64; all but query, key and value broadcast."""
    key, value = (np.repeat(x, query.shape[2] // x.shape[2], axis=2).astype(float) for x in (key, value))
    scores = np.einsum("bthd,bshd->bhts", query.astype(float), key) / np.sqrt(query.shape[3]) + added
    weights = np.where(allowed, np.exp(scores), 0)
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhts,bshv->bthv", weights / np.where(total > 0, total, 1), value)


SHAPES = {
    "mask": [(T, S), (B, 1, T, S), (B, H, T, S), (1, H, T, S), (1, 1, T, S), (B, 1, 1, S), (T, 1), (1, S)],
    "bias": [(T, S), (H, T, S), (B, 1, T, S), (B, H, T, S), (1, H, 1, S)],
}


@pytest.mark.parametrize("implementation", BLOCKS)
def test_arrays_of_all_shapes_against_float64(implementation):
    call = {"implementation": implementation, **BLOCKS[implementation]}
    rows = [(name, shape) for name in SHAPES for shape in SHAPES[name]]
    arrays = [DRAW.random(s) > 0.3 if n == "mask" else DRAW.standard_normal(s).astype(np.float32) for n, s in rows]
    run = jax.jit(lambda *args: [attend_heads(*args[:3], **call, **{n: x}) for (n, _), x in zip(rows, args[3:])])
    for (name, shape), array, actual in zip(rows, arrays, run(QUERY, KEY, VALUE, *arrays), strict=True):
        expected = oracle(array if name == "mask" else True, 0 if name == "mask" else array.astype(float))
        np.testing.assert_allclose(actual, expected, atol=2e-6, err_msg=f"{name} {shape}")


@pytest.mark.parametrize("implementation", BLOCKS)
def test_values_and_gradients_are_those_of_jax_nn(implementation):
    """Mask and bias at once; a query of no key has no part, since `jax.nn` gives it the mean of the values."""
    mask, bias = DRAW.random((B, H, T, S)) > 0.3, DRAW.standard_normal((1, H, T, S)).astype(np.float32)
    mask[..., 0] = True
    attend_fn = functools.partial(attend_heads, implementation=implementation, **BLOCKS[implementation])
    reference_fn = jax.nn.dot_product_attention

    @functools.partial(jax.jit, static_argnums=0)
    def both(function, query, key, value, bias):
        loss = lambda *x: jnp.sin(function(*x[:3], bias=x[3], mask=mask)).sum()
        return function(query, key, value, bias=bias, mask=mask), jax.grad(loss, (0, 1, 2, 3))(query, key, value, bias)

    actual, expected = (both(function, QUERY, KEY, KEY + 1, bias) for function in (attend_fn, reference_fn))
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=5e-6)


@pytest.mark.parametrize("normalizer", [Sigmoid(), Sparsemax(), StickBreaking(), TopK(3)], ids=repr)
def test_arrays_in_blocks_with_other_normalizers(normalizer):
    mask, bias = jnp.asarray(DRAW.random((T, S)) > 0.3), jnp.asarray(DRAW.standard_normal((T, S)), jnp.float32)
    arrays = [jnp.asarray(x[0, :, 0]) for x in (QUERY, KEY, VALUE)]

    def loss(bias, **call):
        return jnp.sin(attend(*arrays, score=Dot(), bias=bias, mask=mask, normalizer=normalizer, **call)).sum()

    fused, plain = (
        jax.jit(jax.value_and_grad(functools.partial(loss, implementation=name, **blocks)))(bias)
        for name, blocks in BLOCKS.items()
    )
    np.testing.assert_allclose(fused[0], plain[0], atol=1e-5)
    np.testing.assert_allclose(fused[1], plain[1], atol=1e-5)


@pytest.mark.slow
def test_rows_are_queries_at_every_offset():
    """As with a KV cache. `dense` is indexed by position instead. Keys that no row allows may be NaN."""
    mask = np.arange(S) < np.array([[5], [3]])[:, :, None]  # [B, 1, S]
    bias = np.asarray(DRAW.standard_normal((2, S)), np.float32)
    query, spoiled = QUERY[:, :2], KEY.copy()
    spoiled[:, 5:] = np.nan
    run = jax.jit(lambda offset, name: attend_heads(
        query, spoiled, VALUE, mask=mask[:, None], bias=bias, query_offset=offset, implementation=name
    ), static_argnums=1)  # fmt: skip
    for name in BLOCKS:
        for offset in (0, 6, np.array([4, 6])):
            expected = oracle(mask[:, None], bias.astype(float), query=query)
            np.testing.assert_allclose(run(jnp.asarray(offset, jnp.int32), name), expected, atol=2e-6)
    head_query, key = jnp.asarray(QUERY[0, :2, 0]), jnp.asarray(KEY[0, :, 0])
    actual = attention_weights(head_query, key, mask=np.eye(2, S, dtype=bool), query_offset=6)
    np.testing.assert_array_equal(actual, np.eye(2, S))
    absolute = np.eye(8, S, dtype=bool)  # of positions 6 and 7
    np.testing.assert_array_equal(
        attention_weights(head_query, key, mask=dense(absolute), query_offset=6), np.eye(8, S)[6:]
    )


@pytest.mark.slow
def test_the_module_takes_arrays_as_flax_does():
    x, mask = QUERY.reshape(B, T, -1), np.tril(np.ones((1, 1, T, T), bool))
    module = MultiHeadAttention(num_heads=4, hidden_size=8, num_kv_heads=2)
    params = module.init(jax.random.key(0), x, x, x)
    actual, expected = (module.apply(params, x, x, x, mask=m, return_weights=True) for m in (mask, causal()))
    for x_actual, x_expected in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x_actual, x_expected, atol=1e-6)


TRUE = functools.partial(np.ones, dtype=bool)
REFUSED = {
    "integers as a mask": ({"mask": np.ones((T, S), int)}, "boolean.*int"),
    "numbers as a mask": ({"mask": np.ones((T, S), np.float32)}, "boolean.*float32.*bias"),
    "booleans as a bias": ({"bias": TRUE((T, S))}, "floating.*bool.*mask"),
    "integers as a bias": ({"bias": np.ones((T, S), int)}, "floating.*int"),
    "a mask of too many keys": ({"mask": TRUE((T, S + 1))}, r"\[7, 9\].*\[7, 10\]"),
    "a mask of one axis": ({"mask": TRUE((S,))}, r"\[7, 9\].*\[9\]"),
    "a mask of no axis": ({"mask": TRUE(())}, r"\[7, 9\].*\[\]"),
    "a bias of too few queries": ({"bias": np.ones((T - 1, S), np.float32)}, r"\[7, 9\].*\[6, 9\]"),
    "a bias of five axes": ({"bias": np.ones((1, B, H, T, S), np.float32)}, r"\[7, 9\].*\[1, 2, 4, 7, 9\]"),
}
HEADS_REFUSED = {
    "a mask per sequence": ({"mask": TRUE((B, T, S))}, r"\[2, 1 or 4, 7, 9\].*\[2, 7, 9\].*mask\[:, None\]"),
    "a mask of half the heads": ({"mask": TRUE((B, 2, T, S))}, r"\[2, 1 or 4, 7, 9\].*\[2, 2, 7, 9\]"),
    "a mask of three sequences": ({"mask": TRUE((3, 1, T, S))}, r"\[2, 1 or 4, 7, 9\].*\[3, 1, 7, 9\]"),
    "a bias of half the heads": (
        {"bias": np.ones((2, T, S), np.float32)},
        r"\[H, Q, K\].*\[2, 1 or 4, 7, 9\].*\[2, 7, 9\]",
    ),
    "no pooling": ({"pool": "mean"}, "pool.*Mean"),
}


@pytest.mark.parametrize("name", REFUSED | HEADS_REFUSED)
def test_wrong_arrays_are_refused_in_one_line(name):
    rules, words = (REFUSED | HEADS_REFUSED)[name]
    first_head = [x[0, :, 0] for x in (QUERY, KEY, VALUE)]
    calls = [lambda: attend_heads(QUERY, KEY, VALUE, **rules)]
    if name in REFUSED:
        calls += [lambda: attend(*first_head, **rules), lambda: attention_weights(*first_head[:2], **rules)]
    for call in calls:
        with pytest.raises(InputError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("combine", [lambda m, x: m & x, lambda m, x: m | x, lambda m, x: x & m, lambda m, x: x | m])
def test_array_combines_with_mask_like_dense(combine):
    with pytest.raises(InputError, match=re.escape("dense(array)")):
        combine(causal(), jnp.ones((T, S), bool))


@pytest.mark.slow
def test_empty_and_batched_arrays():
    for queries, keys in ((0, S), (T, 0)):
        inputs = jnp.ones((queries, D)), jnp.ones((keys, D)), jnp.ones((keys, 3))
        for name in BLOCKS:
            call = {"mask": TRUE((queries, keys)), "bias": jnp.ones((queries, keys)), "implementation": name}
            assert not attend(*inputs, **call).any() and attend(*inputs, **call).shape == (queries, 3)
    masks = DRAW.random((B, T, S)) > 0.3
    inputs = jax.vmap(lambda q, k, v, mask: attend(q, k, v, mask=mask, implementation="fused", block_k=4))
    actual = inputs(QUERY[:, :, 0], KEY[:, :, 0], VALUE[:, :, 0], masks)
    np.testing.assert_allclose(actual, oracle(masks[:, None], 0)[:, :, 0], atol=2e-6)


@pytest.mark.slow
def test_array_bias_derivatives_in_blocks():
    q, k, v = (jnp.asarray(x[0, :, 0]) for x in (QUERY, KEY, VALUE))
    bias, turn = (jnp.asarray(DRAW.standard_normal((T, S)), jnp.float32) for _ in range(2))

    def twice(bias, **call):
        slope = jax.grad(lambda bias: jnp.sin(attend(q, k, v, bias=bias, mask=np.tri(T, S, 2, bool), **call)).sum())
        return jax.jvp(slope, (bias,), (turn,))

    fused, plain = (twice(bias, implementation=name, **blocks) for name, blocks in BLOCKS.items())
    for x, y in zip(fused, plain, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_a_shared_sequence_refuses_arrays():
    mesh = jax.make_mesh((1,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    for rules in ({"mask": TRUE((T, S))}, {"bias": np.ones((T, S), np.float32)}):
        ring = functools.partial(attend_sharded, axis_name="sequence", **rules)
        spec = jax.sharding.PartitionSpec("sequence")
        sharded = jax.shard_map(ring, mesh=mesh, in_specs=spec, out_specs=spec)
        with pytest.raises(InputError, match=re.escape("dense(array)")):
            sharded(*(jnp.asarray(x[0, :, 0]) for x in (QUERY, KEY, VALUE)))
