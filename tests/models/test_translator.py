"""Every place where attention can meet the recurrence, every score and window, shallow and deep, LSTM and GRU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.encoder import Encoder
from attention_jax.models.luong import Monotonic, Predictive
from attention_jax.models.named_scores import ScaledGeneral
from attention_jax.models.recurrent import Layer
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.scores import Dot
from experiments.papers.options import ConditionalGRUConfig, ConvolutionalConfig, SutskeverConfig

SMALL = {"hidden_size": 6, "embed_size": 4, "readout_size": 4}
ONE_WAY = {"bidirectional": "none", "decoder_init": "pass"}
MODELS = {
    "sutskever": SutskeverConfig(**SMALL, readout="state", num_layers=2, cell="lstm", **ONE_WAY),
    "sutskever-tanh": SutskeverConfig(**SMALL, readout="tanh", readout_embedding=False),
    "cho": SutskeverConfig(**SMALL, context_input="every_step", readout="linear"),
    "d2l": config.BahdanauConfig(**SMALL, num_layers=2, readout="state", **ONE_WAY),
    "bahdanau": config.BahdanauConfig(**SMALL),
    "bahdanau-lstm": config.BahdanauConfig(**SMALL, readout="linear", cell="lstm"),
    "conditional-gru": ConditionalGRUConfig(**SMALL, decoder_init="mean", tied_embeddings=True, layer_norm=True),
    "conditional-lstm": ConditionalGRUConfig(**SMALL, cell="lstm"),
    "luong": config.LuongConfig(**SMALL, input_feeding=False, num_layers=2),
    "luong-feeding": config.LuongConfig(**SMALL, score="dot", cell="lstm", num_layers=2, **ONE_WAY),
    "luong-additive": config.LuongConfig(**SMALL, score="additive"),
    "location": config.LuongConfig(**SMALL, score="location"),
    "local-m": config.LuongConfig(**SMALL, input_feeding=False, window="monotonic", window_size=1),
    "local-p": config.LuongConfig(**SMALL, window="predictive", window_size=2),
    "gnmt": config.GNMTConfig(**SMALL, bidirectional="first", num_layers=3, cell="lstm", readout="linear"),
    "gnmt-hidden": config.GNMTConfig(**SMALL, bidirectional="none", decoder_init="hidden", num_layers=2, cell="lstm"),
}


def module(options, source_vocab=11, target_vocab=9):
    return config.import_object(options.module)(options, source_vocab, target_vocab)


EACH_DECODER = ("sutskever", "bahdanau", "conditional-gru", "luong-feeding", "local-p", "gnmt")


@pytest.mark.parametrize("name", slow_but(EACH_DECODER, MODELS))
def test_contract(name, contract):
    contract.check(module(MODELS[name]))


def count(options, *sizes):
    shapes = jax.eval_shape(
        module(options, *sizes).init,
        jax.random.key(0),
        jnp.ones((1, 2), jnp.int32),
        jnp.ones(1, jnp.int32),
        jnp.ones((1, 2), jnp.int32),
    )
    return sum(x.size for x in jax.tree.leaves(shapes))


def test_sizes_by_hand():
    gru = lambda inputs, h: 3 * h * (inputs + h + 1) + h  # torch has 3 h + 3 h biases, of which only these 4 h matter
    # d2l's encoder-decoder with attention: 2 layers, embed = hidden = 256, vocabularies 184 and 201
    attention = 256 * 256 * 2 + 256
    expected = 184 * 256 + 2 * gru(256, 256) + 201 * 256 + gru(512, 256) + gru(256, 256) + attention + 257 * 201
    assert count(config.BahdanauConfig(256, 256, num_layers=2, readout="state", **ONE_WAY), 184, 201) == expected
    # bentrevett's: bidirectional 512, embed 256, readout [state; context; embedding], vocabularies 7855 and 5893
    bridge, attention = 1024 * 512 + 512, 512 * 512 + 1024 * 512 + 512
    expected = (
        (7855 + 5893) * 256
        + 2 * gru(256, 512)
        + bridge
        + attention
        + gru(256 + 1024, 512)
        + (512 + 1024 + 256 + 1) * 5893
    )
    assert count(config.BahdanauConfig(512, 256, readout="linear"), 7855, 5893) == expected


def test_hidden_init_equals_the_book_model(contract):
    """Its LSTM's cell is zero: "Deep Learning from Scratch 2", chapter 7, whose model is another implementation."""
    sizes = {"hidden_size": 6, "embed_size": 4, "cell": "lstm"}
    sutskever = module(SutskeverConfig(**sizes, bidirectional="none", decoder_init="hidden", readout="state"))
    book = module(config.Seq2seqConfig(**sizes))
    variables = contract.variables_of(sutskever)["params"]
    renamed = {{"stack_0": "layer"}.get(name, name): value for name, value in variables.items()}
    arguments = contract.SOURCE, contract.LENGTH, contract.TARGET
    logits, expected = (
        jax.jit(model.apply)({"params": params}, *arguments)[0]
        for model, params in ((sutskever, variables), (book, renamed))
    )
    np.testing.assert_allclose(logits, expected, atol=1e-5)


