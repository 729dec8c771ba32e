"""What every sequence-to-sequence model promises, checked on each: sizes, step = teacher forced, no padding is seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.book import AttentionSeq2seq, LuongSeq2seq, PeekySeq2seq, Seq2seq

CLASSES = [Seq2seq, PeekySeq2seq, AttentionSeq2seq, LuongSeq2seq]


def small(kind, **options):
    """A small model of a class, with the options of its own name."""
    return kind(getattr(config, f"{kind.__name__}Config")(hidden_size=8, embed_size=5, **options), 11, 9)


MODELS = {
    **{kind.__name__: small(kind) for kind in CLASSES},
    "peeky-gru": small(PeekySeq2seq, cell="gru"),
    **{f"luong-{score}": small(LuongSeq2seq, score=score) for score in config.SCORES},
    "luong-bidirectional": small(LuongSeq2seq, bidirectional=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("AttentionSeq2seq", "LuongSeq2seq"), MODELS))
def test_contract(name, contract):
    contract.check(MODELS[name])


@pytest.mark.parametrize("kind, size", [(AttentionSeq2seq, 591_259), (PeekySeq2seq, 853_403), (Seq2seq, 576_155)])
def test_sizes_of_the_book(kind, size, contract):
    model = kind(getattr(config, f"{kind.__name__}Config")(), 59, 59)
    variables = jax.eval_shape(model.init, jax.random.key(0), contract.SOURCE, contract.LENGTH, contract.TARGET)
    assert sum(x.size for x in jax.tree.leaves(variables)) == size


def test_luong_equations(contract):
    """One step of eq. 5-6 in NumPy from the parameters."""
    model = small(LuongSeq2seq)
    variables = contract.variables_of(model, 1)
    p = jax.tree.map(np.asarray, variables["params"])
    memory = jax.jit(functools.partial(model.apply, method="encode"))(variables, contract.SOURCE, contract.LENGTH)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    x = (
        p["embed"]["table"][1] @ p["layer"]["input_kernel"]
        + memory.state[0][0] @ p["layer"]["recurrent_kernel"]
        + p["layer"]["bias"]
    )
    i, f, g, o = np.split(x, 4)
    s = sigmoid(o) * np.tanh(sigmoid(i) * np.tanh(g))  # the cell starts at zero
    keys = np.asarray(memory.hidden[0])
    w = np.exp(keys @ s) / np.exp(keys @ s).sum()
    attentional = np.tanh(np.concatenate([w @ keys, s]) @ p["attentional"]["kernel"] + p["attentional"]["bias"])
    logits, intermediates = jax.jit(functools.partial(model.apply, return_weights=True))(
        variables, contract.SOURCE[:1], contract.LENGTH[:1], jnp.array([[1]])
    )
    np.testing.assert_allclose(logits[0, 0], attentional @ p["kernel"] + p["bias"], atol=1e-5)
    np.testing.assert_allclose(intermediates["cross_attention"][0, 0, 0, 0], w, atol=1e-5)


def test_unknown_scores_say_what_there_is():
    with pytest.raises(InputError, match="score must be one of 'dot', .*got 'dto'"):
        config.LuongSeq2seqConfig(score="dto")
