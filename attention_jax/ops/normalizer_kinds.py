"""The four kinds of normalizer: how the scores of a query become the weights of its keys.

A normalizer is a callable pytree whose leaves receive gradients. Its `__call__` is elementwise, so that one
implementation serves whole matrices of scores and blocks of them (`ops/blockwise/local.py`), with gradients by
`jax.vjp`. Named normalizers are in `ops/normalizers.py`. With s_j the score of the j-th key that a query may attend to:

* `Pointwise`: w_j = f(s_j). The weights of a query need not sum to 1.
* `Ratio`: w_j = f(s_j) / (extra + sum_l g(s_l)), where g is f if it is not overridden.
* `Threshold`: w_j = f(s_j - t), where t solves sum_j f(s_j - t) = 1.
* `Ordered`: w_j depends on the keys that come after it.

Whatever the normalizer, a masked key weighs 0 before anything is normalized, even where f(0) is not 0, and so does a
key whose score is -inf. A query without any key left has weights of zero. NaN in a score that is not masked stays NaN.

A custom normalizer inherits from one of the four:

>>> from dataclasses import dataclass
>>> from attention_jax.ops.attention import attend
>>> @pytree
... @dataclass(frozen=True)
... class Softplus(Pointwise):
...     shift: jax.Array
...     def __call__(self, score):
...         return jax.nn.softplus(score - self.shift)
>>> attend(jnp.ones((1, 2)), jnp.zeros((3, 2)), jnp.ones((3, 1)), normalizer=Softplus(jnp.zeros(()))).round(4).tolist()
[[2.079400062561035]]
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from attention_jax.errors import InputError
from attention_jax.ops.meshes import loopable, vary_like
from attention_jax.ops.trees import example_of, is_of_package, name_of, on_examples, outline, pytree, shape_error

Rows = Float[Array, " Q"]

ITERATIONS = 60
"""At most so many steps to a threshold; Newton's method takes 3 to 12 of them, and up to 20 where f is bounded."""


class Normalizer:
    """Base class of normalizers: logits [Q, K] and which of them are allowed to attention weights [Q, K].

    Inherit from one of its four kinds, `Pointwise`, `Ratio`, `Threshold` and `Ordered`.

    >>> Elementwise(jnp.tanh).weights(jnp.zeros((1, 2)), jnp.ones((1, 2), bool)).tolist()
    [[0.0, 0.0]]
    """

    sparse = False
    """Whether many weights are exactly zero, so that it pays to skip the blocks where all of them are."""

    def weights(self, scores: Float[Array, "Q K"], allowed: Bool[Array, "Q K"]) -> Float[Array, "Q K"]:
        """The weights of whole rows of scores; those that are not `allowed` may hold anything."""
        raise NotImplementedError


class Local(Normalizer):
    """Normalizers with w_j = scale * f(s_j - shift): keys interact only through two numbers per query."""

    divides = False
    """Whether scale is 1 / (extra + sum of `Ratio.summand`)."""
    rescales = False
    """Whether f is e^-shift f(s_j) instead, with shift = max(0, largest score): see `Ratio`."""
    masked = 0.0
    """The argument of f in place of a masked score; its value is not used, but must be differentiable."""

    def __call__(self, x: Float[Array, "Q K"]) -> Float[Array, "Q K"]:
        """f, elementwise."""
        raise NotImplementedError

    def extra(self) -> Float[Array, ""] | float:
        """Added to the sum before it divides: weight that is on no key."""
        return 0.0

    def factor(self, count: Rows) -> Rows | None:
        """`scale` of queries that may attend to `count` keys each; None means 1."""
        return None

    def weights(self, scores, allowed):
        scores = jnp.where(allowed, scores, 0.0)  # [Q, K]
        shift = jnp.zeros(scores.shape[:1], scores.dtype)  # [Q], 0 unless the kind has one
        if self.rescales:
            shift = lax.stop_gradient(jnp.max(scores, axis=1, initial=0.0, where=allowed))
        if isinstance(self, Threshold):  # t, relative to the largest score, as the scores are from here on
            top = jnp.max(scores, axis=1, initial=-jnp.inf, where=allowed)
            scores = jnp.where(allowed, relative_to(top, scores), 0.0)
            shift = loopable(_solve_threshold)(self, scores, allowed)
        # w_j = scale f_j; the scale [Q] of a `Ratio` is 1 / (extra + sum_l g_l), and g is f if there is no summand
        values, *summands = terms_of(self, scores, allowed, shift)
        count = allowed.sum(axis=1).astype(values.dtype)
        return values * scale_of(self, (*summands, values)[0].sum(axis=1), count, shift)[:, None]


