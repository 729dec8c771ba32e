"""In-context learning of Markov chains: each sequence is sampled from a different random chain.

The task of Edelman et al. 2024 (arXiv 2402.11004, section 2): the rows of a transition matrix are sampled from a
symmetric Dirichlet prior, then a sequence from the chain. The first state is uniform here and independent of the
matrix, so that `bigram` is exactly the posterior mean.
"""

from collections.abc import Callable

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, tokenizers
from attention_jax.data.text_windows import Windows
from attention_jax.data.vocabulary import UNK, Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""The names of the states."""


def sample_chains(
    rng: np.random.Generator, rows: int, length: int, states: int, concentration: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """`rows` chains and a sequence of each: transition matrices [N, S, S] and states [N, length] int32."""
    matrices = rng.dirichlet(np.full(states, concentration), (rows, states))
    cumulative = matrices.cumsum(-1)  # [N, S, S]
    uniform = rng.random((length, rows))
    sequences = np.empty((rows, length), np.int32)
    sequences[:, 0] = uniform[0] * states
    for t in range(1, length):
        below = cumulative[np.arange(rows), sequences[:, t - 1]] < uniform[t, :, None]
        sequences[:, t] = np.minimum(below.sum(1), states - 1)
    return matrices, sequences


def bigram(sequences: np.ndarray, states: int, concentration: float = 1.0) -> np.ndarray:
    """Return the Bayes-optimal prediction p(next | sequence so far) [N, T, S] for `sequences` [N, T]: the
    posterior mean of the row of the last state,

        (n(i, j) + a) / (n(i) + S a),   n(i, j) the transitions from i to j so far.

    >>> bigram(np.array([[0, 1, 0]]), states=2).tolist()  # nothing is known of 0, of 1; once 1 followed 0
    [[[0.5, 0.5], [0.5, 0.5], [0.3333333333333333, 0.6666666666666666]]]
    """
    one_hot = np.eye(states)[sequences]  # [N, T, S]
    follows = np.einsum("nti,ntj->ntij", one_hot[:, :-1], one_hot[:, 1:]).cumsum(1)  # [N, T - 1, S, S]
    counts = np.concatenate([np.zeros_like(follows[:, :1]), follows], axis=1)
    return _posterior_mean(np.einsum("nti,ntij->ntj", one_hot, counts), concentration)


def unigram(sequences: np.ndarray, states: int, concentration: float = 1.0) -> np.ndarray:
    """Return the prediction without the order: (n(j) + a) / (t + S a), n(j) the visits of j so far.

    >>> unigram(np.array([[0, 1, 0]]), states=2)[0, -1].tolist()
    [0.6, 0.4]
    """
    return _posterior_mean(np.eye(states)[sequences].cumsum(1), concentration)


def _posterior_mean(counts: np.ndarray, concentration: float) -> np.ndarray:
    counts = counts + concentration
    return counts / counts.sum(-1, keepdims=True)


def mean_nats(predict: Callable, sequences: np.ndarray, states: int, concentration: float = 1.0) -> float:
    """Return the mean loss per state of a prediction on sequences [N, T + 1], without the first state."""
    probabilities = predict(sequences[:, :-1], states, concentration)
    return float(-np.log(np.take_along_axis(probabilities, sequences[:, 1:, None], axis=-1)).mean())


def load(options: settings.MarkovChains) -> Windows:
    """Return training and validation sequences, with the losses of the two predictions on the latter."""
    kind = options.num_states, options.concentration
    draw = lambda seed, rows: sample_chains(np.random.default_rng(seed), rows, options.sequence_length + 1, *kind)[1]
    train, valid = draw(0, options.train_windows), draw(1, options.valid_windows)
    vocabulary, tokenizer = Vocabulary(LETTERS[: options.num_states], unk=UNK), tokenizers.character()
    first = vocabulary.encode(LETTERS[0])[0]
    floors = {"bigram": mean_nats(bigram, valid, *kind), "unigram": mean_nats(unigram, valid, *kind)}
    return Windows(
        train + first,
        {"valid": valid + first},
        vocabulary,
        tokenizer,
        {"states": options.num_states, **floors, "fingerprint": data_summary.fingerprint([train, valid])},
        beginnings=("".join(LETTERS[state] for state in valid[0]),),
        known={"valid": floors},
    )
