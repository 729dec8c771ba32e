"""Scores, biases and sinks as dot products for kernels: what cuDNN is asked for, against the definition in float64."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import pytree
from attention_jax.ops import dispatch
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi, Forget
from attention_jax.ops.dispatch import explain
from attention_jax.ops.kernels import cudnn, terms
from attention_jax.ops.masks import causal, lengths, window
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.scores import (
    Bilinear,
    Cosine,
    Dot,
    Gaussian,
    NegativeSquaredDistance,
    QKNorm,
    ScaledDot,
    Score,
)


@pytree
@dataclass(frozen=True)
class Radial(Score):
    """A width for each feature, in float32: both sides have more digits than their arrays."""

    widths: jax.Array

    def __call__(self, query, key):
        return NegativeSquaredDistance()(*self.divide_by_widths(query, key))

    def terms(self, query, key):
        return NegativeSquaredDistance().terms(*self.divide_by_widths(query, key))

    def divide_by_widths(self, *sides):
        return (x.astype(self.widths.dtype) / self.widths[None] for x in sides)


HEADS, SIZE = 4, 16
RANDOM = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(RANDOM.normal(size=shape), jnp.float32)
geometric = lambda low, high: jnp.asarray(np.geomspace(low, high, HEADS), jnp.float32)


def gates(length):
    return Forget(jnp.asarray(-np.cumsum(RANDOM.exponential(160 / length, (HEADS, length)), 1), jnp.float32))


CASES = {
    "dot": lambda n: {"score": Dot()},
    "cosine": lambda n: {"score": Cosine(geometric(1, 50))},
    "qk_norm": lambda n: {"score": QKNorm(1 + draw(HEADS, SIZE) / 4, 1 + draw(HEADS, SIZE) / 4)},
    "bilinear": lambda n: {"score": Bilinear(draw(HEADS, SIZE, SIZE) / 4)},
    "distance": lambda n: {"score": NegativeSquaredDistance()},
    "gaussian": lambda n: {"score": Gaussian(geometric(1.5, 8))},
    "gaussian of known width": lambda n: {"score": Gaussian(1.3)},
    "radial": lambda n: {"score": Radial(geometric(1.5, 8)[:, None] + jnp.abs(draw(HEADS, SIZE)))},
    "sink": lambda n: {"normalizer": Softmax(sink=geometric(0.1, 8))},
    "row of an array": lambda n: {"bias": 3 * draw(HEADS, 1, n)},
    "alibi": lambda n: {"bias": ALiBi(geometric(2**-8, 4)), "mask": "causal"},
    "gates": lambda n: {"bias": gates(n), "mask": "causal"},
    "all": lambda n: {
        "score": Gaussian(geometric(1.5, 8)),
        "bias": (ALiBi(geometric(2**-8, 0.5)), draw(HEADS, 1, n)),
        "normalizer": Softmax(sink=geometric(0.1, 8)),
        "mask": "causal",
    },
}
"""Parameters for each head, and the only mask if there is one."""
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lambda n: lengths(n - n // 3),
    "causal & lengths": lambda n: causal() & lengths(n - n // 3),
    "causal & window": lambda n: causal() & window(5),
}


@pytest.fixture
def by_xla(cudnn_installed, monkeypatch):
    """What cuDNN is asked for is computed by XLA, whose CPU backend multiplies float16 as float32."""
    by_library = jax.nn.dot_product_attention

    def attention(query, key, value, **call):
        assert query.dtype == key.dtype == value.dtype and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128
        assert query.shape[1] % 2 == key.shape[1] % 2 == 0
        wide = jnp.float32 if query.dtype == jnp.float16 else query.dtype
        arrays = (x.astype(wide) for x in (query, key, value))
        return by_library(*arrays, **(call | {"implementation": "xla"})).astype(query.dtype)

    assert cudnn.missing() is None
    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    with jax.numpy_dtype_promotion("standard"):  # which the library needs
        yield


def call_of(case, mask, length):
    """The rules of a call, with leaves that have an axis of heads, and its mask."""
    rules = CASES[case](length)
    return rules | {"mask": MASKS[rules.get("mask", mask) if mask in ("none", "causal") else mask](length)}


def is_supported(case, mask):
    rules = CASES[case](8)
    return not ("normalizer" in rules and "window" in mask) and ("mask" not in rules or "causal" in mask)


def compile_call(implementation, rules):
    """`run(query, key, value, bar)` for heads [T, H, D]: the output and the gradients of every array and parameter, for
    the rules that were given or, with `rules=`, other numbers in them."""
    is_array = lambda x: hasattr(x, "dtype")

    def heads(rules, mask, query, key, value):
        attend_head = lambda rules, *arrays: attend(*arrays, mask=mask, implementation=implementation, **rules)
        axes = jax.tree.map(lambda x: 0 if is_array(x) else None, rules)
        return jax.vmap(attend_head, (axes, 1, 1, 1), 1)(rules, query, key, value)

    def split(rules):
        leaves, structure = jax.tree.flatten({name: rule for name, rule in rules.items() if name != "mask"})
        return [x if is_array(x) else None for x in leaves], structure.unflatten, leaves

    @jax.jit
    def run_arrays(arrays, mask, query, key, value, bar):
        fill = lambda arrays: unflatten([b if a is None else a for a, b in zip(arrays, leaves)])
        out, pull = jax.vjp(lambda arrays, *x: heads(fill(arrays), mask, *x), arrays, query, key, value)
        return out, pull(bar.astype(out.dtype))

    _, unflatten, leaves = split(rules)
    default = rules
    return lambda *arrays, rules=default: jax.tree.leaves(run_arrays(split(rules)[0], rules["mask"], *arrays))


def to_float64(arrays):
    return [np.asarray(x, np.float64) for x in arrays]


def output_and_gradients(implementation, rules, *arrays):
    return to_float64(compile_call(implementation, rules)(*arrays))


def check_twice_the_error(rules, query, key, value, bar):
    """The error of output and gradients against float64 is at most twice that of the definition in the same type.
    Parameters, whose gradients are sums over all tokens of numbers that the kernel has rounded, are granted half of its
    epsilon besides, and widths, where these numbers nearly cancel, four epsilons.
    """
    granted = 4 if isinstance(rules.get("score"), Gaussian | Radial) else 0.5
    arrays = (query, key, value, bar)
    by_kernel, by_definition = (output_and_gradients(i, rules, *arrays) for i in ("cudnn", "plain"))
    with jax.enable_x64(True):
        wide = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if hasattr(x, "dtype") else x, tree)
        in_float64 = output_and_gradients(
            "plain", wide(rules | {"mask": None}) | {"mask": rules["mask"]}, *wide(arrays)
        )
    errors = []
    for kernel, definition, exact in zip(by_kernel, by_definition, in_float64, strict=True):
        error, allowed, size = (np.linalg.norm(x) for x in (kernel - exact, 2 * (definition - exact), exact))
        chance = float(jnp.finfo(query.dtype).eps) * granted if exact.size < query.size else 0.0
        errors.append((exact.shape, error / size, allowed / size + chance))
    assert all(error <= allowed for _, error, allowed in errors), errors


def arrays_of(length, dtype, size=SIZE, shift=0.0, seed=0):
    random = np.random.default_rng(seed)
    arrays = random.normal(size=(4, length, HEADS, size))
    arrays[:2] += shift
    return jnp.asarray(arrays, dtype)


SAMPLE = [
    (case, [mask for mask in MASKS if is_supported(case, mask)][i % 2], ("bfloat16", "float16")[i % 3 % 2])
    for i, case in enumerate(CASES)
] + [
    ("gaussian", "lengths", "float16"),
    ("alibi", "causal & window", "bfloat16"),
    ("qk_norm", "causal & window", "float16"),
]
"""Every case, mask and type, not their product."""


@pytest.mark.parametrize(
    "case, mask, dtype",
    [
        pytest.param(*call, marks=[] if i % 4 == 0 or call[0] == "sink" else pytest.mark.slow)
        for i, call in enumerate(SAMPLE)
    ],
)
def test_error_is_at_most_twice_that_of_the_definition(by_xla, case, mask, dtype):
    length = 61
    check_twice_the_error(call_of(case, mask, length), *arrays_of(length, dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules, shift, size",
    [
        ({"score": Gaussian(geometric(3, 8))}, 0.0, 64),  # 57 features of the query in two parts
        ({"score": NegativeSquaredDistance()}, 100.0, 16),
        ({"score": Gaussian(geometric(2, 8))}, -50.0, 16),
        ({"bias": ALiBi(geometric(0.5, 16)), "mask": causal()}, 0.0, 64),
    ],
    ids=["head size 64", "far away", "far away, with widths", "steep slopes"],
)
def test_hard_numbers_lose_no_digits(by_xla, rules, shift, size):
    check_twice_the_error({"mask": None} | rules, *arrays_of(120, "bfloat16", size, shift))


@pytest.mark.parametrize("case", CASES)
def test_it_is_cudnn_that_is_chosen(cudnn_installed, case):
    """Heads of 64; what names the mask does not matter to the others."""
    rules = jax.tree.map(lambda x: x[0] if jnp.ndim(x) else x, call_of(case, "causal", 64))
    if case in ("qk_norm", "bilinear", "radial"):
        rules["score"] = {
            "qk_norm": QKNorm.init(jax.random.key(0), 64, 64),
            "bilinear": Bilinear.init(jax.random.key(0), 64, 64),
            "radial": Radial(jnp.ones(64, jnp.bfloat16)),
        }[case]
    x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    [choices] = explain(attend, x, x, x, **rules)
    assert choices["cuda"] == ("cudnn", "")
    assert choices["cpu"].implementation == choices["default"].implementation == "plain"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, mask, dtype, length",
    [
        pytest.param(*call, (1, 63, 2, 64)[i % 4], marks=[] if i % 4 < 2 else pytest.mark.slow)
        for i, call in enumerate(SAMPLE)
    ],
)
def test_gradient_of_every_case_traces(cudnn_installed, case, mask, dtype, length):
    """By JAX's wrapper of cuDNN, whose conditions are met, and under strict promotion of types."""
    rules, x = call_of(case, mask, length), jax.ShapeDtypeStruct((length, HEADS, SIZE), dtype)
    run = compile_call(None, rules)
    assert "dot_product_attention" in str(jax.make_jaxpr(run)(x, x, x, x))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if "mask" not in CASES[case](8)])
