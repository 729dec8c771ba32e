"""Parts by import path: where their learned parameters start, where positions act, and which classes are refused."""

import math
import re
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import config, pytree
from attention_jax.errors import InputError
from attention_jax.models.bahdanau import Bahdanau
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.named_scores import parse_normalizer, parse_pool, parse_score
from attention_jax.models.parts import make_part_per_head
from attention_jax.models.position_encodings import parse_bias
from attention_jax.models.text_classifier import TextClassifier
from attention_jax.models.transformer import Transformer
from attention_jax.models.vit import ViT, sinusoidal_2d
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi, Bias
from attention_jax.ops.masks import Both, Mask, causal
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Ratio, TopK
from attention_jax.ops.pooling import Pool
from attention_jax.ops.positions import sinusoidal
from attention_jax.ops.rule_options import check_option
from attention_jax.ops.scores import Score
from experiments.papers.cct import CCT
from experiments.papers.convolutional import ConvSeq2seq
from experiments.papers.options import CCTConfig, ConvolutionalConfig

HERE = __name__


@pytree
@dataclass(frozen=True)
class Tempered(Score):
    """t q . k, and an offset that does not matter."""

    t: jax.Array
    offset: jax.Array

    def __call__(self, query, key):
        return query @ key.T * self.t + self.offset.sum()

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.asarray(2.0), jax.random.normal(rng, (query_width,)))


@pytree
@dataclass(frozen=True)
class Softplus(Ratio):
    power: jax.Array

    def __call__(self, score):
        return jax.nn.softplus(score) ** self.power

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.asarray(2.0))


@pytree
@dataclass(frozen=True)
class Scaled(Pool):
    by: jax.Array

    def finish(self, query, pooled, has_keys, width):
        return pooled * self.by

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.ones(()))


@pytree
@dataclass(frozen=True)
class Decay(Bias):
    rate: jax.Array

    def __call__(self, query, query_positions, key_positions):
        return -self.rate * jnp.abs(query_positions[:, None] - key_positions[None, :]).astype(jnp.float32)

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.asarray(0.5))


class Waves(nn.Module):
    width: int

    def __call__(self, positions):
        return sinusoidal(positions, self.width)


class Waves2d(nn.Module):
    width: int

    def __call__(self, positions):
        return sinusoidal_2d(math.isqrt(len(positions)), self.width)


SIZES = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "mlp_dim": 8}
TOKENS, LENGTH = jnp.array([[1, 2, 3, 4, 5], [3, 2, 1, 1, 1]]), jnp.array([5, 3])
IMAGES = jax.random.uniform(jax.random.key(1), (2, 8, 8, 1))


def language(**options):
    return LanguageModel(config.LanguageModelConfig(**SIZES, **options), 7), (TOKENS,)


def classifier(**options):
    return TextClassifier(config.TextClassifierConfig(**SIZES, **options), 7, 3), (TOKENS, LENGTH)


def translator(**options):
    return Transformer(config.TransformerConfig(1, 1, 8, 2, 8, **options), 7, 7), (TOKENS, LENGTH, TOKENS)


def vit(**options):
    return ViT(config.ViTConfig(**SIZES, **options), 3, 8), (IMAGES,)


def cct(**options):
    return CCT(CCTConfig(num_layers=1, hidden_size=8, mlp_dim=8, **options), 3, 8), (IMAGES,)


def recurrent(**options):
    sizes = {"hidden_size": 8, "embed_size": 8, "readout_size": 8}
    model = Bahdanau(config.BahdanauConfig(bidirectional="none", **sizes, **options), 7, 7)
    return model, (TOKENS, LENGTH, TOKENS)


def convolutional(**options):
    sizes = {"hidden_size": 8, "embed_size": 8, "num_layers": 1}
    return ConvSeq2seq(ConvolutionalConfig(**sizes, **options), 7, 7), (TOKENS, LENGTH, TOKENS)


def parameter_shapes(model_and_inputs) -> dict:
    """The shapes of a model's parameters; nothing is compiled."""
    model, inputs = model_and_inputs
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}


