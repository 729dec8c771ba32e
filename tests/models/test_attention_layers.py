"""Attention layers by import path: the examples of the page against their formulas, what a module is given, and what is
refused."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models import part_checks
from attention_jax.models.blocks import Block, DecoderLayer, EncoderLayer
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.layer_checks import compiled, draw_layer
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.models.taps import head_scores, normalize_scores
from attention_jax.models.text_classifier import TextClassifier
from attention_jax.models.transformer import Transformer
from attention_jax.models.vit import ImageLayer, ViT
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import causal, lengths
from attention_jax.pretrained.naming import LAYERS, differing_flags

HERE, PAGE = __name__, "own_attention_page"
X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
SIZES = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "mlp_dim": 8}
TOKENS, LENGTH = jnp.array([[1, 2, 3, 4, 5], [3, 2, 1, 1, 1]]), jnp.array([5, 3])


def language(**options):
    return LanguageModel(config.LanguageModelConfig(**SIZES | options), 7), (TOKENS,)


def classifier(**options):
    return TextClassifier(config.TextClassifierConfig(**SIZES, **options), 7, 3), (TOKENS, LENGTH)


def translator(**options):
    return Transformer(config.TransformerConfig(1, 1, 8, 2, 8, **options), 7, 7), (TOKENS, LENGTH, TOKENS)


def vit(**options):
    return ViT(config.ViTConfig(**SIZES, **options), 3, 8), (jnp.ones((2, 8, 8, 1)),)


def parameter_shapes(model, inputs) -> dict:
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}


class Plain(nn.Module):
    """Scaled dot products, with the names of `MultiHeadAttention`."""

    block: Block

    @nn.compact
    def __call__(self, query, key, value, *, mask=None, train=False):
        dense = partial(nn.Dense, self.block.hidden_size, dtype=self.block.dtype)
        heads = lambda name, x: dense(name=name)(x).reshape(*x.shape[:2], 2, -1)
        pooled = attend_heads(heads("query", query), heads("key", key), heads("value", value), mask=mask)
        return dense(name="out")(pooled.reshape(query.shape)), None


def random_params(layer, *arguments):
    shapes = jax.eval_shape(layer.init, jax.random.key(0), *arguments)
    draw = np.random.default_rng(1).normal
    return jax.tree.map(lambda x: draw(scale=0.5, size=x.shape).astype(np.float32), shapes)


# --- the examples of the page ---


def by_hand(kind: str, p, allowed):
    """(output, weights) of 4 heads of queries and 2 of keys and values for X, in float64."""
    heads = lambda name, count: (X @ p[name]["kernel"] + p[name]["bias"]).reshape(2, 5, count, 2).swapaxes(1, 2)
    query, key, value = heads("query", 4), heads("key", 2).repeat(2, 1), heads("value", 2).repeat(2, 1)
    scores = query @ key.swapaxes(2, 3) / np.sqrt(2)
    if kind == "TalkingHeads":
        scores = np.einsum("hg,bgqk->bhqk", p["mix_scores"], scores)
    scores = np.where(allowed, scores, -np.inf)
    if kind == "MemorySlots":
        slot_keys, slot_values = (p[name][None].repeat(2, 1).repeat(2, 0) for name in ("slot_keys", "slot_values"))
        scores = np.concatenate([scores, query @ slot_keys.swapaxes(2, 3) / np.sqrt(2)], -1)
        value = np.concatenate([value, slot_values], 2)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    if kind == "TalkingHeads":
        weights = np.einsum("hg,bgqk->bhqk", p["mix_weights"], weights)
    pooled = (weights @ value).swapaxes(1, 2).reshape(2, 5, 8)
    return pooled @ p["out"]["kernel"] + p["out"]["bias"], weights[..., :5]


@pytest.mark.parametrize("kind", ["TalkingHeads", "MemorySlots"])
def test_an_example_equals_its_formula(kind):
    layer = Block(8, 4, 8, num_kv_heads=2, attention=f"{PAGE}:{kind}").self_attention()
    params = random_params(layer, X, X, X)
    apply = compiled(lambda p: layer.apply(p, X, X, X, mask=causal(), return_weights=True))
    expected = by_hand(kind, jax.tree.map(np.float64, params["params"]), np.tri(5, dtype=bool))
    for actual, correct in zip(apply(params), expected, strict=True):
        np.testing.assert_allclose(actual, correct, atol=1e-5)


@pytest.mark.parametrize("kind", ["TalkingHeads", "MemorySlots"])
@pytest.mark.parametrize("name", ["causal mask", "cached decoding = the whole"])
def test_an_example_keeps_its_mask_and_decodes(kind, name):
    [line] = part_checks.check(f"{PAGE}:{kind}", names=[name])
    assert line.holds and line.difference is not None, line


# --- where it is used ---


@pytest.mark.parametrize("make", [language, classifier, translator, vit])
def test_every_transformer_has_it_in_self_attention(make):
    shapes = parameter_shapes(*make(attention=f"{PAGE}:TalkingHeads"))
    added = {path.partition("['mix_")[0] for path in shapes if "mix_" in path}
    assert added == {path.partition("['query']")[0] for path in shapes if "['attention']['query']" in path}
    assert len(added) == (2 if make is translator else 1)
    assert {path for path in shapes if "mix_" not in path} == parameter_shapes(*make()).keys()


@pytest.mark.parametrize("scan", [False, True])
def test_some_layers_have_it(scan):
    options = {"num_layers": 3, "per_layer": f"1-2:attention={PAGE}:MemorySlots", "scan_layers": scan}
    shapes = parameter_shapes(*language(**options))
    slots = {path.split("'")[5]: shape for path, shape in shapes.items() if "slot_keys" in path}
    shape = (2, 16, 4)
    assert slots == ({"layers_1": (2, *shape)} if scan else {"layer_1": shape, "layer_2": shape})


def test_arguments_are_its_own_fields():
    shapes = parameter_shapes(*language(attention=f"{PAGE}:MemorySlots(3)"))
    assert [shape for path, shape in shapes.items() if "slot_keys" in path] == [(2, 3, 4)]
    layer = Block(8, 2, 8, attention=f"{HERE}:Single('causal')").self_attention()
    assert (layer.kind, layer.block.hidden_size) == ("causal", 8)


def test_two_maps_reach_a_layer_that_reads_them():
    shapes = parameter_shapes(*language(attention=f"{HERE}:Doubled", differential=True))
    assert any("lambda_query" in path for path in shapes)


def test_exports_to_other_libraries_name_it():
    options = language(attention=f"{PAGE}:TalkingHeads")[0].options
    assert f"--model.attention {PAGE}:TalkingHeads" in differing_flags(options, LAYERS)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (partial(DecoderLayer, cross=False), {"mask": causal()}),
        (EncoderLayer, {"mask": lengths(jnp.array([5, 3]))}),
        (ImageLayer, {"outputs": 1}),
    ],
)
def test_a_module_of_its_own_call_attends_alike(make, inputs):
    layers = [make(Block(8, 2, 8, mask="window(2)", attention=name)) for name in (f"{HERE}:Plain", "multi_head")]
    params = random_params(layers[1], X, *[None] * ("mask" in inputs))
    plain, usual = (compiled(lambda p, layer=layer: layer.apply(p, X, **inputs)[0])(params) for layer in layers)
    np.testing.assert_allclose(plain, usual, atol=1e-5)


# --- what is refused ---


class Doubled(MultiHeadAttention):
    reads = ("differential",)

    def attend_heads(self, *arguments):
        return super().attend_heads(*arguments)


class Rotating(Plain):
    reads = ("position_embedding",)


class Needing(Plain):
    slots: int
    gates: int


class Single(Plain):
    kind: str = ""

    def __call__(self, query, key, value, *, mask=None):
        return query


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (language, {"attention": f"{HERE}:Plain"}, "does not read --model.position-embedding rotary: leave it out"),
        (classifier, {"attention": f"{HERE}:Plain", "score": "dot"}, "does not read --model.score dot"),
        (translator, {"attention": f"{HERE}:Rotating", "num_kv_heads": 1}, "does not read --model.num-kv-heads 1"),
        (vit, {"attention": f"{HERE}:Plain", "position_embedding": "rotary"}, "by row and column, .* does not have"),
        (vit, {"attention": f"{HERE}:Single"}, r"must return \(output .* got no pair"),
        (language, {"attention": f"{PAGE}:TalkingHeads", "differential": True}, "does not read --model.differential"),
        (vit, {"attention": f"{PAGE}:MemorySlots", "differential_v2": True}, "does not read --model.differential-v2"),
        (vit, {"attention": f"{PAGE}:MemorySlots(8, 2)"}, r"for each of its own fields \(slots\) at most"),
        (vit, {"attention": f"{PAGE}:MemorySlots(n)"}, "its arguments must be literals"),
        (vit, {"attention": "multi_head(2)"}, r"for each of its own fields \(none\) at most"),
        (vit, {"attention": f"{HERE}:Needing"}, "has no value for its fields slots, gates: give values in parentheses"),
        (vit, {"attention": f"{HERE}:Needing(8)"}, "has no value for its fields gates"),
        (language, {"attention": "math:sqrt"}, "must be a Flax module"),
        (language, {"per_layer": f"0:attention={HERE}:Plain"}, "--model.per-layer: .* does not read"),
    ],
)
def test_what_a_module_does_not_do_is_one_line(make, options, message):
    with pytest.raises(InputError, match=message) as error:
        parameter_shapes(*make(**options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "flags", "message"),
    [
        ({"position_embedding": "alibi"}, {}, "Plain: its call takes no bias=, which biases of relative positions"),
        ({}, {"return_weights": True}, "Plain: its call takes no return_weights=, which attention maps need"),
    ],
)
def test_an_option_of_the_call_is_refused(options, flags, message):
    model, inputs = language(attention=f"{HERE}:Plain", **({"position_embedding": "none"} | options))
    with pytest.raises(InputError, match=message):
        jax.eval_shape(lambda rng: model.init(rng, *inputs, **flags), jax.random.key(0))


def test_a_module_without_a_cache_does_not_decode():
    model, inputs = language(attention=f"{HERE}:Rotating")
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    with pytest.raises(InputError, match="Rotating has no cache of keys and values, which decoding needs: inherit"):
        jax.eval_shape(lambda p: model.apply(p, 1, 4, method="start"), params)
    [line] = part_checks.check(f"{HERE}:Plain", names=["cached decoding = the whole"])
    assert line.difference is None and "has no cache" in line.evidence


# --- `check` ---


class Leaking(MultiHeadAttention):
    """Adds to the scores of a pair what depends on all keys of the call, or forgets the mask."""

    mistake: str = "unmasked"

    def attend_heads(self, query, key, value, rules, rng=None, return_weights=False):
        rules = rules | ({"mask": None} if self.mistake == "unmasked" else {})
        scores = head_scores(query, key, rules)
        if self.mistake == "keys":
            scores = scores * (1 + key.mean(2, keepdims=True).mean(-1, keepdims=True))
        if self.mistake == "places":
            scores = scores + jnp.arange(scores.shape[3], dtype=scores.dtype)[None, None, None] / 4
        return normalize_scores(scores, key, rules) @ value, None


class Keys(Leaking):
    mistake: str = "keys"


class Places(Leaking):
    mistake: str = "places"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Leaking", "masked keys = no keys"),
        ("Leaking", "causal mask"),
        ("Keys", "causal mask"),
        ("Places", "positions in another order"),
        ("Places", "cached decoding = the whole"),  # place j of the cache of two hypotheses is position j // 2
    ],
)
def test_check_sees_a_planted_mistake(kind, name):
    line = part_checks.measure_property(name, draw_layer(f"{HERE}:{kind}"))
    assert not line.holds and 1e-2 < line.difference < np.inf, line


def test_check_of_a_class_and_its_refusals():
    assert part_checks.find_layer(Places) == f"{HERE}:Places"
    assert part_checks.find_layer("dot") is None
    with pytest.raises(InputError, match="only a score can be symmetric"):
        part_checks.check(Places, symmetric=True)