RECURRENT = {
    "bahdanau": config.BahdanauConfig(**SMALL, score="cosine", **ONE_WAY),
    "conditional-gru": ConditionalGRUConfig(**SMALL, score="cosine", **ONE_WAY),
    "luong": config.LuongConfig(**SMALL, score="cosine", input_feeding=False, **ONE_WAY),
    "luong-feeding": config.LuongConfig(**SMALL, score="cosine", **ONE_WAY),
    "gnmt": config.GNMTConfig(**SMALL, score="cosine", **ONE_WAY),
    "book": config.AttentionSeq2seqConfig(hidden_size=6, embed_size=4, score="cosine"),
    "book-luong": config.LuongSeq2seqConfig(hidden_size=6, embed_size=4, score="cosine"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    slow_but(["luong-feeding"], RECURRENT),
)
def test_cosine_score_learns_a_sharpness(name, contract):
    """It starts at the square root of the width, as large as what a dot product is divided by."""
    model, call = module(RECURRENT[name]), (contract.SOURCE, contract.LENGTH, contract.TARGET)
    params = jax.jit(model.init)(jax.random.key(0), *call)
    gradient = jax.jit(jax.grad(lambda params: model.apply(params, *call)[0].std()))(params)
    [(path, start)] = [(path, x) for path, x in jax.tree.leaves_with_path(params) if "score" in str(path)]
    assert start == pytest.approx(6**0.5) and "sharpness" in str(path[-1])
    assert np.abs(dict(jax.tree.leaves_with_path(gradient))[path]) > 0


def sparsemax(row):
    """Martins & Astudillo 2016, algorithm 1, of the finite entries."""
    ordered = np.sort(row[np.isfinite(row)])[::-1]
    sums = np.cumsum(ordered)
    k = np.arange(1, len(ordered) + 1)
    support = k[1 + k * ordered > sums][-1]
    return np.where(np.isfinite(row), np.maximum(row - (sums[support - 1] - 1) / support, 0), 0)


NORMALIZED = {name: dataclasses.replace(options, score="general") for name, options in RECURRENT.items()}
NORMALIZED["local-m"] = config.LuongConfig(**SMALL, window="monotonic", window_size=1)
NORMALIZED["convolutional"] = ConvolutionalConfig(hidden_size=6, embed_size=4, num_layers=1)


@pytest.mark.parametrize(
    "name",
    slow_but(["book"], NORMALIZED),
)
def test_any_normalizer_weighs_the_source(name, contract):
    """Of the same scores: a sparsemax does not change when they are shifted, so log softmax does as well as scores.
    One step, since later scores depend on what the first has read."""
    call = contract.SOURCE, contract.LENGTH, contract.TARGET[:, :1]
    dense, sparse = (module(dataclasses.replace(NORMALIZED[name], normalizer=n)) for n in ("softmax", "sparsemax"))
    variables = contract.variables_of(dense)
    assert jax.tree.structure(variables) == jax.tree.structure(contract.variables_of(sparse))
    run = lambda model: jax.jit(functools.partial(model.apply, return_weights=True))(variables, *call)[1]
    weights, actual = (np.asarray(run(model)["cross_attention"])[:, 0, 0, 0] for model in (dense, sparse))
    with np.errstate(divide="ignore"):
        expected = np.stack([sparsemax(row) for row in np.log(weights)])
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert not np.allclose(weights, expected, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(config.LuongConfig(**SMALL, normalizer="learned_entmax", **ONE_WAY), marks=pytest.mark.slow),
        pytest.param(config.BahdanauConfig(**SMALL, normalizer="learned_sink"), marks=pytest.mark.slow),
        pytest.param(config.BahdanauConfig(**SMALL, normalizer="ssmax"), marks=pytest.mark.slow),
        pytest.param(
            config.LuongSeq2seqConfig(hidden_size=6, embed_size=4, normalizer="learned_sigmoid"), marks=pytest.mark.slow
        ),
        pytest.param(
            ConvolutionalConfig(hidden_size=6, embed_size=4, num_layers=2, normalizer="learned_sigmoid"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda options: type(options).__name__,
)
def test_contract_of_a_normalizer_with_a_learned_number(options, contract):
    contract.check(module(options))
    shapes = jax.eval_shape(
        module(options).init, jax.random.key(0), *(contract.SOURCE, contract.LENGTH, contract.TARGET)
    )
    learned = [x.shape for path, x in jax.tree.leaves_with_path(shapes) if "normaliser" in jax.tree_util.keystr(path)]
    assert learned == [()] * (options.num_layers if isinstance(options, ConvolutionalConfig) else 1)


def test_a_normalizer_that_does_not_exist_is_refused(contract):
    with pytest.raises(InputError, match="--model.normalizer.*sparsemax.*sparsmax"):
        config.BahdanauConfig(**SMALL, normalizer="sparsmax")
    with pytest.raises(InputError, match="--model.normalizer top_k"):
        model = module(config.LuongConfig(**SMALL, normalizer="top_k"))
        jax.eval_shape(model.init, jax.random.key(0), contract.SOURCE, contract.LENGTH, contract.TARGET)


def test_bahdanau_step_by_hand(contract):
    """One step in NumPy: alpha = softmax(v . tanh(W s + U h)), s' = GRU([y; c], s), logits from [s'; c; y]."""
    model = module(config.BahdanauConfig(**SMALL, readout="linear"))
    variables = contract.variables_of(model)
    p = jax.tree.map(np.asarray, variables["params"])
    memory = jax.tree.map(
        np.asarray,
        jax.jit(functools.partial(model.apply, method="encode"))(variables, contract.SOURCE, contract.LENGTH),
    )
    s, h = memory.states[0][0][0], memory.hidden[0]
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
    new_state = (1 - z) * np.tanh(n + r * (un + layer["inner_bias"])) + z * s
    expected = np.concatenate([new_state, c, y]) @ p["kernel"] + p["bias"]
    call = jax.jit(functools.partial(model.apply, return_weights=True))
    logits, intermediates = call(variables, contract.SOURCE[:1], contract.LENGTH[:1], jnp.array([[1]]))
    np.testing.assert_allclose(logits[0, 0], expected, atol=1e-5)
    np.testing.assert_allclose(intermediates["cross_attention"][0, 0, 0, 0], alpha, atol=1e-5)


def test_input_feeding_by_hand(contract):
    """Two steps in NumPy: h_t = GRU([y; h~], h), alpha = softmax(h W h_s), h~ = tanh(W_c [h; c]) goes on."""
    model = module(config.LuongConfig(**SMALL))
    variables = contract.variables_of(model)
    p = jax.tree.map(np.asarray, variables["params"])
    encode = jax.jit(functools.partial(model.apply, method="encode"))
    memory = jax.tree.map(np.asarray, encode(variables, contract.SOURCE, contract.LENGTH))
    h, annotations, layer, fed = memory.states[0][0][0], memory.hidden[0], p["stack_0"], np.zeros(4)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    for token in (1, 2):
        inputs = np.concatenate([p["embed"]["table"][token], fed]) @ layer["input_kernel"] + layer["bias"]
        ur, uz, un = np.split(h @ layer["recurrent_kernel"], 3)
        r, z, n = np.split(inputs, 3)
        r, z = sigmoid(r + ur), sigmoid(z + uz)
        h = (1 - z) * np.tanh(n + r * (un + layer["inner_bias"])) + z * h
        e = annotations @ (h @ p["alignment"]["score"]["kernel"])
        context = np.exp(e) / np.exp(e).sum() @ annotations
        fed = np.tanh(np.concatenate([h, context]) @ p["readout_kernel"] + p["readout_bias"])
    logits, _ = jax.jit(model.apply)(variables, contract.SOURCE[:1], contract.LENGTH[:1], jnp.array([[1, 2]]))
    np.testing.assert_allclose(logits[0, 1], fed @ p["kernel"] + p["bias"], atol=1e-5)


def test_scaled_general_divides_by_root_of_width():
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape)
    query, key, kernel = draw(0, 3, 16), draw(1, 5, 9), draw(2, 16, 9)
    expected = np.asarray(query @ kernel @ key.T) / 4
    prepared_score, prepared = ScaledGeneral(kernel).prepare_key(key)
    for scores in (ScaledGeneral(kernel)(query, key), prepared_score(query, prepared)):
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_the_window_moves_with_the_step(input_feeding, contract):
    """Of all weights of the model, beside the formulas below: those within reach of step t, which sum to one."""
    model = module(config.LuongConfig(**SMALL, input_feeding=input_feeding, window="monotonic", window_size=1))
    call = jax.jit(functools.partial(model.apply, return_weights=True))
    _, intermediates = call(contract.variables_of(model), contract.SOURCE, contract.LENGTH, contract.TARGET)
    weights = np.asarray(intermediates["cross_attention"][:, 0, 0])  # [B, T, S]
    distance = np.abs(np.arange(6)[None] - np.arange(4)[:, None])
    assert (weights[:, distance > 1] == 0).all() and (weights[0][distance <= 1] > 0).all()
    np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-6)


def carry_shapes(scan):
    """The shapes that a scan carries: results with no axis of steps before what its body gives."""
    body = getattr(scan.params["jaxpr"], "jaxpr", scan.params["jaxpr"])
    pairs = zip(scan.outvars, body.outvars, strict=True)
    return [outside.aval.shape for outside, inside in pairs if outside.aval.shape == inside.aval.shape]


def scan_carries(jaxpr):
    """The shapes that the scans of a jaxpr carry, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield from carry_shapes(equation)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            body = getattr(parameter, "jaxpr", parameter)
            if hasattr(body, "eqns"):
                yield from scan_carries(body)


@pytest.mark.parametrize("name", slow_but(["luong-feeding"], ["bahdanau", "conditional-gru", "luong-feeding", "gnmt"]))
def test_scans_carry_no_matrix_gradients(name, contract):
    model = module(MODELS[name])
    variables = contract.variables_of(model)
    loss = lambda v: model.apply(v, contract.SOURCE, contract.LENGTH, contract.TARGET)[0].sum()
    carries = set(scan_carries(jax.make_jaxpr(jax.grad(loss))(variables).jaxpr))
    matrices = {x.shape for x in jax.tree.leaves(variables) if x.ndim == 2 and x.size > 24}
    assert carries and not carries & matrices


def test_recurrent_bias_adds_to_the_gates(contract):
    plain, biased = (module(dataclasses.replace(MODELS["d2l"], recurrent_bias=flag)) for flag in (False, True))
    variables = contract.variables_of(biased)
    paths, tree = jax.tree_util.tree_flatten_with_path(variables["params"])
    layers = {path[:-1]: {} for path, _ in paths}
    for path, leaf in paths:
        layers[path[:-1]][path[-1].key] = leaf
    sum_biases = lambda layer: layer["bias"].at[:12].add(layer["recurrent_bias"])  # gates r and z of 6 units
    merged = [
        sum_biases(layers[path[:-1]]) if path[-1].key == "bias" and "recurrent_bias" in layers[path[:-1]] else leaf
        for path, leaf in paths
        if path[-1].key != "recurrent_bias"
    ]
    names = jax.tree.structure(contract.variables_of(plain)["params"])
    inputs = (contract.SOURCE, contract.LENGTH, contract.TARGET)
    actual = jax.jit(plain.apply)({"params": jax.tree.unflatten(names, merged)}, *inputs)[0]
    assert sum("recurrent_bias" in layer for layer in layers.values()) == 4
    np.testing.assert_allclose(actual, jax.jit(biased.apply)(variables, *inputs)[0], atol=1e-6)


def test_recurrent_bias_starts_as_in_pytorch_and_d2l(contract):
    layer = Layer((64, 64), 64, "gru", recurrent_bias=True)
    draw = functools.partial(layer.init, method="project")
    params = jax.jit(draw)(jax.random.key(0), jnp.ones((1, 64)))["params"]
    bounds = {"bias": 1 / 8, "inner_bias": 1 / 8, "recurrent_bias": 1 / 8}
    bounds |= {"input_kernel": (6 / (128 + 192)) ** 0.5, "recurrent_kernel": (6 / (64 + 192)) ** 0.5}
    assert params.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert 0.9 * bound < np.abs(params[name]).max() <= bound and abs(np.mean(params[name])) < 0.2 * bound
    with pytest.raises(InputError, match="--model.recurrent-bias"):
        options = dataclasses.replace(MODELS["bahdanau-lstm"], recurrent_bias=True, forget_bias=1.0)
        jax.eval_shape(module(options).init, jax.random.key(0), contract.SOURCE, contract.LENGTH, contract.TARGET)


def test_dropout_acts_only_in_training(contract):
    def logits(train, **rates):
        model = module(dataclasses.replace(MODELS["d2l"], **rates))
        variables = contract.variables_of(module(MODELS["d2l"]))
        call = lambda v: model.apply(
            v, contract.SOURCE, contract.LENGTH, contract.TARGET, train=train, rngs={"dropout": jax.random.key(0)}
        )
        return jax.jit(call)(variables)[0]

    plain, names = logits(True), ("embed_dropout", "layer_dropout", "memory_dropout", "output_dropout")
    np.testing.assert_allclose(logits(False, **dict.fromkeys(names, 0.5)), plain, atol=1e-5)
    for name in names:
        assert not np.allclose(logits(True, **{name: 0.5}), plain, atol=1e-3), name


@pytest.mark.parametrize(
    "options, message",
    [
        (config.BahdanauConfig(decoder_init="pass"), "use decoder_init dense or mean"),
        (config.BahdanauConfig(decoder_init="hidden"), "use decoder_init dense or mean"),
        (config.BahdanauConfig(score="dot"), "use general"),
        (config.BahdanauConfig(tied_embeddings=True, readout="state"), "readout_size equal to embed_size"),
        (ConditionalGRUConfig(num_layers=2), "has one layer"),
        (SutskeverConfig(memory_dropout=0.5), "start from the mean"),
    ],
)
def test_impossible_combinations_are_named(options, message):
    with pytest.raises(InputError, match=message):
        count(options)


def test_local_windows_are_their_formulas():
    """Luong et al. 2015, section 3.2, in NumPy: which positions, and a Gaussian of deviation D / 2 about p_t."""
    rng, reach = np.random.default_rng(0), 2
    key, query, kernel, vector = (
        rng.normal(size=shape).astype(np.float32) for shape in ((2, 9, 3), (2, 3), (3, 3), (3, 1))
    )
    length, time, place = np.array([9, 6]), np.array([4, 1]), np.arange(9)[None]
    exponent = np.exp(np.einsum("bsf,bf->bs", key, query))

    def softmax(center):
        allowed = (place < length[:, None]) & (np.abs(place - center) <= reach)
        return exponent * allowed / (exponent * allowed).sum(1, keepdims=True)

    fields = Dot(), jnp.asarray(key), jnp.asarray(length), None, Softmax()
    weights = jax.jit(Monotonic(*fields, reach))(jnp.asarray(query), jnp.asarray(time))
    np.testing.assert_allclose(weights, softmax(time[:, None]), atol=1e-6)
    center = length[:, None] / (1 + np.exp(-np.tanh(query @ kernel) @ vector))
    predictive = Predictive(*fields, reach, jnp.asarray(kernel), jnp.asarray(vector))
    weights = jax.jit(lambda query: predictive(query, None))(jnp.asarray(query))
    np.testing.assert_allclose(weights, softmax(center) * np.exp(-((place - center) ** 2) / 2), atol=1e-6)


def test_top_decoder_layer_queries_the_source(contract):
    """The first weights depend on the first state of the top layer alone. One program."""
    model = module(config.BahdanauConfig(**SMALL, num_layers=2))
    params = contract.variables_of(model)["params"]
    call = jax.jit(functools.partial(model.apply, return_weights=True))

    def first(**changed):
        inputs = contract.SOURCE, contract.LENGTH, contract.TARGET
        return np.asarray(call({"params": params | changed}, *inputs)[1]["cross_attention"][:, 0, 0, 0])

    scale_params = lambda name: {name: jax.tree.map(lambda x: 3.0 * x + 0.5, params[name])}
    np.testing.assert_array_equal(first(**scale_params("bridge_0")), first())
    assert not np.allclose(first(**scale_params("bridge_1")), first(), atol=1e-3)


def test_dropout_between_layers_leaves_the_last_one_alone():
    model = Encoder(vocab=5, embed_size=2, hidden_size=3, layer_dropout=0.5, embed_scale=1.0)
    source, length = jnp.array([[1, 2, 3]]), jnp.array([3])
    variables, rngs = jax.jit(model.init)(jax.random.key(0), source, length), {"dropout": jax.random.key(1)}
    call = jax.jit(model.apply, static_argnames="train")
    hidden = lambda train: call(variables, source, length, train=train, rngs=rngs)[0]
    np.testing.assert_array_equal(hidden(True), hidden(False))


def test_backward_states_stand_at_their_tokens():
    """The state at a position has read the tokens from there on: another first token changes the first alone."""
    model = Encoder(vocab=6, embed_size=3, hidden_size=2, bidirectional="all", embed_scale=1.0)
    source, length = jnp.array([[1, 2, 3, 4, 0], [5, 2, 3, 4, 0]]), jnp.array([4, 4])
    variables = jax.jit(model.init)(jax.random.key(0), source, length)
    states, changed_states = np.asarray(
        jax.jit(model.apply)(variables, source, length)[0]
    )  # [S, forward 2 and backward 2] each
    changed = np.abs(states - changed_states)[:4] > 1e-6
    assert changed[:, :2].all() and changed[:, 2:].any(axis=1).tolist() == [True, False, False, False]
