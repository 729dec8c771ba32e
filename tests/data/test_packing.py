"""Packed rows hold every pair once and whole, hardly any padding, and train as their pairs do."""

from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from attention_jax import config as configs
from attention_jax.data import buckets
from attention_jax.data.packing import Packing, best_fit, packing_padding
from attention_jax.data.pair_streams import Buckets, Examples
from attention_jax.data.pairs import load_pairs
from attention_jax.data.streams import Share
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from attention_jax.errors import InputError
from attention_jax.tasks import build, build_model
from attention_jax.tasks.seq2seq import Seq2seqTask

WORDS = Vocabulary([f"w{n}" for n in range(20)], pad=PAD, bos=BOS, eos=EOS, unk=UNK)
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
BOTH = (WORDS, WORDS)


def examples(pairs, seed=0):
    rng = np.random.default_rng(seed)
    side = lambda: [rng.integers(4, 24, size).tolist() for size in rng.integers(0, 14, pairs)]
    return Examples(side(), side(), ())


def wmt_like(pairs=4000):
    """Lengths [N, 2], end mark counted: sources log-normal with a mean of 25 tokens, targets 25 % longer or shorter."""
    rng = np.random.default_rng(0)
    source = rng.lognormal(np.log(25) - 0.7**2 / 2, 0.7, pairs)
    target = source * rng.lognormal(0.0, 0.25, pairs)
    return np.clip(np.stack([source, target], axis=1).round().astype(int) + 1, 2, 100)


def test_wmt_like_lengths_leave_little_padding():
    lengths = wmt_like()
    assert packing_padding(lengths, 256) < 0.05
    grouped = buckets.assign(*lengths.T, 4)
    assert 1 - lengths.sum() / sum(len(rows) * lengths[rows].max(0).sum() for rows in grouped) > 0.25


@pytest.mark.parametrize("lengths", [np.zeros((0, 2), int), np.full((5, 2), 10), wmt_like(200)])
def test_every_pair_is_in_one_fitting_row(lengths):
    capacity = int(lengths.max(initial=10))
    rows = best_fit(lengths, capacity)
    assert sorted(pair for row in rows for pair in row) == list(range(len(lengths)))
    assert all((lengths[row].sum(0) <= capacity).all() for row in rows)


def pairs_of(batches):
    """The pairs that packed batches train, with their end marks."""
    for rows, weight in batches:
        for row in np.flatnonzero(weight):
            real = [np.arange(len(rows[f"{s}_segment"][row])) < rows[f"{s}_length"][row] for s in ("source", "target")]
            for pair in np.unique(rows["source_segment"][row][real[0]]):
                source = rows["source"][row][real[0] & (rows["source_segment"][row] == pair)]
                target = rows["target"][row, 1:][real[1] & (rows["target_segment"][row] == pair)]
                yield tuple(source.tolist()), tuple(target.tolist())


def test_no_pair_is_split_or_lost():
    examples_of_window, limit = examples(60), 10
    batches = Packing(24, 4, limit, BOTH)(examples_of_window, np.random.default_rng(0))
    cut = lambda row: tuple([*row, WORDS.eos_id][:limit])
    assert Counter(pairs_of(batches)) == Counter(
        (cut(a), cut(b)) for a, b in zip(examples_of_window.source, examples_of_window.target)
    )
    assert len(batches) > 2 and all(weight.all() for _, weight in batches[:-1])
    assert {rows["target"].shape for rows, _ in batches} == {(4, 25)}
    [(rows, weight)] = Packing(24, 4, limit, BOTH)(Examples([], [], ()), np.random.default_rng(0))
    assert not weight.any() and not rows["source_length"].any()


POSITIONS = ["sinusoidal", *(pytest.param(p, marks=pytest.mark.slow) for p in ("learned", "rotary"))]


@pytest.mark.parametrize("positions", POSITIONS)
def test_packing_keeps_loss_and_gradient(positions):
    model = configs.TransformerConfig(
        1, 1, hidden_size=8, num_heads=2, mlp_dim=8, dropout=0.0, position_embedding=positions, max_length=14
    )
    config = configs.Config("packed", configs.Corpus(), model, train=configs.Train(label_smoothing=0.1))
    task = Seq2seqTask(config, None, build_model(config, len(WORDS), len(WORDS)))
    examples_of_window, rng = examples(12), np.random.default_rng(0)
    [alone], [packed] = (
        Buckets((14,), (12,), BOTH)(examples_of_window, rng),
        Packing(32, 8, 14, BOTH)(examples_of_window, rng),
    )
    assert packed.weight.sum() < 8
    batches = [{**batch.rows, "weight": batch.weight} for batch in (alone, packed)]
    first = batches[0]
    start = lambda rng: task.model.init(rng, first["source"], first["source_length"], first["target"][:, :-1])["params"]
    params = jax.jit(start, compiler_options=FAST_TO_COMPILE)(jax.random.PRNGKey(0))

    @partial(jax.jit, compiler_options=FAST_TO_COMPILE)
    def sums(params, batch):
        return jax.value_and_grad(lambda p: task.loss(p, batch, jax.random.PRNGKey(1))[:2], has_aux=True)(params)

    (loss, count), gradient = sums(params, batches[1])
    (expected_loss, tokens), expected = sums(params, batches[0])
    assert count == tokens == sum(map(len, examples_of_window.target)) + 12
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    for actual_leaf, expected_leaf in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual_leaf, expected_leaf, rtol=1e-6, atol=1e-6 * largest)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    (tmp_path / "pairs.tsv").write_text("".join(f"{'a b c d '[: 2 + n % 7]}{n}\t{n} a b .\n" for n in range(60)))
    return configs.Corpus(tsv_file=str(tmp_path / "pairs.tsv"), packing=32, max_length=12, batch_tokens=128)


def test_packed_corpus_is_streamed_with_little_padding(corpus):
    data = load_pairs(corpus)
    assert data.facts["packed_padding_share"] < 0.2
    batches = [call for window in range(data.stream.windows) for call in data.stream.calls(0, window, Share())]
    assert {call.bucket["source"].shape for call in batches} == {(1, 4, 32)}
    both = [({n: a[0] for n, a in call.bucket.items()}, call.weight[0]) for call in batches]
    assert len(list(pairs_of(both))) == data.facts["train_pairs"]


@pytest.mark.parametrize(
    "model, changes, message",
    [
        (configs.LuongConfig(), {}, "supports packed sequences, which Luong does not"),
        (configs.TransformerConfig(), {"packing": 11}, "--data.max-length 12; got 11"),
        (configs.TransformerConfig(), {"stream": "never"}, "leave --data.stream never out"),
    ],
)
def test_unpackable_options_are_one_line(corpus, model, changes, message):
    with pytest.raises(InputError) as error:
        build(configs.Config("x", replace(corpus, **changes), model))
    assert message in str(error.value) and "\n" not in str(error.value)
