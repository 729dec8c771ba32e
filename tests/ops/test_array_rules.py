"""Arrays as masks and biases of `attend_heads` in all shapes, and those that are refused."""

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
from attention_jax.ops.masks import causal
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.pooling import Mean
from attention_jax.ops.scores import ScaledDot
from tests.ops import oracle

B, T, S, H, G, D = 2, 7, 9, 4, 2, 5
DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (DRAW.standard_normal(n).astype(np.float32) for n in ((B, T, H, D), (B, S, G, D), (B, S, G, 3)))


SHAPES = {
    "mask": [(T, S), (B, 1, T, S), (B, H, T, S), (1, H, T, S), (1, 1, T, S), (B, 1, 1, S), (T, 1), (1, S)],
    "bias": [(T, S), (H, T, S), (B, 1, T, S), (B, H, T, S), (1, H, 1, S)],
}


def test_arrays_of_all_shapes_against_float64():
    """Of two heads of keys for four of queries."""
    rows = [(name, shape) for name in SHAPES for shape in SHAPES[name]]
    arrays = [DRAW.random(s) > 0.3 if n == "mask" else DRAW.standard_normal(s).astype(np.float32) for n, s in rows]
    run = jax.jit(lambda *args: [attend_heads(*args[:3], **{n: x}) for (n, _), x in zip(rows, args[3:])])
    rules = {"score": ScaledDot(), "normalizer": Softmax(), "pool": Mean(), "bias": None, "mask": None}
    for (name, shape), array, actual in zip(rows, arrays, run(QUERY, KEY, VALUE, *arrays), strict=True):
        whole = np.broadcast_to(array, (B, H, T, S))
        for b, h in np.ndindex(B, H):
            head = [np.float64(x) for x in (QUERY[b, :, h], KEY[b, :, h // 2], VALUE[b, :, h // 2])]
            expected = oracle.attend(*head, **rules | {name: whole[b, h]}).out
            np.testing.assert_allclose(actual[b, :, h], expected, atol=2e-6, err_msg=f"{name} {shape}")


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


def test_a_shared_sequence_refuses_arrays():
    mesh = jax.make_mesh((1,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    for rules in ({"mask": TRUE((T, S))}, {"bias": np.ones((T, S), np.float32)}):
        ring = functools.partial(attend_sharded, axis_name="sequence", **rules)
        spec = jax.sharding.PartitionSpec("sequence")
        sharded = jax.shard_map(ring, mesh=mesh, in_specs=spec, out_specs=spec)
        with pytest.raises(InputError, match=re.escape("dense(array)")):
            sharded(*(jnp.asarray(x[0, :, 0]) for x in (QUERY, KEY, VALUE)))
