"""Greedy and beam search on small Markov chains, against slow enumeration in plain Python."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import slow_but

from attention_jax.decode import beam_search, greedy, penalty_divisor, wide_top_k
from attention_jax.errors import InputError
from attention_jax.ops.shared import BeamKVCache, ancestor_mask, mark_self
from attention_jax.sampling import sample, truncate_logits

PAD, BOS, EOS = 0, 1, 2


def chain(table):
    """A model whose next token depends on the last one: logits = table[token]; its
    cache counts the steps of each row."""
    table = jnp.asarray(table, jnp.float32)
    return lambda tokens, steps: (table[tokens], steps + 1)


def random_table(seed, words):
    return np.random.default_rng(seed).normal(size=(words, words)) * 2


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def divisor(length, kind, alpha):
    return {"gnmt": ((5 + length) / 6) ** alpha, "simple": length**alpha, "none": 1.0}[kind]


def enumerate_all(table, max_length, kind, alpha):
    """Every sequence that ends with EOS or has max_length tokens: [(score, padded tokens)], best first."""
    log_p, hypotheses = log_softmax(np.asarray(table, np.float64)), []
    for length in range(1, max_length + 1):
        for words in itertools.product(range(len(log_p)), repeat=length):
            if EOS in words[:-1] or (words[-1] != EOS and length < max_length):
                continue
            total = sum(log_p[a, b] for a, b in zip((BOS, *words), words))
            hypotheses.append((total / divisor(length, kind, alpha), list(words) + [PAD] * (max_length - length)))
    return sorted(hypotheses, reverse=True)


SEARCH = {"bos": BOS, "eos": EOS, "pad": PAD, "max_length": 4}


@functools.cache
def compile_search(batch_size, options):
    """The beam search of a chain whose table is an argument: one program for all tables of a size."""
    return jax.jit(lambda table, cache: beam_search(chain(table), cache, batch_size, **dict(options)))


def search(table, batch_size=1, **options):
    run = compile_search(batch_size, tuple((SEARCH | options).items()))
    return run(jnp.asarray(table, jnp.float32), jnp.zeros(batch_size, jnp.int32))


@functools.partial(jax.jit, static_argnames=("max_length", "batch_size"))
def greedily(table, cache, batch_size, max_length):
    return greedy(chain(table), cache, batch_size, bos=BOS, eos=EOS, max_length=max_length, pad=PAD)


def test_greedy_follows_the_argmax_by_hand():
    table = np.full((5, 5), -9.0)
    table[BOS, 3], table[3, 4], table[4, EOS] = 1, 1, 1  # bos -> 3 -> 4 -> eos
    tokens = greedy(chain(table), jnp.zeros(2, jnp.int32), 2, bos=BOS, eos=EOS, max_length=6)
    assert tokens.tolist() == [[3, 4, EOS, PAD, PAD, PAD]] * 2
    assert tokens.dtype == jnp.int32


def test_greedy_stops_when_every_row_has_ended():
    """Row b ends after b + 1 steps, so three rows take three steps of twenty; rows that ended stay padded."""
    calls = []

    def step(tokens, remaining):
        jax.debug.callback(lambda: calls.append(1))
        ends = (remaining == 0)[:, None]
        return jnp.where(ends, jax.nn.one_hot(EOS, 4)[None, :], jax.nn.one_hot(3, 4)[None, :]), remaining - 1

    tokens = jax.jit(lambda c: greedy(step, c, 3, bos=BOS, eos=EOS, max_length=20))(jnp.arange(3))
    jax.effects_barrier()
    assert len(calls) == 3
    assert tokens[:, :3].tolist() == [[EOS, PAD, PAD], [3, EOS, PAD], [3, 3, EOS]]
    assert not tokens[:, 3:].any()


def test_greedy_without_eos_takes_every_step():
    tokens = greedy(chain(np.eye(3)), jnp.zeros(1, jnp.int32), 1, bos=EOS, eos=None, max_length=5)
    assert tokens.tolist() == [[EOS] * 5]


def test_rows_are_independent():
    """Each row's own cache decides: a batch gives what its rows give alone, in greedy and in a beam that reorders."""
    tables = jnp.asarray(np.stack([random_table(s, 5) for s in range(4)]), jnp.float32)

    def step(tokens, tables):
        return jax.vmap(lambda t, table: table[t])(tokens, tables), tables

    @functools.partial(jax.jit, static_argnums=1)
    def both(tables, rows):
        options = dict(bos=BOS, eos=EOS, pad=PAD, max_length=5)
        beams = beam_search(step, tables, rows, beam_size=3, n_best=2, **options)
        return *beams, greedy(step, tables, rows, **options)

    tokens, scores, together = both(tables, 4)
    for b in range(4):
        alone, score, greedy_alone = both(tables[b : b + 1], 1)
        assert alone[0].tolist() == tokens[b].tolist()
        np.testing.assert_allclose(score[0], scores[b], rtol=1e-6)
        assert greedy_alone[0].tolist() == together[b].tolist()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["gnmt", "simple", "none"]))
