"""`attend` and `masked_softmax` against cases computed by hand and a slow oracle in NumPy and float64."""

import dataclasses
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.ops import attention
from attention_jax.ops.attention import attention_weights, masked_softmax
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import as_mask, causal, lengths, window
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.scores import Additive, Constant, Dot, Gaussian, Score
from attention_jax.ops.trees import pytree

PACKAGE = Path(attention.__file__).parents[1]
IMPLEMENTATIONS = ("plain", "fused")
attend = jax.jit(
    attention.attend,
    static_argnames=("implementation", "block_q", "block_k"),
    compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)


def arrays(queries, keys, width=4, value_width=3, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return [jnp.asarray(draw(shape), jnp.float32) for shape in ((queries, width), (keys, width), (keys, value_width))]


def heads(*arrays):
    """The arrays of `attend` as those of `attend_heads`, of one sequence and one head."""
    return [x[None, :, None] for x in arrays]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_worked_example_of_the_tutorials(implementation):
    x = jnp.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]], jnp.float32)
    query = x @ jnp.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]], jnp.float32)
    key = x @ jnp.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]], jnp.float32)
    value = x @ jnp.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]], jnp.float32)
    np.testing.assert_array_equal(Dot()(query, key), [[2, 4, 4], [4, 16, 12], [4, 12, 10]])
    expected = [[1.8639, 6.3194, 1.7042], [1.9991, 7.8141, 0.2735], [1.9926, 7.4796, 0.7359]]
    np.testing.assert_allclose(attend(query, key, value, implementation=implementation), expected, atol=5e-5)


