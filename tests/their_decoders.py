"""A Llama with its published names, small and random, its directory with a tokenizer, and what it computes in NumPy.

`outputs` is a float64 forward pass (Touvron et al. 2023): RMSNorm, rotary channels that are halves apart, grouped
heads, SwiGLU; `gemma3_outputs` is that of Gemma 3. They share no code with the package.
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


def llama(config: dict = CONFIG) -> dict[str, np.ndarray]:
    """The weights by name; those of the norms are around one."""
    width, hidden, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    narrow = width // heads * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        shapes |= {f"{at}.self_attn.{projection}_proj.weight": (width, width) for projection in "qo"}
        shapes |= {f"{at}.self_attn.{projection}_proj.weight": (narrow, width) for projection in "kv"}
        shapes |= {f"{at}.mlp.{projection}_proj.weight": (hidden, width) for projection in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (width, hidden)}
    weights = reference.draw(shapes)
    return {name: x + 1 if name.endswith("norm.weight") else x for name, x in weights.items()}


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


def outputs(state: dict, ids, config: dict = CONFIG) -> tuple[np.ndarray, np.ndarray]:
    """(logits [T, V], attention maps [layers, heads, T, T]) of one text, in float64."""
    get = lambda name: np.asarray(state[f"{name}.weight"], np.float64)
    norm = lambda x, name: rms_norm(x, get(name), config["rms_norm_eps"])
    x, maps = get("model.embed_tokens")[np.asarray(ids)], []
    earlier = np.tri(len(ids), dtype=bool)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        h = norm(x, f"{at}.input_layernorm")
        query, key, value = (h @ get(f"{at}.self_attn.{projection}_proj").T for projection in "qkv")
        heads, groups = (config[f"num_{name}_heads"] for name in ("attention", "key_value"))
        width = query.shape[1] // heads
        query, key = (rotate(split(y, width), config["rope_theta"]) for y in (query, key))
        pooled, weights = attention(query, key, split(value, width), heads // groups, width, earlier)
        x = x + pooled @ get(f"{at}.self_attn.o_proj").T
        h = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (h @ get(f"{at}.mlp.{projection}_proj").T for projection in ("gate", "up"))
        x = x + gate / (1 + np.exp(-gate)) * up @ get(f"{at}.mlp.down_proj").T
        maps.append(weights)
    return norm(x, "model.norm") @ get("model.embed_tokens").T, np.stack(maps)


def gemma3_outputs(state: dict, ids, config: dict, last: int) -> tuple[np.ndarray, np.ndarray]:
    """(logits [last, V] of the last tokens, attention maps) of a Gemma 3 (Gemma Team 2025), in float64: norms of 1 + w
    before and after each sub-layer and of queries and keys, GeGLU, and layers of which some have a window."""
    get = lambda name: np.asarray(state[f"{name}.weight"], np.float64)
    norm = lambda x, name: rms_norm(x, 1 + get(name), config["rms_norm_eps"])
    heads, groups, width = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    table = np.asarray(state["model.embed_tokens.weight"])  # float32: half a gigabyte less
    x, maps = table[np.asarray(ids)] * np.sqrt(np.float64(table.shape[1])), []
    distance = np.arange(len(ids))[:, None] - np.arange(len(ids))
    for i, kind in enumerate(config["layer_types"]):
        at, local = f"model.layers.{i}", kind == "sliding_attention"
        allowed = (distance >= 0) & (distance < (config["sliding_window"] if local else len(ids)))
        theta = config["rope_local_base_freq" if local else "rope_theta"]
        h = norm(x, f"{at}.input_layernorm")
        query, key, value = (split(h @ get(f"{at}.self_attn.{projection}_proj").T, width) for projection in "qkv")
        query, key = norm(query, f"{at}.self_attn.q_norm"), norm(key, f"{at}.self_attn.k_norm")
        query, key = rotate(query, theta), rotate(key, theta)
        pooled, weights = attention(query, key, value, heads // groups, config["query_pre_attn_scalar"], allowed)
        x = x + norm(pooled @ get(f"{at}.self_attn.o_proj").T, f"{at}.post_attention_layernorm")
        h = norm(x, f"{at}.pre_feedforward_layernorm")
        gate, up = (h @ get(f"{at}.mlp.{projection}_proj").T for projection in ("gate", "up"))
        y = reference.gelu_tanh(gate) * up @ get(f"{at}.mlp.down_proj").T
        x = x + norm(y, f"{at}.post_feedforward_layernorm")
        maps.append(weights)
    return norm(x[-last:], "model.norm") @ table.T, np.stack(maps)


def rms_norm(x, scale, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def split(x, width):  # [T, heads * width] -> [T, heads, width]
    return x.reshape(len(x), -1, width)


def rotate(x, theta):
    """Rotary positions of channels that are halves apart, [T, heads, width]."""
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(0, x.shape[2], 2) / x.shape[2])
    (first, second), cos, sin = np.split(x, 2, axis=-1), np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(query, key, value, shared: int, scale, allowed) -> tuple[np.ndarray, np.ndarray]:
    """(outputs [T, heads * width], weights [heads, T, T]); a key and a value belong to `shared` heads of queries."""
    scores = np.einsum("qhe,khe->hqk", query, key.repeat(shared, 1)) / np.sqrt(scale)
    weights = reference.softmax(np.where(allowed, scores, -np.inf))
    return np.einsum("hqk,khe->qhe", weights, value.repeat(shared, 1)).reshape(len(query), -1), weights
