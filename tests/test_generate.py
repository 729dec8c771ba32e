"""`sampling.generate`: prompts of different lengths, sampling and what ends a text."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import UNOPTIMIZED

from attention_jax import config
from attention_jax.config import replace
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.recurrent_lm import RecurrentLanguageModel
from attention_jax.sampling import generate

PROMPT, LENGTHS = jnp.array([[1, 2, 3, 4], [5, 6, 9, 9], [2, 9, 9, 9]], jnp.int32), jnp.array([4, 2, 1])
SMALL = config.LanguageModelConfig(
    num_layers=2, hidden_size=8, num_heads=2, num_kv_heads=1, mlp_dim=12, per_layer="0:mask=window(2)"
)
RECURRENT = config.RecurrentLanguageModelConfig(hidden_size=8)
MODELS = {
    "scanned": LanguageModel(replace(SMALL, scan_layers=True), 10),
    "unrolled": LanguageModel(replace(SMALL, position_embedding="alibi"), 10),
    "learned": LanguageModel(replace(SMALL, position_embedding="learned", max_length=10), 10),
    "recurrent": RecurrentLanguageModel(RECURRENT, 10),
}


def params_of(model, seed=0):
    shapes = jax.eval_shape(model.init, jax.random.key(0), PROMPT)["params"]
    r = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape), jnp.float32), shapes)


def greedily(whole, prompt, length):
    """The most probable tokens, each from a whole pass over the text so far."""
    text = list(prompt)
    for _ in range(length):
        padded = np.zeros((1, PROMPT.shape[1] + length), np.int32)
        padded[0, : len(text)] = text
        text.append(int(np.asarray(whole(padded))[0, len(text) - 1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize(
    "name", ["scanned", "recurrent", *(pytest.param(x, marks=pytest.mark.slow) for x in ("unrolled", "learned"))]
)
def test_each_row_continues_as_by_whole_passes(name):
    """Two programs: `generate` for the batch, and a whole pass over one row."""
    model, length = MODELS[name], 6
    params = params_of(model)
    run = jax.jit(lambda p, x, n: generate(model, p, x, n, length, temperature=0.0), compiler_options=UNOPTIMIZED)
    written = run(params, PROMPT, LENGTHS)
    whole = jax.jit(lambda x: model.apply({"params": params}, x)[0], compiler_options=UNOPTIMIZED)
    for row, alone in enumerate(LENGTHS.tolist()):
        assert written[row].tolist() == greedily(whole, PROMPT[row, :alone].tolist(), length)


class Chain:
    """The next token's logits are a row of a table; `start` and `step` alone."""

    def __init__(self, table):
        self.table = jnp.asarray(table, jnp.float32)

    def apply(self, variables, *args, method):
        if method == "start":
            return {"steps": jnp.zeros((args[0],), jnp.int32)}
        cache, token = args
        return self.table[token], {"steps": cache["steps"] + 1}, {}


ROTATE = 5.0 * np.roll(np.eye(4), 1, axis=1)  # 0 -> 1 -> 2 -> 3 -> 0


def run_chain(table, prompt, lengths, length, **options):
    inputs = jnp.array(prompt, jnp.int32), jnp.array(lengths)
    return jax.jit(lambda: generate(Chain(table), {}, *inputs, length, **options))()


def test_generation_stops_after_every_row_ended():
    steps = []
    call = {"temperature": 0.0, "pad": 9, "stream": lambda tokens: steps.append(tokens.tolist())}
    written = run_chain(ROTATE, [[0, 0], [0, 1]], [1, 2], 50, eos=3, **call)
    jax.effects_barrier()
    assert written[:, :5].tolist() == [[1, 2, 3, 9, 9], [2, 3, 9, 9, 9]] and (written[:, 5:] == 9).all()
    assert steps == [[1, 2], [2, 3], [3, 9]]  # and not 50
    assert run_chain(ROTATE, [[0]], [1], 4, eos=(2, 3), **call).tolist() == [[1, 2, 9, 9]]
    assert run_chain(ROTATE, [[0]], [1], 6, **call).tolist() == [[1, 2, 3, 0, 1, 2]]


