"""No option loses the mask: logits up to t do not change when tokens after t do, and padding changes nothing.

Cases are generated from config/models.py, so that a new name is tested, and a new option must be sorted in here.
"""

from dataclasses import fields
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend_heads, causal, config, lengths, load_pretrained
from attention_jax.config import models
from attention_jax.errors import InputError
from attention_jax.models.bahdanau import Bahdanau
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.layer_checks import compiled
from attention_jax.models.luong import Luong
from attention_jax.models.text_classifier import TextClassifier
from attention_jax.models.transformer import Transformer
from attention_jax.ops.dispatch import Implementation

PAST = 4
"""Tokens of both rows that are equal; the ones behind are not."""
TOKENS = np.array([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 7, 1, 3]], np.int32)
SIZES = {"hidden_size": 8, "num_heads": 2, "mlp_dim": 8}
ARGUMENTS = {
    "soft_cap": "(2)", "entmax": "(1.5)", "top_k": "(2)", "sigmoid": "(-1)", "window": "(1)", "local_linear": "(0.1)",
    "linear": "(2)", "llama3": "(2, 1, 4, 8)", "yarn": "(2, 8)",
}  # fmt: skip
NAMES = {
    "attention": [*models.ATTENTIONS, "own_attention_page:TalkingHeads", "own_attention_page:MemorySlots"],
    "score": sorted(models.SCORES.keys() - {"location"}),  # no score of a head
    "normalizer": models.NORMALIZERS,
    "head_pool": models.POOLS,
    "mask": models.MASKS,
    "bias": models.BIASES,
    "position_embedding": models.POSITIONS,
    "norm_layer": models.NORMS,
    "mlp_layer": models.MLPS,
    "rope_scaling": models.ROPE_SCALINGS,
    "norm": get_args(models.NormPlacement),
    "activation": get_args(models.Activation),
}
OTHER = {
    "num_kv_heads": 1, "output_gate": True, "differential": True, "differential_v2": True, "exclusive": True,
    "rope_theta": 50.0, "rope_fraction": 0.5, "normalize_qk": True, "value_residual": True, "value_embeddings": True,
    "attention_residuals": True, "key_dim": 6, "value_dim": 6, "use_bias": False, "logit_cap": 3.0, "scan_layers": True,
    "tied_embeddings": False, "scale_embeddings": False, "output_bias": False, "remat": True,
    "per_layer": "1:score=cosine,mask=window(1)", "norm_epsilon": 1e-3, "num_layers": 3,
}  # fmt: skip
APART = {"hidden_size", "num_heads", "mlp_dim", "dropout", "attention_dropout", "mlp_dropout", "max_length", "dtype"}
"""Options that no mask depends on: sizes and training."""
CASES = [(option, name + ARGUMENTS.get(name, "")) for option, names in NAMES.items() for name in names]
CASES += OTHER.items()
DEFAULT_TIER = [
    ("attention", "own_attention_page:TalkingHeads"), ("normalizer", "top_k(2)"), ("normalizer", "ssmax"),
    ("normalizer", "stick_breaking"), ("head_pool", "log_mixture"), ("bias", "forget"), ("bias", "cope"),
    ("position_embedding", "transformer_xl"), ("mask", "window(1)"),
]  # fmt: skip
"""The others are slow: a program each."""