def test_hidden_keys_have_no_effect(by_xla, case):
    """NaN beyond the lengths, and lengths of 0, in value and gradient."""
    length, real = 12, 7
    query, key, value, bar = arrays_of(length, "bfloat16")
    rules = call_of(case, "none", length) | {"mask": lengths(jnp.int32(real))}
    run = compile_call("cudnn", rules)
    for number in (real, 0):
        dirty = [
            jnp.where(jnp.arange(length)[:, None, None] < number, x, jnp.nan).astype(x.dtype) for x in (key, value)
        ]
        clean = [jnp.where(jnp.isnan(x), 3.0, x).astype(x.dtype) for x in dirty]
        call = rules | {"mask": lengths(jnp.int32(number))}
        with_nan, without = (to_float64(run(query, *x, bar, rules=call)) for x in (dirty, clean))
        for a, b in zip(with_nan, without, strict=True):
            np.testing.assert_array_equal(a, b)
        assert number or not any(np.any(x) for x in with_nan)


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "causal & lengths"])
def test_minus_infinity_hides_a_key(by_xla, mask):
    """A padding mask as a bias; a query all of whose keys are hidden has zeros, in value and gradient."""
    length = 12
    hidden = jnp.where(jnp.arange(length) < 4, -jnp.inf, 0.0)[None, None]
    rules_of = lambda bias: {"bias": jnp.broadcast_to(bias, (HEADS, 1, length)), "mask": MASKS[mask](length)}
    programs = [compile_call(implementation, rules_of(hidden)) for implementation in ("cudnn", "plain")]
    for bias in (hidden, jnp.full_like(hidden, -jnp.inf)):
        arrays = arrays_of(length, "bfloat16")
        kernel, plain = (to_float64(run(*arrays, rules=rules_of(bias))) for run in programs)
        for a, b in zip(kernel, plain, strict=True):
            np.testing.assert_allclose(a, b, atol=0.05)
        alone = 4 if "causal" in mask else 0
        assert not np.any(kernel[0][:alone]) and (bias is hidden) == bool(np.any(kernel[0]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_three_parts_are_the_number(dtype):
    """Also compiled, where XLA may take a float32 for its rounding, and with the gradient of the number."""
    numbers = jnp.asarray(RANDOM.normal(size=1000) * 10.0 ** RANDOM.uniform(-2, 5, 1000), jnp.float32)

    @jax.jit
    def total(x):
        return sum(
            summand.astype(jnp.float32) * factor for summand, factor in zip(terms.three_parts(x, dtype), terms.FACTORS)
        )

    smallest = float(jnp.finfo(dtype).tiny) / 32  # what is below is 0
    np.testing.assert_allclose(total(numbers), numbers, rtol=2**-22, atol=smallest)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: total(x).sum()))(numbers), np.ones(1000))


