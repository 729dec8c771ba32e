"""What `attend` takes as a rule: plain functions, pytrees of other libraries, NumPy's numbers and arrays; what it
refuses, in one line, at every length and in every implementation."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

import attention_jax
from attention_jax import attend, attend_heads
from attention_jax.errors import InputError
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.ops import linear
from attention_jax.ops.attention import attention_weights, masked_softmax
from attention_jax.ops.biases import ALiBi, T5Bias
from attention_jax.ops.delta import chunked_delta
from attention_jax.ops.kernel_regression import nadaraya_watson
from attention_jax.ops.masks import Mask, Window, causal, dense, lengths, segments
from attention_jax.ops.normalizer_kinds import Ordered, Pointwise, Ratio, Threshold
from attention_jax.ops.normalizers import (
    Entmax,
    ReluPower,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopK,
)
from attention_jax.ops.pooling import Moments, Pool
from attention_jax.ops.positions import rotary
from attention_jax.ops.retention import chunked_retention
from attention_jax.ops.scores import Additive, Bilinear, Boxcar, Cosine, Gaussian, Score, SoftCap, Triangular
from attention_jax.ops.trees import pytree
from attention_jax.sampling import sample
from attention_jax.tasks.attention_maps import rollout

both = pytest.mark.parametrize("implementation", [pytest.param("plain", marks=pytest.mark.slow), "fused"])


def points(rows, dtype=np.float32):
    return np.random.default_rng(0).normal(size=(rows, 4)).astype(dtype)


@both
def test_softmax_of_jax_is_the_softmax(implementation):
    """In blocks, too: weights over values of ones add up to 1."""
    x = points(6)
    call = {"normalizer": jax.nn.softmax, "implementation": implementation, "block_k": 2, "block_q": 2}
    np.testing.assert_allclose(jax.jit(lambda x: attend(x, x, jnp.ones((6, 1)), **call))(x), 1, rtol=1e-6)


@pytest.mark.parametrize("function", [jax.nn.sigmoid, jax.nn.relu, jnp.tanh, lambda s: s / 2])
def test_an_elementwise_function_is_taken(function):
    x = points(6)
    exact = np.asarray(function(jnp.asarray(x @ x.T / 2))) @ x
    call = {"normalizer": function, "implementation": "fused", "block_k": 4, "block_q": 4}
    actual = jax.jit(lambda x: attend(x, x, x, **call))(x)
    np.testing.assert_allclose(actual, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function", [jax.nn.log_softmax, lambda s: jnp.exp(s - s.max()), lambda s: s.sum(), lambda s: s[0], lambda s: None]
)
@both
def test_any_other_function_is_refused(function, implementation):
    x = points(3)
    with pytest.raises(InputError, match="elementwise"):
        jax.jit(lambda x: attend(x, x, x, normalizer=function, implementation=implementation))(x)
    with pytest.raises(InputError, match="elementwise"):
        TopK(2, function)


@pytree
@dataclasses.dataclass(frozen=True)
class Centered(Ratio):
    """e^(a (s - mean s)) / sum, which is not elementwise: right on whole rows, and with a wrong gradient in blocks."""

    a: jax.Array | float = 1.0

    def __call__(self, score):
        return jnp.exp(self.a * (score - score.mean(-1, keepdims=True)))


@pytree
@dataclasses.dataclass(frozen=True)
class Peak(Ratio):
    """|s| / max |s'|: its `summand` is not elementwise."""

    def __call__(self, score):
        return jnp.abs(score)

    def summand(self, score):
        return jnp.broadcast_to(jnp.abs(score).max(-1, keepdims=True), score.shape)


@pytree
@dataclasses.dataclass(frozen=True)
class Running(Ordered):
    """Fractions that depend on the sum of the scores so far."""

    def __call__(self, score):
        return jax.nn.log_sigmoid(score), jax.nn.log_sigmoid(-jnp.cumsum(score, -1))