def test_a_beam_of_one_is_greedy(seed, kind):
    table = random_table(seed, 6)
    tokens, _ = search(table, beam_size=1, length_penalty=kind, max_length=7)
    expected = greedily(jnp.asarray(table, jnp.float32), jnp.zeros(1, jnp.int32), 1, 7)
    assert tokens[0].tolist() == expected.tolist()


PENALTIES = [("none", 0.6), ("gnmt", 0.6), ("gnmt", 2.0), ("simple", 1.0), ("simple", 0.0)]


@pytest.mark.parametrize("kind, alpha", slow_but([("none", 0.6), ("gnmt", 2.0), ("simple", 1.0)], PENALTIES))
@pytest.mark.parametrize("seed", slow_but([0], range(3)))
def test_a_wide_beam_is_exhaustive_search(kind, alpha, seed):
    """Three words, four steps, 31 sequences: a beam of 40 prunes nothing and returns all of them in order."""
    table = random_table(seed, 3)
    expected = enumerate_all(table, 4, kind, alpha)
    assert len(expected) == 1 + 2 + 4 + 8 * 3  # ended after 1, 2 or 3 tokens; or four tokens, the last of them any
    tokens, scores = search(table, beam_size=40, n_best=40, length_penalty=kind, alpha=alpha)
    np.testing.assert_allclose(scores[0, :31], [s for s, _ in expected], atol=1e-5)
    exact = {tuple(words): score for score, words in expected}  # chains tie often, so the order among equals is free
    best = [tuple(words) for words in tokens[0, :31].tolist()]
    assert set(best) == set(exact)
    np.testing.assert_allclose(scores[0, :31], [exact[words] for words in best], atol=1e-5)
    assert np.isneginf(scores[0, 31:]).all()


@pytest.mark.parametrize("kind, alpha", slow_but([("gnmt", 1.5)], [("none", 0.6), ("gnmt", 1.5), ("simple", 1.0)]))
def test_early_stop_never_loses_the_best(kind, alpha):
    """n_best = 1 may stop before max_length; it must still be the first of the exhaustive list."""
    tables = [random_table(100 + seed, 3) for seed in range(8)]
    options = dict(beam_size=31, bos=BOS, eos=EOS, pad=PAD, max_length=4, length_penalty=kind, alpha=alpha)

    def step(tokens, tables):
        return jax.vmap(lambda t, table: table[t])(tokens, tables), tables

    find = jax.jit(lambda tables: beam_search(step, tables, 1, **options))
    for table in tables:  # one at a time: a batch would go on for its slowest row
        tokens, scores = find(jnp.asarray(table, jnp.float32)[None])
        best_score, best = enumerate_all(table, 4, kind, alpha)[0]
        assert tokens[0, 0].tolist() == best
        np.testing.assert_allclose(scores[0, 0], best_score, atol=1e-5)


def test_beam_search_stops_early():
    table = np.full((4, 4), -20.0)
    table[BOS, 3], table[3, EOS] = 0, 0
    calls = []

    def step(tokens, cache):
        jax.debug.callback(lambda: calls.append(1))
        return chain(table)(tokens, cache)

    beam_search(
        step, jnp.zeros(1, jnp.int32), 1, beam_size=3, bos=BOS, eos=EOS, pad=PAD, max_length=50, length_penalty="none"
    )
    jax.effects_barrier()
    assert len(calls) == 2