def values_of(normalizer: Local, scores, allowed, shift: Rows) -> Float[Array, "Q K"]:
    """f(scores - shift), and 0 where a key is not allowed."""
    return _apply(normalizer, normalizer, scores, allowed, shift)


def terms_of(normalizer: Local, scores, allowed, shift: Rows) -> tuple[Float[Array, "Q K"], ...]:
    """(f,), or (f, `summand`) of a `Ratio` that sums another function; 0 where a key is not allowed."""
    functions = (normalizer, normalizer.summand) if has_summand(normalizer) else (normalizer,)
    return tuple(_apply(function, normalizer, scores, allowed, shift) for function in functions)


def _apply(function, normalizer, scores, allowed, shift):
    # a masked score is replaced before f, too: the gradient of `where` alone is 0 * f', NaN where f' is infinite
    if normalizer.rescales:  # e^-m f(s) is no function of s - m
        return jnp.where(allowed, function(jnp.where(allowed, scores, normalizer.masked), shift[:, None]), 0.0)
    return jnp.where(allowed, function(jnp.where(allowed, scores - shift[:, None], normalizer.masked)), 0.0)


def rescale(normalizer: Local, x: Rows, shift: Rows) -> Rows:
    """e^-shift x, where the terms of a query are multiplied by e^-shift, and else x."""
    return x * jnp.exp(-shift) if normalizer.rescales else x


def scale_of(normalizer: Local, mass: Rows, count: Rows, shift: Rows) -> Rows:
    """`scale`, given the last sum of `terms_of` and the number of keys of each query; 0 where all weights are 0
    anyway."""
    if normalizer.divides:
        # mass is sum_j e^-m g_j, and the weights have e^-m f_j: with e^-m extra the factor e^-m cancels
        divisor = mass + rescale(normalizer, jnp.asarray(normalizer.extra(), mass.dtype), shift)
        has_mass = (divisor != 0) & (count > 0)
        return jnp.where(has_mass, 1 / jnp.where(has_mass, divisor, 1.0), 0.0)
    factor = normalizer.factor(jnp.maximum(count, 1))
    return jnp.ones_like(mass) if factor is None else factor


def has_factor(normalizer: Local) -> bool:
    """Whether `scale` is a function of the number of keys."""
    return not normalizer.divides and type(normalizer).factor is not Local.factor


def has_summand(normalizer: Local) -> bool:
    """Whether `scale` divides by the sum of another function than f."""
    return normalizer.divides and type(normalizer).summand is not Ratio.summand


class Pointwise(Local):
    """Base class of elementwise normalizers, such as the sigmoid; define f as `__call__`.

    Weights are w_j = f(s_j), or f(s_j) * factor(number of keys that the query may attend to).

    >>> class Relu(Pointwise):
    ...     def __call__(self, x):
    ...         return jnp.maximum(x, 0)
    >>> Relu().weights(jnp.array([[2.0, -1.0]]), jnp.ones((1, 2), bool)).tolist()
    [[2.0, 0.0]]
    """


