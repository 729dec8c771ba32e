"""What every sequence-to-sequence model promises, checked on each: exact sizes, step = teacher forced, padding is never seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import InputError
from attention_jax.models.scores import SCORES
from attention_jax.models.seq2seq import AttentionSeq2seq, LuongSeq2seq, PeekySeq2seq, Seq2seq

CLASSES = [Seq2seq, PeekySeq2seq, AttentionSeq2seq, LuongSeq2seq]
small = dict(source_vocab=11, target_vocab=9, hidden_size=8, embed_size=5)
MODELS = {
    **{f"{kind.__name__}-{cell}": kind(**small, cell=cell) for kind in CLASSES for cell in ("lstm", "gru")},
    **{f"luong-{score}": LuongSeq2seq(**small, score=score) for score in SCORES},
    "luong-bidirectional": LuongSeq2seq(**small, bidirectional=True, pass_cell=True),
}
SOURCE = jnp.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0], [10, 1, 2, 3, 0, 0]])
LENGTH = jnp.array([6, 3, 4])
TARGET = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8], [8, 1, 2, 0]])


def check_contract(model):
    """Shapes, output(), intermediates, step = teacher forced, padding, gradients: used by the tests of all seq2seq models."""
    variables = model.init(jax.random.key(0), SOURCE, LENGTH, TARGET)
    assert set(variables) == {"params"}
    scale = lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)  # nothing stays zero or tiny
    variables = jax.tree.map(scale, variables)
    bound = model.bind(variables)
    call = jax.jit(lambda v, s, n, t: model.apply(v, s, n, t, look=True))
    logits, seen = call(variables, SOURCE, LENGTH, TARGET)
    assert logits.shape == (*TARGET.shape, small["target_vocab"])

    hidden, nothing = bound.decode(bound.encode(SOURCE, LENGTH), TARGET)
    kernel, bias = bound.output()
    assert nothing == {}
    np.testing.assert_allclose(hidden @ kernel + bias[None, None], logits, atol=1e-5)

    cache = bound.start(bound.encode(SOURCE, LENGTH), TARGET.shape[1])
    assert all(leaf.shape[0] == len(SOURCE) for leaf in jax.tree.leaves(cache))
    step = jax.jit(lambda v, c, t: model.apply(v, c, t, method="step"))
    for t in range(TARGET.shape[1]):
        one, cache, looked = step(variables, cache, TARGET[:, t])
        np.testing.assert_allclose(one, logits[:, t], atol=1e-5)
        if seen:
            np.testing.assert_allclose(looked["cross_attention"][..., 0, :], seen["cross_attention"][..., t, :], atol=1e-5)

    garbage = jnp.where(jnp.arange(9)[None] < LENGTH[:, None], jnp.pad(SOURCE, ((0, 0), (0, 3))), 7)  # more and other padding
    np.testing.assert_allclose(call(variables, garbage, LENGTH, TARGET)[0], logits, atol=1e-5)
    alone, _ = call(variables, SOURCE[1:2, :3], LENGTH[1:2], TARGET[1:2])
    np.testing.assert_allclose(alone[0], logits[1], atol=1e-5)
    if seen:
        weights = seen["cross_attention"]
        assert weights.shape[0] == 3 and weights.shape[-2:] == (4, 6) and weights.ndim == 5
        outside = jnp.arange(6)[None] >= LENGTH[:, None]
        assert (weights * outside[:, None, None, None].astype(jnp.float32) == 0).all()

    after = TARGET.at[:, 2].set(3)
    np.testing.assert_allclose(call(variables, SOURCE, LENGTH, after)[0][:, :2], logits[:, :2], atol=1e-5)  # the future is not seen

    grads = jax.jit(jax.grad(lambda v: jnp.square(model.apply(v, SOURCE, LENGTH, TARGET)[0]).sum()))(variables)
    for path, g in jax.tree_util.tree_leaves_with_path(grads):
        assert jnp.isfinite(g).all(), path
        assert (g != 0).any(), f"no gradient reaches {jax.tree_util.keystr(path)}"
    return variables


@pytest.mark.parametrize("name", MODELS)
def test_contract(name):
    check_contract(MODELS[name])


@pytest.mark.parametrize("kind, size", [(AttentionSeq2seq, 591_259), (PeekySeq2seq, 853_403), (Seq2seq, 576_155)])
def test_sizes_of_the_book(kind, size):
    variables = jax.eval_shape(kind(59, 59).init, jax.random.key(0), SOURCE, LENGTH, TARGET)
    assert sum(x.size for x in jax.tree.leaves(variables)) == size


def test_luong_equations():
    """One step of eq. 5-6 in NumPy from the parameters."""
    model = LuongSeq2seq(**small)
    variables = model.init(jax.random.key(1), SOURCE, LENGTH, TARGET)
    p = jax.tree.map(np.asarray, variables["params"])
    bound = model.bind(variables)
    memory = bound.encode(SOURCE, LENGTH)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    x = p["embed"]["table"][1] @ p["layer"]["input_kernel"] + memory["state"][0][0] @ p["layer"]["recurrent_kernel"] + p["layer"]["bias"]
    i, f, g, o = np.split(x, 4)
    s = sigmoid(o) * np.tanh(sigmoid(i) * np.tanh(g))  # the cell starts at zero
    keys = np.asarray(memory["hidden"][0])
    w = np.exp(keys @ s) / np.exp(keys @ s).sum()
    attentional = np.tanh(np.concatenate([w @ keys, s]) @ p["attentional"]["kernel"] + p["attentional"]["bias"])
    logits, seen = bound(SOURCE[:1], LENGTH[:1], jnp.array([[1]]), look=True)
    np.testing.assert_allclose(logits[0, 0], attentional @ p["kernel"] + p["bias"], atol=1e-5)
    np.testing.assert_allclose(seen["cross_attention"][0, 0, 0, 0], w, atol=1e-5)


def test_dropout_acts_only_in_training_and_its_rate_may_be_traced():
    def logits(rate, train):
        model = LuongSeq2seq(**small, dropout=rate)
        variables = model.init(jax.random.key(0), SOURCE, LENGTH, TARGET)
        return model.apply(variables, SOURCE, LENGTH, TARGET, train=train, rngs={"dropout": jax.random.key(1)})[0]

    f = jax.jit(logits, static_argnums=1)
    np.testing.assert_allclose(f(0.5, False), logits(0.0, True), atol=1e-5)
    np.testing.assert_allclose(f(0.0, True), logits(0.0, True), atol=1e-5)
    assert not np.allclose(f(0.5, True), f(0.4, True), atol=1e-3)


def test_unknown_scores_say_what_there_is():
    with pytest.raises(InputError, match="score must be one of dot, .*got 'dto'"):
        LuongSeq2seq(**small, score="dto").init(jax.random.key(0), SOURCE, LENGTH, TARGET)
