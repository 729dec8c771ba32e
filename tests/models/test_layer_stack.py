"""Options of single layers, and layers in a scan."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import UNOPTIMIZED

from attention_jax import config
from attention_jax.config import foreign_code, replace, to_json
from attention_jax.decode import beam_search
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.layer_stack import stack_layers, unstack_layers
from attention_jax.models.transformer import Transformer

TOKENS = jnp.array([[1, 2, 3, 4, 5, 6], [5, 4, 3, 2, 1, 0]], jnp.int32)
SMALL = config.LanguageModelConfig(
    num_layers=3, hidden_size=8, num_heads=2, num_kv_heads=1, mlp_dim=12, dropout=0.0, attention_dropout=0.0
)
MIXED = replace(SMALL, bias="shaw", per_layer="0:mask=window(2),rope_theta=50,normalizer=sigmoid,bias=alibi")


def params_of(options, seed=0):
    shapes = jax.eval_shape(LanguageModel(options, 7).init, jax.random.key(0), TOKENS)["params"]
    r = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), jnp.float32), shapes)


@pytest.mark.slow
def test_a_layer_has_its_own_options():
    """The first map is that of a model in which all layers have its options; the last window blocks far keys."""
    options = replace(SMALL, per_layer="0,2:mask=window(2),rope_theta=50;1:score=dot,position_embedding=none")

    @partial(jax.jit, static_argnums=0, compiler_options=UNOPTIMIZED)
    def run(options, params):
        model = LanguageModel(options, 7)
        return model.apply({"params": params}, TOKENS, return_weights=True)[1]["decoder_attention"]

    params = params_of(options)
    maps, first_maps = (
        run(options, params),
        run(replace(SMALL, num_layers=1, mask="window(2)", rope_theta=50.0), params),
    )
    beyond = np.abs(np.subtract.outer(np.arange(6), np.arange(6))) > 2
    assert [bool((np.asarray(maps)[:, i][..., beyond] == 0).all()) for i in range(3)] == [True, False, True]
    np.testing.assert_array_equal(maps[:, 0], first_maps[:, 0])
    assert [(b.position_embedding, b.score) for b in Block.of(options).of_layers(3)][1] == ("none", "dot")


@pytest.mark.parametrize(
    ("per_layer", "message"),
    [
        ("5:mask=window(2)", "layers 0 to 2, got 5"),
        ("3-7:mask=window(2)", "layers 0 to 2, got 7"),
        ("0:num_heads=4", "got 'num_heads'"),
        ("0:scores=dot", "got 'scores'"),
        ("4-3:score=dot", "must be like"),
        ("-1:score=dot", "must be like"),
        ("0", "must be like"),
        ("0:", "must be like"),
        (":score=dot", "must be like"),
        ("0:score", "must be like"),
        ("0:score=dot;", "must be like"),
        ("0:score=dot;0-1:score=mean", "its score twice"),
        ("0:score=dots", "score must be one of"),
        ("0:mask=window", "give its arguments in parentheses, as literals, window"),
        ("0:rope_theta=one", "must be|could not"),
        ("0:rope_theta=nan", "above 1"),
        ("0:position_embedding=alibi", "none or rotary"),
        ("0:bias=rotary", "--model.bias must be none, alibi, .* got 'rotary'"),
        ("0:rope_scaling=linear(0)", "positive"),
        ("0:rope_scaling=linear(2),position_embedding=none", "rope_scaling needs .* rotary, got none"),
    ],
)
def test_wrong_options_of_layers_are_one_line(per_layer, message):
    with pytest.raises(InputError, match=f"--model.per-layer.*{message}") as caught:
        LanguageModel(replace(SMALL, per_layer=per_layer), 7)
    assert "\n" not in str(caught.value)


def test_foreign_code_in_per_layer_is_reported():
    options = replace(SMALL, per_layer="0:score=mine.scores:Radial(1, 2),mask=window(2);1:normalizer=its:Own")
    assert foreign_code(to_json(options)) == {"mine.scores:Radial(1, 2)", "its:Own"}


def run_model(options, params, with_steps):
    """Gradients, logits, maps, and if asked for the logits of steps and the last step's maps."""
    model = LanguageModel(options, 7)

    def loss(params):
        logits, intermediates = model.apply({"params": params}, TOKENS, return_weights=True)
        return jnp.square(logits).sum(), (logits, intermediates["decoder_attention"])

    def step(cache, token):
        logits, cache, intermediates = model.apply({"params": params}, cache, token, return_weights=True, method="step")
        return cache, (logits, intermediates["decoder_attention"])

    grads, (logits, maps) = jax.grad(loss, has_aux=True)(params)
    if not with_steps:
        return grads, logits, maps
    cache = model.apply({"params": params}, 2, 6, method="start")
    _, (steps, step_maps) = jax.lax.scan(step, cache, TOKENS.T)
    return grads, logits, maps, steps.swapaxes(0, 1), step_maps[-1, :, :, :, 0]


@pytest.mark.parametrize(
    "options", [MIXED, pytest.param(replace(SMALL, position_embedding="t5", norm="sandwich"), marks=pytest.mark.slow)]
)
def test_scanned_layers_are_the_layers(options):
    """Two programs, of one forward and backward pass, and of a step in a scan."""
    scanned = replace(options, scan_layers=True)
    params = params_of(options)
    stacked = jax.jit(partial(stack_layers, options=options))(params)
    shapes = jax.eval_shape(LanguageModel(scanned, 7).init, jax.random.key(0), TOKENS)["params"]
    assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, shapes)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params)
    run = jax.jit(run_model, static_argnums=(0, 2), compiler_options=UNOPTIMIZED)
    unrolled, looped = run(options, params, False), run(scanned, stacked, True)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5, rtol=5e-5)
    jax.tree.map(close, unstack_layers(looped[0]), unrolled[0])
    jax.tree.map(close, looped[1:3], unrolled[1:])
    close(looped[3], looped[1])
    close(looped[4], looped[2][:, :, :, -1])