class Ratio(Local):
    """Base class of normalizers that divide by a sum, as the softmax does; define f >= 0 as `__call__`.

    Weights are w_j = f(s_j) / (extra + sum_l g(s_l)), where g is f, or the method `summand`. Where the divisor is 0,
    all weights are 0. For f = exp use `normalizers.Softmax`, which does not overflow. Other functions that grow like it
    set `rescales` and take a second argument, the m [Q, 1] of each query, max(0, its largest score): they return e^-m
    f(s) and e^-m g(s) without overflow, and `extra` is multiplied by e^-m, too, so that m cancels
    (`normalizers.Softpick`).

    >>> class Square(Ratio):
    ...     def __call__(self, x):
    ...         return x**2
    >>> Square().weights(jnp.array([[1.0, -1.0]]), jnp.ones((1, 2), bool)).tolist()
    [[0.5, 0.5]]

    >>> class Relative(Ratio):
    ...     def __call__(self, x):
    ...         return jnp.maximum(x, 0)
    ...     def summand(self, x):
    ...         return jnp.abs(x)
    >>> Relative().weights(jnp.array([[1.0, -3.0]]), jnp.ones((1, 2), bool)).tolist()
    [[0.25, 0.0]]
    """

    divides = True

    def summand(self, x: Float[Array, "Q K"]) -> Float[Array, "Q K"]:
        """g, elementwise; if it is not f, it must be that `sparse` is False: a key without weight is in the sum."""
        return self(x)


class Exponential(Ratio):
    """The softmax, f = exp, which does not overflow."""

    def __call__(self, x):
        return jnp.exp(x)

    def weights(self, scores, allowed):
        return _softmax(jnp.where(allowed, scores, 0.0), allowed)


def _softmax(logits, allowed):
    if not jax.config.jax_debug_nans:
        return jax.nn.softmax(logits, axis=-1, where=allowed)
    has_key = allowed.any(axis=-1, keepdims=True)  # the softmax of an empty row is NaN before it is masked
    return jnp.where(has_key, jax.nn.softmax(logits, axis=-1, where=allowed | ~has_key), 0.0)


class Threshold(Local):
    """Base class of sparse normalizers with a threshold, such as sparsemax; define f as `__call__`.

    Weights are w_j = f(s_j - t) with the threshold t of each query such that sum_j f(s_j - t) = 1. f is increasing
    and not negative. Its `inverse` bounds t, and makes Newton's method fast, which is applied to inverse(sum_j f(s_j -
    t)). That is nearly linear in t: for f = exp it is log-sum-exp minus t, exactly linear; for a power it is a norm, so
    convex, and the iteration from the left never overshoots.

    >>> from attention_jax.ops.normalizers import Sparsemax  # f(x) = max(x, 0)
    >>> Sparsemax().weights(jnp.array([[0.5, 0.0, -3.0]]), jnp.ones((1, 3), bool)).round(4).tolist()
    [[0.75, 0.25, 0.0]]
    """

    masked = 1.0
    sparse = True

    def inverse(self, value: Rows) -> Rows:
        """x with f(x) = value; infinity where f is below `value` everywhere."""
        raise NotImplementedError


STEP = 16.0
"""The scores of a `Threshold` are shifted by a multiple of this number: a row whose largest score is between -8 and 8
is not shifted at all, and keeps its bits."""


def relative_to(top: Rows, scores: Float[Array, "Q K"]) -> Float[Array, "Q K"]:
    """Subtract the multiple of `STEP` that is nearest to `top` [Q], the largest score of each query.

    A `Threshold` has the same weights for scores that are all moved, and near the largest one the difference is exact.
    A threshold at the height of the scores would have their rounding error, in which the weights are lost. As in
    `ops/blockwise/softmax.py` the minimum keeps XLA from contracting the last product of a score with the difference.

    >>> relative_to(jnp.array([1e7, 3.0]), jnp.array([[1e7 - 4, 1e7], [3.0, 2.5]])).tolist()
    [[-4.0, 0.0], [3.0, 2.5]]
    """
    top = lax.stop_gradient(top)
    by = STEP * jnp.round(jnp.where(jnp.isfinite(top), top, 0.0) / STEP)
    return _at_most(scores, top[:, None]) - by[:, None]


@jax.custom_jvp
def _at_most(scores, top):
    return jnp.where(scores > top, top, scores)


