"""A Llama with its published names, small and random, its directory with a tokenizer, and what it computes in NumPy.

`logits` is a float64 forward pass (Touvron et al. 2023): RMSNorm, rotary channels that are halves apart, grouped heads,
SwiGLU. It shares no code with the package.
"""

import json
from pathlib import Path

import numpy as np
import their_weights as theirs

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
        shapes |= {f"{at}.self_attn.{one}_proj.weight": (width, width) for one in "qo"}
        shapes |= {f"{at}.self_attn.{one}_proj.weight": (narrow, width) for one in "kv"}
        shapes |= {f"{at}.mlp.{one}_proj.weight": (hidden, width) for one in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (width, hidden)}
    drawn = theirs.draw(shapes)
    return {name: x + 1 if name.endswith("norm.weight") else x for name, x in drawn.items()}


def tokenizer():
    """A byte-level BPE with two special tokens."""
    import tokenizers as t

    made = t.Tokenizer(t.models.BPE())
    made.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = t.decoders.ByteLevel()
    alphabet = t.pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = t.trainers.BpeTrainer(
        vocab_size=290, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def directory(place: Path, **config) -> dict[str, np.ndarray]:
    """Write the directory of the model, as `save_pretrained` does; returns its weights."""
    config = CONFIG | config
    state = llama(config)
    theirs.written(place / "model.safetensors", state, config)
    tokenizer().save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return state


def outputs(state: dict, ids, config: dict = CONFIG) -> tuple[np.ndarray, np.ndarray]:
    """(logits [T, V], attention maps [layers, heads, T, T]) of one text, in float64."""
    get = lambda name: np.asarray(state[f"{name}.weight"], np.float64)
    heads, groups, epsilon = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    norm = lambda x, scale: x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale
    x = get("model.embed_tokens")[np.asarray(ids)]
    length, width = len(ids), x.shape[1] // heads
    angle = np.arange(length)[:, None] * config["rope_theta"] ** (-np.arange(0, width, 2) / width)

    def turned(y):  # [T, heads, width]
        first, second = np.split(y, 2, axis=-1)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    maps = []
    for i in range(config["num_hidden_layers"]):
        at, part = f"model.layers.{i}", lambda y, count: y.reshape(length, count, width)
        h = norm(x, get(f"{at}.input_layernorm"))
        query, key, value = (h @ get(f"{at}.self_attn.{one}_proj").T for one in "qkv")
        query, key = turned(part(query, heads)), turned(part(key, groups)).repeat(heads // groups, 1)
        scores = np.einsum("qhe,khe->hqk", query, key) / np.sqrt(width)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        pooled = np.einsum("hqk,khe->qhe", weights, part(value, groups).repeat(heads // groups, 1))
        x = x + pooled.reshape(length, -1) @ get(f"{at}.self_attn.o_proj").T
        h = norm(x, get(f"{at}.post_attention_layernorm"))
        gate, up = (h @ get(f"{at}.mlp.{one}_proj").T for one in ("gate", "up"))
        x = x + gate / (1 + np.exp(-gate)) * up @ get(f"{at}.mlp.down_proj").T
        maps.append(weights)
    return norm(x, get("model.norm")) @ get("model.embed_tokens").T, np.stack(maps)
