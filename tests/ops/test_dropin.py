"""`attention_fn` and `dot_product_attention` beside those of Flax and `jax.nn`: their calls, their numbers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention_jax import attention_fn, biases, causal, dot_product_attention, normalizers, scores, window
from attention_jax.errors import InputError
from attention_jax.ops.attention import attention_weights
from attention_jax.ops.heads import attend_heads

B, T, S, H, D = 2, 5, 7, 4, 8
DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (DRAW.standard_normal((B, n, H, D)).astype(np.float32) for n in (T, S, S))
BIAS = DRAW.standard_normal((B, H, T, S)).astype(np.float32)
MASK = DRAW.random((B, H, T, S)) < 0.7
MASK[..., 0] = True  # theirs is a mean over all keys where none is allowed
same = lambda actual, expected, atol=2e-6: jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=atol), actual, expected
)

JAX_CALLS = {
    "alone": {},
    "bias": {"bias": BIAS},
    "bias-of-heads": {"bias": BIAS[0]},
    "bias-of-positions": {"bias": BIAS[0, 0]},
    "mask": {"mask": MASK},
    "mask-of-keys": {"mask": MASK[:, :1, :1]},
    "mask-causal-lengths": {
        "mask": MASK[:, :1],
        "is_causal": True,
        "query_seq_lengths": [3, 5],
        "key_value_seq_lengths": np.array([6, 7], np.int32),
    },
    "window": {"local_window_size": 2},
    "window-left": {"local_window_size": (3, 0)},
    "window-right": {"local_window_size": (1, 4), "bias": BIAS},
    "scale": {"scale": 0.7, "is_causal": True},
    "residual": {"return_residual": True, "mask": MASK},
    "xla": {"implementation": "xla"},
}


SEVERAL = ("scale", "window-left", "mask-causal-lengths", "residual")


@pytest.mark.parametrize("call", [pytest.param(n, marks=[pytest.mark.slow] * (n not in SEVERAL)) for n in JAX_CALLS])
def test_the_function_of_jax_nn(call):
    """One compiled program of ours and one of theirs for each call; about 0.1 s."""
    run_jax = jax.jit(lambda *a: jax.nn.dot_product_attention(*a, **JAX_CALLS[call]))
    run_package = jax.jit(lambda *a: dot_product_attention(*a, **JAX_CALLS[call]))
    same(run_package(QUERY, KEY, VALUE), run_jax(QUERY, KEY, VALUE))


@pytest.mark.slow
def test_shared_heads_and_single_sequences_of_jax_nn():
    key, value = KEY[:, :, :2], VALUE[:, :, :2]
    same(dot_product_attention(QUERY, key, value), jax.nn.dot_product_attention(QUERY, key, value))
    call = {"bias": BIAS[0], "key_value_seq_lengths": np.array([4], np.int32)}
    expected = jax.nn.dot_product_attention(QUERY[0], KEY[0], VALUE[0], **call)
    same(dot_product_attention(QUERY[0], KEY[0], VALUE[0], **call), expected)


@pytest.mark.slow
def test_a_query_without_keys_is_zero():
    actual = dot_product_attention(QUERY, KEY, VALUE, mask=np.zeros((B, 1, T, S), bool))
    assert not actual.any()


REFUSED = {
    "half": ({"key": KEY[:1]}, "sequences|batch|needs query"),
    "lengths": ({"key_value_seq_lengths": np.array([1, 2, 3])}, r"must be integers \[B\] = \[2\]"),
    "lengths-of-numbers": ({"query_seq_lengths": np.ones(2, np.float32)}, "must be integers .* got float32"),
    "mask-of-another-batch": ({"mask": np.ones((3, 1, T, S), bool)}, r"mask must broadcast to \[2, H, T, S\]"),
    "mask-of-another-length": ({"mask": np.ones((T, S + 1), bool)}, "mask must be"),
    "bias-of-five-axes": ({"bias": BIAS[None]}, "bias must broadcast to"),
    "window": ({"local_window_size": -1}, "window needs a whole number"),
    "mask": ({"mask": BIAS}, "must be boolean"),
    "implementation": ({"implementation": "triton"}, "implementation must be one of"),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_jax_nn_would_refuse(call):
    change, message = REFUSED[call]
    with pytest.raises(InputError, match=message):
        dot_product_attention(**{"query": QUERY, "key": KEY, "value": VALUE} | change)


X, Y = DRAW.standard_normal((2, B, T, 16)).astype(np.float32)
FLAX_MASKS = {
    "none": None,
    "causal": np.asarray(nn.make_causal_mask(np.ones((B, T)))),  # of floats
    "padding": np.broadcast_to(np.arange(T) < np.array([3, 5])[:, None, None, None], (B, 1, T, T)),
}


def linen(**call):
    return nn.MultiHeadDotProductAttention(H, qkv_features=16, **call)


@pytest.mark.parametrize("mask", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("none", "causal")), "padding"])
def test_the_module_of_linen(mask):
    params = jax.jit(linen().init)(jax.random.key(0), X, Y)
    run = lambda **call: jax.jit(lambda params: linen(**call).apply(params, X, Y, mask=FLAX_MASKS[mask]))(params)
    same(run(attention_fn=attention_fn()), run())


@pytest.mark.slow
def test_linen_module_sows_weights_and_decodes():
    """The weights of a causal mask, and one step after another with a cache."""
    module, reference = linen(attention_fn=attention_fn(), decode=True), linen(decode=True)
    variables = reference.init(jax.random.key(0), X)
    for decoder in (module, reference):
        outputs, cache = [], variables["cache"]
        for t in range(T):
            step, changed = decoder.apply({**variables, "cache": cache}, X[:, t : t + 1], mutable=["cache"])
            cache = changed["cache"]
            outputs.append(step)
        same(jnp.concatenate(outputs, 1), linen().apply(variables, X, mask=FLAX_MASKS["causal"]), atol=1e-5)
    sown = [
        linen(**call).apply(variables, X, mask=FLAX_MASKS["causal"], sow_weights=True, mutable=["intermediates"])[1]
        for call in ({"attention_fn": attention_fn()}, {})
    ]
    same(*sown)
    with pytest.raises(InputError, match="position of a single query"):
        rule = linen(attention_fn=attention_fn(mask=causal()), decode=True)
        rule.apply(variables, X[:, :1], mutable=["cache"])


@pytest.mark.parametrize("mask", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("none", "causal")), "padding"])
def test_the_module_of_nnx(mask):
    """Causal, grouped heads, half precision and sown weights."""
    for options, call, atol in (
        ({}, {"is_causal": True}, 2e-6),
        ({"num_kv_heads": 2}, {}, 2e-6),
        ({"dtype": jnp.bfloat16}, {"sow_weights": True}, 0.02),
    ):
        out = []
        for attention_options in ({}, {"attention_fn": attention_fn()}):
            module = nnx.MultiHeadAttention(H, 16, 16, decode=False, rngs=nnx.Rngs(0), **options, **attention_options)
            allowed = FLAX_MASKS[mask]
            run = (
                nnx.capture(module, nnx.Intermediate)
                if "sow_weights" in call
                else lambda *a, **k: (module(*a, **k), ())
            )
            output, sown = run(X, mask=None if allowed is None else allowed != 0, **call)
            out.append(jax.tree.map(lambda x: np.asarray(x, np.float32), (output, sown)))
        same(*map(jax.tree.leaves, out), atol=atol)


@pytest.mark.slow
def test_any_number_of_batch_axes_as_flax():
    """None and two, with arrays that broadcast over some of them."""
    for batch, mask in (((), (1, T, S)), ((3, 2), (1, 2, 1, T, S)), ((3, 2), (3, 1, 1, 1, S))):
        query, key, value = (DRAW.standard_normal((*batch, n, H, D)).astype(np.float32) for n in (T, S, S))
        allowed = DRAW.random(mask) < 0.7
        allowed[..., 0] = True
        bias = DRAW.standard_normal(mask).astype(np.float32)
        expected = nn.dot_product_attention(query, key, value, bias, allowed)
        same(attention_fn()(query, key, value, bias, allowed), expected)
    positions = attention_fn()(query[0, 0], key[0, 0], value[0, 0], mask=np.tri(T, S))  # no axis of heads: of all
    same(positions, nn.dot_product_attention(query[0, 0], key[0, 0], value[0, 0], mask=np.tri(T, S)[None]))


@pytest.mark.slow
def test_dropout_as_flax_does_it():
    """A share of the weights, the others enlarged; the same for all sequences and heads, or one draw for each."""
    keys, eye = np.tile(KEY, (1, 20, 1, 1)), np.eye(S * 20, dtype=np.float32)
    value = np.broadcast_to(eye[None, :, None], (B, S * 20, H, S * 20))
    run = lambda **call: np.asarray(attention_fn()(QUERY, keys, value, dropout_rate=0.25, **call))
    whole = run(deterministic=True)
    for rng in (jax.random.key(1), jax.random.PRNGKey(1)):
        for broadcast in (True, False):
            output = run(dropout_rng=rng, broadcast_dropout=broadcast)
            is_kept = output != 0
            np.testing.assert_allclose(output[is_kept], whole[is_kept] / 0.75, rtol=1e-5)
            assert abs(is_kept.mean() - 0.75) < 0.03
            assert (is_kept == is_kept[:1, :, :1]).all() == broadcast
    with pytest.raises(InputError, match="needs a dropout_rng"):
        run()


@pytest.mark.slow
def test_function_rules_combine_with_module_arrays():
    """A score, bias, mask and normalizer of its own, beside the mask and bias of the call."""
    rules = {"score": scores.Gaussian(2.0), "normalizer": normalizers.Sparsemax(), "mask": window(3)}
    slopes = biases.ALiBi(jnp.asarray(biases.ALiBi.slopes(H)))
    actual = attention_fn(**rules, bias=slopes)(QUERY, KEY, VALUE, bias=BIAS, mask=MASK, is_causal=True)
    for b in range(1):
        for h in (1, 3):
            bias = biases.ALiBi(slopes.slope[h])(QUERY[b, :, h], jnp.arange(T), jnp.arange(S)) + BIAS[b, h]
            allowed = MASK[b, h] & (np.tri(T, S) > 0) & (causal() & window(3))(jnp.arange(T), jnp.arange(S))
            head_rules = rules | {"bias": bias, "mask": jnp.asarray(allowed)}
            weights = attention_weights(QUERY[b, :, h], KEY[b, :, h], **head_rules)
            same(actual[b, :, h], weights @ VALUE[b, :, h], atol=1e-5)


def test_tuples_and_keys_that_do_not_fit():
    rng = jnp.broadcast_to(jax.random.key(0), (B, H - 1))
    for call, message in (
        ({"mask": ()}, "must have a part"),
        ({"mask": (causal(), BIAS)}, "must be boolean"),
        ({"rng": rng, "dropout": 0.1}, "one for each sequence"),
    ):
        with pytest.raises(InputError, match=message):
            attend_heads(QUERY, KEY, VALUE, **call)


UNKNOWN = {"precision": "highest", "einsum_dot_general": jax.lax.dot_general, "qk_attn_weights_einsum": jnp.einsum}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_expressed_is_refused(name):
    with pytest.raises(InputError, match="attention_fn (needs|takes)"):
        attention_fn()(QUERY, KEY, VALUE, **{name: UNKNOWN[name]})
    with pytest.raises(InputError, match="needs query"):
        attention_fn()(QUERY, KEY[0], VALUE)


def test_a_causal_flag_without_the_position_of_a_query_is_refused():
    """A decoding step of nnx: with the flag, the query would see the first key alone. Flax drops it from 0.12.12 on."""
    query, key = jnp.ones((1, 1, H, 4)), jnp.ones((1, 4, H, 4))
    with pytest.raises(InputError, match="no is_causal=True"):
        attention_fn()(query, key, key, is_causal=True)
