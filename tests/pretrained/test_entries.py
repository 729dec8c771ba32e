"""Every entry of a model's files has a row that says what it means: transformers' configuration classes are walked."""

import json

import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.pretrained import exchange
from attention_jax.pretrained.config_json import ENTRIES, REFUSED, TENSORS, Facts, class_function, is_harmless

COMMON = """_name_or_path architectures bos_token_id chunk_size_feed_forward dtype eos_token_id id2label
is_encoder_decoder label2id model_type output_attentions output_hidden_states pad_token_id problem_type return_dict
transformers_version"""
DECODER = """attention_dropout head_dim hidden_size initializer_range intermediate_size max_position_embeddings
num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_parameters tie_word_embeddings use_cache
vocab_size"""
QWEN = f"{DECODER} hidden_act layer_types max_window_layers sliding_window use_sliding_window"
GEMMA = f"""{DECODER} attention_bias attn_logit_softcapping final_logit_softcapping hidden_activation layer_types
query_pre_attn_scalar sliding_window use_bidirectional_attention"""
ENCODER = """attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size initializer_range intermediate_size
layer_norm_eps num_attention_heads num_hidden_layers"""
BERT = f"""{ENCODER} add_cross_attention classifier_dropout is_decoder max_position_embeddings tie_word_embeddings
type_vocab_size use_cache vocab_size"""
VIT = f"{ENCODER} encoder_stride image_size num_channels patch_size pooler_act pooler_output_size qkv_bias"
T5 = """classifier_dropout d_ff d_kv d_model dense_act_fn dropout_rate feed_forward_proj initializer_factor is_decoder
is_gated_act layer_norm_epsilon num_decoder_layers num_heads num_layers relative_attention_max_distance
relative_attention_num_buckets tie_word_embeddings use_cache vocab_size"""
WRITTEN = {
    "llama": f"{DECODER} attention_bias hidden_act mlp_bias pretraining_tp",
    "mistral": f"{DECODER} hidden_act sliding_window",
    "qwen2": QWEN.replace(" head_dim", ""),
    "qwen3": f"{QWEN} attention_bias",
    "gemma2": GEMMA,
    "gemma3_text": f"{GEMMA} _sliding_window_pattern",
    "gpt2": """activation_function add_cross_attention attn_pdrop embd_pdrop initializer_range layer_norm_epsilon n_embd
    n_head n_inner n_layer n_positions reorder_and_upcast_attn resid_pdrop scale_attn_by_inverse_layer_idx
    scale_attn_weights summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    tie_word_embeddings use_cache vocab_size""",
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), BERT),
    "distilbert": """activation attention_dropout dim dropout hidden_dim initializer_range max_position_embeddings
    n_heads n_layers qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_word_embeddings vocab_size""",
    "t5": f"{T5} scale_decoder_outputs",
    "mt5": f"{T5} decoder_start_token_id",
    "marian": """activation_dropout activation_function attention_dropout d_model decoder_attention_heads
    decoder_ffn_dim decoder_layerdrop decoder_layers decoder_start_token_id decoder_vocab_size dropout
    encoder_attention_heads encoder_ffn_dim encoder_layerdrop encoder_layers
    forced_eos_token_id init_std is_decoder max_position_embeddings
    scale_embedding share_encoder_decoder_embeddings tie_word_embeddings use_cache vocab_size""",
    "umt5": f"{T5} decoder_start_token_id scale_decoder_outputs",
    "clip_text_model": """attention_dropout hidden_act hidden_size initializer_factor initializer_range
    intermediate_size layer_norm_eps max_position_embeddings num_attention_heads num_hidden_layers projection_dim
    vocab_size""",
    "clip": "initializer_factor logit_scale_init_value projection_dim text_config vision_config",
    "vit": VIT,
    "deit": VIT,
}
"""What the configuration classes of transformers 5.24 write besides `COMMON`, by model_type."""
CLASSES = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2", "gpt2": "GPT2",
    "gemma3_text": "Gemma3Text", "bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "deit": "DeiT",
    "camembert": "Camembert", "distilbert": "DistilBert", "t5": "T5", "mt5": "MT5", "marian": "Marian", "vit": "ViT",
    "umt5": "UMT5", "clip": "CLIP", "clip_text_model": "CLIPText",
}  # fmt: skip