def in_tiers(chosen, cases=CASES) -> list:
    return [case if case in chosen else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def random_params(model, *inputs):
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    draw = np.random.default_rng(0).normal
    return jax.tree.map(lambda x: draw(size=x.shape, scale=0.5).astype(np.float32), shapes)


def run(model, *inputs):
    return np.asarray(compiled(lambda params: model.apply(params, *inputs)[0])(random_params(model, *inputs)))


def assert_later_is_unseen(logits):
    """Of two rows [T, ...] of which the first `PAST` tokens are equal."""
    first, second = logits
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(first[:PAST], second[:PAST], atol=1e-5 * abs(logits).max())
    assert abs(first[PAST:] - second[PAST:]).max() > 1e-3, "the tokens are not read"


def test_every_option_of_layers_is_here():
    """A new option of config/models.py belongs to `NAMES`, `OTHER` or `APART`."""
    options = {field.name for field in fields(config.LanguageModelConfig)}
    assert options == NAMES.keys() | OTHER.keys() | APART
    assert {field.name for field in fields(models.TransformerLayers)} <= options


@pytest.mark.parametrize(("option", "value"), in_tiers(DEFAULT_TIER))
def test_later_tokens_are_unseen(option, value):
    options = {"num_layers": 2 if option == "per_layer" or option.startswith("value") else 1} | SIZES | {option: value}
    assert_later_is_unseen(run(LanguageModel(config.LanguageModelConfig(**options), 8), TOKENS))


BIDIRECTIONAL = {field.name for field in fields(config.TextClassifierConfig)}
BIDIRECTIONAL -= {"rope_scaling"}  # which needs rotary positions
POSITIONS = ("none", "sinusoidal", "rotary")
TEXT_CASES = [(option, value) for option, value in CASES if option in BIDIRECTIONAL and value != "cope"]
TEXT_CASES = [case for case in TEXT_CASES if case[0] != "position_embedding" or case[1] in POSITIONS]


@pytest.mark.parametrize(("option", "value"), in_tiers([("normalizer", "ssmax")], TEXT_CASES))
def test_padding_changes_nothing(option, value):
    """Rows are the same four tokens behind which other ones stand, and alone."""
    model = TextClassifier(config.TextClassifierConfig(**{"num_layers": 1} | SIZES | {option: value}), 8, 3)
    params, length = random_params(model, TOKENS, np.full(2, PAST)), jnp.full(2, PAST)
    apply = compiled(lambda params, tokens: model.apply(params, tokens, length)[0])
    padded, alone = apply(params, TOKENS), apply(params, TOKENS[:, :PAST])
    np.testing.assert_allclose(padded, alone, atol=1e-5 * max(1, abs(alone).max()))


@pytest.mark.parametrize("implementation", get_args(Implementation))
def test_no_implementation_loses_a_mask(implementation):
    """It computes it, or is refused; 160 keys, of which 100 are unseen."""
    arrays = np.random.default_rng(0).normal(size=(3, 2, 160, 2, 8)).astype(np.float32)
    arrays[:, 1, :60] = arrays[:, 0, :60]
    mask = causal(), lengths(jnp.full(2, 150))
    try:
        first, second = compiled(lambda x: attend_heads(*x, mask=mask, implementation=implementation))(arrays)
    except InputError:
        assert implementation not in ("plain", "fused")
        return
    np.testing.assert_allclose(first[:60], second[:60], atol=1e-5)
    assert abs(first[60:] - second[60:]).max() > 1e-3


TRANSLATOR = {"hidden_size": 8, "embed_size": 4, "readout_size": 8}
TRANSLATORS = {
    "transformer": lambda: Transformer(config.TransformerConfig(1, 1, 8, 2, 8), 8, 8),
    "bahdanau": lambda: Bahdanau(config.BahdanauConfig(**TRANSLATOR), 8, 8),
    "luong": lambda: Luong(config.LuongConfig(**TRANSLATOR), 8, 8),
}


@pytest.mark.parametrize("name", slow_but(["transformer"], TRANSLATORS))
def test_a_translator_sees_no_later_target_and_no_padding(name):
    """Rows have one source, with other padding."""
    model = TRANSLATORS[name]()
    assert_later_is_unseen(run(model, TOKENS, jnp.full(2, PAST), TOKENS))


@pytest.mark.slow
def test_an_encoder_of_words_sees_no_padding():
    model = MaskedLanguageModel(config.MaskedLanguageModelConfig(num_layers=1, **SIZES), 8)
    first, second = run(model, TOKENS, jnp.full(2, PAST))
    np.testing.assert_allclose(first[:PAST], second[:PAST], atol=1e-5)


CACHED = [("bias", "forget"), ("position_embedding", "rotary"), ("attention", "own_attention_page:TalkingHeads")]


@pytest.mark.parametrize(("option", "value"), slow_but(CACHED[2:], CASES))
def test_prompts_are_read_without_their_padding(option, value):
    """Of `prefill` and of the step behind it, which writes over the padding."""
    model = LanguageModel(config.LanguageModelConfig(**{"num_layers": 1} | SIZES | {option: value}), 8)

    def write(params):
        logits, past = model.apply(params, TOKENS, jnp.full(2, PAST), 8, method="prefill")
        return logits, model.apply(params, past, jnp.full(2, 5, jnp.int32), method="step")[0]

    for first, second in compiled(write)(random_params(model, TOKENS)):
        np.testing.assert_allclose(first, second, atol=1e-5 * abs(first).max())


FAMILIES = {
    "gpt2": {"position_embedding": "learned", "activation": "gelu_tanh", "scale_embeddings": False},
    "llama": {"norm_layer": "rms", "mlp_layer": "swiglu", "num_kv_heads": 1, "rope_scaling": "llama3(2, 1, 4, 8)"},
    "qwen3": {"norm_layer": "rms", "mlp_layer": "swiglu", "normalize_qk": True, "use_bias": False},
    "gemma": {"norm": "sandwich", "mlp_layer": "geglu", "score": "soft_cap(2)", "per_layer": "0:mask=window(2)"},
}
"""Options that the pretrained families have together."""


@pytest.mark.parametrize("family", slow_but([], FAMILIES))
def test_pretrained_families_see_no_later_token(family):
    options = {"num_layers": 2} | SIZES | FAMILIES[family]
    assert_later_is_unseen(run(LanguageModel(config.LanguageModelConfig(**options), 8), TOKENS))


@pytest.mark.slow
def test_a_pretrained_directory_sees_no_later_token(tmp_path):
    reference = pytest.importorskip("their_decoders", reason="needs safetensors and tokenizers")
    reference.directory(tmp_path)
    model = load_pretrained(tmp_path)
    first, second = (model.logits([text])[0] for text in ("The quick dog", "The quick brown fox"))
    count = len(model.tokenizer.encode("The quick")) - 1  # the last token may be joined with what follows
    assert count > 0
    np.testing.assert_allclose(first[:count], second[:count], atol=1e-5 * abs(first).max())
