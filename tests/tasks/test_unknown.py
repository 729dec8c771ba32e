"""The unknown token is written for no reader: by greedy and beam search and by sampling, however probable it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import builder

from attention_jax import config as configs, decode
from attention_jax.data.vocabulary import UNK
from attention_jax.sampling import sample
from attention_jax.train.placement import map_batches

TABLE = jnp.log(jnp.array([[0.05, 0.05, 0.6, 0.3], [0.1, 0.1, 0.7, 0.1], [0.25] * 4, [0.1, 0.2, 0.5, 0.2]]))
"""Log-probabilities of the next token after each of four tokens; token 2 is the most probable one."""
DECODE = {
    "greedy": lambda step: decode.greedy(step, None, 2, bos=0, eos=None, max_length=6),
    "beam": lambda step: decode.beam_search(
        step, None, 2, beam_size=2, bos=0, eos=None, pad=0, max_length=6, n_best=2, length_penalty="none"
    )[0],
    "sample": lambda step: sample(step, None, jnp.zeros((2, 1), int), 6, rng=jax.random.key(0)),
    "nucleus": lambda step: sample(step, None, jnp.zeros((2, 1), int), 6, top_p=0.5, rng=jax.random.key(0)),
}


def step(tokens, cache):
    return TABLE[tokens], cache


@pytest.mark.parametrize("kind", ["greedy", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*DECODE][1:])])
def test_a_forbidden_token_is_never_written(kind):
    """Two programs for each kind."""
    assert (DECODE[kind](step) == 2).any() and not (DECODE[kind](decode.forbid_token(step, 2)) == 2).any()
    np.testing.assert_array_equal(DECODE[kind](decode.forbid_token(step, None)), DECODE[kind](step))


def test_the_best_sequence_without_a_token_is_found():
    """By hand: after 0 the most probable of 0, 1, 3 is 3, after it 1, and 0 and 1 are equally probable after 1."""
    assert decode.greedy(decode.forbid_token(step, 2), None, 1, bos=0, eos=None, max_length=3).tolist()[0][:2] == [3, 1]


def favoring_unknown(task, vocabulary):
    """Parameters of a task with which its model writes the unknown token, wherever it may."""
    params = jax.jit(task.init)(jax.random.PRNGKey(0))
    size = len(vocabulary)
    lift = lambda x: x.at[vocabulary.unk_id].add(50.0) if x.shape == (size,) else x
    return jax.tree.map(lift, params)


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_predictions_exclude_unknown_token(tmp_path, beam_size):
    """Three programs: initial parameters, and decoding as evaluated and for a reader."""
    task = builder(tmp_path)(configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4), **{"decode.beam_size": beam_size})
    vocabulary = task.data.target_vocabulary
    params, view = favoring_unknown(task, vocabulary), task
    assert all(UNK not in text.split() for text in view.predict(params, ["a b 1", "zebra"]))
    written = map_batches(task.generate, params, view.read(["a b 1", "zebra"]), 4)
    assert (written == vocabulary.unk_id).any()


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_continued_texts_have_no_unknown_token(tmp_path, temperature):
    """Two programs: initial parameters, and the continuation."""
    model = configs.LanguageModelConfig(num_layers=1, hidden_size=8, num_heads=2, mlp_dim=8)
    task = builder(tmp_path)(model, **{"decode.temperature": temperature})
    params = favoring_unknown(task, task.data.vocabulary)
    [text] = task.predict(params, ["abc"])
    assert len(text) == 9 and UNK not in text
