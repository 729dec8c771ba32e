"""The encoder-decoder Transformer: relations that must hold whatever its weights are, and parameter counts derived by
hand."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.config import SCORES, replace
from attention_jax.decode import beam_search
from attention_jax.errors import InputError
from attention_jax.models.blocks import AncestorMask, Block
from attention_jax.models.named_scores import make_score, parse_score
from attention_jax.models.position_encodings import KINDS, position_vectors
from attention_jax.models.transformer import Decoder, Embedding, Encoder, Transformer, count_parameters
from attention_jax.ops.attention import attend
from attention_jax.ops.masks import causal, dense
from attention_jax.ops.scores import Score
from attention_jax.ops.shared import repeat_for_beams
from attention_jax.ops.trees import pytree

SOURCE = jnp.array([[3, 4, 5, 6, 7], [8, 9, 0, 0, 0]], jnp.int32)
LENGTH = jnp.array([5, 2], jnp.int32)
TARGET = jnp.array([[1, 5, 6, 7], [1, 9, 8, 2]], jnp.int32)
SMALL = config.TransformerConfig(
    1, 1, hidden_size=8, num_heads=2, mlp_dim=12, dropout=0.3, attention_dropout=0.2, mlp_dropout=0.1, max_length=10
)


@functools.lru_cache
def build_model(**changes):
    """A small model and its parameters, every one of them random (zero biases would hide mistakes)."""
    model = Transformer(replace(SMALL, **changes), 11, 11)
    return model, random_params(model, SOURCE, LENGTH, TARGET)


def random_params(module, *inputs):
    """Parameters as `module.init` makes them, with random numbers in all of them."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * rng.standard_normal(x.shape, np.float32)), shapes)


@functools.lru_cache
def compile_apply(model, **options):
    return jax.jit(functools.partial(model.apply, **options))


def logits(model, params, *args, **options):
    return compile_apply(model, **options)(params, *args)


def layer_parameters(width, ffn, layers, cross):
    """Attention: four square kernels with biases. Feed-forward: two kernels, two biases. A scale and a bias for every
    norm."""
    attention = 4 * (width * width + width)
    return layers * ((1 + cross) * attention + 2 * width * ffn + ffn + width + (2 + cross) * 2 * width)


def make_transformer(source, target, encoder_layers, decoder_layers, width, heads, ffn, **options):
    options = config.TransformerConfig(encoder_layers, decoder_layers, width, heads, ffn, **options)
    return Transformer(options, source, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # Wu et al. 2021: one table of 9,716 x 128 for source, target and output (no bias): "about 2.57 M"
        (make_transformer(9716, 9716, 4, 4, 128, 4, 256, tied_embeddings="all", output_bias=False), 2_568_704),
        # bentrevett/pytorch-seq2seq, notebook 6: two learned tables of 100 positions, 7,853 and 5,893 words
        (make_transformer(7853, 5893, 3, 3, 256, 8, 512, position_embedding="learned", max_length=100), 9_038_341),
        # pre-norm adds one norm at the end of each stack
        (
            make_transformer(10, 12, 1, 2, 8, 2, 16, norm="pre"),
            10 * 8 + 12 * 8 + 8 * 12 + 12 + layer_parameters(8, 16, 1, 0) + layer_parameters(8, 16, 2, 1) + 32,
        ),
        (
            make_transformer(10, 12, 2, 2, 8, 2, 16, position_embedding="t5"),
            10 * 8 + 12 * 8 + 8 * 12 + 12 + layer_parameters(8, 16, 2, 0) + layer_parameters(8, 16, 2, 1) + 2 * 64,
        ),
        (
            make_transformer(10, 12, 2, 2, 8, 2, 16, position_embedding="shaw"),
            10 * 8 + 12 * 8 + 8 * 12 + 12 + layer_parameters(8, 16, 2, 0) + layer_parameters(8, 16, 2, 1) + 4 * 33 * 4,
        ),
    ],
    ids=["tiny", "bentrevett", "pre-norm", "t5", "shaw"],
)
def test_parameter_counts(model, expected):
    assert count_parameters(jax.eval_shape(model.init, jax.random.key(0), SOURCE, LENGTH, TARGET)) == expected