@both
@pytest.mark.parametrize("normalizer", [Centered(), Peak(), Running(), TopK(2, Centered())], ids=str)
def test_a_class_that_is_not_elementwise_is_refused(normalizer, implementation):
    """Also where its parameters are traced, inside of jit, grad and vmap over heads."""
    x = points(3)
    for rule in (normalizer, jax.tree.map(jnp.asarray, normalizer)):
        with pytest.raises(InputError, match="must be elementwise"):
            attend(x, x, x, normalizer=rule, implementation=implementation)
        with pytest.raises(InputError, match="must be elementwise"):
            loss = lambda rule: attend_heads(*[x[None, :, None]] * 3, normalizer=rule).sum()
            jax.jit(jax.grad(loss))(rule)


@pytree
@dataclasses.dataclass(frozen=True)
class Halved(Softmax):
    def __call__(self, score):
        return jnp.exp(score / 2)


@pytree
@dataclasses.dataclass(frozen=True)
class Normalized(Sigmoid):
    def weights(self, scores, allowed):
        weights = super().weights(scores, allowed)
        return weights / weights.sum(axis=1, keepdims=True)


@pytree
@dataclasses.dataclass(frozen=True)
class Cubed(Threshold):
    """0.7 max(s, 0)^3 with an inverse that forgets the factor."""

    def __call__(self, score):
        return 0.7 * jnp.maximum(score, 0) ** 3

    def inverse(self, value):
        return value ** (1 / 3)


@both
@pytest.mark.parametrize(
    "normalizer, message",
    [
        (Halved(), "Halved overrides the exponential"),
        (Normalized(0.0), "Normalized.weights is not what blocks"),
        (TopK(2, Normalized(0.0)), "Normalized.weights is not what blocks"),
        (Cubed(), r"Cubed.inverse must be the x of `__call__`\(x\) = value"),
        (lambda s: jax.nn.softmax(s, axis=0), "must be elementwise"),
    ],
    ids=["call", "weights", "weights in TopK", "inverse", "over queries"],
)
def test_an_override_that_blocks_would_not_use_is_refused(normalizer, message, implementation):
    x = points(3)
    with pytest.raises(InputError, match=message):
        attend(x, x, x, normalizer=normalizer, implementation=implementation)


@pytree
@dataclasses.dataclass(frozen=True)
class TanhBilinear(Bilinear):
    """tanh(q^T W k), which does not inherit the forms of q^T W k."""

    def __call__(self, query, key):
        return jnp.tanh(query @ self.kernel @ key.T)


@pytree
@dataclasses.dataclass(frozen=True)
class Doubled(Additive):
    """2 v . tanh(W_q q + W_k k), by the call of its parent, which prepares queries and keys."""

    def __call__(self, query, key):
        return 2 * super().__call__(query, key)


@pytree
@dataclasses.dataclass(frozen=True)
class Dilated(Window):
    """Every second key of a window of four times the width."""

    def __call__(self, query_positions, key_positions):
        distance = jnp.abs(query_positions[:, None] - key_positions[None, :])
        return (distance <= 4 * self.width) & (distance % 2 == 0)


@pytest.mark.slow
def test_a_class_that_overrides_the_call_inherits_no_other_form_of_it():
    """Values and gradients in blocks, against the matrix of scores."""
    x, kernel = points(40), jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)), jnp.float32)
    blocks = {"implementation": "fused", "block_q": 8, "block_k": 8}
    distance = np.abs(np.arange(40)[:, None] - np.arange(40))
    cases = {
        "score": lambda w: (TanhBilinear(w), jnp.tanh(x @ w @ x.T)),
        "SoftCap": lambda w: (SoftCap(1.0, TanhBilinear(w)), jnp.tanh(jnp.tanh(x @ w @ x.T))),
        "super": lambda w: (Doubled(w, w, w[0]), 2 * jnp.tanh((x @ w)[:, None] + (x @ w)[None]) @ w[0]),
    }
    for name, case in cases.items():
        plain = lambda w: jnp.sum((jax.nn.softmax(case(w)[1]) @ x) ** 2)
        in_blocks = lambda w: jnp.sum(attend(x, x, x, score=case(w)[0], **blocks) ** 2)
        for right, result in zip(jax.value_and_grad(plain)(kernel), jax.value_and_grad(in_blocks)(kernel)):
            np.testing.assert_allclose(result, right, rtol=2e-4, atol=2e-4, err_msg=name)
    allowed = (distance <= 12) & (distance % 2 == 0)
    right = masked_softmax(x @ x.T / 2, allowed) @ x
    np.testing.assert_allclose(attend(x, x, x, mask=Dilated(3), **blocks), right, rtol=1e-4, atol=1e-5)


