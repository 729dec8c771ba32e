"""Scores, biases, masks, normalizers and poolings in half precision: types are never promoted in silence, and the error
is that of rounding. All tests promote strictly (tests/conftest.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import in_type
from tiny import every_score

from attention_jax.ops import biases, masks, normalizers, pooling, scores
from attention_jax.ops.attention import attend
from tests.ops.cases import Softplus

HALVES = ("bfloat16", "float16")
QUERIES, KEYS, WIDTH = 6, 7, 8
KEY = jax.random.key(0)
number = jnp.float32
GROUPS = np.array([0, 0, 0, 1, 1, 1, 2])
SCORES = every_score(WIDTH) | {
    "Gaussian": scores.Gaussian(number(2.0)),
    "Cosine": scores.Cosine(number(2.0)),
    "Boxcar": scores.Boxcar(number(8.0)),
    "Triangular": scores.Triangular(number(8.0)),
    "Gaussian of a Python number": scores.Gaussian(2.0),
    "SoftCap of a Cosine": scores.SoftCap(5.0, scores.Cosine(number(2.0))),
}
BIASES = {
    "ALiBi": biases.ALiBi(number(0.5)),
    "Forget": biases.Forget(-jnp.cumsum(jnp.full(64, 0.25))),
    "ShawBias": biases.ShawBias.init(KEY, WIDTH, 2),
    "TransformerXLBias": biases.TransformerXLBias.init(KEY, WIDTH, 6),
    "T5Bias": biases.T5Bias.init(KEY, 8),
    "Location": biases.Location.init(KEY, WIDTH, KEYS),
}
MASKS = {
    "causal": masks.causal(),
    "lengths": masks.lengths(jnp.int32(4)),
    "window": masks.window(2),
    "sliding_window": masks.sliding_window(2),
    "segments": masks.segments(GROUPS[:QUERIES], GROUPS),
    "dense": masks.dense(np.tril(np.ones((QUERIES, KEYS), bool))),
    "either": masks.window(1) | masks.lengths(jnp.int32(2)),
}
NORMALIZERS = {
    "Entmax": normalizers.Entmax(number(1.5)),
    "ReluPower": normalizers.ReluPower(2),
    "ScalableSoftmax": normalizers.ScalableSoftmax(number(0.4)),
    "Sigmoid": normalizers.Sigmoid(number(-1.0)),
    "Signed": normalizers.Signed(),
    "Softmax": normalizers.Softmax(number(0.0)),
    "Softpick": normalizers.Softpick(),
    "Sparsemax": normalizers.Sparsemax(),
    "StickBreaking": normalizers.StickBreaking(),
    "TopK": normalizers.TopK(2, normalizers.Entmax(number(1.5))),
    "a function": jnp.tanh,
    "a ratio": Softplus(number(1.0), number(0.5)),  # with a summand of its own beside the sum
}
POOLINGS = {
    "Mean": pooling.Mean(),
    "Moments": pooling.Moments(),
    "LocalLinear": pooling.LocalLinear(number(0.01)),
    "LogMixture": pooling.LogMixture(),
}
RULES = {
    f"{argument} {name}": {argument: rule}
    for argument, rules in (
        ("score", SCORES),
        ("bias", BIASES),
        ("mask", MASKS),
        ("normalizer", NORMALIZERS),
        ("pool", POOLINGS),
    )
    for name, rule in rules.items()
}


def test_every_public_rule_is_among_them():
    bases = {"Bias", "Mask", "Normalizer", "Ordered", "Pointwise", "Pool", "Ratio", "Score", "Threshold"}
    for module, rules in (
        (scores, SCORES),
        (biases, BIASES),
        (masks, MASKS),
        (normalizers, NORMALIZERS),
        (pooling, POOLINGS),
    ):
        assert set(module.__all__) - bases - {"prepare", "Terms", "contextual_bias"} <= set(rules), module.__name__


def is_float(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def trace(rule, dtype, leaf_dtype, implementation):
    """The types of the output, and of the gradients of query, key, value and of the rule's parameters."""
    leaves, structure = jax.tree.flatten(in_type(rule, leaf_dtype))
    parameters = [x for x in leaves if is_float(x)]
    blocks = {"block_q": 4, "block_k": 4} if implementation == "fused" else {}

    def run(parameters, query, key, value):
        remaining = iter(parameters)
        call = jax.tree.unflatten(structure, [next(remaining) if is_float(x) else x for x in leaves])
        return attend(query, key, value, implementation=implementation, **blocks, **call)

    def value_and_gradients(*arrays):
        out, pull = jax.vjp(run, *arrays)
        return out, pull(jnp.ones_like(out))

    arrays = (jax.ShapeDtypeStruct((rows, WIDTH), dtype) for rows in (QUERIES, KEYS, KEYS))
    out, (of_parameters, *of_arrays) = jax.eval_shape(value_and_gradients, parameters, *arrays)
    return [x.dtype for x in (out, *of_arrays)], [x.dtype for x in of_parameters]


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_half_precision_rules_promote_nothing_silently(name):
    """Forward and gradient, with parameters in the same type; results have the types of what they belong to."""
    for dtype, implementation in zip(HALVES, ("fused", "plain")):
        of_arrays, of_parameters = trace(RULES[name], dtype, dtype, implementation)
        assert {*of_arrays, *of_parameters} == {jnp.dtype(dtype)}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_mixed_type_rules_promote_nothing_silently(name):
    for dtype in HALVES:
        for leaf_dtype in ("float32", *HALVES):
            for implementation in ("plain", "fused"):
                of_arrays, of_parameters = trace(RULES[name], dtype, leaf_dtype, implementation)
                assert set(of_arrays) == {jnp.dtype(dtype)} and set(of_parameters) <= {jnp.dtype(leaf_dtype)}


@pytest.mark.parametrize("dtype", HALVES)
def test_the_weights_of_scores_in_half_precision(dtype):
    """Of every normalizer by itself, whose parameters are in either type."""
    logits = jax.ShapeDtypeStruct((QUERIES, KEYS), dtype)
    for name, normalizer in NORMALIZERS.items():
        if name != "a function":
            for leaf_dtype in ("float32", dtype):
                rule = in_type(normalizer, leaf_dtype)
                weights = jax.eval_shape(lambda x: rule.weights(x, jnp.ones(x.shape, bool)), logits)
                assert weights.dtype == dtype, name


def test_half_precision_parameter_loses_only_its_rounding():
    """Widths and exponents are computed with in float32: 1 / (alpha - 1) of bfloat16 would be off by 0.4 percent."""
    alpha, sigma = jnp.bfloat16(1.3), jnp.bfloat16(1.7)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, WIDTH)), jnp.float32)
    for rule in ({"normalizer": normalizers.Entmax(alpha)}, {"score": scores.Gaussian(sigma)}):
        run = jax.jit(lambda rule: attend(*x, **rule))
        np.testing.assert_array_equal(run(rule), run(in_type(rule, jnp.float32)))