def without_a_row(model_type: str, names) -> list[str]:
    return sorted(name for name in names if name not in ENTRIES[model_type] and not is_harmless(name))


def test_every_family_has_a_table():
    supported = {kind for naming in exchange.NAMINGS.values() for kind in naming.model_types}
    assert ENTRIES.keys() == WRITTEN.keys() == CLASSES.keys() == supported


@pytest.mark.parametrize("model_type", WRITTEN)
def test_every_entry_that_transformers_writes_has_a_row(model_type):
    assert without_a_row(model_type, [*COMMON.split(), *WRITTEN[model_type].split()]) == []


@pytest.mark.slow
@pytest.mark.parametrize("model_type", CLASSES)
def test_absent_and_null_mean_transformers_defaults(model_type):
    transformers = pytest.importorskip("transformers", reason="the walk over its classes needs it, of `libraries`")
    kind = getattr(transformers, f"{CLASSES[model_type]}Config")
    usual = {"use_sliding_window": True} if model_type.startswith("qwen") else {}  # without it a window is null
    silent = kind.from_dict(dict(usual)).to_dict()
    written = {*COMMON.split(), *WRITTEN[model_type].split()}
    assert without_a_row(model_type, silent) == [] and silent.keys() <= written
    for name, entry in ENTRIES[model_type].items():
        if name not in silent or name in usual or name == "rope_theta":
            continue
        if entry.absent not in (TENSORS, None) and name != "is_gated_act":
            assert silent[name] == entry.absent or not (silent[name] or entry.absent), name
        try:
            null = kind.from_dict(usual | {name: None}).to_dict()[name]
        except Exception:  # the type of its validation
            assert entry.null is REFUSED, name
            continue
        if entry.null is REFUSED:
            # the configuration takes null, and the model fails
            assert (model_type, name) in [
                *((family, "pad_token_id") for family in ("roberta", "xlm-roberta", "camembert")),
                ("clip_text_model", "layer_norm_eps"),
            ]
        elif name == "scale_decoder_outputs":
            assert not null and not entry.null
        elif entry.null in (None, TENSORS) and entry.absent in (None, TENSORS):
            assert null == silent[name] or null is None, name
        else:
            assert null == entry.null or (name, null) in [
                ("num_key_value_heads", 32),
                ("use_bidirectional_attention", None),
            ]


def test_null_and_absent_are_two_things():
    gemma = Facts({"model_type": "gemma2", "attn_logit_softcapping": None, "sliding_window": None, "head_dim": None})
    assert [gemma.get(f"{name}_logit_softcapping") for name in ("attn", "final")] == [None, 30.0]
    assert gemma.get("sliding_window") is None and gemma.get("query_pre_attn_scalar") == 256
    with pytest.raises(InputError, match=r"head_dim in config.json must not be null"):
        gemma.get("head_dim")
    mistral = Facts({"model_type": "mistral"})
    assert (mistral.get("sliding_window"), mistral.get("num_key_value_heads")) == (4096, 8)


@pytest.mark.parametrize(
    ("entries_of_file", "classes", "function"),
    [
        ({}, 3, "softmax"),
        ({}, 1, "sigmoid"),
        ({"problem_type": None}, 2, "softmax"),
        ({"problem_type": "single_label_classification"}, 1, "sigmoid"),
        ({"problem_type": "single_label_classification"}, 2, "softmax"),
        ({"problem_type": "multi_label_classification"}, 1, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, 5, "sigmoid"),
        ({"problem_type": "regression"}, 1, "none"),
        ({"problem_type": "regression"}, 4, "none"),
        ({"problem_type": "regression", "function_to_apply": "none"}, 4, "none"),
    ],
)
def test_class_function_equals_transformers_pipelines(entries_of_file, classes, function):
    """transformers 5.24, pipelines/text_classification.py, postprocess; image_classification.py has the same."""
    assert class_function(Facts({"model_type": "bert"} | entries_of_file), classes) == function