@_at_most.defjvp
def _at_most_jvp(primals, tangents):  # a score that was recomputed may exceed the largest by a rounding error
    return _at_most(*primals), tangents[0]


def _bracket(normalizer: Threshold, smallest: Rows, largest: Rows, count: Rows) -> tuple[Rows, Rows]:
    """An interval that contains t, for scores between `smallest` and `largest`."""
    # count keys of equal score s have count * f(s - t) = 1, hence t = s - share. f is increasing, so that t is largest
    # if all scores are the largest one, and smallest if all are the smallest one
    share = normalizer.inverse(1 / count)
    alone = largest - normalizer.inverse(jnp.ones_like(count))  # t if there were no other key; others can only raise it
    low = smallest - share
    return jnp.where(jnp.isfinite(alone) & (alone > low), alone, low), largest - share


class Sums(NamedTuple):
    """Sums over the keys of a query for a threshold t: of f(s - t), and of its derivative."""

    mass: Rows
    slope: Rows


def find_threshold(
    normalizer: Threshold,
    sums: Callable[[Rows, Rows], Sums],
    smallest: Rows,
    largest: Rows,
    count: Rows,
    all_agree: Callable = jnp.all,
) -> Rows:
    """The t of each query, by Newton's method within a bracket that shrinks; a step that leaves it, or turns back by
    more than half of the step before, is a bisection.

    `sums(t, low)` are taken over the keys of each query; keys with f(s - low) = 0 may be left out. `all_agree`
    combines the flags [Q] of the queries that they are done; generated kernels have another one.

    The loop ends when all rows are done. Under `jax.jit` with sharded arrays that is one boolean which the devices
    combine at each step, the only thing that they exchange. A fixed number of steps would need none, and would have to
    be `ITERATIONS` for any f and scores, where most rows need 3 to 5.
    """
    low, high = _bracket(normalizer, smallest, largest, count)
    close = (0.1 * jnp.finfo(low.dtype).eps ** 0.5).astype(low.dtype)  # each step squares the error

    def step(carry):
        n, t, low, high, last, _ = carry  # low <= root <= high, and the last move, all [Q]
        mass, slope = sums(t, low)
        # the sum falls as t grows: too large a sum means that t is below the root
        low, high = jnp.where(mass >= 1, t, low), jnp.where(mass <= 1, t, high)
        move, near = _newton(normalizer, mass, slope), close * jnp.maximum(jnp.abs(t), 1.0)
        turns_back = (move * last < 0) & (jnp.abs(move) > jnp.maximum(jnp.abs(last) / 2, near))  # where f is bounded
        # the step of Newton's method if it stays in the bracket, else half of the bracket
        inside = (t + move >= low) & (t + move <= high)  # of NaN neither is true
        new = jnp.where(inside & ~turns_back, t + move, low + (high - low) / 2)
        is_done = (jnp.abs(new - t) <= near) | (low == high) | jnp.isnan(low)
        return n + 1, new, low, high, new - t, all_agree(is_done)

    start = 0, low, low, high, jnp.zeros_like(low), vary_like(jnp.zeros((), bool), low)
    return lax.while_loop(lambda carry: (carry[0] < ITERATIONS) & ~carry[-1], step, start)[1]


def _newton(normalizer, mass, slope):
    """One step on inverse(mass) = inverse(1), or, where that is infinite, on mass = 1."""
    inverse_mass, inverse_slope = jax.jvp(normalizer.inverse, (mass,), (jnp.ones_like(mass),))
    # the slope of inverse(sum_j f(s_j - t)) along -t, by the chain rule; a step adds residual / slope to t
    residual, residual_slope = inverse_mass - normalizer.inverse(jnp.ones_like(mass)), inverse_slope * slope
    usable = jnp.isfinite(residual) & jnp.isfinite(residual_slope) & (residual_slope > 0)
    residual, residual_slope = jnp.where(usable, residual, mass - 1), jnp.where(usable, residual_slope, slope)
    return residual / residual_slope


