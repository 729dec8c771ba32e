"""Sequences of Markov chains: drawn as they say, and the predictions of a closed form are right."""

import math

import numpy as np
import pytest

from attention_jax.config import MarkovChains
from attention_jax.data import markov_chains as chains
from attention_jax.errors import InputError


def test_sequences_follow_their_chains():
    matrices, sequences = chains.sample_chains(np.random.default_rng(0), 2, 20_000, 3)
    assert matrices.shape == (2, 3, 3) and sequences.dtype == np.int32
    for matrix, row in zip(matrices, sequences, strict=True):
        counts = np.zeros((3, 3))
        np.add.at(counts, (row[:-1], row[1:]), 1)
        np.testing.assert_allclose(counts / counts.sum(1, keepdims=True), matrix, atol=0.03)


@pytest.mark.parametrize("concentration", [1.0, 0.3])
def test_bigram_is_the_posterior_mean(concentration):
    """The product of its predictions is the evidence of the sequence, a Dirichlet-multinomial for each state."""
    _, sequences = chains.sample_chains(np.random.default_rng(1), 5, 30, 3, concentration)
    cost = chains.mean_nats(chains.bigram, sequences, 3, concentration) * 29 * 5
    evidence = 0.0
    for row in sequences:
        counts = np.zeros((3, 3))
        np.add.at(counts, (row[:-1], row[1:]), 1)
        for count in counts:
            evidence += math.lgamma(3 * concentration) - math.lgamma(3 * concentration + count.sum())
            evidence += sum(math.lgamma(concentration + n) - math.lgamma(concentration) for n in count)
    assert cost == pytest.approx(-evidence, rel=1e-9)


def test_only_the_chain_predicts_better_than_bigram():
    matrices, sequences = chains.sample_chains(np.random.default_rng(2), 500, 101, 3)
    from_chain = lambda prefix, states, concentration: np.take_along_axis(matrices, prefix[:, :, None], axis=1)
    floor, best, unordered = (
        chains.mean_nats(predict, sequences, 3) for predict in (from_chain, chains.bigram, chains.unigram)
    )
    assert floor < best < unordered < np.log(3)
    assert chains.mean_nats(chains.bigram, sequences, 3, 5.0) > best  # another prior is worse


def test_data_are_windows_with_baselines():
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