def test_beam_finds_what_greedy_misses():
    """p(3) = 0.6 leads to p = 0.6 * 0.5; p(4) = 0.4 leads to p = 0.4 * 1: a beam of 2 finds the second."""
    p = np.full((6, 6), 1e-12)
    p[BOS, 3], p[BOS, 4], p[3, EOS], p[3, 5], p[4, EOS], p[5, EOS] = 0.6, 0.4, 0.5, 0.5, 1, 1
    tokens, scores = search(np.log(p), beam_size=2, length_penalty="none", n_best=2)
    assert tokens[0, 0].tolist() == [4, EOS, PAD, PAD]
    np.testing.assert_allclose(np.exp(scores[0]), [0.4, 0.3], rtol=1e-5)


def test_logits_and_log_probabilities_give_the_same():
    table = random_table(5, 6)
    a, b = search(table, beam_size=4, n_best=4), search(log_softmax(table), beam_size=4, n_best=4)
    assert a[0].tolist() == b[0].tolist()
    np.testing.assert_allclose(a[1], b[1], atol=1e-5)


def follow_paths(cache, tokens):
    """A cache of the paths that rows have read, each in its row: (the paths' sums, cache)."""
    path, t = cache
    path = jax.vmap(lambda p, t, token: p.at[t].set(token))(path, t, tokens)
    return path.sum(-1), (path, t + 1)


def read_in_place(cache, tokens):
    """The same in a cache whose entries stay where they were written: a row reads those of its ancestors."""
    words, ancestors, t = cache
    hypotheses = tokens.shape[0] // words.value.shape[0]
    words, ancestors = words.write(tokens.reshape(-1, hypotheses), t[0]), mark_self(ancestors, t[0], hypotheses)
    read = jnp.where(ancestor_mask(ancestors, t[0], hypotheses), words.value[:, None], 0)
    return read.sum(-1).reshape(-1), (words, ancestors, t + 1)


@pytest.mark.parametrize("read", [follow_paths, read_in_place])
def test_the_cache_follows_its_hypothesis(read):
    """The cache writes down the path its row has read; after the search each best hypothesis'
    cache must spell its own tokens."""
    table, steps = jnp.asarray(random_table(3, 6), jnp.float32), 5

    def step(tokens, cache):
        total, cache = read(cache, tokens)
        # the logits of a hypothesis whose cache belongs to another would differ from the chain's:
        # add a term of the whole path
        return table[tokens] + 0.3 * jnp.sin(total.astype(jnp.float32))[:, None] * table[0][None, :], cache

    paths, t = jnp.zeros((2, steps), jnp.int32), jnp.zeros(2, jnp.int32)
    cache = (paths, t) if read is follow_paths else (BeamKVCache(paths, 1), paths, t)
    options = {"beam_size": 4, "bos": BOS, "eos": None, "pad": PAD, "max_length": steps, "n_best": 4}
    find = jax.jit(lambda cache: beam_search(step, cache, 2, length_penalty="none", **options))
    tokens, scores = find(cache)
    for hypothesis, score in zip(np.asarray(tokens[0]), np.asarray(scores[0])):
        total, read, last = 0.0, 0, BOS
        for token in hypothesis:
            read += last
            total += log_softmax(np.asarray(table[last]) + 0.3 * np.sin(read) * np.asarray(table[0]))[token]
            last = token
        np.testing.assert_allclose(score, total, atol=1e-4)