@jax.custom_jvp
def _solve_threshold(normalizer, scores, allowed):
    """t [Q] of whole rows of scores that are finite wherever they are not allowed."""
    has_key = allowed.any(axis=1)
    count = jnp.maximum(allowed.sum(axis=1), 1).astype(scores.dtype)
    smallest = jnp.where(has_key, jnp.min(scores, axis=1, initial=jnp.inf, where=allowed), 0.0)
    largest = jnp.where(has_key, jnp.max(scores, axis=1, initial=-jnp.inf, where=allowed), 0.0)
    sums = lambda t, low: sums_of(normalizer, scores, allowed, t)
    return find_threshold(normalizer, sums, smallest, largest, count)


def sums_of(normalizer, scores, allowed, t) -> Sums:
    """The sums of f and of its derivative over the last axis."""
    # the tangent -1 of t is the tangent 1 of every score: slopes are f'(s_j - t)
    values, slopes = jax.jvp(lambda t: values_of(normalizer, scores, allowed, t), (t,), (-jnp.ones_like(t),))
    return Sums(values.sum(axis=1), slopes.sum(axis=1))


@_solve_threshold.defjvp
def _solve_threshold_jvp(primals, tangents):
    """The implicit function theorem: dt = d(sum f)|_t / sum f'."""
    normalizer, scores, allowed = primals
    t = _solve_threshold(normalizer, scores, allowed)
    mass = lambda normalizer, scores: values_of(normalizer, scores, allowed, t).sum(axis=1)
    _, change = jax.jvp(mass, (normalizer, scores), tangents[:2])
    # 0 = d(sum_j f(s_j - t)) = (change with t held) - dt sum_j f'_j
    slope = sums_of(normalizer, scores, allowed, t).slope
    return t, jnp.where(slope != 0, change / jnp.where(slope != 0, slope, 1.0), 0.0)


class Ordered(Normalizer):
    """Base class of normalizers that go through the keys in their order, such as stick-breaking.

    The weights are w_j = exp(take_j + sum_{i > j} leave_i): from the last key to the first, the fraction that key j
    takes of what the keys after it leave. `__call__` returns the logarithms (take, leave), elementwise.

    >>> class Half(Ordered):
    ...     def __call__(self, score):
    ...         return jnp.full_like(score, jnp.log(0.5)), jnp.full_like(score, jnp.log(0.5))
    >>> Half().weights(jnp.zeros((1, 3)), jnp.ones((1, 3), bool)).tolist()
    [[0.125, 0.25, 0.5]]
    """

    def __call__(self, score: Float[Array, "Q K"]) -> tuple[Float[Array, "Q K"], Float[Array, "Q K"]]:
        raise NotImplementedError

    def logs(self, scores, allowed) -> tuple[Float[Array, "Q K"], Float[Array, "Q K"]]:
        """(take, leave); a key that is not allowed leaves all."""
        take, leave = self(jnp.where(allowed, scores, 0.0))
        return take, jnp.where(allowed, leave, 0.0)

    def weights(self, scores, allowed):
        take, leave = self.logs(scores, allowed)  # log w_j = take_j + sum_{i > j} leave_i, [Q, K]
        return jnp.where(allowed, jnp.exp(take + suffix_sum(leave)), 0.0)


def suffix_sum(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """The sum of the entries that come later in each row.

    >>> suffix_sum(jnp.array([[1.0, 2.0, 3.0]])).tolist()
    [[5.0, 3.0, 0.0]]
    """
    # (x_2, ..., x_K, 0): a key is not in its own sum, and no difference of two sums cancels
    later = jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], axis=-1)
    return lax.cumsum(later, axis=x.ndim - 1, reverse=True)


@pytree
@dataclass(frozen=True)
class Elementwise(Pointwise):
    """A function of one score as a normalizer: a plain one, or a callable pytree, whose leaves receive gradients."""

    function: Callable

    def __call__(self, x):
        return self.function(x)


def check_elementwise(function: Callable) -> None:
    """Raise InputError for a plain function, as a tree, that is not elementwise: see `is_elementwise`."""
    if not is_elementwise(example_of(*outline(function))):
        raise InputError(
            f"normalizer must be elementwise if it is a plain function, got {name_of(function)}, whose values depend "
            "on other scores or have another shape: take Softmax() for the softmax, or inherit from Ratio, Threshold "
            "or Ordered"
        )