@pytree
@dataclasses.dataclass(frozen=True)
class Hermitian(Score):
    """Re(w q . conj(w z k)) with a complex w and a fixed z."""

    w: jax.Array

    def __call__(self, query, key):
        query, key = query.astype(self.w.dtype), key.astype(self.w.dtype)
        turned = key * self.w[None] * jnp.array([[1, 1j, 1, 1j]], self.w.dtype)
        return jnp.real((query * self.w[None]) @ jnp.conj(turned).T)


@both
def test_complex_parameters_have_gradients(implementation):
    x, w = jnp.asarray(points(20)), jnp.array([0.5 + 1j, -1.0, 1j, 0.25 - 0.5j], jnp.complex64)
    blocks = {"implementation": implementation, "block_q": 8, "block_k": 8}
    actual = jax.grad(lambda w: jnp.sum(attend(x, x, x, score=Hermitian(w), **blocks) ** 2))(w)
    expected = jax.grad(lambda w: jnp.sum((jax.nn.softmax(Hermitian(w)(x, x)) @ x) ** 2))(w)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "rule",
    [
        {"score": lambda q, k: q @ (k - k.mean(axis=0, keepdims=True)).T},
        {"score": lambda q, k: q @ k.T * jnp.log(k.shape[0])},
        {"bias": lambda q, i, j: jnp.broadcast_to(-jnp.log(j.shape[0]), (i.shape[0], j.shape[0]))},
        {"bias": lambda q, i, j: (3 * j / j.max())[None]},
        {"bias": (ALiBi(0.5), lambda q, i, j: jnp.cumsum(j.astype(jnp.float32))[None])},
        {"mask": lambda i, j: (j >= len(j) - 9)[None]},
        {"mask": causal() & (lambda i, j: (j >= len(j) - 9)[None])},
        {"score": SoftCap(5.0, lambda q, k: q @ (k / jnp.abs(k).max()).T)},
    ],
    ids=range(8),
)
def test_a_rule_of_the_whole_is_refused_unless_the_whole_is_computed(rule):
    """At every length, inside of jit, grad and vmap, with a line that names the way out."""
    x = points(3)
    with pytest.raises(InputError, match='must depend on one query and one key .* implementation="plain"'):
        jax.jit(jax.grad(lambda x: attend(x, x, x, **rule).sum()))(x)
    with pytest.raises(InputError, match="must depend on one query and one key"):
        attend_heads(*[x[None, :, None]] * 3, **rule)
    assert np.isfinite(attend(x, x, x, implementation="plain", **rule)).all()


PER_KEY = np.linspace(0.5, 2, 16, dtype=np.float32)


@pytest.mark.parametrize(
    "rule",
    [
        {"score": lambda q, k: q @ k.T * PER_KEY},
        {"bias": lambda q, i, j: PER_KEY[None] * i[:, None]},
        {"mask": lambda i, j: jnp.ones((16, 16), bool)},
        {"normalizer": lambda s: jax.nn.relu(s) * PER_KEY},
    ],
    ids=["score", "bias", "mask", "normalizer"],
)
def test_a_rule_of_the_size_of_a_block_is_refused(rule):
    """In 16 columns it would be computed for each block of 16 keys."""
    x = points(32)
    with pytest.raises(InputError, match="any number of queries and keys|depends on others|must be elementwise"):
        attend(x, x, x, implementation="fused", block_q=16, block_k=16, **rule)


