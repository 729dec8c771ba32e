"""Decoder-only families against transformers, with random models that it writes: logits and attention maps.

Each model is a forward pass of ours, compiled once, and one of theirs. Nothing is downloaded.
"""

import json

import numpy as np
import parity
import pytest
from parity import GEMMA2, GEMMA3, LLAMA3

from attention_jax.errors import InputError
from attention_jax.pretrained import exchange

torch = pytest.importorskip("torch", reason="parity with transformers needs torch, of the extra `libraries`")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs it, of the extra `libraries`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings are theirs

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}
MODELS = [
    pytest.param("Llama", {}, id="Llama"),
    pytest.param("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}, id="Llama, tied, all heads"),
    pytest.param("Llama", {"rope_parameters": LLAMA3, "rms_norm_eps": 1e-3}, id="Llama 3.1"),
    pytest.param("Llama", {"head_dim": 10, "attention_bias": True, "num_key_value_heads": 1}, id="wide heads, biases"),
    pytest.param("Mistral", {"sliding_window": 4}, id="Mistral with a window"),
    pytest.param("Mistral", {"sliding_window": None}, id="Mistral"),
    pytest.param("Qwen2", {}, id="Qwen 2"),
    pytest.param(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, id="Qwen 2, upper windows"
    ),
    pytest.param("Qwen2", {"rope_parameters": YARN}, id="Qwen 2.5, YaRN"),
    pytest.param("Llama", {"rope_parameters": YARN | {"truncate": False, "beta_fast": 2.0}}, id="YaRN, not truncated"),
    pytest.param("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}, id="Qwen 3"),
    pytest.param("Gemma2", {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}, id="Gemma 2"),
    pytest.param(
        "Gemma2",
        GEMMA2,
        id="Gemma 2, other scale and caps",
    ),
    pytest.param(
        "Gemma3",
        GEMMA3,
        id="Gemma 3",
    ),
]  # fmt: skip


def make_model(name: str, options: dict):
    return parity.random_model(f"{name}ForCausalLM", parity.SIZES | options)


def agree(actual, expected):
    assert max(parity.differences(actual, expected).values()) <= parity.BOUND


def our_outputs(weights):
    return parity.weights_outputs(weights, input_ids=TOKENS)


def hf_outputs(model):
    return parity.hf_outputs(model, input_ids=TOKENS)


TOKENS = np.random.default_rng(0).integers(0, 31, (2, 23))


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_logits_and_attention_maps_are_theirs(tmp_path, name, options):
    model = make_model(name, options)
    model.save_pretrained(tmp_path, max_shard_size="10KB" if name == "Llama" else "5GB")
    weights = exchange.read(tmp_path)
    assert "not read" not in weights.note
    agree(our_outputs(weights), hf_outputs(model))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_half_precision_is_read_exactly(tmp_path, kind):
    model = make_model("Llama", {}).to(getattr(torch, kind))
    model.save_pretrained(tmp_path)
    weights = exchange.read(tmp_path)
    kind = transformers.LlamaForCausalLM  # `model.float()` would keep rotary frequencies that were rounded
    again = kind.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    agree(our_outputs(weights), hf_outputs(again))
    expected = model.model.embed_tokens.weight.float().detach().numpy()
    np.testing.assert_array_equal(weights.arrays["embedding/token/embedding"], expected)


@pytest.mark.parametrize(("name", "naming"), [("Llama", "llama"), ("Qwen2", "qwen2"), ("Qwen3", "qwen3")])
def test_they_read_what_we_write(tmp_path, name, naming):
    make_model(name, {"tie_word_embeddings": True, "head_dim": 6}).save_pretrained(tmp_path / "there")
    weights = exchange.read(tmp_path / "there")
    changed = {path: array if path.endswith("out/bias") else 0.9 * array for path, array in weights.arrays.items()}
    weights = weights._replace(arrays=changed)
    exchange.write(weights, tmp_path / "back", "safetensors", naming)
    kind = getattr(transformers, f"{name}ForCausalLM")
    again, loading_info = kind.from_pretrained(tmp_path / "back", output_loading_info=True, attn_implementation="eager")
    assert not set(loading_info["missing_keys"]) - {"lm_head.weight"} and not loading_info["unexpected_keys"]
    agree(our_outputs(weights), hf_outputs(again.eval()))


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        ("Llama", {"hidden_act": "gelu"}, "hidden_act silu or swish, has 'gelu'"),
        ("Llama", {"mlp_bias": True}, "mlp_bias False"),
        ("Llama", DYNAMIC, "scaled by default, linear, llama3, yarn; got dynamic"),
        ("Llama", {"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ("Llama", {"num_attention_heads": 5}, ""),
        ("Llama", {"num_attention_heads": None}, "num_attention_heads"),
        ("Llama", {"num_hidden_layers": 4}, "num_hidden_layers 3, has 4"),
        ("Llama", {"hidden_size": 25}, "hidden_size 24, has 25"),
        ("Llama", {"quantization_config": {"bits": 4}}, "quantized safetensors files are not read"),
        ("Llama", {"model_type": "mamba"}, "model_type mamba is not supported; supported: "),
        ("Llama", {"model_type": "gemma3"}, "model_type gemma3 is not supported; supported: "),
        ("Llama", {"tie_word_embeddings": True}, "lm_head.weight must be tied"),
        ("Qwen2", {"layer_types": ["full_attention"]}, "for each of 3 layers; got 1 of full_attention"),
        ("Qwen2", {"layer_types": ["chunked_attention"] * 3}, "got 3 of chunked_attention"),
        ("Gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention False"),
        ("Gemma3", {"hidden_activation": "silu"}, "hidden_activation gelu_pytorch_tanh, has 'silu'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_that_changes_the_computation_is_refused(tmp_path, name, setting, reason):
    make_model(name, {"head_dim": 6}).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(InputError) as error:
        exchange.read(tmp_path)
    assert reason in str(error.value) and "\n" not in str(error.value)
