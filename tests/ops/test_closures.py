"""Rules that are plain functions and read variables of the functions around them: traced arrays are differentiated and
mapped, in blocks as in "plain", and a variable that changes between two calls is read again."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention_jax import attend, attend_heads, causal
from attention_jax.errors import InputError
from attention_jax.ops import scores
from attention_jax.ops.trees import pytree

QUERY, KEY, VALUE = np.random.default_rng(0).normal(size=(3, 40, 4)).astype(np.float32)
PARAMS = {"w": np.float32([0.3, -0.2, 0.5, 0.4]), "table": np.float32([0.1, -0.3, 0.2]), "width": np.float32(0.7)}


def by_blocks(*args, **call):
    return attend(*args, **call, implementation="fused", block_q=16, block_k=16)


def by_matrix(*args, **call):
    return attend(*args, **call, implementation="plain")


def in_numpy(score):
    """The softmax of a score over all keys, in float64."""
    logits = np.asarray(score(QUERY, KEY), np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights @ VALUE / weights.sum(axis=1, keepdims=True)


def distances(rows, columns):
    return jnp.clip(jnp.abs(rows[:, None] - columns[None, :]), 0, 2)


def score_and_bias(params):
    return dict(
        score=lambda query, key: (query * params["w"][None, :]) @ key.T,
        bias=lambda query, rows, columns: params["table"][distances(rows, columns)],
    )


def mask_and_normalizer(params):
    return dict(
        mask=causal()
        & (lambda rows, columns: (rows >= 0)[:, None] & (columns.astype(jnp.float32) < 40 * params["width"])[None]),
        normalizer=lambda score: jax.nn.sigmoid(params["width"] * score),
    )


def functions_and_defaults(params):
    def scale(x, *, width=params["width"]):
        return x * width

    def score(query, key, w=params["w"]):
        return scale((query * w[None, :]) @ key.T)

    return dict(score=score)


def partials(params):
    def score(w, query, key):
        return params["width"] * (query * w[None, :]) @ key.T

    return dict(score=functools.partial(score, params["w"]))


def a_rule_in_a_function(params):
    gaussian = scores.Gaussian(params["width"])
    return dict(score=lambda query, key: 2 * gaussian(query, key))


def recursive_and_compiled(params):
    @jax.jit
    def scale(x, count=1):
        return scale(x, 0) if count else x * params["width"]

    scales = {None: scale, "other": 1.0}  # keys that do not sort
    return dict(
        score=jax.jit(lambda query, key: scale(query) @ key.T), bias=lambda *_: jnp.full((1, 1), len(scales)) * 1.0
    )


def functions_in_a_tree(params):
    apply = lambda function, query, key: function(query @ key.T)
    return dict(score=scores.SoftCap(5.0, jax.tree_util.Partial(apply, lambda x: x * params["width"])))


RULES = [
    functions_in_a_tree,
    score_and_bias,
    mask_and_normalizer,
    functions_and_defaults,
    partials,
    a_rule_in_a_function,
    recursive_and_compiled,
]


@pytest.mark.parametrize("rules", RULES)
def test_gradients_reach_captured_arrays(rules):
    """Those of "plain", which JAX differentiates itself."""
    gradient = lambda attend: jax.grad(lambda params: jnp.sin(attend(QUERY, KEY, VALUE, **rules(params))).sum())
    actual, expected = jax.jit(lambda params: [gradient(attend)(params) for attend in (by_blocks, by_matrix)])(PARAMS)
    assert any(x.any() for x in jax.tree.leaves(expected))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), actual, expected)


@pytest.mark.slow
def test_second_derivatives_reach_captured_arrays():
    """Of a score with two factors, by finite differences of the gradient."""
    x = QUERY[:20], KEY[:20], VALUE[:20]

    def loss(factors):
        return jnp.sin(by_blocks(*x, score=lambda query, key: factors[0] * factors[1] * query @ key.T)).sum()

    factors, steps = np.float32([0.6, 0.8]), 1e-2 * np.eye(2, dtype=np.float32)
    gradient = jax.jit(jax.grad(loss))
    columns = [np.subtract(gradient(factors + step), gradient(factors - step)) / 2e-2 for step in steps]
    np.testing.assert_allclose(jax.jit(jax.hessian(loss))(factors), columns, rtol=1e-2, atol=1e-2)


def test_a_captured_length_is_mapped():
    """One call under `vmap` and `jit`, and the first n keys alone."""
    first = lambda n: by_blocks(
        QUERY, KEY, VALUE, mask=lambda rows, columns: (columns < n)[None] & (rows >= 0)[:, None]
    )
    actual = jax.jit(jax.vmap(first))(np.int32([7, 30]))
    expected = [jax.jit(by_matrix)(QUERY, KEY[:n], VALUE[:n]) for n in (7, 30)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_heads_share_what_a_function_captures():
    """An array of one entry for each of 4 heads and one of 40 distances: no axis of it is one of heads."""
    x = np.stack([QUERY, KEY, VALUE])[:, None, :, None, :] * np.float32([1, 0.5, 2, -1]).reshape(4, 1)

    def loss(params):
        return (attend_heads(*x, **score_and_bias(params), implementation="fused", block_q=16, block_k=16) ** 2).sum()

    def loss_of_heads(params):
        heads = [by_matrix(*x[:, 0, :, h], **score_and_bias(params)) for h in range(4)]
        return sum((head**2).sum() for head in heads)

    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(assert_close, jax.jit(jax.grad(loss))(PARAMS), jax.jit(jax.grad(loss_of_heads))(PARAMS))


def leaky(x, slope=0.1):
    return jnp.where(x > 0, x, slope * x)


def test_functions_without_traced_arrays_are_called_themselves():
    """They keep their identity and their state, and their compiled program."""
    activate, tables = leaky, {leaky: 3.0}

    class Calls:
        score = 0

    def score(query, key, scale=1.0):
        Calls.score += 1
        return scale * tables[activate] * activate(query @ key.T)

    expected = in_numpy(lambda query, key: 3 * leaky(query @ key.T))
    np.testing.assert_allclose(by_blocks(QUERY, KEY, VALUE, score=score), expected, rtol=1e-4, atol=1e-5)
    count = Calls.score
    by_blocks(QUERY, KEY, VALUE, score=score)
    assert Calls.score == count + 1  # traced once for its cost, as a function without variables


@pytest.mark.slow
def test_traced_arrays_are_not_kept():
    with jax.checking_leaks():
        jax.jit(lambda width: by_blocks(QUERY, KEY, VALUE, score=lambda query, key: width * query @ key.T))(0.5)


@pytest.mark.slow
def test_numbers_of_a_partial_may_be_counts():
    """Python's `functools.partial`, as in `range(2)`; an array keeps its gradient."""

    def score(count, query, key, *, negative, width):
        logits = query @ key.T * width
        for _ in range(count):
            logits = jnp.tanh(logits)
        return -logits if negative else logits

    for count, negative in [(2, True), (1, True), (1, False)]:
        bind_score = lambda width: functools.partial(score, count, negative=negative, width=width)
        gradient = lambda attend: jax.grad(
            lambda width: jnp.sin(attend(QUERY, KEY, VALUE, score=bind_score(width))).sum()
        )
        outputs = jax.jit(lambda width: [gradient(attend)(width) for attend in (by_blocks, by_matrix)])(0.7)
        np.testing.assert_allclose(*outputs, rtol=1e-4)