@pytree
@dataclasses.dataclass(frozen=True)
class Votes(Pool):
    def lift(self, key, value):
        return value > 0


@pytree
@dataclasses.dataclass(frozen=True)
class Half(Pool):
    def lift(self, key, value):
        return value[::2]


@pytree
@dataclasses.dataclass(frozen=True)
class Gated(Pool):
    gate: jax.Array

    def lift(self, key, value):
        return value * jax.nn.sigmoid(key @ self.gate)[:, None]


@both
def test_lifted_values_are_floats_of_each_key_without_what_is_masked(implementation):
    x = points(6)
    for pool in (Votes(), Half()):
        with pytest.raises(InputError, match=r"lift must return floats \[K, P\] for the 6 keys"):
            attend(x, x, x, pool=pool, implementation=implementation)
    broken = x.copy()
    broken[4:] = np.nan
    loss = lambda gate, key: attend(x, key, x, pool=Gated(gate), mask=lengths(4), implementation=implementation).sum()
    right = jax.grad(loss)(jnp.ones(4), x)
    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones(4), broken), right)
    assert np.abs(right).min() > 1e-3


@pytest.mark.parametrize("result", [lambda a: a.astype(int), lambda a: a.astype(np.float32), lambda a: a[0]])
def test_a_mask_class_returns_booleans_for_all_pairs(result):
    class Own(Mask):
        def __call__(self, query_positions, key_positions):
            return result(query_positions[:, None] >= key_positions[None, :])

    x, mask = points(3), pytree(dataclasses.dataclass(frozen=True)(Own))()
    with pytest.raises(InputError, match=r"Own must return booleans \[Q, K\]"):
        attend(x, x, x, mask=mask)


@both
@pytest.mark.parametrize("rule", [{"score": lambda q, k: None}, {"bias": lambda q, i, j: (1.0, 2.0)}])
def test_a_function_that_returns_no_array_is_refused(rule, implementation):
    x = points(3)
    with pytest.raises(InputError, match="must return"):
        attend(x, x, x, implementation=implementation, **rule)


@dataclasses.dataclass
class WithActivation:
    """A module as Equinox makes them: a pytree, one of whose leaves is a function."""

    weight: jax.Array
    activation: object

    def __init_subclass__(cls):
        flatten = lambda module: ((module.weight, module.activation), None)
        jax.tree_util.register_pytree_node(cls, flatten, lambda _, children: cls(*children))


class ModuleScore(WithActivation):
    def __call__(self, query, key):
        return self.activation(self.weight * (query @ key.T))


class ModuleNormalizer(WithActivation):
    def __call__(self, score):
        return self.activation(self.weight * score)


class ModuleBias(WithActivation):
    def __call__(self, query, query_positions, key_positions):
        away = (query_positions[:, None] - key_positions[None, :]).astype(jnp.float32)
        return self.activation(self.weight * away)


class ModuleMask(WithActivation):
    def __call__(self, query_positions, key_positions):
        return query_positions[:, None] * self.weight.astype(int) >= key_positions[None, :]


@pytest.mark.parametrize(
    ("name", "kind"),
    slow_but(
        [("mask", ModuleMask)],
        [("score", ModuleScore), ("normalizer", ModuleNormalizer), ("bias", ModuleBias), ("mask", ModuleMask)],
    ),
)
def test_a_module_with_a_function_as_a_leaf(name, kind):
    """Blockwise as plain, with the gradient of its parameter; `attend_heads` takes it, too."""
    x = points(6)

    def loss(weight, implementation):
        rule = {name: kind(weight, jnp.tanh)}
        return (attend(x, x, x, implementation=implementation, block_k=4, block_q=4, **rule) ** 2).sum()

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    plain, fused = (run(jnp.float32(1.5), i) for i in ("plain", "fused"))
    np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5)
    assert name == "mask" or abs(plain[1]) > 1e-3
    heads, rule = x[None, :, None], {name: kind(jnp.float32(1.5), jnp.tanh)}
    assert jax.eval_shape(lambda: attend_heads(heads, heads, heads, **rule)).shape == heads.shape


