"""Properties of a score, normalizer, bias, mask or pooling: does `attend` compute the same with it in every way?

`check` draws small arrays and measures relations that hold for every such class (docs/own_attention.md): between ways
to compute, between what a query may see and what is there, between derivatives and differences. It knows no formula of
the class. Of an attention function (query, key, value) it measures the laws of `attention_laws`, of a layer of
self-attention the properties of `layer_checks`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config.models import ATTENTIONS, MASKS, NORMALIZERS, POOLS, SCORES
from attention_jax.config.options import resolve_name
from attention_jax.errors import InputError
from attention_jax.models.attention_laws import LAWS, Attention
from attention_jax.models.layer_checks import LAYER_PROPERTIES, LayerSubject, Pairs, compiled, draw_layer
from attention_jax.models.parts import ConstantPart, PartFactory, parse_part, shapes_of
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import Bias
from attention_jax.ops.masks import Mask, causal, lengths
from attention_jax.ops.normalizer_kinds import Normalizer, Ordered
from attention_jax.ops.pooling import Pool
from attention_jax.ops.scores import Score, prepare_key, prepare_query
from attention_jax.ops.trees import describes_call

KINDS = {"score": Score, "normalizer": Normalizer, "bias": Bias, "mask": Mask, "pool": Pool}
NAMES = POOLS | MASKS | NORMALIZERS | SCORES | ATTENTIONS
LENGTH, WIDTH, VALUES, HEADS, BLOCK, PAST = 40, 8, 3, 2, 16, 29
"""Queries and keys, their width, that of the values, heads, the size of blocks, and the keys before those masked."""


class Property(NamedTuple):
    """A relation, and how far it is from holding."""

    name: str
    difference: float | None
    """The largest one, relative to the largest value that is right, at least 1; None where the relation does not apply.
    """
    tolerance: float
    evidence: str
    """Where it is largest, or why the relation does not apply."""

    @property
    def holds(self) -> bool:
        return self.difference is None or self.difference <= self.tolerance


@dataclass(frozen=True)
class Subject:
    """What is checked: `rule` has leaves that lead with `HEADS`."""

    kind: str
    rule: Any
    symmetric: bool = False
    """Whether score(q, k) = score(k, q) is claimed."""

    def head(self, index: int = 0) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], self.rule)

    def inputs(self, dtype) -> dict[str, np.ndarray]:
        """{name: array}: query, key and value, numbers of bfloat16, and the floating leaves of the first head, which
        are float32 in half precision."""
        draw = np.random.default_rng(0).normal
        sizes = {"query": WIDTH, "key": WIDTH, "value": VALUES}
        arrays = {name: draw(size=(LENGTH, width)).astype(jnp.bfloat16).astype(dtype) for name, width in sizes.items()}
        wide = jnp.float32 if dtype == jnp.bfloat16 else dtype
        leaves = jax.tree.leaves_with_path(self.head())
        return arrays | {name_of(path): np.asarray(x, wide) for path, x in leaves if is_floating(x)}

    def run(self, inputs: dict, mask: Mask | None = None, **call):
        """`attend` with the rule whose floating leaves are in `inputs`, and with `mask`."""
        fill = lambda path, leaf: inputs[name_of(path)] if is_floating(leaf) else leaf
        rules = {self.kind: jax.tree.map_with_path(fill, self.head())}
        if mask is not None:
            rules["mask"] = (rules["mask"], mask) if self.kind == "mask" else mask
        return attend(inputs["query"], inputs["key"], inputs["value"], **rules, **call)

    def with_gradients(self, inputs: dict, **call) -> dict:
        """The output, and the gradients of a random sum of it."""

        def both(inputs):
            output, pull = jax.vjp(lambda inputs: self.run(inputs, **call), inputs)
            bar = np.random.default_rng(1).normal(size=output.shape).astype(output.dtype)
            return {"output": output} | {f"gradient of {name}": x for name, x in pull(bar)[0].items()}

        return compiled(both)(inputs)


def name_of(path) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def is_floating(leaf) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def check(rule: Any, *, symmetric: bool = False, names: Sequence[str] = ()) -> list[Property]:
    """Measure what holds for a score, normalizer, bias, mask or pooling, or for an attention function.

    Args:
      rule: an object of such a class, the class, or the value of an option: its import path, "mine.scores:Radial", or a
        name, "gaussian". Learned fields are drawn by `init`, and moved by a tenth. Or a layer of self-attention, as
        `--model.attention` names it. Or a function (query [Q, D], key [K, D], value [K, V]) -> [Q, V], a class of such
        functions, or the import path of either.
      symmetric: a score is claimed to be the same with query and key exchanged.
      names: of the properties to measure, by default all of `PROPERTIES`, about 20 seconds of one core, of
        `LAYER_PROPERTIES` or of `LAWS`.

    Raises InputError for what is none of these.

    >>> [line] = check("dot", names=["a pair alone"])
    >>> line.holds, line.difference
    (True, 0.0)
    """
    layer, attention = find_layer(rule), None
    if (layer or (attention := find_attention(rule))) and symmetric:
        kind = "a layer" if layer else "an attention function"
        raise InputError(f"only a score can be symmetric, got {kind}: leave --symmetric out")
    if layer:
        subject = draw_layer(layer)
        return [measure_property(name, subject) for name in names or LAYER_PROPERTIES]
    if attention:
        return [measure_law(name, attention) for name in names or LAWS]
    subject = draw_subject(rule, symmetric)
    return [measure_property(name, subject) for name in names or PROPERTIES]


def find_layer(rule: Any) -> str | None:
    """The name of the layer that `rule` is or names; None for what is no Flax module."""
    kind = resolve_name(rule, NAMES)[0] if isinstance(rule, str) else rule
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    return rule if isinstance(rule, str) else f"{kind.__module__}:{kind.__qualname__}"


def find_attention(rule: Any) -> Attention | None:
    """The attention function that `rule` is, constructs or names by its import path, checked to return [Q, V]; None for
    everything that cannot be called with (query, key, value)."""
    target, arguments = resolve_name(rule, NAMES) if isinstance(rule, str) else (rule, None)
    inherits = issubclass if isinstance(target, type) else isinstance
    if inherits(target, tuple(KINDS.values())) or hasattr(target, "init") or arguments is not None:
        return None
    try:
        attention = target() if isinstance(target, type) else target
        inspect.signature(attention).bind("query", "key", "value")
    except (TypeError, ValueError):  # it needs other arguments, or is in C and has no signature
        return None

    def attend_checked(query, key, value):
        output, expected = attention(query, key, value), (len(query), value.shape[1])
        if jnp.shape(output) != expected:
            raise InputError(
                f"{rule} must return [Q, V] = {[*expected]} for query {[*query.shape]}, key {[*key.shape]} and value "
                f"{[*value.shape]}; got {[*jnp.shape(output)]}"
            )
        return output

    return attend_checked


def draw_subject(rule: Any, symmetric: bool = False) -> Subject:
    """The kind of `rule`, and one for each head."""
    kind, factory = parse_rule(rule)
    if isinstance(factory, ConstantPart):
        repeat = lambda leaf: np.broadcast_to(leaf, (HEADS, *np.shape(leaf)))
        return Subject(kind, jax.tree.map(repeat, factory.value), symmetric)
    draw = lambda rng: factory.init(rng, WIDTH, WIDTH, WIDTH)
    shapes_of(draw, f"the {kind}")
    noise = np.random.default_rng(2)

    def move(leaf):
        by = 0.1 * noise.normal(size=leaf.shape).astype(leaf.dtype)
        return np.asarray(jnp.where(leaf == 0, by, leaf * (1 + by))) if is_floating(leaf) else leaf

    rules = jax.vmap(draw)(jax.random.split(jax.random.key(0), HEADS))
    return Subject(kind, jax.tree.map(move, rules), symmetric)


def parse_rule(rule: Any) -> tuple[str, PartFactory]:
    """(kind, what makes it) of an object, a class, or the value of an option."""
    if isinstance(rule, str):
        target = resolve_name(rule, NAMES)[0]
        kinds = [kind for kind, base in KINDS.items() if isinstance(target, type) and issubclass(target, base)]
        for kind in kinds or KINDS:
            try:
                factory = parse_part(kind, rule, NAMES, KINDS[kind])
            except InputError:
                if kinds:
                    raise
                continue
            if kinds or isinstance(draw_rule(factory), KINDS[kind]):
                return kind, factory
    else:
        inherits = issubclass if isinstance(rule, type) else isinstance
        for kind, base in KINDS.items():
            if inherits(rule, base):
                if isinstance(rule, type) and hasattr(rule, "init"):
                    return kind, rule
                return kind, ConstantPart(rule() if isinstance(rule, type) else rule)
    names = ", ".join(base.__name__ for base in KINDS.values())
    raise InputError(
        f"check needs a class that inherits from {names}, an object of one, or a function (query, key, value); got "
        f"{rule}"
    )


def draw_rule(factory: PartFactory) -> Any:
    """The rule of one head, with the shapes of its leaves."""
    draw = lambda: factory.init(jax.random.key(0), WIDTH, WIDTH, WIDTH)
    return factory.value if isinstance(factory, ConstantPart) else jax.eval_shape(draw)


def measure_property(name: str, subject: Subject | LayerSubject) -> Property:
    """The property `name` of `PROPERTIES`, of a layer of `LAYER_PROPERTIES`; an error in the code of the subject is
    infinitely far from right."""
    measure, tolerance = (LAYER_PROPERTIES if isinstance(subject, LayerSubject) else PROPERTIES)[name]
    try:
        with jax.enable_x64(name not in IN_FLOAT32):
            result = measure(subject)
            if isinstance(result, str):
                return Property(name, None, tolerance, result)
            difference, evidence = 0.0, ""
            for actual, expected in result:
                pair = largest_difference(actual, expected)
                difference, evidence = max((difference, evidence), pair, key=lambda pair: pair[0])
            return Property(name, difference, tolerance, evidence)
    except InputError:
        raise
    except Exception as error:  # whatever the code of a user raises
        return Property(name, np.inf, tolerance, first_line(error))


def measure_law(name: str, attention: Attention) -> Property:
    """The law `name` of `LAWS`; an error in the code of the function is infinitely far from right."""
    measure, expected, tolerance = LAWS[name]
    try:
        value = measure(attention)
        return Property(name, abs(value - expected), tolerance, f"{value:.4g} instead of {expected:.4g}")
    except InputError:
        raise
    except Exception as error:  # whatever the code of a user raises
        return Property(name, np.inf, tolerance, first_line(error))


def first_line(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def largest_difference(actual: dict, expected: dict) -> tuple[float, str]:
    """The largest difference of arrays of the same names, relative to the largest number of its array, at least 1; and
    where it is."""
    worst = 0.0, ""
    for name, right in expected.items():
        value, right = (np.asarray(x, np.float64) for x in (actual[name], right))
        scale = max(1.0, np.abs(right[np.isfinite(right)]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            distance = np.where((value == right) | (np.isnan(value) & np.isnan(right)), 0.0, np.abs(value - right))
        distance = np.nan_to_num(distance / scale, nan=np.inf)
        place = np.unravel_index(distance.argmax(), distance.shape)
        if distance[place] > worst[0]:
            index = list(map(int, place)) or ""
            worst = float(distance[place]), f"{name}{index} is {value[place]:.4g} instead of {right[place]:.4g}"
    return worst


def blocks_equal_plain(subject: Subject) -> Pairs:
    """All weights at once, and in blocks of two sizes, one key alone among them."""
    inputs = subject.inputs(jnp.float64)
    plain = subject.with_gradients(inputs, implementation="plain")
    fused = partial(subject.with_gradients, inputs, implementation="fused")
    return [(fused(block_q=rows, block_k=columns), plain) for rows, columns in ((BLOCK, BLOCK), (13, 1))]


def bounds_are_those_of_the_pairs(subject: Subject) -> Pairs | str:
    """`key_range` and `unmasked_range` of the queries from every first to every last, [first, last, key]."""
    if subject.kind != "mask":
        return "it has no bounds"
    mask, positions, (first, last) = subject.head(), jnp.arange(LENGTH), np.triu_indices(LENGTH)
    total = np.pad(np.cumsum(mask(positions, positions), axis=0), ((1, 0), (0, 0)))
    count, ends = total[last + 1] - total[first], (jnp.asarray(first), jnp.asarray(last))  # queries that see each key

    def inside(interval):
        start, stop = (np.broadcast_to(bound, first.shape)[:, None] for bound in interval)
        return (start <= np.arange(LENGTH)) & (np.arange(LENGTH) < stop)

    pairs, none = [], np.zeros((LENGTH, LENGTH, LENGTH))
    excluded = (count > 0) & ~inside(mask.key_range(*ends))
    masked = (count <= (last - first)[:, None]) & inside(mask.unmasked_range(*ends))
    for name, wrong in (("keys outside of key_range", excluded), ("masked keys in unmasked_range", masked)):
        keys = none.copy()
        keys[first, last] = wrong
        pairs.append(({name: keys}, {name: none}))
    return pairs


def kernel_equals_plain(subject: Subject) -> Pairs | str:
    """The generated kernel, interpreted on a CPU; what it cannot compute, `attend` gives to "fused"."""
    if subject.kind == "pool":
        return "no kernel has the sums of a pool"
    inputs = subject.inputs(jnp.float32)
    try:
        kernel = subject.with_gradients(inputs, implementation="kernel", block_q=BLOCK, block_k=BLOCK)
    except InputError as error:
        return str(error)
    return [(kernel, subject.with_gradients(inputs, implementation="plain"))]


def gradients_are_differences(subject: Subject) -> Pairs:
    """Derivatives along a random direction of each input, by `jax.grad` and as differences of values: the better of two
    steps, since the larger crosses edges and the smaller sees the rounding of float32 in the code of a rule.

    Queries are moved a little: features of bfloat16 are often equal to those of a key, where |q - k| has no derivative.
    """
    inputs, draw = subject.inputs(jnp.float64), np.random.default_rng(3).normal
    inputs["query"] = inputs["query"] + 1e-3 * draw(size=inputs["query"].shape)
    bar = draw(size=jax.eval_shape(partial(subject.run, implementation="plain"), inputs).shape)
    total = lambda inputs: (subject.run(inputs, implementation="plain") * bar).sum()
    compute, gradients, pairs = compiled(total), compiled(jax.grad(total))(inputs), []
    for name, x in inputs.items():
        along = draw(size=x.shape)
        products = np.asarray(gradients[name]) * along
        differences = [
            float(compute(inputs | {name: x + step * along}) - compute(inputs | {name: x - step * along})) / (2 * step)
            for step in (1e-3, 1e-6)
        ]
        nearest = min(differences, key=lambda difference: abs(difference - products.sum()))
        scale = max(np.abs(products).sum(), abs(nearest), 1e-3)
        pairs.append(({f"gradient of {name}": products.sum() / scale}, {f"gradient of {name}": nearest / scale}))
    return pairs


def forward_equals_reverse(subject: Subject) -> Pairs:
    """u . (J t) = (u J) . t, for both implementations."""
    inputs, pairs = subject.inputs(jnp.float64), []
    tangents = {name: np.random.default_rng(4).normal(size=x.shape) for name, x in inputs.items()}
    for implementation in ("plain", "fused"):

        @compiled
        def products(inputs, implementation=implementation):
            output, pushed = jax.jvp(partial(subject.run, implementation=implementation), (inputs,), (tangents,))
            bar = jnp.asarray(np.random.default_rng(5).normal(size=output.shape))
            pulled = jax.vjp(partial(subject.run, implementation=implementation), inputs)[1](bar)[0]
            reverse = [pulled[name] * tangents[name] for name in inputs]
            return (bar * pushed).sum(), sum(x.sum() for x in reverse), sum(jnp.abs(x).sum() for x in reverse)

        forward, reverse, size = products(inputs)
        name = f"jvp, {implementation}"
        pairs.append(({name: forward / max(size, 1e-3)}, {name: reverse / max(size, 1e-3)}))
    return pairs


def masked_keys_are_deleted(subject: Subject) -> Pairs:
    """Keys behind `lengths`, whatever they hold, and no such keys; their gradients are 0."""
    inputs, pairs = subject.inputs(jnp.float64), []
    sides = ("key", "value")
    shorter = inputs | {side: inputs[side][:PAST] for side in sides}
    other = inputs | {side: np.concatenate([inputs[side][:PAST], 50 + inputs[side][PAST:]]) for side in sides}
    for call in ({"implementation": "plain"}, {"implementation": "fused", "block_q": BLOCK, "block_k": BLOCK}):
        deleted = dict(subject.with_gradients(shorter, **call))
        for side in sides:
            deleted[f"gradient of {side}"] = np.pad(deleted[f"gradient of {side}"], ((0, LENGTH - PAST), (0, 0)))
        pairs += [(subject.with_gradients(x, mask=lengths(PAST), **call), deleted) for x in (inputs, other)]
    return pairs


def order_is_free(subject: Subject) -> Pairs | str:
    """Keys and their values in another order."""
    if subject.kind in ("bias", "mask") or isinstance(subject.head(), Ordered):
        return f"a {subject.kind} of positions"
    inputs, order = subject.inputs(jnp.float64), np.random.default_rng(6).permutation(LENGTH)
    moved = inputs | {side: inputs[side][order] for side in ("key", "value")}
    run = compiled(partial(subject.run, implementation="plain"))
    return [({"output": run(moved)}, {"output": run(inputs)})]


def causal_queries_see_no_later_key(subject: Subject) -> Pairs:
    """Under `causal`, keys and values from `PAST` on are others, and earlier outputs the same."""
    inputs, pairs = subject.inputs(jnp.float64), []
    later = inputs | {name: np.concatenate([inputs[name][:PAST], 1 - inputs[name][PAST:]]) for name in ("key", "value")}
    for call in ({"implementation": "plain"}, {"implementation": "fused", "block_q": BLOCK, "block_k": BLOCK}):
        run = compiled(partial(subject.run, mask=causal(), **call))
        pairs.append(({"output": run(later)[:PAST]}, {"output": run(inputs)[:PAST]}))
    return pairs


def steps_equal_the_whole(subject: Subject) -> Pairs:
    """One query at a time over a cache of all keys, at `query_offset`, as in decoding."""
    inputs = subject.inputs(jnp.float64)

    def step(query, position):
        return subject.run(inputs | {"query": query[None]}, mask=causal(), query_offset=position)[0]

    steps = compiled(jax.vmap(step))(inputs["query"], jnp.arange(LENGTH))
    return [({"output": steps}, {"output": compiled(partial(subject.run, mask=causal()))(inputs)})]


def pairs_stand_alone(subject: Subject) -> Pairs | str:
    """A rule of some queries and keys is that of all, at their places."""
    inputs, rule, rows, columns = subject.inputs(jnp.float64), subject.head(), slice(5, 9), slice(8, 24)
    query, key, positions = inputs["query"], inputs["key"], jnp.arange(LENGTH)
    if subject.kind == "pool" or not callable(rule):
        return "it sees all keys of a query"
    whole, block = {
        "score": lambda: (rule(query, key), rule(query[rows], key[columns])),
        "bias": lambda: (rule(query, positions, positions), rule(query[rows], positions[rows], positions[columns])),
        "mask": lambda: (rule(positions, positions), rule(positions[rows], positions[columns])),
        "normalizer": lambda: (rule(query @ key.T), rule((query @ key.T)[rows, columns])),
    }[subject.kind]()
    return [
        ({subject.kind: actual}, {subject.kind: expected[rows, columns]})
        for actual, expected in zip(jax.tree.leaves(block), jax.tree.leaves(whole), strict=True)
    ]


def other_forms_are_equal(subject: Subject) -> Pairs | str:
    """`prepare_key`, `prepare_query` and `terms` describe `__call__`, up to a number of each query where it cancels."""
    inputs, rule, positions = subject.inputs(jnp.float64), subject.head(), jnp.arange(LENGTH)
    query, key, pairs = inputs["query"], inputs["key"], []
    rule = jax.tree.map(lambda x: x.astype(query.dtype) if hasattr(x, "dtype") and is_floating(x) else x, rule)
    if subject.kind == "score":
        right, terms = rule(query, key), rule.terms(query, key) if describes_call(rule, "terms") else None
        remaining, prepared = prepare_key(rule, key)
        pairs.append(({"prepare_key": remaining(query, prepared)}, {"prepare_key": right}))
        remaining, prepared = prepare_query(rule, query)
        pairs.append(({"prepare_query": remaining(prepared, key)}, {"prepare_query": right}))
        forms = [(right, terms, np.ones((LENGTH, LENGTH), bool))]
    elif subject.kind == "bias":
        right, has_terms = rule(query, positions, positions), describes_call(rule, "terms")
        sides = ((True, np.tri(LENGTH, dtype=bool)), (False, np.ones((LENGTH, LENGTH), bool))) if has_terms else ()
        forms = [(right, rule.terms(positions, positions, is_causal), visible) for is_causal, visible in sides]
    else:
        forms = []
    for right, terms, visible in (form for form in forms if form[1] is not None and not isinstance(form[1], list)):
        terms = jax.tree.map(lambda x: np.asarray(x, np.float64), terms)
        added = [0.0 if x is None else np.expand_dims(x, i) for i, x in enumerate((terms.key_term, terms.query_term))]
        product = np.zeros_like(right) if terms.query is None else terms.scale * (terms.query @ terms.key.T)
        logits = product + (1.0 if terms.factor is None else terms.factor) * (added[0] + added[1])
        center = lambda x, visible=visible: np.where(visible, x - np.mean(x, axis=1, keepdims=True, where=visible), 0.0)
        pairs.append(({"terms": center(logits)}, {"terms": center(right)}))
    return pairs or "it has no other form"


def half_precision_is_near(subject: Subject) -> Pairs:
    """The output in bfloat16 and in float64, of the same numbers."""
    run = compiled(partial(subject.run, implementation="plain"))
    return [tuple({"output": run(subject.inputs(kind)).astype(jnp.float64)} for kind in (jnp.bfloat16, jnp.float64))]


def jit_changes_nothing(subject: Subject) -> Pairs:
    inputs, run = subject.inputs(jnp.float64), partial(subject.run, implementation="plain")
    return [({"output": compiled(run)(inputs)}, {"output": run(inputs)})]


def heads_stand_alone(subject: Subject) -> Pairs:
    """`vmap` over the leaves of `HEADS` heads, and each by itself."""
    query, key, value, *_ = subject.inputs(jnp.float64).values()
    run = lambda rule: attend(query, key, value, **{subject.kind: rule})
    together, alone = compiled(jax.vmap(run, axis_size=HEADS))(subject.rule), compiled(run)
    return [({f"head {h}": together[h]}, {f"head {h}": alone(subject.head(h))}) for h in range(HEADS)]


def numbers_are_finite(subject: Subject, change: Callable[[dict], dict]) -> Pairs:
    """Outputs and gradients in float32."""
    results = subject.with_gradients(change(subject.inputs(jnp.float32)), implementation="fused")
    return [
        ({name: np.where(np.isfinite(x), 0.0, x) for name, x in results.items()}, jax.tree.map(np.zeros_like, results))
    ]


def large_inputs_are_finite(subject: Subject) -> Pairs:
    """Queries and keys times 100."""
    return numbers_are_finite(subject, lambda x: x | {"query": 100 * x["query"], "key": 100 * x["key"]})


def equal_inputs_are_finite(subject: Subject) -> Pairs:
    """Each query is the key at its place, and the first is 0."""
    equal = lambda x: x | {side: np.concatenate([0 * x["key"][:1], x["key"][1:]]) for side in ("query", "key")}
    return numbers_are_finite(subject, equal)


def score_is_symmetric(subject: Subject) -> Pairs | str:
    """score(q, k) = score(k, q)."""
    if not subject.symmetric:
        return "not claimed"
    if subject.kind != "score":
        raise InputError(f"only a score can be symmetric, got a {subject.kind}: leave --symmetric out")
    inputs, rule = subject.inputs(jnp.float64), subject.head()
    return [({"score": rule(inputs["query"], inputs["key"])}, {"score": rule(inputs["key"], inputs["query"]).T})]


PROPERTIES: dict[str, tuple[Callable[[Subject], Pairs | str], float]] = {
    "plain = fused": (blocks_equal_plain, 1e-5),
    "plain = kernel": (kernel_equals_plain, 2e-4),
    "bounds of a mask": (bounds_are_those_of_the_pairs, 0.0),
    "gradients = differences": (gradients_are_differences, 2e-3),
    "jvp = vjp": (forward_equals_reverse, 1e-5),
    "masked keys = no keys": (masked_keys_are_deleted, 1e-5),
    "keys in another order": (order_is_free, 1e-5),
    "causal mask": (causal_queries_see_no_later_key, 1e-5),
    "cached decoding = the whole": (steps_equal_the_whole, 1e-5),
    "a pair alone": (pairs_stand_alone, 1e-5),
    "prepare_key, terms = call": (other_forms_are_equal, 1e-5),
    "symmetric": (score_is_symmetric, 1e-5),
    "bfloat16 = float64": (half_precision_is_near, 3e-2),
    "jit": (jit_changes_nothing, 1e-5),
    "vmap over heads": (heads_stand_alone, 1e-5),
    "finite at 100 times the size": (large_inputs_are_finite, 0.0),
    "finite at 0 and at q = k": (equal_inputs_are_finite, 0.0),
}
"""{name: (what must be equal, or why it does not apply; the tolerance)}, in float64 where nothing else is said."""
IN_FLOAT32 = ("plain = kernel", "finite at 100 times the size", "finite at 0 and at q = k")