def scale(x, half=None, twice=None):
    return x / 2 if half else x * 2 if twice else x


PAIRS = {
    "numbers": (1.0, 3.0),
    "signs of 0": (0.0, -0.0),
    "arrays": (jnp.array(1.0), jnp.array(3.0)),
    "functions": (jnp.negative, jnp.square),
    "defaults": (lambda x, s=1.0: s * x, lambda x, s=1.0: -s * x),
    "partials": (functools.partial(scale, half=1.0), functools.partial(scale, twice=1.0)),
    "keys": ({"half": 1.0}, {"twice": 1.0}),
    "keys that do not sort": ({None: 1.0, "half": 1.0}, {None: 1.0, "twice": 1.0}),
    "places": ((None, 1.0), (1.0, None)),
}


@pytest.mark.parametrize("first, second", PAIRS.values(), ids=PAIRS)
def test_a_variable_that_changes_is_read_again(first, second):
    """One function object, in two calls of equal shapes."""

    def score(query, key):
        x = query @ key.T
        if callable(value):
            return value(x)
        if isinstance(value, dict):
            return scale(x, value.get("half"), value.get("twice"))
        return scale(x, *value) if isinstance(value, tuple) else value * x if value else jnp.copysign(x, value)

    value = first
    old = by_blocks(QUERY, KEY, VALUE, score=score)
    value = second
    expected = in_numpy(score)
    np.testing.assert_allclose(by_blocks(QUERY, KEY, VALUE, score=score), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(old, expected, atol=1e-3)


@pytest.mark.parametrize(
    "rules",
    [
        lambda w: dict(normalizer=lambda score: score - w * score.mean()),
        lambda w: dict(score=lambda query, key: w * query @ (key - key.mean(axis=0, keepdims=True)).T),
        lambda w: dict(bias=lambda query, rows, columns: w * jnp.full((len(rows), len(columns)), len(columns) / 10)),
    ],
)
def test_captured_arrays_hide_no_rule_of_the_whole(rules):
    with pytest.raises(InputError, match="must be elementwise|must depend on one query and one key"):
        jax.grad(lambda w: attend(QUERY, KEY, VALUE, **rules(w), implementation="fused").sum())(0.5)


class Holder:
    """An object that is no pytree, whose attributes change in place."""

    def __init__(self):
        self.scale, self.table = 1.0, [np.ones(())]

    def score(self, query, key):
        return self.scale * self.table[0] * (query @ key.T)


number = 1.0


class Pair(list):
    pass


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


def changed_in_place():
    """name: (a score, what triples it)."""
    array, holder, entries = np.ones(()), Holder(), {"w": np.ones(())}
    factors, queue, pair, slotted = {1.0}, collections.deque([1.0]), Pair([1.0]), Slotted()
    objects = np.array([[1.0], None], object)
    triple = lambda array: array.__imul__(3)
    return {
        "array": (lambda q, k: array * (q @ k.T), lambda: triple(array)),
        "default": (lambda q, k, w=array: w * (q @ k.T), lambda: triple(array)),
        "dictionary": (lambda q, k: entries["w"] * (q @ k.T), lambda: triple(entries["w"])),
        "set": (lambda q, k: max(factors) * (q @ k.T), lambda: factors.add(3.0)),
        "deque": (lambda q, k: queue[-1] * (q @ k.T), lambda: queue.append(3.0)),
        "subclass of list": (lambda q, k: pair[-1] * (q @ k.T), lambda: pair.append(3.0)),
        "slots": (lambda q, k: slotted.scale * (q @ k.T), lambda: setattr(slotted, "scale", 3.0)),
        "array of objects": (lambda q, k: objects[0][-1] * (q @ k.T), lambda: objects[0].append(3.0)),
        "attribute": (lambda q, k: holder.scale * (q @ k.T), lambda: setattr(holder, "scale", 3.0)),
        "method": (holder.score, lambda: setattr(holder, "scale", 3.0)),
        "global": (lambda q, k: number * (q @ k.T), lambda: globals().update(number=3.0)),
    }


@pytest.mark.parametrize("name", changed_in_place())
def test_every_call_reads_present_values(name):
    score, change = changed_in_place()[name]
    globals().update(number=1.0)
    for factor in (1.0, 3.0):
        expected = in_numpy(lambda q, k, w=factor: w * (q @ k.T))
        np.testing.assert_allclose(by_blocks(QUERY, KEY, VALUE, score=score), expected, rtol=1e-4, atol=1e-5)
        change()


@pytree
@dataclasses.dataclass(frozen=True)
class Scaled:
    scale: jax.Array

    def score(self, query, key):
        return self.scale * (query @ key.T)


def test_methods_of_pytrees_have_gradients():
    """Of a dataclass, inside of a partial, and of a module of nnx: as those of the function in "plain"."""

    class Module(nnx.Module):
        def __init__(self, scale):
            self.scale = nnx.Param(scale)

        score = Scaled.score

    plain = lambda w: by_matrix(QUERY, KEY, VALUE, score=lambda q, k: w * (q @ k.T)).var()
    expected = jax.jit(jax.grad(plain))(0.7)
    loss = lambda item, wrap=lambda method: method: by_blocks(QUERY, KEY, VALUE, score=wrap(item.score)).var()
    gradients = lambda w: (
        jax.grad(loss)(Scaled(w)).scale,
        jax.grad(lambda x: loss(x, functools.partial))(Scaled(w)).scale,
        nnx.grad(loss)(Module(w))["scale"][...],
    )
    for gradient in jax.jit(gradients)(np.float32(0.7)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4)