@dataclasses.dataclass(frozen=True)
class UnregisteredScore(Score):
    weight: object

    def __call__(self, query, key):
        return self.weight * (query @ key.T)


class UnregisteredNormalizer(Pointwise):
    def __call__(self, x):
        return x


class Holder:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, query, key):
        return self.weight * (query @ key.T)


UNREGISTERED = {
    "score": lambda w: {"score": UnregisteredScore(w)},
    "object": lambda w: {"score": Holder(w)},
    "method": lambda w: {"score": Holder(w).__call__},
    "normalizer": lambda w: {"normalizer": UnregisteredNormalizer()},
    "in top-k": lambda w: {"normalizer": TopK(2, UnregisteredNormalizer())},
}


@both
@pytest.mark.parametrize("name", UNREGISTERED)
def test_a_rule_without_pytree_is_refused(name, implementation):
    x = points(3)
    with pytest.raises(InputError, match="@pytree"):
        jax.grad(lambda w: attend(x, x, x, implementation=implementation, **UNREGISTERED[name](w)).sum())(1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Entmax(np.float32(1.0)),
        lambda: Entmax(jnp.float32(2.5)),
        lambda: Gaussian(0.0),
        lambda: Gaussian(np.float32(-1)),
        lambda: Boxcar(0),
        lambda: Triangular(-1.0),
        lambda: SoftCap(0.0),
        lambda: ReluPower(np.int32(-1)),
        lambda: TopK(np.int32(0)),
    ],
)
def test_options_are_checked(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("make", [ReluPower, SoftCap, TopK])
def test_options_that_are_compiled_in_cannot_be_traced(make):
    with pytest.raises(InputError, match=r"number.*traced|whole number of keys"):
        jax.eval_shape(lambda option: make(option), jnp.float32(2))


def test_whole_numbers_of_numpy():
    assert TopK(np.int64(3)) == TopK(3)
    assert ReluPower(np.uint8(2)) == ReluPower(jnp.array(2)) == ReluPower(2)
    assert SoftCap(jnp.float32(2)) == SoftCap(2.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: T5Bias(x),
        lambda x: dense(x[None] > 1),
        lambda x: causal() & segments(x.astype(int), x.astype(int)),
        lambda x: Additive(None, None, x),
        lambda x: TopK(2, Entmax(1 + x[1] / 8)),
    ],
)
def test_rules_with_arrays_are_compared(make):
    rule, same, different = make(jnp.arange(4.0)), make(np.arange(4, dtype=np.float32)), make(jnp.arange(4.0) * 2)
    assert rule == same
    assert rule != different
    assert len({rule, same, different}) == 2
    assert rule != "one"