@pytest.mark.parametrize("scan", [pytest.param(False, marks=pytest.mark.slow), True])
def test_prefill_equals_full_pass_and_stepwise_cache(scan):
    options = replace(MIXED, scan_layers=scan)
    model, params, lengths = LanguageModel(options, 7), params_of(options), jnp.array([5, 2])

    @partial(jax.jit, compiler_options=UNOPTIMIZED)
    def run(params):
        call = lambda method, *x: model.apply({"params": params}, *x, method=method)
        alone = call("prefill", TOKENS[:1, :5], jnp.array([5]), 6)[1]
        padded = call("prefill", TOKENS[:, :5], lengths, 6)
        return *padded, call("step", alone, TOKENS[:1, 5])[0], call("__call__", TOKENS)[0]

    logits, cache, stepped, whole = run(params)
    np.testing.assert_allclose(logits, whole[jnp.arange(2), lengths - 1], atol=2e-5)
    assert cache.position.tolist() == [5, 2]
    np.testing.assert_allclose(stepped, whole[:1, 5], atol=2e-5)
    with pytest.raises(InputError, match="4 positions cannot hold prompts of 5"):
        model.apply({"params": params}, TOKENS[:, :5], lengths, 4, method="prefill")


@pytest.mark.slow
def test_a_scanned_program_does_not_grow_with_depth():
    def lines(layers, scan):
        model = LanguageModel(replace(SMALL, num_layers=layers, scan_layers=scan), 7)
        shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)
        loss = lambda params: jnp.square(model.apply(params, TOKENS)[0]).sum()
        return len(jax.jit(jax.grad(loss)).lower(shapes).as_text().splitlines())

    assert lines(2, True) == lines(8, True) < lines(8, False) / 2


def test_scans_with_weights_of_layers_outside_are_refused():
    model = LanguageModel(replace(SMALL, scan_layers=True, position_embedding="shaw"), 7)
    with pytest.raises(InputError, match="--model.scan-layers cannot scan"):
        jax.eval_shape(model.init, jax.random.key(0), TOKENS)


T5 = config.TransformerConfig(
    num_encoder_layers=2,
    num_decoder_layers=3,
    hidden_size=8,
    num_heads=2,
    mlp_dim=12,
    norm="pre",
    norm_layer="rms",
    norm_epsilon=1e-3,
    mlp_layer="geglu",
    use_bias=False,
    score="dot",
    position_embedding="t5",
    scale_embeddings=False,
    output_bias=False,
    dropout=0.0,
)


@pytest.mark.slow
def test_scanned_layers_of_an_encoder_decoder(contract):
    """As T5's; two programs of a beam search, and two of teacher forcing."""
    source, length, target = contract.SOURCE, contract.LENGTH, contract.TARGET
    unrolled, scanned = Transformer(T5, 11, 9), Transformer(replace(T5, scan_layers=True), 11, 9)
    params = contract.variables_of(unrolled)["params"]
    stacked = stack_layers(params, T5)

    def search(model, params):
        call = lambda method, *x: model.apply({"params": params}, *x, method=method)
        step = lambda tokens, cache: call("step", cache, tokens)[:2]
        cache = call("start", call("encode", source, length), 5)
        hypotheses = beam_search(step, cache, 3, beam_size=2, bos=1, eos=2, pad=0, max_length=5)
        return hypotheses, model.apply({"params": params}, source, length, target, return_weights=True)

    run = jax.jit(search, static_argnums=0)
    for unrolled_array, scanned_array in zip(
        *map(jax.tree.leaves, (run(unrolled, params), run(scanned, stacked))), strict=True
    ):
        np.testing.assert_allclose(unrolled_array, scanned_array, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"num_kv_heads": 1}, {"key_dim": 6}, {"value_dim": 5}])
def test_scanned_cross_attention_with_kernels_that_are_not_square(sizes):
    """The weights that `init` draws, unrolled; keys and values of the memory are made by a scan of their own."""
    options, batch = (
        replace(T5, num_encoder_layers=1, num_decoder_layers=2, **sizes),
        (TOKENS, jnp.array([6, 5]), TOKENS),
    )
    scanned, unrolled = Transformer(replace(options, scan_layers=True), 7, 7), Transformer(options, 7, 7)

    @partial(jax.jit, compiler_options=UNOPTIMIZED)
    def run():
        (logits, _), variables = scanned.init_with_output(jax.random.key(0), *batch)
        params = {"params": unstack_layers(variables["params"])}
        return logits, scanned.apply(variables, *batch)[0], unrolled.apply(params, *batch)[0]

    initial, looped, expected = run()
    np.testing.assert_allclose(looped, expected, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(initial, expected, atol=2e-5, rtol=2e-5)


def test_shared_layers_are_not_scanned():
    model = Transformer(replace(T5, scan_layers=True, shared_layers=True), 11, 9)
    with pytest.raises(InputError, match="--model.shared-layers has one layer"):
        jax.eval_shape(model.init, jax.random.key(0), TOKENS, jnp.array([6, 6]), TOKENS)