def check_functions(normalizer: Normalizer) -> None:
    """Raise InputError for a normalizer that blocks would compute in another way than its class says: functions that
    are not elementwise, an `inverse` of another function, or overrides that are not used."""
    _check_overrides(normalizer)
    for node in jax.tree.leaves(normalizer, is_leaf=lambda x: isinstance(x, Local | Ordered)):  # of a TopK, its `of`
        if isinstance(node, Local | Ordered):
            _check_overrides(node)
            _check_functions(*outline(node))


def _check_overrides(normalizer: Normalizer) -> None:
    owner = lambda name: next(base for base in type(normalizer).__mro__ if name in vars(base))
    if not is_of_package(owner("weights")):
        raise InputError(
            f"{type(normalizer).__name__}.weights is not what blocks of keys compute: inherit from Pointwise, Ratio, "
            "Threshold or Ordered and define their functions"
        )
    if isinstance(normalizer, Exponential) and owner("__call__") is not Exponential:
        raise InputError(
            f"{type(normalizer).__name__} overrides the exponential of a softmax: inherit from Ratio instead, or scale "
            "the score"
        )


@lru_cache(maxsize=256)
def _check_functions(structure, leaves) -> None:
    with on_examples():
        normalizer = example_of(structure, leaves)
        shift = [jnp.zeros((1, 1), jnp.float32)] if getattr(normalizer, "rescales", False) else []
        functions = {"__call__": normalizer}
        if isinstance(normalizer, Local) and has_summand(normalizer):
            functions["summand"] = normalizer.summand
        if isinstance(normalizer, Threshold):
            functions["inverse"] = normalizer.inverse
            # f(inverse(y)) = y for values that weights can have; the inverse is infinite where f stays below y
            y = jnp.array([[0.25, 0.5, 1.0]], jnp.float32)
            x = normalizer.inverse(y)
            has_only_scalars = all(shape == () for shape, _ in leaves)  # not knots, which cannot all be the same
            if has_only_scalars and not np.allclose(
                jnp.where(jnp.isfinite(x), normalizer(x), y), y, rtol=1e-2, equal_nan=True
            ):
                raise InputError(
                    f"{type(normalizer).__name__}.inverse must be the x of `__call__`(x) = value, got {x.tolist()[0]} "
                    f"for {y.tolist()[0]}"
                )
    for name, function in functions.items():
        if not is_elementwise(function, *shift):
            raise InputError(
                f"{type(normalizer).__name__}.{name} must be elementwise, but its values depend on other scores or "
                "have another shape: for a sum over the keys of a query, inherit from Ratio, whose `summand` is summed"
            )


def is_elementwise(function: Callable, *shift: Float[Array, "1 1"]) -> bool:
    """Whether a function is elementwise, tried on six scores: else its values in blocks would differ from its values
    on the whole. One that fails on their numbers, or needs what the transformation around it has, cannot be tried and
    passes.

    >>> is_elementwise(jnp.tanh), is_elementwise(lambda x: x - x.mean())
    (True, False)
    """
    with on_examples():
        scores = jnp.array([[0.5, -0.25, 1.5], [-1.0, 0.75, 0.125]], jnp.float32)
        # f of [2, 3] against f of each of its six numbers alone, [1, 1]
        try:
            whole, *apart = (jax.tree.leaves(function(x, *shift)) for x in (scores, *scores.reshape(6, 1, 1)))
        except Exception:
            return not shape_error(function, scores, *shift)
        for value, *single_values in zip(whole, *apart):
            if [jnp.shape(x) for x in (value, *single_values)] != [(2, 3), *[(1, 1)] * 6]:
                return False
            joined = jnp.concatenate(single_values).reshape(2, 3)
            if not np.allclose(value, joined, rtol=1e-2, atol=1e-3, equal_nan=True):
                return False
    return bool(whole)