@pytest.mark.parametrize("implementation", slow_but(["plain"], ["plain", "fused", None]))
def test_numpy_float64_gives_no_warning(implementation):
    """pytest makes errors of warnings; so does this for a user's filter."""
    x = points(6, np.float64)
    heads = x[None, :, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attend(x, x, x, score=Cosine(), implementation=implementation).dtype == jnp.float32
        additive = Additive(np.ones((4, 3)), np.ones((4, 3)), np.ones(3))
        assert attend(x, x, x, score=additive, pool=Moments(), implementation=implementation).shape == (6, 8)
        assert attend_heads(heads, heads, heads, implementation=implementation).dtype == jnp.float32
        for actual in (attention_weights(x, x), nadaraya_watson(x, x, x), masked_softmax(x)):
            assert actual.dtype == jnp.float32
        chunked_retention(x, x, x, -np.ones(6))
        chunked_delta(x, x, x, np.ones(6), -np.ones(6))


@pytest.mark.slow
def test_numpy_float64_gives_no_warning_elsewhere():
    x = points(6, np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear.recurrent(x, x, x, linear.Elu())
        assert rotary(x, np.arange(6)).dtype == rollout(np.ones((1, 1, 4, 4))).dtype == jnp.float32
        step = lambda tokens, cache: (x[:2], cache)
        prompt = np.array([[1, 2], [2, 0]])
        assert sample(step, x, prompt, 3, temperature=np.float64(0.7), top_p=np.float64(0.9)).shape == (2, 3)


@pytest.mark.slow
@both
def test_debug_nans_finds_nothing_where_nothing_is_nan(implementation):
    """Eager: queries without a key or with exactly the k of a `TopK`, and a score with a prepared side."""
    x = jnp.asarray(points(6))
    score = Additive.init(jax.random.key(0), 4, 4, 3)
    masked, two = {"mask": lengths(0)}, {"mask": lengths(2), "normalizer": TopK(2)}
    with jax.debug_nans(True):
        for call in ({"score": score}, masked, masked | {"normalizer": Sparsemax()}, two):
            run = lambda x: attend(x, x, x, implementation=implementation, **call).sum()
            assert np.isfinite(run(x)) and np.isfinite(jax.grad(run)(x)).all()


def test_a_check_finds_no_nan_that_a_call_has_not():
    """Roots of scores that are never negative, where the numbers of the examples are."""
    x = jnp.abs(jnp.asarray(points(6)))
    with jax.debug_nans(True):
        assert np.isfinite(attend(x, x, x, score=lambda q, k: q @ k.T, normalizer=lambda s: jnp.sqrt(s))).all()


@pytree
@dataclasses.dataclass(frozen=True)
class Interpolated(Threshold):
    """A function that is linear between knots."""

    knots: jax.Array

    def __call__(self, score):
        return jnp.interp(score, self.knots, jnp.linspace(0.0, 1.5, 4))

    def inverse(self, value):
        return jnp.interp(value, jnp.linspace(0.0, 1.5, 4), self.knots)


@pytest.mark.slow
def test_knots_are_not_tried_as_one_number():
    x, normalizer = jnp.asarray(points(6)), Interpolated(jnp.array([-1.0, 0.0, 2.0, 3.0]))
    outputs = [attend(x, x, x, normalizer=normalizer, implementation=name) for name in ("plain", "fused")]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", slow_but([{}], [{}, {"normalizer": TopK(8)}, {"normalizer": Sparsemax()}, {"pool": Moments()}])
)
def test_export_with_a_free_length(options):
    (length,) = jax.export.symbolic_shape("T")
    run = jax.jit(lambda x: attend(x, x, x, mask=causal(), **options))
    exported = jax.export.export(run)(jax.ShapeDtypeStruct((length, 4), jnp.float32))
    x = points(5)
    np.testing.assert_allclose(exported.call(x), run(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"num_heads": 4, "num_kv_heads": 3}, {"num_heads": 16}, {"num_heads": 5}, {"num_heads": 0}]
)
def test_heads_that_do_not_fit_are_refused(options):
    with pytest.raises(InputError, match="num_heads"):
        MultiHeadAttention(hidden_size=12, **options)


@pytest.mark.slow
def test_heads_take_a_mask_of_one_number():
    x = jnp.ones((2, 5, 12))
    model = MultiHeadAttention(num_heads=4, hidden_size=12, num_kv_heads=2)
    (output, _), params = model.init_with_output(jax.random.key(0), x, x, x, mask=lengths(3))
    each, _ = model.apply(params, x, x, x, mask=lengths(jnp.array([3, 3])))
    np.testing.assert_allclose(output, each, rtol=1e-6)


@pytest.mark.slow
def test_a_star_imports_the_public_names():
    names = {}
    exec("from attention_jax import *", names)
    assert set(attention_jax.__all__) <= set(names) and "attend" in names
