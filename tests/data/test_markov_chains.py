"""Sequences of Markov chains: drawn as they say, and the predictions of a closed form are right."""

import math

import numpy as np
import pytest

from attention_jax.config import MarkovChains
from attention_jax.data import markov_chains as chains
from attention_jax.errors import InputError


def test_sequences_follow_their_chains():
    matrices, written = chains.sample(np.random.default_rng(0), 2, 20_000, 3)
    assert matrices.shape == (2, 3, 3) and written.dtype == np.int32
    for matrix, row in zip(matrices, written, strict=True):
        seen = np.zeros((3, 3))
        np.add.at(seen, (row[:-1], row[1:]), 1)
        np.testing.assert_allclose(seen / seen.sum(1, keepdims=True), matrix, atol=0.03)


@pytest.mark.parametrize("concentration", [1.0, 0.3])
def test_bigram_is_the_posterior_mean(concentration):
    """The product of its predictions is the evidence of the sequence, a Dirichlet-multinomial for each state."""
    _, written = chains.sample(np.random.default_rng(1), 5, 30, 3, concentration)
    cost = chains.nats(chains.bigram, written, 3, concentration) * 29 * 5
    evidence = 0.0
    for row in written:
        counts = np.zeros((3, 3))
        np.add.at(counts, (row[:-1], row[1:]), 1)
        for seen in counts:
            evidence += math.lgamma(3 * concentration) - math.lgamma(3 * concentration + seen.sum())
            evidence += sum(math.lgamma(concentration + n) - math.lgamma(concentration) for n in seen)
    assert cost == pytest.approx(-evidence, rel=1e-9)


def test_nothing_predicts_better_than_bigram_but_the_chain_itself():
    matrices, written = chains.sample(np.random.default_rng(2), 500, 101, 3)
    itself = lambda before, states, concentration: np.take_along_axis(matrices, before[:, :, None], axis=1)
    known, best, unordered = (chains.nats(predict, written, 3) for predict in (itself, chains.bigram, chains.unigram))
    assert known < best < unordered < np.log(3)
    assert chains.nats(chains.bigram, written, 3, 5.0) > best  # another prior is worse


def test_data_are_windows_with_what_is_known_of_them():
    data = chains.load(MarkovChains(sequence_length=20, train_windows=50, valid_windows=10))
    assert data.train.shape == (50, 21) and data.held_out["valid"].shape == (10, 21)
    assert set(np.unique(data.train)) == set(data.vocabulary.encode("abc"))
    assert 0 < data.known["valid"]["bigram"] < data.known["valid"]["unigram"]
    assert not (data.train[:10] == data.held_out["valid"]).all(1).any()
    assert data.vocabulary.decode(data.held_out["valid"][0]) == list(data.beginnings[0])


@pytest.mark.parametrize("wrong", [{"num_states": 1}, {"num_states": 27}, {"concentration": 0.0}])
def test_sizes_that_cannot_be_are_one_line(wrong):
    with pytest.raises(InputError, match="must be"):
        MarkovChains(**wrong)
