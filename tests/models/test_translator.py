"""Every place where attention can meet the recurrence, every score and window, shallow and deep, LSTM and GRU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import InputError
from attention_jax.models.translator import Translator

small = dict(source_vocab=11, target_vocab=9, hidden_size=6, embed_size=4, readout_size=4)
ONE_WAY = dict(bidirectional="none", start_from="pass")
MODELS = {
    "sutskever": dict(attention="none", readout="state", layers=2, cell="lstm", **ONE_WAY),
    "cho": dict(attention="last", readout="linear"),
    "d2l": dict(attention="before", layers=2, readout="state", **ONE_WAY),
    "bahdanau": dict(attention="before", readout="maxout"),
    "bahdanau-lstm": dict(attention="before", readout="linear", cell="lstm"),
    "conditional-gru": dict(attention="between", readout="tanh", start_from="mean", tied=True, layer_norm=True),
    "conditional-lstm": dict(attention="between", readout="tanh", cell="lstm", layers=2),
    "luong-after": dict(attention="after", score="general", readout="tanh", readout_embedding=False, layers=2),
    "luong-feeding": dict(
        attention="feeding", score="dot", readout="tanh", readout_embedding=False, cell="lstm", layers=2, **ONE_WAY
    ),
    "context-feeding": dict(attention="feeding", score="concat", readout="linear"),
    "maxout-feeding": dict(attention="feeding", score="additive", readout="maxout"),
    "location": dict(attention="feeding", score="location", readout="tanh"),
    "local-m": dict(attention="after", score="general", window="monotonic", window_size=1, readout="tanh"),
    "local-p": dict(attention="feeding", score="general", window="predictive", window_size=2, readout="tanh"),
    "gnmt": dict(
        attention="first_layer", bidirectional="first", layers=3, residual=True, cell="lstm", readout="linear"
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_contract(name, contract):
    contract.check(Translator(**small, **MODELS[name]))


def count(**options):
    model = Translator(**{**small, **options})
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), jnp.ones((1, 2), jnp.int32), jnp.ones(1, jnp.int32), jnp.ones((1, 2), jnp.int32)
    )
    return sum(x.size for x in jax.tree.leaves(shapes))


def test_sizes_by_hand():
    gru = lambda inputs, h: 3 * h * (inputs + h + 1) + h  # torch has 3 h + 3 h biases, of which only these 4 h matter
    # d2l's encoder-decoder with attention: 2 layers, embed = hidden = 256, vocabularies 184 and 201
    attention = 256 * 256 * 2 + 256
    want = 184 * 256 + 2 * gru(256, 256) + 201 * 256 + gru(512, 256) + gru(256, 256) + attention + 257 * 201
    got = dict(
        source_vocab=184, target_vocab=201, hidden_size=256, embed_size=256, layers=2, readout="state", **ONE_WAY
    )
    assert count(**got) == want
    # bentrevett's Bahdanau: bidirectional 512, embed 256, readout [state; context; embedding], vocabularies 7855 and 5893
    bridge, attention = 1024 * 512 + 512, 512 * 512 + 1024 * 512 + 512
    want = (
        (7855 + 5893) * 256
        + 2 * gru(256, 512)
        + bridge
        + attention
        + gru(256 + 1024, 512)
        + (512 + 1024 + 256 + 1) * 5893
    )
    got = dict(source_vocab=7855, target_vocab=5893, hidden_size=512, embed_size=256, readout="linear")
    assert count(**got) == want


def test_bahdanau_step_by_hand(contract):
    """One step in NumPy: alpha = softmax(v . tanh(W s + U h)), s' = GRU([y; c], s), logits from [s'; c; y]."""
    model = Translator(**small, attention="before", readout="linear")
    variables = contract.variables_of(model)
    p = jax.tree.map(np.asarray, variables["params"])
    memory = jax.tree.map(
        np.asarray,
        jax.jit(functools.partial(model.apply, method="encode"))(variables, contract.SOURCE, contract.LENGTH),
    )
    s, h = memory["states"][0][0][0], memory["hidden"][0]
    score = p["alignment"]["score"]
    e = np.tanh(s @ score["query_kernel"] + h @ score["key_kernel"]) @ score["vector"]
    alpha = np.exp(e) / np.exp(e).sum()
    c, y = alpha @ h, p["embed"]["table"][1]
    layer = p["stack_0"]
    inputs = np.concatenate([y, c]) @ layer["input_kernel"] + layer["bias"]
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    r, z, n = np.split(inputs, 3)
    ur, uz, un = np.split(s @ layer["recurrent_kernel"], 3)
    r, z = sigmoid(r + ur), sigmoid(z + uz)
    new = (1 - z) * np.tanh(n + r * (un + layer["inner_bias"])) + z * s
    want = np.concatenate([new, c, y]) @ p["kernel"] + p["bias"]
    call = jax.jit(functools.partial(model.apply, look=True))
    logits, seen = call(variables, contract.SOURCE[:1], contract.LENGTH[:1], jnp.array([[1]]))
    np.testing.assert_allclose(logits[0, 0], want, atol=1e-5)
    np.testing.assert_allclose(seen["cross_attention"][0, 0, 0, 0], alpha, atol=1e-5)


def test_windows(contract):
    def weights(**options):
        model = Translator(**small, attention="after", score="general", readout="tanh", **options)
        call = jax.jit(lambda *a: model.apply(*a, look=True))
        _, seen = call(contract.variables_of(model), contract.SOURCE, contract.LENGTH, contract.TARGET)
        return np.asarray(seen["cross_attention"][:, 0, 0])  # [B, T, S]

    monotonic = weights(window="monotonic", window_size=1)
    distance = np.abs(np.arange(6)[None] - np.arange(4)[:, None])
    assert (monotonic[:, distance > 1] == 0).all() and (monotonic[0][distance <= 1] > 0).all()
    np.testing.assert_allclose(monotonic[0].sum(-1), 1, atol=1e-6)
    predictive = weights(window="predictive", window_size=2)
    assert (predictive.sum(-1) < 1).all() and (predictive.sum(-1) > 0.1).all()  # the Gaussian is not renormalised


def test_dropout_acts_in_training_only_and_everywhere_it_is_asked_for(contract):
    def logits(train, **rates):
        model = Translator(**small, **MODELS["d2l"], **rates)
        arguments = (
            contract.variables_of(Translator(**small, **MODELS["d2l"])),
            contract.SOURCE,
            contract.LENGTH,
            contract.TARGET,
        )
        return jax.jit(lambda *a: model.apply(*a, train=train, rngs={"dropout": jax.random.key(0)})[0])(*arguments)

    plain, names = logits(True), ("embed_dropout", "layer_dropout", "memory_dropout", "output_dropout")
    np.testing.assert_allclose(logits(False, **dict.fromkeys(names, 0.5)), plain, atol=1e-5)
    for name in names:
        assert not np.allclose(logits(True, **{name: 0.5}), plain, atol=1e-3), name


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(start_from="pass"), "use start_from dense or mean"),
        (dict(score="dot"), "use general"),
        (dict(tied=True, readout="state"), "change readout_size"),
    ],
)
def test_impossible_combinations_are_named(options, message):
    with pytest.raises(InputError, match=message):
        count(**options)