def test_counts_add_up_by_hand():
    assert layer_parameters(128, 256, 4, 0) + layer_parameters(128, 256, 4, 1) + 9716 * 128 == 2_568_704
    words, places = 7853 * 256 + 5893 * 256 + 5893 * 256 + 5893, 2 * 100 * 256
    assert layer_parameters(256, 512, 3, 0) + layer_parameters(256, 512, 3, 1) + words + places == 9_038_341


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["rotary", "transformer_xl"], KINDS))
def test_cached_steps_equal_teacher_forcing_for_beams(kind):
    universal = {"shared_layers": True, "num_decoder_layers": 2} if kind == "transformer_xl" else {}
    model, params = build_model(
        position_embedding=kind, norm="pre" if kind in ("t5", "rotary") else "post", **universal
    )

    @jax.jit
    def teacher_forced_and_start(params):
        memory = model.apply(params, SOURCE, LENGTH, method="encode")
        cache = model.apply(params, memory, 6, method="start")
        return model.apply(params, SOURCE, LENGTH, TARGET, return_weights=True), cache, repeat_for_beams(cache, 3)

    (expected, intermediates), cache, beam_cache = jax.device_get(teacher_forced_and_start(params))
    traced = []

    @jax.jit
    def step(cache, token):
        traced.append(1)
        return model.apply(params, cache, token, return_weights=True, method="step")

    target = np.asarray(TARGET)
    for t in range(4):
        actual, cache, weights = step(cache, target[:, t])
        weights = jax.device_get(weights)
        np.testing.assert_allclose(actual, expected[:, t], atol=1e-5)
        np.testing.assert_allclose(
            weights["cross_attention"], intermediates["cross_attention"][:, :, :, t : t + 1], atol=1e-5
        )
        np.testing.assert_allclose(
            weights["decoder_attention"][..., :4], intermediates["decoder_attention"][:, :, :, t : t + 1], atol=1e-5
        )
        if kind in ("sinusoidal", "rotary"):  # three equal hypotheses of each sentence read one memory
            actual, beam_cache, weights = step(beam_cache, np.repeat(target[:, t], 3))
            np.testing.assert_allclose(actual, np.repeat(expected[:, t], 3, axis=0), atol=1e-5)
            np.testing.assert_allclose(
                weights["cross_attention"][4], intermediates["cross_attention"][1, :, :, t : t + 1], atol=1e-5
            )
            np.testing.assert_allclose(
                weights["decoder_attention"][4, ..., :4],
                intermediates["decoder_attention"][1, :, :, t : t + 1],
                atol=1e-5,
            )
    assert len(traced) == (2 if kind in ("sinusoidal", "rotary") else 1)  # one compilation a shape


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["shaw"], KINDS))
def test_beam_scores_equal_teacher_forced_log_probabilities(kind):
    """Each reads the keys of its own ancestors, wherever those stood in the beam."""
    beams_score_as_teacher_forcing(
        *build_model(position_embedding=kind, norm="pre" if kind in ("t5", "rotary") else "post")
    )


def beams_score_as_teacher_forcing(model, params, tolerance=1e-5):
    """Four hypotheses of each sentence, some of which part early, have the scores of a full pass."""

    @jax.jit
    def search(params):
        cache = model.apply(params, model.apply(params, SOURCE, LENGTH, method="encode"), 6, method="start")
        step = lambda token, cache: model.apply(params, cache, token, method="step")[:2]
        options = {"bos": 1, "eos": None, "pad": 0, "max_length": 6, "length_penalty": "none"}
        tokens, scores = beam_search(step, cache, 2, beam_size=4, n_best=4, **options)
        target_in = jnp.concatenate([jnp.full((8, 1), 1), tokens.reshape(8, 6)[:, :-1]], axis=1)
        logits, _ = model.apply(params, *(jnp.repeat(x, 4, axis=0) for x in (SOURCE, LENGTH)), target_in)
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens.reshape(8, 6, 1), axis=2)
        return tokens, scores, log_p.sum(axis=(1, 2)).reshape(2, 4)

    tokens, scores, expected = search(params)
    assert len({tuple(row) for row in np.asarray(tokens[0, :, :3])}) > 1  # hypotheses that parted early
    np.testing.assert_allclose(scores, expected, atol=tolerance)


def test_a_cache_is_read_alike_block_by_block():
    draw = lambda *shape: np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
    mask = AncestorMask(jnp.asarray(draw(5, 21, 1)[..., 0] > 0).at[:, 0].set(True))
    run = lambda how, **blocks: attend(draw(5, 4), draw(21, 4), draw(21, 4), mask=mask, implementation=how, **blocks)
    both = jax.jit(lambda: (run("fused", block_q=2, block_k=8), run("plain")))
    np.testing.assert_allclose(*both(), atol=1e-6)


