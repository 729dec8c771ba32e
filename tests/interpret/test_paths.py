"""Path patching against a forward pass written in NumPy, in which everything is frozen by definition."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest
from site_models import random_params
from tiers import slow_but

from attention_jax import InputError, config, interpret, models

SMALL = {"hidden_size": 8, "num_heads": 2, "mlp_dim": 12, "activation": "relu", "position_embedding": "none"}
INPUTS, SOURCE = [[3, 1, 4, 1, 5]], [[2, 7, 1, 8, 2]]
OUTPUTS = ("head_output", "mlp_output")
"""What is frozen by default, with "cross_head_output"."""


class Forward:
    """The `activations` {site: array} of a text of one row, some replaced by `edits` {site: value}."""

    def __init__(self, params, edits=()):
        self.params, self.edits, self.activations = params, dict(edits), {}

    def at(self, site, x):
        x = self.edits.get(site, x)
        for head in (i for i in range(2) if f"{site.removesuffix('_output')}.{i}" in self.edits):
            x = x.copy()
            x[:, :, head] = self.edits[f"{site.removesuffix('_output')}.{head}"]
        self.activations[site] = x
        return x

    def norm(self, x, of):
        x = x if "bias" not in of else x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * of["scale"] + of.get("bias", 0)

    def attention(self, name, of, x, memory, causal):
        heads = lambda of, x: (x @ of["kernel"] + of["bias"]).reshape(1, -1, 2, 4)
        query, key, value = (
            self.at(f"{name}{projection}", heads(of[projection], x if projection == "query" else memory))
            for projection in ("query", "key", "value")
        )
        scores = np.einsum("bqhe,bkhe->bhqk", query, key) / 2
        future = np.triu(np.ones(scores.shape[2:], bool), 1) & causal
        scores = self.at(f"{name}scores", np.where(future, -np.inf, scores))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = self.at(f"{name}weights", weights / weights.sum(-1, keepdims=True))
        pooled = self.at(f"{name}head_output", np.einsum("bhqk,bkhe->bqhe", weights, value))
        return self.at(f"{name}attention_output", pooled.reshape(1, -1, 8) @ of["out"]["kernel"] + of["out"]["bias"])

    def stack(self, name, table, tokens, scale, causal, memory=None):
        params = self.params[name]
        x = self.at(f"{name}.embedding", table["token"]["embedding"][np.array(tokens)] * scale)
        for i in range(2):
            of, layer = params[f"layer_{i}"], f"{name}.{i}."
            x = self.at(f"{layer}residual_in", x)
            h = self.norm(x, of["attention_norm"])
            x = x + self.attention(layer, of["attention"], h, h, causal)
            if memory is not None:
                h = self.norm(x, of["cross_norm"])
                x = x + self.attention(f"{layer}cross_", of["cross_attention"], h, memory, False)
            h = self.norm(x, of["ffn_norm"]) @ of["ffn"]["hidden"]["kernel"] + of["ffn"]["hidden"]["bias"]
            h = self.at(f"{layer}mlp_hidden", np.maximum(h, 0))
            x = x + self.at(f"{layer}mlp_output", h @ of["ffn"]["out"]["kernel"] + of["ffn"]["out"]["bias"])
            x = self.at(f"{layer}residual_out", x)
        return self.at(f"{name}.final_norm", self.norm(self.at(f"{name}.residual_out", x), params["norm"]))


def decoder(params, tokens, edits=()):
    run = Forward(params, edits)
    table = params["embedding"]
    x = run.stack("decoder", table, tokens, 1.0, True)
    run.at("logits", x @ table["token"]["embedding"].T + params["bias"])
    return run.activations


def translator(params, tokens, edits=()):
    run = Forward(params, edits)
    memory = run.stack("encoder", params["source_embedding"], tokens, np.sqrt(8), False)
    x = run.stack("decoder", params["target_embedding"], [INPUTS[0][:3]], np.sqrt(8), True, memory)
    run.at("logits", x @ params["kernel"] + params["bias"])
    return run.activations


@lru_cache
def case(name):
    """(model, parameters, inputs, other inputs, the forward pass in NumPy)."""
    texts = jnp.array(INPUTS), jnp.array(SOURCE)
    if name == "decoder":
        options = config.LanguageModelConfig(num_layers=2, norm_layer="rms", scale_embeddings=False, **SMALL)
        model, inputs, forward = models.LanguageModel(options, vocab=11), [(x,) for x in texts], decoder
    else:
        options = config.TransformerConfig(2, 2, norm="pre", **SMALL)
        model, forward = models.Transformer(options, 11, 11), translator
        inputs = [(x, jnp.array([5]), texts[0][:, :3]) for x in texts]
    return model, random_params(model, inputs[0]), *inputs, forward


def sub_layer(site):
    """The prefix and the output of the sub-layer that a site is inside of, or None."""
    layer, _, last = site.replace("head.", "head_output.").rstrip(".01").rpartition(".")
    if last in ("embedding", "residual_in", "residual_out", "final_norm", "logits") or layer.count(".") != 1:
        return None
    if last.startswith("mlp"):
        return f"{layer}.mlp_output"
    return f"{layer}.cross_head_output" if last.startswith("cross") else f"{layer}.head_output"


def path_patch_by_definition(forward, params, sender, receiver):
    """The logits where the receiver alone sees the sender, and no sub-layer changes but those around both."""
    activations, source_activations = forward(params, INPUTS), forward(params, SOURCE)
    of_head = lambda run_activations, site: run_activations[site.replace(".head.", ".head_output.")[:-2]][
        :, :, int(site[-1])
    ]
    value = lambda run_activations, site: of_head(run_activations, site) if "head." in site else run_activations[site]
    frozen = {site: x for site, x in activations.items() if site.endswith(OUTPUTS)}
    thawed = {site: x for site, x in frozen.items() if site not in (sub_layer(sender), sub_layer(receiver))}
    received = value(forward(params, INPUTS, thawed | {sender: value(source_activations, sender)}), receiver)
    return forward(params, INPUTS, {receiver: received})["logits"], activations["logits"]


SENDERS = ["embedding", "0.residual_in", "0.query", "0.key", "0.value", "0.scores", "0.weights", "0.head_output"]
SENDERS += ["0.head.1", "0.attention_output", "0.mlp_hidden", "0.mlp_output", "0.residual_out"]
RECEIVERS = ["1.residual_in", "1.query", "1.key", "1.value", "1.scores", "1.weights", "1.head_output", "1.head.0"]
RECEIVERS += ["1.attention_output", "1.mlp_hidden", "1.mlp_output", "1.residual_out", "final_norm"]
CROSS = ["1.cross_key", "1.cross_value", "1.cross_weights", "1.cross_head_output", "1.cross_attention_output"]
PAIRS = [("decoder", f"decoder.{a}", f"decoder.{b}") for a in SENDERS for b in ("1.query", "1.mlp_output")]
PAIRS += [("decoder", f"decoder.{a}", f"decoder.{b}") for a in ("0.value", "0.mlp_output") for b in RECEIVERS]
PAIRS += [("decoder", "decoder.1.key", "decoder.1.head_output"), ("decoder", "decoder.1.head_output", "logits")]
PAIRS += [("translator", f"encoder.{a}", "decoder.1.cross_head_output") for a in SENDERS if a != "0.head.1"]
PAIRS += [("translator", "encoder.1.mlp_output", f"decoder.{b}") for b in CROSS]
PAIRS += [("translator", f"decoder.0.cross_{a}", "decoder.1.head_output") for a in ("key", "value", "weights")]
DEFAULT = [("decoder", "decoder.0.value", "decoder.1.mlp_output")]


@pytest.mark.parametrize(("name", "sender", "receiver"), slow_but(DEFAULT, list(dict.fromkeys(PAIRS))))
def test_a_path_is_that_of_the_definition(name, sender, receiver):
    model, params, inputs, source, forward = case(name)
    wide = _wide(params)
    expected, unpatched = path_patch_by_definition(forward, wide, sender, receiver)
    actual = interpret.path_patch(model, params, inputs, source, sender, receiver)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(expected - unpatched).max() > 1e-3  # the pair has a path


def _wide(params):
    return {k: _wide(v) if isinstance(v, dict) else np.asarray(v, np.float64) for k, v in params.items()}


NO_PATH = [
    ("decoder", "decoder.1.head.1", "decoder.1.query"),  # computed before
    ("decoder", "decoder.1.mlp_output", "decoder.0.mlp_output"),
    ("decoder", "decoder.0.head.1", "decoder.0.head.0"),
    ("decoder", "decoder.0.value", "decoder.0.weights"),
    ("translator", "encoder.0.mlp_output", "decoder.1.query"),  # through cross-attention alone, which is frozen
    ("translator", "encoder.0.mlp_output", "decoder.0.mlp_output"),
]


@pytest.mark.parametrize(("name", "sender", "receiver"), slow_but(NO_PATH[:1], NO_PATH))
def test_a_patch_that_nothing_leads_to_is_refused(name, sender, receiver):
    model, params, inputs, source, _ = case(name)
    with pytest.raises(InputError, match=f"no path leads from {sender} to {receiver} with .* frozen"):
        interpret.path_patch(model, params, inputs, source, sender, receiver)


@pytest.mark.slow
def test_receivers_and_senders_are_independent():
    """Each of two receivers has what it would have alone; of two senders, the first does not act through the second."""
    model, params, inputs, source, forward = case("decoder")
    wide = _wide(params)
    activations, source_activations = forward(wide, INPUTS), forward(wide, SOURCE)
    frozen = {site: x for site, x in activations.items() if site.endswith(OUTPUTS)}
    sender, receivers = "decoder.0.residual_in", ["decoder.0.mlp_output", "decoder.1.mlp_output"]
    received = {}
    for receiver in receivers:
        thawed = {site: x for site, x in frozen.items() if site != receiver}
        received[receiver] = forward(wide, INPUTS, thawed | {sender: source_activations[sender]})[receiver]
    actual = interpret.path_patch(model, params, inputs, source, sender, receivers)
    np.testing.assert_allclose(actual, forward(wide, INPUTS, received)["logits"], rtol=1e-4, atol=1e-4)
    senders = ["decoder.embedding", "decoder.0.query"]
    alone = forward(wide, INPUTS, {senders[1]: source_activations[senders[1]]})["decoder.0.head_output"]
    edits = frozen | {"decoder.0.head_output": alone} | {site: source_activations[site] for site in senders}
    received = forward(wide, INPUTS, edits)["decoder.residual_out"]
    actual = interpret.path_patch(model, params, inputs, source, senders, "decoder.residual_out")
    expected = forward(wide, INPUTS, {"decoder.residual_out": received})["logits"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_unused_path_is_no_error():
    """The same input twice changes nothing, and that is right."""
    model, params, inputs, _, _ = case("decoder")
    actual = interpret.path_patch(model, params, inputs, inputs, "decoder.0.mlp_output", "decoder.1.query")
    np.testing.assert_allclose(actual, model.apply({"params": params}, *inputs)[0], atol=1e-5)
