"""Llama, Mistral, Qwen and Gemma with their published names, small and random, and what they compute in NumPy; the
directory of a Llama with a tokenizer.

`outputs` is a float64 forward pass (Touvron et al. 2023; Gemma Team 2024, 2025): RMSNorm, rotary channels that are
halves apart, grouped heads, SwiGLU. It shares no code with the package; the names are those of transformers.
"""

import json
from pathlib import Path

import numpy as np
import their_weights as reference

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
TEXTS = ["The quick brown fox jumps over the lazy dog."] * 2


SMALL = CONFIG | {"vocab_size": 31, "head_dim": 6, "rope_theta": 100.0}
GEMMA = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 3}
FAMILIES = {
    "llama": SMALL | {"tie_word_embeddings": False, "attention_bias": True},
    "mistral": SMALL | {"model_type": "mistral", "sliding_window": 3, "tie_word_embeddings": False},
    "qwen2": SMALL | {"model_type": "qwen2", "head_dim": 4},
    "qwen3": SMALL | {"model_type": "qwen3"},
    "gemma2": SMALL
    | {"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 5}
    | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}
    | GEMMA,
    "gemma3": SMALL
    | {"model_type": "gemma3_text", "layer_types": ["full_attention", "sliding_attention"], "query_pre_attn_scalar": 5}
    | {"rope_local_base_freq": 7.0}
    | GEMMA,
}
"""{family: config.json of a small model}"""
HAS_BIAS, HAS_QK_NORM = ("qwen2",), ("qwen3", "gemma3_text")