def test_penalties_by_hand():
    np.testing.assert_allclose(penalty_divisor(jnp.array([1, 7]), "gnmt", 0.6), [1.0, 2**0.6], rtol=1e-6)
    np.testing.assert_allclose(penalty_divisor(jnp.array([1, 4]), "simple", 0.5), [1.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(penalty_divisor(jnp.array([1, 4]), "none", 0.5), [1.0, 1.0])


@pytest.mark.parametrize("options", [dict(beam_size=0), dict(beam_size=2, n_best=3), dict(beam_size=2, alpha=-1.0)])
def test_impossible_settings_are_refused(options):
    with pytest.raises(InputError):
        search(np.eye(3), **options)


def test_unknown_penalty_is_refused():
    with pytest.raises(InputError, match="gnmt, simple or none"):
        penalty_divisor(jnp.array([1]), "wu", 1.0)


@pytest.mark.slow
def test_largest_is_top_k_on_wide_rows():
    x = jax.random.normal(jax.random.key(0), (7, 5001)).at[0, 4990:].set(9.0).at[1, 3:].set(-jnp.inf)
    for k in (1, 5):
        values, columns = wide_top_k(x, k)
        assert jnp.array_equal(values, jax.lax.top_k(x, k)[0])
        assert jnp.array_equal(jnp.take_along_axis(x, columns, axis=1), values)
        assert all(len(set(row)) == k for row in columns.tolist())  # also among equal values


def reference_distribution(logits, temperature, top_k, top_p):
    """Of one row, token by token: what `sample` draws from."""
    p = np.exp((logits - logits.max()) / temperature)
    order = sorted(range(len(p)), key=lambda token: (-p[token], token))[: top_k or None]
    total, nucleus = sum(p[token] for token in order), []
    for token in order:
        if sum(p[nucleus_token] for nucleus_token in nucleus) / total < top_p:
            nucleus.append(token)
    return np.array([p[token] if token in nucleus else 0.0 for token in range(len(p))]) / p[nucleus].sum()


SAMPLED = [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 3, 1.0), (2.0, 0, 0.6), (1.0, 4, 0.75), (1.0, 0, 1e-6), (1.0, 99, 1.0)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLED)
def test_samples_follow_the_reference_distribution(temperature, top_k, top_p):
    """With two equal logits, of which the first counts as the more probable one; draws of 4,000 rows."""
    logits = np.array([0.3, 1.7, -0.4, 1.1, 1.1, -2.0, 0.9], np.float32)
    expected = reference_distribution(logits, temperature, top_k, top_p)
    actual = jax.nn.softmax(truncate_logits(jnp.asarray(logits)[None] / temperature, top_k, top_p))[0]
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    step = lambda tokens, cache: (jnp.broadcast_to(logits, (len(tokens), 7)), cache)
    call = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "rng": jax.random.key(1)}
    samples = jax.jit(lambda prompt: sample(step, None, prompt, 2, **call))(jnp.zeros((4_000, 1), jnp.int32))
    assert samples.shape == (4_000, 2)
    shares = np.bincount(np.asarray(samples).ravel(), minlength=7) / 8_000
    assert (shares[expected == 0] == 0).all()
    np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / 8_000))


def test_a_prompt_is_read_before_anything_is_written():
    """The next token is the sum of all that were read, modulo 7: a cache that missed one would show."""

    def step(tokens, total):
        total = (total + tokens) % 7
        return jax.nn.one_hot(total, 7), total

    prompt = jnp.array([[1, 2, 3], [6, 6, 0]])
    written = sample(step, jnp.zeros(2, jnp.int32), prompt, 3, temperature=0.0)
    assert written.tolist() == [[6, 5, 3], [5, 3, 6]]


def test_the_tokens_of_a_row_are_drawn_independently():
    """Of five equal tokens the next one is the same in a fifth of all steps."""
    step = lambda tokens, cache: (jnp.zeros((len(tokens), 5)), cache)
    samples = np.asarray(sample(step, None, jnp.zeros((400, 1), jnp.int32), 6, rng=jax.random.key(0)))
    assert abs((samples[:, 1:] == samples[:, :-1]).mean() - 0.2) < 4 * np.sqrt(0.16 / 2000)


def test_decoders_run_in_x64():
    """Loops keep their types, and tokens are those of float32; one program for each precision."""

    @jax.jit
    def both(table):
        step = lambda tokens, cache: (table[tokens], cache)
        best = beam_search(step, None, 1, beam_size=3, n_best=2, **SEARCH)
        return greedy(step, None, 1, bos=BOS, eos=EOS, max_length=4, pad=PAD), *best

    expected = both(jnp.asarray(random_table(0, 5), jnp.float32))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        actual = both(jnp.asarray(random_table(0, 5)))
    for actual_array, expected_array in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_array, expected_array, rtol=1e-5)


@pytest.mark.slow
def test_dead_end_hypothesis_is_dropped():
    """p(3) = 0.6, but after 3 no token is allowed; what is left has a number, and what is not there -inf, never NaN."""
    table = np.full((5, 5), -np.inf)
    table[BOS, 3], table[BOS, 4], table[4, EOS] = np.log(0.6), np.log(0.4), 0
    tokens, scores = search(table, beam_size=2, n_best=2, length_penalty="none")
    assert tokens[0, 0].tolist() == [4, EOS, PAD, PAD]
    np.testing.assert_allclose(scores[0], [np.log(0.4), -np.inf], rtol=1e-6)
    assert np.isneginf(search(np.full((5, 5), -np.inf), beam_size=2, n_best=2, length_penalty="none")[1]).all()