def test_what_would_lose_digits_goes_elsewhere(cudnn_installed):
    def reason(size=16, length=64, dtype=jnp.bfloat16, mask=None, **rules):
        x = jax.ShapeDtypeStruct((length, size), dtype)
        [choices] = explain(lambda x: attend(x, x, x, mask=mask, **rules), x)
        return choices["cuda"].reason

    width = jnp.ones(())
    assert reason(4, score=Gaussian(width)) == "cudnn computes scores that say their terms, not Gaussian"
    assert reason(64, score=Gaussian(width)) == reason(120, score=Gaussian(2.0)) == ""
    assert "2 parts in bfloat16, up to 128 features, got 144" in reason(72, score=Gaussian(width))
    assert "4 parts in bfloat16, up to 128 features, got 256" in reason(64, score=Radial(jnp.ones(64)))
    assert "needs head sizes up to 128, got 136" in reason(128, score=NegativeSquaredDistance())
    slope = {"bias": ALiBi(0.5), "mask": causal()}
    assert reason(length=32768, **slope) == reason(length=4096, dtype=jnp.float16, **slope) == ""
    assert "exactly to 32,768 keys in bfloat16, got 32,770" in reason(length=32770, **slope)
    assert "exactly to 4,096 keys in float16, got 4,098" in reason(length=4098, dtype=jnp.float16, **slope)