@pytest.mark.parametrize("kind", slow_but(["shaw"], ["sinusoidal", "t5", "shaw"]))
def test_padding_and_batching_change_nothing(kind):
    model, params = build_model(position_embedding=kind, norm="pre" if kind == "t5" else "post")
    together, _ = logits(model, params, SOURCE, LENGTH, TARGET)
    alone, _ = logits(model, params, SOURCE[1:, :2], LENGTH[1:], TARGET[1:])
    np.testing.assert_allclose(together[1:], alone, atol=1e-5)
    repadded, _ = logits(model, params, SOURCE.at[1, 2:].set(7), LENGTH, TARGET)
    np.testing.assert_array_equal(together, repadded)
    changed, _ = logits(model, params, SOURCE.at[1, 1].set(7), LENGTH, TARGET)
    assert np.abs(changed - together)[1].max() > 1e-3  # a real word does matter


CASES = [(kind, "fused" if kind in ("shaw", "t5", "alibi") else "plain") for kind in KINDS]
LIGHT = [("rotary", "plain"), ("shaw", "fused")]


@pytest.mark.parametrize(("kind", "implementation"), slow_but(LIGHT, CASES))
def test_causal_jacobian_is_exactly_zero_above_the_diagonal(kind, implementation):
    block = dataclasses.replace(
        Block.of(replace(SMALL, position_embedding=kind, norm="pre")), implementation=implementation
    )
    decoder = Decoder(block, 1, cross=False)
    table = lambda positions: jnp.sin(jnp.arange(40, dtype=jnp.float32).reshape(5, 8))
    added = position_vectors(kind, jnp.arange(5), 8, table)
    x = np.random.default_rng(1).standard_normal((5, 8), np.float32)

    def run(params, x):
        x = x if added is None else x + added
        return decoder.apply(params, x[None], causal())[0][0]

    params = random_params(decoder, x[None], causal())
    jacobian = jax.jit(jax.jacrev(run, argnums=1))(params, x)  # [T, D, T, D]
    size = np.abs(jacobian).max(axis=(1, 3))
    assert np.array_equal(np.triu(size, 1), np.zeros((5, 5)))
    assert np.tril(size).min(where=np.tril(np.ones((5, 5), bool)), initial=1.0) > 0


def test_evaluation_without_mask_sees_later_targets():
    (model, params), (causal_model, _) = build_model(evaluation_mask="none"), build_model()
    changed = TARGET.at[:, -1].set(3)
    run = lambda model, target: np.asarray(logits(model, params, SOURCE, LENGTH, target)[0])
    assert (run(model, TARGET) != run(model, changed))[:, :-1].any(axis=(0, 2)).all(), "every earlier position"
    assert np.array_equal(run(causal_model, TARGET)[:, :-1], run(causal_model, changed)[:, :-1])
    np.testing.assert_allclose(run(model, TARGET)[:, -1], run(causal_model, TARGET)[:, -1], atol=1e-6)
    train = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
    in_training = [
        jax.make_jaxpr(lambda p, model=model: model.apply(p, SOURCE, LENGTH, TARGET, **train)[0])(params)
        for model in (model, causal_model)
    ]
    assert str(in_training[0]) == str(in_training[1]), "training is causal"


def encoder(kind, x):
    """An encoder with positions of this kind, as a compiled function (x, mask) -> states."""
    module = Encoder(Block.of(replace(SMALL, position_embedding=kind)), 1)
    params = random_params(module, x)
    run = jax.jit(lambda x, mask=None: module.apply(params, x, mask)[0])
    return lambda *inputs: np.asarray(run(*inputs))


@pytest.mark.slow
def test_without_positions_permutations_commute():
    x, order = np.random.default_rng(1).standard_normal((1, 6, 8), np.float32), np.array([3, 0, 5, 1, 4, 2])
    for kind in ("none", "shaw", "transformer_xl", "t5", "alibi", "rotary"):
        states = encoder(kind, x)
        difference = np.abs(states(x)[:, order] - states(x[:, order])).max()
        assert difference < 1e-5 if kind == "none" else difference > 1e-4, kind


