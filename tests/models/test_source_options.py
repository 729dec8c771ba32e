"""Options of recurrent models and of the Transformer that published code has, each against a relation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.bahdanau import Bahdanau
from attention_jax.models.blocks import Block
from attention_jax.models.gnmt import GNMT
from attention_jax.models.luong import Luong
from attention_jax.models.ntm import NTM
from attention_jax.models.recurrent import Layer
from attention_jax.models.transformer import Embedding, Transformer
from experiments.papers.conditional_gru import ConditionalGRU
from experiments.papers.options import ConditionalGRUConfig, SutskeverConfig
from experiments.papers.sutskever import Sutskever

SMALL = {"hidden_size": 4, "embed_size": 4, "readout_size": 4, "bidirectional": "none", "decoder_init": "hidden"}
SOURCE, LENGTH, TARGET = jnp.array([[3, 4, 5, 0, 0]]), jnp.array([3]), jnp.array([[1, 3, 4]])


def initial(model, *batch):
    return jax.jit(model.init)(jax.random.key(0), *batch)["params"]


def random_params(model, *batch):
    shapes, r = jax.eval_shape(model.init, jax.random.key(0), *batch)["params"], np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), jnp.float32), shapes)


def test_the_last_step_is_read_with_its_padding():
    """As if the padding were tokens; the default stops at the last token."""
    token, step = (
        Sutskever(SutskeverConfig(**SMALL, encoder_state=state), 9, 7) for state in ("last_token", "last_step")
    )
    params = random_params(token, SOURCE, LENGTH, TARGET)
    run = jax.jit(
        lambda model, length: model.apply({"params": params}, SOURCE, length[None], TARGET)[0], static_argnums=0
    )
    at_padding = run(step, jnp.int32(3))
    np.testing.assert_array_equal(at_padding, run(token, jnp.int32(5)))
    assert not np.array_equal(at_padding, run(token, jnp.int32(3)))


def test_the_last_step_of_two_directions_is_refused():
    model = Sutskever(SutskeverConfig(4, 4, encoder_state="last_step"), 9, 7)
    with pytest.raises(InputError, match=r"--model\.encoder-state last_step needs bidirectional none.*got all"):
        initial(model, SOURCE, LENGTH, TARGET)


ATTENDING = {
    "bahdanau": (Bahdanau, config.BahdanauConfig, {}),
    "conditional": (ConditionalGRU, ConditionalGRUConfig, {}),
    "gnmt": (GNMT, config.GNMTConfig, {"num_layers": 2}),
    "luong": (Luong, config.LuongConfig, {"input_feeding": False}),
    "luong feeding": (Luong, config.LuongConfig, {"input_feeding": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("bahdanau", "luong feeding"), ATTENDING))
def test_full_attention_dropout_hides_the_source(name):
    """With all weights dropped the annotations do not matter; while decoding none is dropped. Four programs."""
    module, options, changes = ATTENDING[name]
    plain, dropping = (module(options(**SMALL | changes, attention_dropout=r), 9, 7) for r in (0.0, 1 - 1e-6))
    variables, rngs = {"params": random_params(plain, SOURCE, LENGTH, TARGET)}, {"dropout": jax.random.key(1)}
    memory = jax.jit(partial(plain.apply, method="encode"))(variables, SOURCE, LENGTH)
    louder = memory._replace(hidden=2.0 * memory.hidden)

    @partial(jax.jit, static_argnums=(0, 2))
    def run(model, memory, train):
        return model.apply(variables, memory, TARGET, train=train, rngs=rngs, method="decode")[0]

    np.testing.assert_array_equal(run(dropping, memory, True), run(dropping, louder, True))
    np.testing.assert_array_equal(run(dropping, memory, False), run(plain, memory, True))
    assert not np.array_equal(run(plain, memory, True), run(plain, louder, True))


def test_attention_dropout_rescales_kept_weights():
    model = Bahdanau(config.BahdanauConfig(**SMALL, attention_dropout=0.5), 9, 7)
    variables = {"params": random_params(model, SOURCE, LENGTH, TARGET)}

    @jax.jit
    def run():
        memory = model.apply(variables, jnp.ones((8, 50), jnp.int32), jnp.full(8, 50), method="encode")
        return model.apply(variables, memory, 3, True, rngs={"dropout": jax.random.key(1)}, method="weight_dropout")

    factors = run()
    assert factors.shape == (3, 8, 50) and sorted(set(factors.ravel().tolist())) == [0.0, 2.0]
    assert 0.9 < float(factors.mean()) < 1.1


def test_dropout_of_attention_needs_attention():
    with pytest.raises(InputError, match=r"--model\.attention-dropout needs a model that attends"):
        initial(Sutskever(SutskeverConfig(**SMALL, attention_dropout=0.1), 9, 7), SOURCE, LENGTH, TARGET)


@pytest.mark.slow
def test_forget_gates_begin_open_in_every_lstm():
    layer = Layer((2,), 3, "lstm", 1.5)
    initial_bias = layer.init(jax.random.key(0), jnp.ones((1, 2)), method="project")["params"]["bias"]
    assert initial_bias.tolist() == [0.0] * 3 + [1.5] * 3 + [0.0] * 6
    _, cell = layer.apply(  # no input and no weights: the cell keeps sigmoid(1.5) of itself
        {"params": {"input_kernel": jnp.zeros((2, 12)), "recurrent_kernel": jnp.zeros((3, 12)), "bias": initial_bias}},
        jnp.broadcast_to(initial_bias, (1, 1, 12)),
        (jnp.zeros((1, 3)), jnp.ones((1, 3))),
        method="scan",
    )
    np.testing.assert_allclose(cell, 1 / (1 + np.exp(-1.5)), rtol=1e-6)
    model = GNMT(config.GNMTConfig(4, 4, "lstm", num_layers=2, readout_size=4, forget_bias=1.0), 9, 7)
    flat, _ = jax.tree_util.tree_flatten_with_path(initial(model, SOURCE, LENGTH, TARGET))
    biases = [leaf for path, leaf in flat if path[-1].key == "bias" and leaf.shape == (16,)]
    assert len(biases) == 6 and all(bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8 for bias in biases)


def test_a_gru_has_no_forget_gates():
    model = Bahdanau(config.BahdanauConfig(**SMALL, cell="gru", forget_bias=1.0), 9, 7)
    with pytest.raises(InputError, match=r"--model\.forget-bias needs --model\.cell lstm, got gru"):
        initial(model, SOURCE, LENGTH, TARGET)


def test_controller_output_is_clipped():
    """As if a bias beyond the clip were at the clip."""
    options = {"controller": "feedforward", "hidden_size": 4, "num_locations": 6, "word_size": 3}
    plain, clipped = (NTM(config.NTMConfig(**options, output_clip=clip), outputs=2) for clip in (0.0, 2.0))
    params = random_params(plain, jnp.ones((1, 3, 2)))
    params |= {"heads": np.zeros_like(params["heads"])}

    @partial(jax.jit, static_argnums=0)
    def run(model, size):
        biased = params | {"heads_bias": jnp.full_like(params["heads_bias"], size)}
        return model.apply({"params": biased}, jnp.ones((1, 3, 2)))[0]

    np.testing.assert_array_equal(run(clipped, 9.0), run(plain, 2.0))
    np.testing.assert_array_equal(run(clipped, 1.0), run(plain, 1.0))
    assert not np.array_equal(run(plain, 9.0), run(plain, 2.0))


def test_forget_gates_of_a_controller_begin_open():
    params = initial(NTM(config.NTMConfig(hidden_size=2, forget_bias=1.0), outputs=2), jnp.ones((1, 1, 2)))
    assert params["input"]["bias"].tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    model = NTM(config.NTMConfig("feedforward", forget_bias=1.0), outputs=2)
    with pytest.raises(InputError, match=r"--model\.forget-bias needs --model\.controller lstm, got feedforward"):
        initial(model, jnp.ones((1, 1, 2)))


@pytest.mark.parametrize("embed_scale, deviation", [(0.0, 0.25), (1.0, 1.0)])
def test_token_embeddings_begin_with_the_given_deviation(embed_scale, deviation):
    options = config.TransformerConfig(1, 1, hidden_size=16, mlp_dim=16, num_heads=2, embed_scale=embed_scale)
    embedding = Embedding(
        400, Block.of(options), 9, options.scale_embeddings, options.embedding_init, options.embed_scale
    )
    table = jax.jit(embedding.init)(jax.random.key(0), TARGET)["params"]["token"]["embedding"]
    assert float(table.std()) == pytest.approx(deviation, rel=0.05)


def test_xavier_embeddings_have_no_other_deviation():
    with pytest.raises(InputError, match=r"--model\.embed-scale needs --model\.embedding-init normal, got xavier"):
        Transformer(config.TransformerConfig(embedding_init="xavier", embed_scale=1.0), 9, 7)
