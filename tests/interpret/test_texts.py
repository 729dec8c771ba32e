"""Interventions in texts of different lengths, each as if it were alone, and while a text is written, with the KV cache
as in a full pass over the text so far. 12 CPU-seconds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import InputError, config, generate, interpret, models
from attention_jax.interpret import Batch, Part

LAYERS, HEADS, SIZE, VOCAB = 2, 4, 16, 23


def make_model(**options):
    options = {
        "num_layers": LAYERS,
        "hidden_size": SIZE,
        "mlp_dim": 32,
        "num_heads": HEADS,
        "num_kv_heads": 2,
    } | options
    model = models.LanguageModel(config.LanguageModelConfig(**options), vocab=VOCAB)
    params = jax.jit(model.init)(jax.random.key(0), np.ones((1, 3), np.int32))["params"]
    return model, jax.tree.map(lambda x: 3 * np.asarray(x), params)  # of a text that does not repeat one token


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


CAUSAL = np.tri(9, dtype=bool)
EDITS = {  # of texts of 9 tokens: prompts of 5 and 3, continued by 5
    "values": {
        "decoder.embedding": Part(normal(SIZE), positions=-1),
        "decoder.0.residual_in": Part(normal(SIZE), adds=True),
        "decoder.0.key": Part(normal(9, 1, 1), adds=True),
        "decoder.0.weights": Part(normal(HEADS, 9, 9), adds=True, where=CAUSAL),
        "decoder.1.scores": Part(-1e9, where=np.eye(9, dtype=bool)),
        "decoder.1.mlp_hidden": Part(0.0, positions=[3, 6]),
        "decoder.1.attention_output": Part(normal(2, 9, SIZE), rows=1),
        "logits": Part(3 * normal(VOCAB), adds=True),
    },
    "functions": {
        "decoder.0.head.2": jnp.zeros_like,
        "decoder.1.key": lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
        "decoder.1.value": jnp.tanh,
        "decoder.1.weights": lambda x: x**2,
        "decoder.final_norm": jnp.sin,
    },
}


@pytest.mark.parametrize(
    ("name", "scan"), [("functions", True), ("values", False), pytest.param("values", True, marks=pytest.mark.slow)]
)
def test_a_cached_step_with_edits_is_a_full_pass_with_them(name, scan):
    """Every token that is written is the most probable one of a full pass over the text so far, with the edits of `run`
    restricted to it; position -1 is the last of each prompt."""
    model, params = make_model(scan_layers=scan)
    prompt, lengths = np.int32([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]]), np.int32([5, 3])
    edits = jax.jit(lambda params: interpret.decoding_edits(model, params, prompt, lengths, 5, EDITS[name]))(params)
    write = jax.jit(lambda *x: generate(model, x[0], prompt, lengths, 5, edits=x[1], temperature=0.0))
    written = np.asarray(write(params, edits))
    apply = jax.jit(model.apply)
    for row in range(2):
        length, tokens = lengths[row], np.zeros((2, 9), np.int32)
        tokens[row, : length + 4] = np.concatenate([prompt[row, :length], written[row, :-1]])
        edits_of_row = {site: _at_position(edit, int(length) - 1) for site, edit in EDITS[name].items()}
        logits = np.asarray(interpret.run(model, params, tokens, set=edits_of_row)[0])[row]
        np.testing.assert_array_equal(logits[length - 1 : length + 4].argmax(-1), written[row])
        plain = np.asarray(apply({"params": params}, tokens)[0])[row]  # the test sees the edits
        assert (plain[length - 1 : length + 4].argmax(-1) != written[row]).any()
    assert len(np.unique(written)) > 2


def _at_position(edit, position):
    """A Part of the position -1 as one of another position."""
    is_last = isinstance(edit, Part) and edit.positions == (-1,)
    return Part(edit.value, positions=position) if is_last else edit


TEXTS = [[3, 1, 4, 1, 5, 9], [2, 6, 2]]


@pytest.fixture(scope="module")
def model():
    return make_model(scan_layers=True)


@pytest.fixture(scope="module")
def batch():
    return Batch(np.int32([TEXTS[0], [*TEXTS[1], 7, 7, 7]]), np.int32([6, 3]))


@pytest.mark.slow
def test_the_last_position_is_that_of_each_text(model, batch):
    edits = {"decoder.0.mlp_output": Part(1.0, positions=-1), "decoder.1.head.2": Part(0.0, positions=[0, -2])}
    logits, activations = jax.device_get(interpret.run(*model, batch, set=edits, sites="decoder.1.weights"))
    scores = interpret.head_scores(activations["decoder.1.weights"], batch)
    sums, last = dict.fromkeys(scores, 0.0), batch.last(logits)
    for row, text in enumerate(TEXTS):
        alone, weights = interpret.run(*model, np.int32([text]), set=edits, sites="decoder.1.weights")
        np.testing.assert_allclose(logits[row, : len(text)], alone[0], atol=2e-5)
        np.testing.assert_array_equal(last[row], logits[row, len(text) - 1])
        text_scores = interpret.head_scores(weights["decoder.1.weights"], np.int32([text]))
        queries = {"previous token": len(text) - 1, "first token": len(text) - 1}
        sums |= {kind: sums[kind] + count * text_scores[kind] for kind, count in queries.items()}
    for kind in ("previous token", "first token"):  # each query counts once: five and two
        np.testing.assert_allclose(scores[kind], sums[kind] / 7, atol=1e-5)


def test_the_mean_of_a_padded_batch_is_that_of_its_tokens(model, batch):
    activations = interpret.trace(*model, batch, sites=["decoder.1.mlp_output"])
    mean = interpret.ablate("decoder.1.mlp_output", "mean", source=activations, mask=batch.mask)[
        "decoder.1.mlp_output"
    ].value
    tokens = [x[: len(text)] for x, text in zip(np.asarray(activations["decoder.1.mlp_output"]), TEXTS)]
    np.testing.assert_allclose(mean[0, 0], np.concatenate(tokens).mean(0), atol=1e-6)
    measure = lambda logits: batch.last(logits)[:, 0].sum()
    alone = [interpret.direct_attribution(*model, np.int32([text]), measure=lambda x: x[0, -1, 0]) for text in TEXTS]
    both = interpret.direct_attribution(*model, batch, measure=measure)
    jax.tree.map(lambda x, *xs: np.testing.assert_allclose(x, sum(xs), rtol=1e-3, atol=1e-3), both, *alone)


@pytest.mark.parametrize("position", [3, -4])
def test_a_position_that_a_text_has_not_is_one_line(model, batch, position):
    with pytest.raises(InputError, match=rf"has positions 0 to 2 in this call, got position {position}$"):
        interpret.run(*model, batch, set={"decoder.0.mlp_output": Part(1.0, positions=position)})