def test_unknown_problem_type_is_an_error():
    with pytest.raises(InputError, match="problem_type in config.json must be"):
        class_function(Facts({"problem_type": "ranking"}), 2)
    with pytest.raises(InputError, match="function_to_apply sigmoid in config.json contradicts"):
        class_function(Facts({"problem_type": "regression", "function_to_apply": "sigmoid"}), 2)


def test_what_one_family_ignores_is_noted():
    """transformers 5.24: Gemma 3 does not cap its scores, and mT5 does not scale its output."""
    state_dict = {f"model.layers.{i}.x": np.zeros(1) for i in range(2)}
    for family, model_type, score in (("gemma2", "gemma2", "soft_cap(20)"), ("gemma3", "gemma3_text", "scaled_dot")):
        facts = Facts({"model_type": model_type, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 30.0})
        options = exchange.NAMINGS[family].family_options(state_dict, facts)
        assert options.get("score", "scaled_dot") == score and options["logit_cap"] == 30.0
        assert facts.unread() == ([] if family == "gemma2" else ["attn_logit_softcapping"])
    naming, inner = exchange.NAMINGS["t5_gated"], "encoder.block.0.layer.0.SelfAttention.q.weight"
    state_dict = {"shared.weight": np.zeros((5, 4)), inner: np.zeros((4, 4)), naming.mark: np.zeros((6, 4))}
    state_dict |= {"decoder.block.0.x": np.zeros(1), "lm_head.weight": np.zeros((5, 4))}
    for model_type, is_scaled in (("t5", True), ("mt5", False)):
        values = {"model_type": model_type, "num_heads": 2, "scale_decoder_outputs": True, "tie_word_embeddings": True}
        facts = Facts(values | {"feed_forward_proj": "gated-gelu", "is_gated_act": True})
        assert naming.infer_options(state_dict, facts).scale_output == is_scaled
        assert facts.unread() == ([] if is_scaled else ["scale_decoder_outputs"])


# --- against the library: both read one directory ---------------------------------------------------------------------

GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 100.0}
LEFT_OUT = object()
CASES = [
    ("Gemma2", GEMMA, {"attn_logit_softcapping": None}),
    ("Gemma2", GEMMA, {"final_logit_softcapping": None}),
    ("Gemma2", GEMMA, {"attn_logit_softcapping": LEFT_OUT, "final_logit_softcapping": LEFT_OUT}),
    ("Gemma2", GEMMA, {"layer_types": None, "sliding_window": LEFT_OUT}),
    ("Gemma3", GEMMA, {"attn_logit_softcapping": 0.5}),
    ("Gemma3", GEMMA, {"layer_types": LEFT_OUT, "sliding_window_pattern": 2}),
    ("Gemma3", GEMMA, {"rope_parameters": None, "rope_theta": 5000.0, "rope_local_base_freq": 300.0}),
    ("Gemma3", GEMMA, {"rope_parameters": LEFT_OUT, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("Mistral", {"sliding_window": 4}, {"sliding_window": None}),
    ("Llama", {}, {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0}),
    ("Llama", {}, {"rope_parameters": LLAMA3}),
    ("Llama", {}, {"rope_parameters": LLAMA3, "original_max_position_embeddings": 8}),
    ("Qwen2", WINDOWS, {"layer_types": None}),
    ("Qwen2", WINDOWS, {"sliding_window": LEFT_OUT, "layer_types": LEFT_OUT}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "options", "change"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_null_entries_are_read_like_transformers(tmp_path, name, options, change):
    pytest.importorskip("torch", reason="parity with transformers needs torch, of the extra `libraries`")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers, of the extra `libraries`")
    import parity

    parity.random_model(f"{name}ForCausalLM", parity.SIZES | options).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    about = json.loads(path.read_text()) | change
    path.write_text(json.dumps({entry: value for entry, value in about.items() if value is not LEFT_OUT}))
    hf_model = getattr(transformers, f"{name}ForCausalLM").from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokens = np.random.default_rng(0).integers(0, 31, (2, 23))
    actual, expected = (
        parity.weights_outputs(exchange.read(tmp_path), input_ids=tokens),
        parity.hf_outputs(hf_model, input_ids=tokens),
    )
    assert max(parity.differences(actual, expected).values()) <= parity.BOUND