MAKERS = {
    "score": (parse_score, "Tempered", "t", 2.0, (language, recurrent)),
    "normalizer": (parse_normalizer, "Softplus", "power", 2.0, (translator, recurrent, convolutional)),
    "head_pool": (parse_pool, "Scaled", "by", 1.0, (vit,)),
    "position_embedding": (parse_bias, "Decay", "rate", 0.5, (language, classifier, translator, vit, cct)),
    "bias": (parse_bias, "Decay", "rate", 0.5, (language, vit, cct)),
}
CASES = [(option, model) for option, (*_, models) in MAKERS.items() for model in models]


@pytest.mark.slow
@pytest.mark.parametrize(("option", "model"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_an_argument_does_not_change_the_parameters(option, model):
    name, field = MAKERS[option][1:3]
    plain, with_argument = (
        parameter_shapes(model(**{option: f"{HERE}:{name}{arguments}"})) for arguments in ("", "(3.25)")
    )
    assert plain == with_argument
    assert [path for path in plain if path.endswith((f"_{field}']", f"['{field}']"))]


@pytest.mark.parametrize("option", MAKERS)
def test_argument_sets_start_of_learned_parameter(option):
    make, name, field, usual, _ = MAKERS[option]
    rng, path = jax.random.key(0), f"{HERE}:{name}"
    plain, with_argument = (make(path + arguments).init(rng, 4, 4, 4) for arguments in ("", "(3.25)"))
    assert (getattr(plain, field), getattr(with_argument, field)) == (usual, 3.25)
    if option == "score":  # what is not given is drawn as before
        np.testing.assert_array_equal(with_argument.offset, plain.offset)
    parameter = lambda arguments: nn.init(lambda m: m.own, Head(option, path + arguments))(rng)["params"]
    np.testing.assert_array_equal(parameter("(3.25)")[f"part_{field}"], [3.25, 3.25])
    np.testing.assert_array_equal(parameter("")[f"part_{field}"], [usual, usual])


class Head(nn.Module):
    option: str
    place: str

    def setup(self):
        self.own = make_part_per_head(self, "part", MAKERS[self.option][0](self.place), 2, 4)


@pytest.mark.parametrize(
    ("make", "value", "field", "start"),
    [
        (parse_score, "gaussian", "sigma", 4**0.25),
        (parse_score, "gaussian(2.5)", "sigma", 2.5),
        (parse_normalizer, "learned_sink(1.5)", "sink", 1.5),
        (parse_normalizer, "learned_sink", "sink", 0.0),
        (parse_normalizer, "ssmax(0.5)", "scale", 0.5),
        (parse_normalizer, "ssmax", "scale", 0.168),
    ],
)
def test_built_in_parts_start_there_too(make, value, field, start):
    np.testing.assert_allclose(getattr(make(value).init(jax.random.key(0), 4, 4, 4), field), start, rtol=1e-6)


def make_tempered(t):
    return Tempered(jnp.asarray(t), jnp.ones(4))


def test_fields_of_a_returned_part_are_its_start():
    part_of_function = parse_score(f"{HERE}:make_tempered(3.0)").init(jax.random.key(0), 4, 4, 4)
    assert part_of_function.t == 3.0
    np.testing.assert_array_equal(part_of_function.offset, np.ones(4))


@pytest.mark.parametrize(("make", "value"), [(parse_score, "soft_cap(30)"), (parse_normalizer, "softmax(0)")])
def test_a_part_without_init_is_constant(make, value):
    assert not hasattr(make(value), "init")


@pytest.mark.slow
def test_a_bias_in_packed_rows_remat_and_a_population():
    """Rotary positions and a bias see distances alone, scalable softmax the keys of a sentence: each in a row is alone.
    One program."""
    options = {"position_embedding": "rotary", "bias": f"{HERE}:Decay", "dropout": 0.0, "normalizer": "ssmax"}
    (model, inputs), (remat, _) = translator(**options), translator(**options, remat=True)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    draw = np.random.default_rng(0).normal
    population = jax.tree.map(lambda x: draw(size=(2, *x.shape)).astype(np.float32), shapes)
    tokens, segment = jnp.array([[1, 2, 3, 4, 5, 3, 2, 1]]), jnp.array([[0, 0, 0, 0, 0, 1, 1, 1]])

    def encode(model, params, tokens, segment=None):
        length = jnp.full(len(tokens), tokens.shape[1])
        return model.apply({"params": params}, tokens, length, segment=segment, method="encode").states[0]

    @jax.jit
    def run(population):
        packed = jax.vmap(lambda params: encode(remat, params, tokens, segment))(population)
        params = jax.tree.map(lambda x: x[1], population)
        return packed[1], encode(model, params, tokens[:, :5]), encode(model, params, tokens[:, 5:])

    packed, *alone = run(population)
    np.testing.assert_allclose(packed, np.concatenate(alone), atol=2e-5, rtol=2e-5)


def test_custom_bias_with_alibi_slopes_equals_alibi():
    """Two programs."""
    (custom, inputs), (alibi, _) = language(position_embedding=f"{HERE}:Decay"), language(position_embedding="alibi")
    params = jax.jit(alibi.init)(jax.random.key(0), *inputs)
    expected = jax.jit(alibi.apply)(params, *inputs)[0]
    params["params"]["decoder"]["bias_0"] = {"bias_rate": jnp.asarray(ALiBi.slopes(2))}
    np.testing.assert_allclose(jax.jit(custom.apply)(params, *inputs)[0], expected, atol=1e-6)


@pytest.mark.parametrize("model", [vit, pytest.param(cct, marks=pytest.mark.slow)])
def test_steep_bias_restricts_tokens_to_themselves(model):
    instance, inputs = model(position_embedding=f"{HERE}:Decay(1e4)")
    params = jax.jit(instance.init)(jax.random.key(0), *inputs)
    apply = jax.jit(partial(instance.apply, return_weights=True))
    maps = apply(params, *inputs)[1]["encoder_attention"]  # [B, layers, H, T, T]
    np.testing.assert_allclose(maps, np.broadcast_to(np.eye(maps.shape[-1]), maps.shape), atol=1e-6)


SLOW = ((vit, "Waves2d"), (classifier, "Waves"), (translator, "Waves"))
POSITIONS = [(language, "Waves"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("model", "class_name"), POSITIONS)
def test_custom_positions_are_added(model, class_name):
    (custom, inputs), (built_in, _) = (
        model(position_embedding=f"{HERE}:{class_name}"),
        model(position_embedding="sinusoidal"),
    )
    params = jax.jit(built_in.init)(jax.random.key(0), *inputs)
    np.testing.assert_array_equal(
        jax.jit(custom.apply)(params, *inputs)[0], jax.jit(built_in.apply)(params, *inputs)[0]
    )


# --- refused ---


def make_bare(base, name: str):
    """A dataclass that inherits from `base`, without `pytree`."""
    call = lambda self, *inputs: jnp.ones((len(inputs[0]), len(inputs[-1]))) * self.by
    return dataclass(frozen=True)(type(name, (base,), {"__annotations__": {"by": float}, "by": 1.0, "__call__": call}))


BareScore, BareMask, BareBias = make_bare(Score, "BareScore"), make_bare(Mask, "BareMask"), make_bare(Bias, "BareBias")
BareNormalizer, BarePool = make_bare(Ratio, "BareNormalizer"), make_bare(Pool, "BarePool")


def make_uninitialized(base, name: str):
    """A registered class with a parameter and without `init`."""
    return pytree(dataclass(frozen=True)(type(name, (base,), {"__annotations__": {"by": float}})))


NoScore, NoMask, NoBias = (
    make_uninitialized(Score, "NoScore"),
    make_uninitialized(Mask, "NoMask"),
    make_uninitialized(Bias, "NoBias"),
)
NoNormalizer, NoPool = make_uninitialized(Normalizer, "NoNormalizer"), make_uninitialized(Pool, "NoPool")

KINDS = {
    "score": "Score",
    "normalizer": "Normalizer",
    "head_pool": "Pool",
    "mask": "Mask",
    "position_embedding": "Bias",
}


@pytest.mark.parametrize("option", KINDS)
@pytest.mark.parametrize(
    ("start", "message"), [("Bare", "@pytree"), ("No", "in parentheses"), ("Bare{}(1, 2)", "@pytree|in parentheses")]
)
def test_invalid_part_class_is_rejected(option, start, message):
    name = start.format(KINDS[option]) if "{" in start else start + KINDS[option]
    flag = f"--model.{option.replace('_', '-')} {HERE}:{name}"
    with pytest.raises(InputError, match=message) as error:
        parameter_shapes(language(**{option: f"{HERE}:{name}"}))
    assert str(error.value).startswith(flag) and "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["score", "normalizer"])
@pytest.mark.parametrize("start", ["Bare", "No"])
def test_a_recurrent_decoder_refuses_it_as_well(option, start):
    with pytest.raises(InputError, match="@pytree|in parentheses"):
        parameter_shapes(recurrent(**{option: f"{HERE}:{start}{KINDS[option]}"}))


@pytest.mark.parametrize("implementation", ["plain", "fused"])
@pytest.mark.parametrize("name", ["score", "bias", "mask", "normalizer", "in a mask", "in a normalizer"])
def test_attend_rejects_rules_without_pytree(name, implementation):
    x = jnp.ones((4, 2))
    rules = {"score": BareScore(), "bias": BareBias(), "mask": BareMask(), "normalizer": BareNormalizer()}
    rule = {"mask": Both(causal(), BareMask())} if name == "in a mask" else {name: rules.get(name)}
    with pytest.raises(InputError, match="write @pytree above"):
        rule = {"normalizer": TopK(2, BareNormalizer())} if name == "in a normalizer" else rule
        attend(x, x, x, implementation=implementation, **rule)


@pytest.mark.parametrize("arguments", ["'a'", "(1.0, 2.0)"])
def test_a_start_of_another_shape_is_refused(arguments):
    with pytest.raises(InputError, match=r"rate of Decay cannot start at .* must fit the shape \(\)"):
        parameter_shapes(language(position_embedding=f"{HERE}:Decay({arguments})"))


@pytree
@dataclass(frozen=True)
class Positive(Tempered):
    """Tempered with a check of t; its offset is drawn."""

    def __post_init__(self):
        check_option("t of Positive", self.t, above=0)


@pytest.mark.parametrize(
    ("option", "value", "cause"),
    [
        ("score", "gaussian(0)", "sigma of Gaussian must be above 0"),
        ("score", "gaussian(-1)", "sigma of Gaussian must be above 0"),
        ("score", "soft_cap(0)", "cap of SoftCap must be above 0"),
        ("normalizer", "top_k(2.5)", "TopK needs a whole number"),
        ("normalizer", "entmax(0.5)", "alpha of Entmax must be above 1"),
        ("normalizer", "softpick(1)", "too many .* write softpick()"),
        ("normalizer", "top_k", "missing .* as literals, top_k(k, of)"),
        ("normalizer", "math:sqrt(2)", "must be a normalizer, got 1.4"),
        ("mask", "window(-1)", "window needs a whole number"),
        ("mask", "window", "missing .* as literals, window(width)"),
        ("mask", "window()", "missing .* as literals, window(width)"),
    ],
)
def test_a_refused_argument_is_one_line_with_its_cause(option, value, cause):
    """Also where `init` is traced, as it is here."""
    with pytest.raises(InputError) as error:
        parameter_shapes(language(**{option: value}))
    flag, line = f"--model.{option} {value}", str(error.value)
    assert line.startswith(flag) and "(cls" not in line and "init(" not in line
    assert re.search(cause.replace("(", r"\(").replace(")", r"\)"), line), line


def test_a_field_is_checked_where_others_are_drawn():
    assert parse_score(f"{HERE}:Positive(2.0)").init(jax.random.key(0), 4, 4, 4).t == 2
    with pytest.raises(InputError, match="t of Positive must be above 0"):
        parameter_shapes(language(score=f"{HERE}:Positive(0)"))


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1e39", "10**2", "a", "1 2", "[" * 300])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (parse_score, "soft_cap"),
        (parse_normalizer, "ssmax"),
        (parse_normalizer, "softmax"),
        (parse_bias, f"{HERE}:Decay"),
    ],
)
def test_arguments_are_finite_literals(make, name, number):
    with pytest.raises(
        InputError, match=r": its (numbers must be finite|arguments must be literals, such as 30, without names$)"
    ):
        make(f"{name}({number})")


@pytree
@dataclass(frozen=True)
class LearnedMask(Mask):
    width: float = 1.0

    def __call__(self, query_positions, key_positions):
        return key_positions[None] - query_positions[:, None] < self.width

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.ones(()))


@pytest.mark.parametrize("arguments", ["", "(2.0)"])
def test_a_mask_does_not_learn(arguments):
    with pytest.raises(InputError, match="no gradient"):
        parameter_shapes(language(mask=f"{HERE}:LearnedMask{arguments}"))