@pytest.mark.slow
def test_relative_positions_are_shift_invariant():
    """A sentence gives the same states wherever it stands; only the mask knows where that is."""
    sentence, filler = jax.random.normal(jax.random.key(0), (1, 4, 8)), jnp.ones((1, 3, 8))
    place = lambda first: dense(jnp.broadcast_to((jnp.arange(7) >= first) & (jnp.arange(7) < first + 4), (7, 7)))
    masks = [jax.tree.map(lambda x: x[None], place(first)) for first in (0, 3)]
    first, last = jnp.concatenate([sentence, filler], axis=1), jnp.concatenate([filler, sentence], axis=1)
    for kind in ("shaw", "transformer_xl", "t5", "alibi", "rotary"):
        states = encoder(kind, first)
        early, late = states(first, masks[0])[:, :4], states(last, masks[1])[:, 3:]
        np.testing.assert_allclose(early, late, atol=1e-5, err_msg=kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["sinusoidal"], ["sinusoidal", "transformer_xl"]))
def test_shared_layers_are_a_stack_of_equal_ones(kind):
    once, of_once = build_model(num_encoder_layers=2, num_decoder_layers=2, position_embedding=kind, shared_layers=True)
    twice, of_twice = build_model(num_encoder_layers=2, num_decoder_layers=2, position_embedding=kind)
    repeated = {stack: {} for stack in ("encoder", "decoder")}
    for stack, layers in repeated.items():
        for name in of_twice["params"][stack]:
            layers[name] = of_once["params"][stack][name.replace("_1", "_0")]
    assert set(of_once["params"]["encoder"]) < set(of_twice["params"]["encoder"])
    params = {"params": of_once["params"] | repeated}
    shared_logits, stacked_logits = (
        logits(once, of_once, SOURCE, LENGTH, TARGET)[0],
        logits(twice, params, SOURCE, LENGTH, TARGET)[0],
    )
    np.testing.assert_allclose(shared_logits, stacked_logits, atol=1e-6)


@pytest.mark.slow
def test_weights_for_looking():
    model, params = build_model(num_encoder_layers=2, num_decoder_layers=2)
    _, intermediates = logits(model, params, SOURCE, LENGTH, TARGET, return_weights=True)
    assert {k: v.shape for k, v in intermediates.items()} == {
        "encoder_attention": (2, 2, 2, 5, 5),
        "decoder_attention": (2, 2, 2, 4, 4),
        "cross_attention": (2, 2, 2, 4, 5),
    }
    for weights in intermediates.values():
        np.testing.assert_allclose(weights.sum(-1), np.ones(weights.shape[:-1]), atol=1e-5)
    assert np.array_equal(intermediates["cross_attention"][1, ..., 2:], np.zeros((2, 2, 4, 3)))
    assert np.array_equal(np.triu(intermediates["decoder_attention"], 1), np.zeros((2, 2, 2, 4, 4)))
    assert logits(model, params, SOURCE, LENGTH, TARGET)[1] == {}


@pytest.mark.slow
def test_dropout_is_training_only_with_traced_rate():
    model, params = build_model()
    plain, _ = logits(model, params, SOURCE, LENGTH, TARGET)

    @jax.jit
    def at(rate, seed):
        options = replace(SMALL, dropout=rate, attention_dropout=rate, mlp_dropout=rate)
        return model.clone(options=options).apply(
            params, SOURCE, LENGTH, TARGET, train=True, rngs={"dropout": jax.random.key(seed)}
        )[0]

    np.testing.assert_allclose(at(0.0, 0), plain, atol=1e-5)
    assert np.abs(at(0.5, 0) - plain).max() > 1e-2
    assert np.abs(at(0.5, 0) - at(0.5, 1)).max() > 1e-2
    assert at._cache_size() == 1


@pytest.mark.slow
def test_rematerialization_changes_no_gradient():
    grads = []
    for remat in (False, True):
        model, params = build_model(remat=remat)
        rngs = {"dropout": jax.random.key(3)}
        grads.append(
            jax.jit(jax.grad(lambda p: model.apply(p, SOURCE, LENGTH, TARGET, train=True, rngs=rngs)[0].std()))(params)
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *grads)


def test_bfloat16_is_close_and_keeps_float32_parameters():
    model, params = build_model()
    expected, _ = logits(model, params, SOURCE, LENGTH, TARGET)
    half = model.clone(options=replace(SMALL, dtype="bfloat16"))
    actual, _ = logits(half, params, SOURCE, LENGTH, TARGET)
    assert actual.dtype == jnp.float32
    assert 0 < np.abs(actual - expected).max() < 0.1 * np.abs(expected).max()
    shapes = jax.eval_shape(half.init, jax.random.key(0), SOURCE, LENGTH, TARGET)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