def llama(config: dict = CONFIG) -> dict[str, np.ndarray]:
    """The weights of a model of any of the families by their published names; those of Llama's norms are around one."""
    width, hidden, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_width, family = config.get("head_dim", width // heads), config["model_type"]
    wide, narrow = heads * head_width, config["num_key_value_heads"] * head_width
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        norms = ("input", "post_attention")
        norms += ("pre_feedforward", "post_feedforward") * family.startswith("gemma")
        shapes |= {f"{at}.{name}_layernorm.weight": (width,) for name in norms}
        outputs = {"q_proj": wide, "k_proj": narrow, "v_proj": narrow}
        shapes |= {f"{at}.self_attn.{name}.weight": (size, width) for name, size in outputs.items()}
        shapes[f"{at}.self_attn.o_proj.weight"] = (width, wide)
        if config.get("attention_bias") or family in HAS_BIAS:
            shapes |= {f"{at}.self_attn.{name}.bias": (size,) for name, size in outputs.items()}
        if config.get("attention_bias"):
            shapes[f"{at}.self_attn.o_proj.bias"] = (width,)
        if family in HAS_QK_NORM:
            shapes |= {f"{at}.self_attn.{name}_norm.weight": (head_width,) for name in "qk"}
        shapes |= {f"{at}.mlp.{projection}_proj.weight": (hidden, width) for projection in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (width, hidden)}
    weights = reference.draw(shapes)
    offset = 0 if family.startswith("gemma") else 1
    return {name: x + offset if name.endswith("norm.weight") else x for name, x in weights.items()}


def tokenizer():
    """A byte-level BPE with two special tokens."""
    import tokenizers as t

    bpe = t.Tokenizer(t.models.BPE())
    bpe.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = t.decoders.ByteLevel()
    alphabet = t.pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = t.trainers.BpeTrainer(
        vocab_size=290, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(TEXTS, trainer)
    return bpe


def directory(place: Path, **config) -> dict[str, np.ndarray]:
    """Write the directory of the model, as `save_pretrained` does; returns its weights."""
    config = CONFIG | config
    state = llama(config)
    reference.write_weights(place / "model.safetensors", state, config)
    tokenizer().save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return state


def to_gguf(architecture: str, name: str, x: np.ndarray, config: dict) -> np.ndarray:
    """What the converter of llama.cpp, convert_hf_to_gguf.py, does with a tensor besides its name."""
    projection = name.split(".")[-2]
    if architecture == "llama" and projection in ("q_proj", "k_proj"):  # LlamaModel.permute
        heads = config["num_attention_heads" if projection == "q_proj" else "num_key_value_heads"]
        return x.reshape(heads, 2, len(x) // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return x + 1
    return x.T if architecture == "gpt2" and projection.startswith("c_") and name.endswith("weight") else x


def write_gguf(path: Path, architecture: str, state: dict, config: dict | None, fields: dict | None = None):
    """Write the weights of a model of two layers to a .gguf file, under the names that the `gguf` library has; `fields`
    are {name of an entry: its value} of the header besides those of `config`."""
    import gguf

    names, writer = (
        gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], 2),
        gguf.GGUFWriter(path, architecture),
    )
    if config is not None:
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(1e-5)
    for name, value in (fields or {}).items():
        getattr(writer, f"add_{name}")(value)
    for name, x in state.items():
        array = np.ascontiguousarray(to_gguf(architecture, name, x, config))
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def outputs(state: dict, ids, config: dict = CONFIG, last: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(logits [T, V], or of the `last` tokens, attention maps [layers, heads, T, T]) of one text, in float64.

    Mistral and some layers of Gemma have a window; Qwen 2 has biases; Qwen 3 and Gemma 3 normalize queries and keys;
    Gemma has norms of 1 + w before and after each sub-layer, GeGLU and, in the second generation, caps.
    """
    is_gemma, at = config["model_type"].startswith("gemma"), ""
    get = lambda name: np.asarray(state[name], np.float64)
    norm = lambda x, name: rms_norm(x, get(f"{name}.weight") + is_gemma, config["rms_norm_eps"])
    heads, groups = (config[f"num_{name}_heads"] for name in ("attention", "key_value"))
    width = config.get("head_dim", config["hidden_size"] // heads)
    table = np.asarray(state["model.embed_tokens.weight"])  # float32: half a gigabyte less for Gemma
    x, maps = table[np.asarray(ids)].astype(np.float64), []
    x = x * np.sqrt(np.float64(x.shape[1])) if is_gemma else x
    distance = np.arange(len(ids))[:, None] - np.arange(len(ids))

    def linear(x, name):
        bias = get(f"{at}.{name}.bias") if f"{at}.{name}.bias" in state else 0
        return x @ get(f"{at}.{name}.weight").T + bias

    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        local = config.get("layer_types", ["sliding_attention"] * (i + 1))[i] == "sliding_attention"
        window = config.get("sliding_window") if local else None
        allowed = (distance >= 0) & (distance < (window or len(ids)))
        theta = config["rope_local_base_freq"] if local and "rope_local_base_freq" in config else config["rope_theta"]
        h = norm(x, f"{at}.input_layernorm")
        query, key, value = (split(linear(h, f"self_attn.{projection}_proj"), width) for projection in "qkv")
        if f"{at}.self_attn.q_norm.weight" in state:
            query, key = norm(query, f"{at}.self_attn.q_norm"), norm(key, f"{at}.self_attn.k_norm")
        query, key = rotate(query, theta), rotate(key, theta)
        scale, cap = config.get("query_pre_attn_scalar", width), config.get("attn_logit_softcapping")
        pooled, weights = attention(query, key, value, heads // groups, scale, allowed, cap)
        y = linear(pooled, "self_attn.o_proj")
        x = x + (norm(y, f"{at}.post_attention_layernorm") if is_gemma else y)
        h = norm(x, f"{at}.pre_feedforward_layernorm" if is_gemma else f"{at}.post_attention_layernorm")
        gate = (reference.gelu_tanh if is_gemma else reference.swish)(linear(h, "mlp.gate_proj"))
        y = linear(gate * linear(h, "mlp.up_proj"), "mlp.down_proj")
        x = x + (norm(y, f"{at}.post_feedforward_layernorm") if is_gemma else y)
        maps.append(weights)
    head = table if config["tie_word_embeddings"] else get("lm_head.weight")
    return soft_cap(norm(x[-last:], "model.norm") @ head.T, config.get("final_logit_softcapping")), np.stack(maps)


def soft_cap(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


def rms_norm(x, scale, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def split(x, width):  # [T, heads * width] -> [T, heads, width]
    return x.reshape(len(x), -1, width)


def rotate(x, theta):
    """Rotary positions of channels that are halves apart, [T, heads, width]."""
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(0, x.shape[2], 2) / x.shape[2])
    (first, second), cos, sin = np.split(x, 2, axis=-1), np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(query, key, value, shared: int, scale, allowed, cap=None) -> tuple[np.ndarray, np.ndarray]:
    """(outputs [T, heads * width], weights [heads, T, T]); a key and a value belong to `shared` heads of queries."""
    scores = soft_cap(np.einsum("qhe,khe->hqk", query, key.repeat(shared, 1)) / np.sqrt(scale), cap)
    weights = reference.softmax(np.where(allowed, scores, -np.inf))
    return np.einsum("hqk,khe->qhe", weights, value.repeat(shared, 1)).reshape(len(query), -1), weights