def test_the_repetition_penalty_by_hand():
    """Token 0 has the logit 4 and, once seen, 4 / 2; -1 becomes -2; padding behind a prompt is not seen."""
    table = np.tile([4.0, 3.0, 2.5, -1.0], (4, 1))
    run = partial(run_chain, table, temperature=0.0)
    assert run([[3]], [1], 4, repetition_penalty=2.0).tolist() == [[0, 1, 2, 0]]
    assert run([[3, 0]], [2], 3, repetition_penalty=2.0).tolist() == [[1, 2, 0]]
    assert run([[3, 0], [3, 1]], [1, 2], 1, repetition_penalty=2.0).tolist() == [[0], [0]]
    assert run([[3]], [1], 3).tolist() == [[0, 0, 0]]
    negative = np.tile([-1.0, -1.5, -9.0, -9.0], (4, 1))
    assert run_chain(negative, [[3]], [1], 2, temperature=0.0, repetition_penalty=2.0).tolist() == [[0, 1]]


def test_the_only_token_that_is_kept_is_drawn():
    """The largest of each row of the table, whatever is drawn, and after `top_k` under its own number."""
    for options in ({"top_k": 1}, {"top_p": 0.5}):
        assert run_chain(ROTATE, [[0], [2]], [1, 1], 4, **options).tolist() == [[1, 2, 3, 0], [3, 0, 1, 2]]


@pytest.mark.slow
def test_samples_have_the_probabilities_of_what_is_kept():
    """4,000 rows; the top two of softmax(logits / 0.5), by hand."""
    table, rows = np.tile(np.log([0.1, 0.4, 0.2, 0.3]), (4, 1)), 4_000
    prompt = np.zeros((rows, 1))
    draw = lambda **options: np.bincount(run_chain(table, prompt, [1] * rows, 1, **options)[:, 0], minlength=4) / rows
    np.testing.assert_allclose(draw(temperature=0.5, top_k=2), np.array([0, 16, 0, 9]) / 25, atol=0.03)
    np.testing.assert_allclose(draw(top_p=0.6), np.array([0, 4, 0, 3]) / 7, atol=0.03)
    settings = {"temperature": 2.0, "rng": jax.random.key(1)}
    assert (draw(**settings) == draw(**settings)).all() and (draw(**settings) != draw(temperature=2.0)).any()


def test_sampled_tokens_are_those_of_a_traced_temperature():
    run = jax.jit(lambda t, p: run_chain(ROTATE, [[0], [1]], [1, 1], 5, temperature=t, repetition_penalty=p))
    expected = run_chain(ROTATE, [[0], [1]], [1, 1], 5, temperature=1.5, repetition_penalty=1.2)
    assert (run(jnp.float32(1.5), jnp.float32(1.2)) == expected).all()
    assert run(jnp.float32(0), jnp.float32(1)).tolist() == [[1, 2, 3, 0, 1], [2, 3, 0, 1, 2]]


@pytest.mark.parametrize(
    ("prompt", "lengths", "length", "options", "message"),
    [
        (np.zeros((1, 0)), [0], 3, {}, "at least one token"),
        ([[0]], [1], 0, {}, "length >= 1"),
        ([[0, 0]], [3], 1, {}, "in 1..2, got .3."),
        ([[0, 0]], [0], 1, {}, "in 1..2, got .0."),
        ([[0], [0]], [1], 1, {}, "one length for each of 2 prompts"),
        ([[0]], [1], 1, {"temperature": -1.0}, "temperature"),
        ([[0]], [1], 1, {"temperature": float("nan")}, "temperature"),
        ([[0]], [1], 1, {"repetition_penalty": 0.0}, "repetition_penalty"),
        ([[0]], [1], 1, {"top_k": -1}, "top_k"),
        ([[0]], [1], 1, {"top_p": 0.0}, "top_p"),
    ],
)
def test_what_cannot_be_generated_is_refused(prompt, lengths, length, options, message):
    with pytest.raises(InputError, match=message):
        run_chain(ROTATE, prompt, lengths, length, **options)


def test_learned_positions_bound_prompt_and_text():
    model = MODELS["learned"]
    shapes = jax.eval_shape(model.init, jax.random.key(0), PROMPT)["params"]
    run = lambda length: jax.eval_shape(lambda p: generate(model, p, PROMPT, LENGTHS, length), shapes)
    assert run(7).shape == (3, 7)
    with pytest.raises(InputError, match="10 learned positions"):
        run(8)