def test_tied_embeddings_are_the_output_layer():
    model, params = build_model(tied_embeddings="all")
    kernel, _ = model.apply(params, method="output")
    np.testing.assert_array_equal(kernel.T, params["params"]["target_embedding"]["token"]["embedding"])
    assert "source_embedding" not in params["params"] and "kernel" not in params["params"]
    with pytest.raises(
        InputError, match="--model.tied-embeddings all needs one vocabulary for both languages, got 5 and 6"
    ):
        Transformer(config.TransformerConfig(tied_embeddings="all"), 5, 6)


def test_heads_divide_width_unless_widths_are_given():
    with pytest.raises(InputError, match="--model.hidden-size must be a multiple of --model.num-heads, got 8 and 3"):
        Transformer(replace(SMALL, num_heads=3), 11, 11)
    Transformer(replace(SMALL, num_heads=3, key_dim=2, value_dim=5), 11, 11)


def test_heads_refuse_the_score_that_is_a_bias():
    with pytest.raises(InputError, match="--model.score must be one of .* got 'location'"):
        replace(SMALL, score="location")


@pytest.mark.slow
@pytest.mark.parametrize("score", slow_but(["additive"], [s for s in SCORES if s not in ("scaled_dot", "location")]))
def test_any_score_trains(score):
    model, params = build_model(score=score)
    rngs = {"dropout": jax.random.key(0)}
    grads = jax.jit(jax.grad(lambda p: model.apply(p, SOURCE, LENGTH, TARGET, train=True, rngs=rngs)[0].std()))(params)
    score_gradients = [g for path, g in jax.tree.leaves_with_path(grads) if "score" in jax.tree_util.keystr(path)]
    leaves = {
        "dot": 0,
        "general": 3,
        "additive": 9,
        "concat": 6,
        "cosine": 3,
        "gaussian": 3,
        "mean": 0,
        "qk_norm": 6,
        "soft_cap": 0,
    }
    assert len(score_gradients) == leaves[score]
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in score_gradients)


@pytest.mark.parametrize("initial, deviation", [("normal", 16**-0.5), ("xavier", (2 / (400 + 16)) ** 0.5)])
def test_embeddings_start_with_initializer_deviation(initial, deviation):
    table = Embedding(400, Block.of(replace(SMALL, hidden_size=16)), 10, scale=True, initial=initial)
    values = jax.jit(table.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]["token"]["embedding"]
    assert float(values.std()) == pytest.approx(deviation, rel=0.05)


def test_learned_positions_start_at_token_scale():
    table = Embedding(
        400, Block.of(replace(SMALL, hidden_size=16, position_embedding="learned")), 300, scale=True, initial="normal"
    )
    params = jax.jit(table.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    tokens, places = (16**0.5 * params["token"]["embedding"]).std(), params["position"]["embedding"].std()
    assert float(tokens) == pytest.approx(1, rel=0.05) and float(places) == pytest.approx(1, rel=0.05)


@pytree
@dataclasses.dataclass(frozen=True)
class Tempered(Score):
    """A score of one's own with a number that does not learn."""

    kernel: jax.Array
    power: int = dataclasses.field(default=2, metadata={"static": True})

    def __call__(self, query, key):
        return -(jnp.abs((query @ self.kernel)[:, None] - key[None]) ** self.power).sum(-1)

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.eye(query_width, key_width), power=3)


@pytest.mark.slow
def test_static_score_fields_are_no_parameters():
    place = f"{__name__}:Tempered"
    model, params = build_model(score=place)
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params) if "score" in str(path)}
    assert len(names) == 3 and all("score_kernel" in name for name in names)
    rngs = {"dropout": jax.random.key(0)}
    jax.jit(jax.grad(lambda p: model.apply(p, SOURCE, LENGTH, TARGET, train=True, rngs=rngs)[0].std()))(params)
    scored = nn.apply(lambda m: m.own, Owner(place))(nn.init(lambda m: m.own, Owner(place))(jax.random.key(0)))
    assert isinstance(scored, Tempered) and scored.power == 3


class Owner(nn.Module):
    place: str

    def setup(self):
        self.own = make_score(self, self.place, 4, 4, 4)


@pytest.mark.parametrize(
    "place", ["math:sqrt", "attention_jax.ops.biases:Location", ":Foo", ".x:Foo", f"{__name__}:Owner"]
)
def test_a_place_that_holds_no_score_is_named(place):
    with pytest.raises(InputError, match="must be .*(Score|package.file:name)"):
        parse_score(place)