def test_masked_softmax_rows():
    scores = jnp.array([[1.0, 2.0, 3.0], [1.0, jnp.nan, 3.0], [0.0, 0.0, 0.0], [-jnp.inf, -jnp.inf, -jnp.inf]])
    mask = jnp.array([[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    weights = jax.jit(masked_softmax)(scores, mask)
    e = np.exp([1.0, 2.0])
    np.testing.assert_allclose(weights[0], [e[0] / e.sum(), e[1] / e.sum(), 0], rtol=1e-6)
    assert weights[1, 1] == 0 and np.isclose(weights[1].sum(), 1)
    np.testing.assert_array_equal(weights[2:], 0)
    pool_positions = lambda s: (masked_softmax(s, mask) * jnp.arange(12.0).reshape(4, 3)).sum()
    gradient = np.asarray(jax.jit(jax.grad(pool_positions))(scores))
    assert np.isfinite(gradient).all() and not gradient[~np.asarray(mask)].any() and not gradient[2:].any()


def test_decoding_with_cache_gives_rows_of_whole():
    query, key, value = arrays(6, 6)
    whole = attend(query, key, value, mask=causal())
    step = jax.jit(lambda q, t: attention.attend(q, key, value, mask=causal(), query_offset=t))
    rows = jnp.concatenate([step(query[t : t + 1], t) for t in range(6)])
    np.testing.assert_allclose(rows, whole, rtol=1e-5, atol=1e-6)
    assert step._cache_size() == 1


@pytest.mark.slow
def test_dropout_is_equal_in_both_and_keeps_mean():
    query, key, value = arrays(40, 50)
    rng = jax.random.key(3)
    plain = attend(query, key, value, dropout=0.5, rng=rng, implementation="plain")
    for block in (7, 16):
        fused = attend(
            query, key, value, dropout=0.5, rng=rng, implementation="fused", block_q=block, block_k=block + 4
        )
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-6)
    pool_positions = lambda rng: attention.attend(query, key, jnp.ones((50, 1)), score=Constant(), dropout=0.3, rng=rng)
    means = jax.jit(jax.vmap(pool_positions))(jax.random.split(rng, 50))
    # the mean of 40 * 50 * 50 kept-or-dropped weights: standard error 0.0021
    assert abs(float(means.mean()) - 1) < 0.01
    share = jnp.stack([means.mean(axis=(0, 2)), means.std(axis=(0, 2))])  # each query on its own is fair, and random
    assert (abs(share[0] - 1) < 0.06).all() and (abs(share[1] - (0.3 / 0.7 / 50) ** 0.5) < 0.035).all()
    np.testing.assert_array_equal(attend(query, key, value, dropout=0.5), attend(query, key, value))
    np.testing.assert_array_equal(attend(query, key, value, dropout=0.0, rng=rng), attend(query, key, value))


def test_weights_are_what_attend_pools_with():
    query, key, value = arrays(5, 8)
    score = Additive.init(jax.random.key(0), 4, 4, 6)
    weights = np.asarray(jax.jit(attention_weights)(query, key, score=score, mask=lengths(6)))
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert not weights[:, 6:].any()
    np.testing.assert_allclose(
        weights @ value, attend(query, key, value, score=score, mask=lengths(6)), rtol=1e-5, atol=1e-6
    )


def test_a_function_is_a_score_without_parameters():
    query, key, value = arrays(5, 8)
    run = lambda implementation: attention.attend(
        query, key, value, score=lambda q, k: q @ k.T, implementation=implementation, block_k=3
    )
    for out in jax.jit(lambda: [run(implementation) for implementation in IMPLEMENTATIONS])():
        np.testing.assert_allclose(out, attend(query, key, value, score=Dot()), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_plain_functions_as_mask_and_bias():
    query, key, value = arrays(5, 8)
    distance = lambda q, k: jnp.abs(q[:, None] - k[None])
    rules = {"mask": lambda q, k: distance(q, k) <= 2, "bias": lambda x, q, k: -distance(q, k).astype(x.dtype)}
    run = lambda implementation: attention.attend(query, key, value, **rules, implementation=implementation, block_k=3)

    @jax.jit
    def every():
        both = attention.attend(query, key, value, mask=causal() & as_mask(rules["mask"]))
        in_heads = attend_heads(*heads(query, key, value), **rules)[0, :, 0]
        return both, (in_heads, *(run(implementation) for implementation in IMPLEMENTATIONS))

    both, outputs = every()
    for out in outputs:
        expected = attend(query, key, value, mask=window(2), bias=ALiBi(1.0))
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both, attend(query, key, value, mask=causal() & window(2)), rtol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("gradient", [False, True])
def test_rules_of_wrong_shape_raise(implementation, gradient):
    query, key, value = arrays(5, 8)

    def run(**rules):
        call = lambda q: attention.attend(q, key, value, implementation=implementation, block_k=3, **rules).sum()
        return jax.jit(jax.grad(call) if gradient else call)(query)

    shape = r"\[Q, K\] = \[\d+, \d+\]"
    for wrong in (lambda q, k: (q @ k.T)[0], lambda q, k: k @ q.T, lambda q, k: (q @ k.T)[None], lambda q, k: q[:, :1]):
        with pytest.raises(InputError, match=shape):
            run(score=wrong)
    for wrong in (lambda x, q, k: jnp.zeros((2, 1, 1)), lambda x, q, k: jnp.zeros((len(q), len(k) + 1))):
        with pytest.raises(InputError, match=shape):
            run(bias=wrong)
    for wrong in (lambda q, k: k < 3, lambda q, k: (k < 3)[None, None], lambda q, k: k[:, None] < 3):
        with pytest.raises(InputError, match=shape):
            run(mask=wrong)
    whole = run(bias=lambda x, q, k: 0.1 * jnp.arange(8.0)[k][None])  # one row for all queries
    np.testing.assert_allclose(whole, run(bias=lambda x, q, k: 0.1 * jnp.arange(8.0)[k][None].repeat(len(q), 0)))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda q, k, v: attention.attend(q[None], k, v), "vmap it"),
        (lambda q, k, v: attention.attend(q, k, v[:-1]), "8 keys and 7 values"),
        (lambda q, k, v: attention.attend(q, k, v, mask=causal), r"causal\(\)"),
        (lambda q, k, v: attention.attend(q, k, v, score=Gaussian), r"Gaussian\(\)"),
        (lambda q, k, v: attention.attend(q, k, v, mask=[[True]]), "boolean array"),
        (lambda q, k, v: attention.attend(q, k, v, score="dot"), "callable pytree"),
        (lambda q, k, v: attention.attend(q, k, v, normalizer="softmax"), "normalizer.*got str"),
        (lambda q, k, v: attention.attend(q, k, v, implementation="flashy"), "plain"),
        (lambda q, k, v: attention.attend(q, k, v, implementation="cudnn"), "NVIDIA GPU"),
        (lambda q, k, v: attention.attend(q, k, v, block_q=0), "at least 1"),
        (lambda q, k, v: attention.attend(q, k, v, bias=1.0), "ops.biases"),
        (lambda q, k, v: attention.attend(q, k, v, dropout=1.5, rng=jax.random.key(0)), "0 to 1, got 1.5"),
        (lambda q, k, v: attention.attend(q[:, :2], k[:, :3], v, score=Gaussian()), "of one width"),
        (lambda q, k, v: attention.attend(q[:, :2], k[:, :3], v), "of one width"),
        (lambda q, k, v: attention.attend(q, k, v.astype(int)), "convert integers"),
        (lambda q, k, v: attend_heads(*heads(q, k, v), mask=causal), r"causal\(\)"),
        (lambda q, k, v: attend_heads(*heads(q, k, v), normalizer=Softmax), r"Softmax\(\)"),
        (lambda q, k, v: attend_heads(*heads(q, k, v), mask=5), "boolean array"),
    ],
)
def test_errors_say_what_to_do(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call(*arrays(5, 8))
    assert "\n" not in str(caught.value)


@pytree
@dataclasses.dataclass(frozen=True)
class StackRecorder(Score):
    """Dot products that note by which functions of this package they were asked for a block of scores."""

    stacks: list = dataclasses.field(default_factory=list, metadata={"static": True}, compare=False)

    def __call__(self, query, key):
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe())]
        package_code = [f.f_code for f in frames if Path(f.f_code.co_filename).is_relative_to(PACKAGE)]
        self.stacks.append([f"{Path(code.co_filename).stem}.{code.co_name}" for code in reversed(package_code)])
        return query @ key.T


def test_call_depth_from_attend_to_score():
    """A reader follows them one by one: no program is compiled. In blocks, one of them chooses their size,
    and one is the step of a block, which generated kernels share."""
    score, x = StackRecorder(), jnp.ones((40, 4))
    for implementation, most in (("plain", 6), ("fused", 13)):
        score.stacks.clear()
        jax.eval_shape(lambda x, i=implementation: attention.attend(x, x, x, score=score, implementation=i), x)
        calls = max(score.stacks, key=len)
        assert calls[0] == "attention.attend" and len(calls) <= most, calls
