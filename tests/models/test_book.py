"""What every sequence-to-sequence model promises, checked on each: exact sizes, step = teacher forced, padding is never seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import InputError
from attention_jax.models.book import AttentionSeq2seq, LuongSeq2seq, PeekySeq2seq, Seq2seq
from attention_jax.models.named_scores import SCORES

CLASSES = [Seq2seq, PeekySeq2seq, AttentionSeq2seq, LuongSeq2seq]
small = dict(source_vocab=11, target_vocab=9, hidden_size=8, embed_size=5)
MODELS = {
    **{kind.__name__: kind(**small) for kind in CLASSES},
    "peeky-gru": PeekySeq2seq(**small, cell="gru"),
    **{f"luong-{score}": LuongSeq2seq(**small, score=score) for score in SCORES},
    "luong-bidirectional": LuongSeq2seq(**small, bidirectional=True, pass_cell=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_contract(name, contract):
    contract.check(MODELS[name])


@pytest.mark.parametrize("kind, size", [(AttentionSeq2seq, 591_259), (PeekySeq2seq, 853_403), (Seq2seq, 576_155)])
def test_sizes_of_the_book(kind, size, contract):
    variables = jax.eval_shape(kind(59, 59).init, jax.random.key(0), contract.SOURCE, contract.LENGTH, contract.TARGET)
    assert sum(x.size for x in jax.tree.leaves(variables)) == size


def test_luong_equations(contract):
    """One step of eq. 5-6 in NumPy from the parameters."""
    model = LuongSeq2seq(**small)
    variables = contract.variables_of(model, 1)
    p = jax.tree.map(np.asarray, variables["params"])
    memory = jax.jit(functools.partial(model.apply, method="encode"))(variables, contract.SOURCE, contract.LENGTH)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    x = (
        p["embed"]["table"][1] @ p["layer"]["input_kernel"]
        + memory["state"][0][0] @ p["layer"]["recurrent_kernel"]
        + p["layer"]["bias"]
    )
    i, f, g, o = np.split(x, 4)
    s = sigmoid(o) * np.tanh(sigmoid(i) * np.tanh(g))  # the cell starts at zero
    keys = np.asarray(memory["hidden"][0])
    w = np.exp(keys @ s) / np.exp(keys @ s).sum()
    attentional = np.tanh(np.concatenate([w @ keys, s]) @ p["attentional"]["kernel"] + p["attentional"]["bias"])
    logits, seen = jax.jit(functools.partial(model.apply, look=True))(
        variables, contract.SOURCE[:1], contract.LENGTH[:1], jnp.array([[1]])
    )
    np.testing.assert_allclose(logits[0, 0], attentional @ p["kernel"] + p["bias"], atol=1e-5)
    np.testing.assert_allclose(seen["cross_attention"][0, 0, 0, 0], w, atol=1e-5)


def test_dropout_acts_only_in_training_and_its_rate_may_be_traced(contract):
    def logits(rate, train):
        model = LuongSeq2seq(**small, dropout=rate)
        variables = contract.variables_of(LuongSeq2seq(**small))
        rngs = {"dropout": jax.random.key(1)}
        return model.apply(variables, contract.SOURCE, contract.LENGTH, contract.TARGET, train=train, rngs=rngs)[0]

    f = jax.jit(logits, static_argnums=1)
    np.testing.assert_allclose(f(0.0, True), f(0.5, False), atol=1e-5)
    assert not np.allclose(f(0.5, True), f(0.4, True), atol=1e-3)


def test_unknown_scores_say_what_there_is(contract):
    with pytest.raises(InputError, match="score must be one of dot, .*got 'dto'"):
        LuongSeq2seq(**small, score="dto").init(jax.random.key(0), contract.SOURCE, contract.LENGTH, contract.TARGET)