def test_a_class_that_overrides_only_the_call_has_no_terms(cudnn_installed):
    @pytree
    @dataclass(frozen=True)
    class Squared(ScaledDot):
        def __call__(self, query, key):
            return super().__call__(query, key) ** 2

    @pytree
    @dataclass(frozen=True)
    class Doubled(ALiBi):
        def __call__(self, *where):
            return 2 * super().__call__(*where)

    x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    for rules in ({"score": Squared()}, {"bias": Doubled(0.5)}, {"bias": (ALiBi(0.5), Doubled(0.5))}):
        [choices] = explain(lambda x: attend(x, x, x, mask=causal(), **rules), x)
        assert choices["cuda"].implementation == "plain"


def test_products_are_taken_by_name_alone(cudnn_installed, monkeypatch):
    """As no card has tested them; dot products without extras are taken by default."""
    monkeypatch.setattr(dispatch, "PRODUCTS_BY_DEFAULT", False)
    x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    run = lambda implementation, **rules: explain(
        lambda x: attend(x, x, x, mask=causal(), implementation=implementation, **rules), x
    )
    [plain], [default], [by_name] = run(None), run(None, bias=ALiBi(0.5)), run("cudnn", bias=ALiBi(0.5))
    assert plain["cuda"].implementation == by_name["cuda"].implementation == "cudnn"
    assert default["cuda"].implementation == "plain" and 'implementation="cudnn"' in default["cuda"].reason


@pytest.mark.slow
@pytest.mark.parametrize("dtype, length", [("bfloat16", 32768), ("float16", 4096)])
def test_the_bound_of_long_biases_holds(dtype, length):
    """The logits near the diagonal, summed in float32 as a kernel sums them, are off by less than half of the
    type's epsilon, with a slope of 1."""
    random = np.random.default_rng(0)
    query, key = (jnp.asarray(random.normal(size=(length, 64)), dtype) for _ in range(2))
    rows = np.array([0, length // 3, length - 1])
    product = terms.as_product(query, key, key, ScaledDot(), ALiBi(jnp.ones(())), causal())
    columns = np.clip(rows[:, None] - np.arange(8), 0, None)
    in_float32 = np.einsum(
        "qd,qkd->qk", *(np.asarray(x, np.float32) for x in (product.query[rows], product.key[columns]))
    )
    logits = in_float32.astype(np.float64) * product.scale
    exact = np.einsum("qd,qkd->qk", *(np.asarray(x, np.float64) for x in (query[rows], key[columns]))) / 8
    exact += columns - rows[:, None]
    error = (logits - logits[:, :1]) - (exact - exact[:, :1])
    assert 0 < np.abs(error).max() < float(jnp.finfo(dtype).eps) / 8 * 4
