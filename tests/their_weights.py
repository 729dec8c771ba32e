"""State dicts with the published names and shapes, drawn, and what the published models compute of them, in NumPy."""

import json
import math
from pathlib import Path

import numpy as np

SIZES = {"width": 16, "heads": 2, "mlp": 24, "layers": 2, "patch": 2, "pixels": 6, "channels": 3, "classes": 5}


VIT = {"num_attention_heads": SIZES["heads"], "hidden_act": "gelu", "layer_norm_eps": 1e-12}
TIMM = {"model_args": {"num_heads": SIZES["heads"]}}
"""What config.json says there."""


def write_weights(path: Path, arrays: dict[str, np.ndarray], config: dict | None = None) -> Path:
    """A file as the other library leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    if config:
        (path.parent / "config.json").write_text(json.dumps(config))
    return path


def draw(shapes: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor normal, so that no two parts can be exchanged unseen."""
    rng = np.random.default_rng(seed)
    return {name: (0.3 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def timm(**changes) -> dict[str, np.ndarray]:
    """A `vit_*` of timm."""
    s = SIZES | changes
    width, rows = s["width"], (s["pixels"] // s["patch"]) ** 2 + 1
    shapes = {"cls_token": (1, 1, width), "pos_embed": (1, rows, width)}
    shapes |= {"patch_embed.proj.weight": (width, s["channels"], s["patch"], s["patch"])}
    shapes |= {"patch_embed.proj.bias": (width,), "norm.weight": (width,), "norm.bias": (width,)}
    for i in range(s["layers"]):
        shapes |= {f"blocks.{i}.norm{k}.{suffix}": (width,) for k in (1, 2) for suffix in ("weight", "bias")}
        shapes |= {f"blocks.{i}.attn.qkv.weight": (3 * width, width), f"blocks.{i}.attn.qkv.bias": (3 * width,)}
        shapes |= {f"blocks.{i}.attn.proj.weight": (width, width), f"blocks.{i}.attn.proj.bias": (width,)}
        shapes |= {f"blocks.{i}.mlp.fc1.weight": (s["mlp"], width), f"blocks.{i}.mlp.fc1.bias": (s["mlp"],)}
        shapes |= {f"blocks.{i}.mlp.fc2.weight": (width, s["mlp"]), f"blocks.{i}.mlp.fc2.bias": (width,)}
    return draw(shapes | {"head.weight": (s["classes"], width), "head.bias": (s["classes"],)})


def huggingface(of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same weights as a `ViTForImageClassification` names them."""
    names = {
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
        "head": "classifier",
        "norm": "vit.layernorm",
    }
    inside = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    renamed = {}
    for name, array in of.items():
        if name in names:
            renamed[names[name]] = array
            continue
        module, suffix = name.rsplit(".", 1)
        if not module.startswith("blocks."):
            renamed[f"{names[module]}.{suffix}"] = array
            continue
        _, layer, submodule = module.split(".", 2)
        at = f"vit.encoder.layer.{layer}"
        if submodule == "attn.qkv":
            thirds = zip(("query", "key", "value"), np.split(array, 3))
            renamed |= {f"{at}.attention.attention.{third}.{suffix}": x for third, x in thirds}
        else:
            renamed[f"{at}.{inside[submodule]}.{suffix}"] = array
    return renamed


def google(of: dict[str, np.ndarray], heads: int) -> dict[str, np.ndarray]:
    """The same weights as google-research's checkpoints name them."""
    width = of["norm.bias"].shape[0]
    renamed = {
        "cls": of["cls_token"],
        "Transformer/posembed_input/pos_embedding": of["pos_embed"],
        "embedding/kernel": of["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": of["patch_embed.proj.bias"],
        "Transformer/encoder_norm/scale": of["norm.weight"],
        "Transformer/encoder_norm/bias": of["norm.bias"],
        "head/kernel": of["head.weight"].T,
        "head/bias": of["head.bias"],
    }
    for i in range(sum(name.endswith("qkv.bias") for name in of)):
        at, block = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        for k, norm_name in ((1, "LayerNorm_0"), (2, "LayerNorm_2")):
            renamed[f"{block}/{norm_name}/scale"] = of[f"{at}.norm{k}.weight"]
            renamed[f"{block}/{norm_name}/bias"] = of[f"{at}.norm{k}.bias"]
        attention = f"{block}/MultiHeadDotProductAttention_1"
        weights, biases = np.split(of[f"{at}.attn.qkv.weight"], 3), np.split(of[f"{at}.attn.qkv.bias"], 3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases):
            renamed[f"{attention}/{name}/kernel"] = weight.T.reshape(width, heads, -1)
            renamed[f"{attention}/{name}/bias"] = bias.reshape(heads, -1)
        renamed[f"{attention}/out/kernel"] = of[f"{at}.attn.proj.weight"].T.reshape(heads, -1, width)
        renamed[f"{attention}/out/bias"] = of[f"{at}.attn.proj.bias"]
        for k in (1, 2):
            renamed[f"{block}/MlpBlock_3/Dense_{k - 1}/kernel"] = of[f"{at}.mlp.fc{k}.weight"].T
            renamed[f"{block}/MlpBlock_3/Dense_{k - 1}/bias"] = of[f"{at}.mlp.fc{k}.bias"]
    return renamed


def norm(x, scale, bias, epsilon):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swish(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def heads_pool(query, key, value, heads, allowed=None):
    """[B, Q, D], [B, K, D], [B, K, D] -> [B, Q, D], head by head."""
    outputs = []
    for q, k, v in zip(*(np.split(x, heads, axis=-1) for x in (query, key, value))):
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        outputs.append(softmax(scores if allowed is None else np.where(allowed, scores, -1e30)) @ v)
    return np.concatenate(outputs, axis=-1)


def vit_logits(of: dict, images: np.ndarray, heads: int, epsilon: float, activation) -> np.ndarray:
    """What timm computes: [B, S, S, C] -> [B, classes]."""
    of = {name: array.astype(np.float64) for name, array in of.items()}
    kernel = of["patch_embed.proj.weight"]
    patch, grid = kernel.shape[-1], images.shape[1] // kernel.shape[-1]
    x = np.zeros((len(images), grid * grid, len(kernel)))
    for row in range(grid):
        for column in range(grid):
            square = images[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            x[:, row * grid + column] = np.einsum("bpqc,dcpq->bd", square, kernel) + of["patch_embed.proj.bias"]
    x = np.concatenate([np.repeat(of["cls_token"], len(x), axis=0), x], axis=1) + of["pos_embed"]
    linear = lambda name, x: x @ of[f"{name}.weight"].T + of[f"{name}.bias"]
    normal = lambda name, x: norm(x, of[f"{name}.weight"], of[f"{name}.bias"], epsilon)
    for i in range(sum(name.endswith("qkv.bias") for name in of)):
        query, key, value = np.split(linear(f"blocks.{i}.attn.qkv", normal(f"blocks.{i}.norm1", x)), 3, axis=-1)
        x = x + linear(f"blocks.{i}.attn.proj", heads_pool(query, key, value, heads))
        x = x + linear(f"blocks.{i}.mlp.fc2", activation(linear(f"blocks.{i}.mlp.fc1", normal(f"blocks.{i}.norm2", x))))
    return linear("head", normal("norm", x)[:, 0])


MARIAN = {"d_model": 12, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "swish"}
MARIAN |= {"scale_embedding": True, "vocab_size": 11, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}


def marian() -> dict[str, np.ndarray]:
    """A `MarianMTModel` of two encoder layers and one decoder layer."""
    width, ffn, vocab = MARIAN["d_model"], MARIAN["encoder_ffn_dim"], MARIAN["vocab_size"]
    shapes = {"model.shared.weight": (vocab, width), "final_logits_bias": (1, vocab)}
    for side, layers, attentions in (("encoder", 2, ("self",)), ("decoder", 1, ("self", "encoder"))):
        for i in range(layers):
            at = f"model.{side}.layers.{i}"
            maps = {f"{a}_attn.{n}_proj": (width, width) for a in attentions for n in ("q", "k", "v", "out")}
            maps |= {"fc1": (ffn, width), "fc2": (width, ffn)}
            shapes |= {f"{at}.{name}.weight": shape for name, shape in maps.items()}
            shapes |= {f"{at}.{name}.bias": shape[:1] for name, shape in maps.items()}
            norms = [*(f"{a}_attn_layer_norm" for a in attentions), "final_layer_norm"]
            shapes |= {f"{at}.{name}.{suffix}": (width,) for name in norms for suffix in ("weight", "bias")}
    weights = draw(shapes, 1)
    return {name: x + 1 if name.endswith("norm.weight") else x for name, x in weights.items()}


def marian_logits(of: dict, source, source_length, target) -> np.ndarray:
    """What MarianMT computes, teacher forced: [B, T, V]."""
    of = {name: array.astype(np.float64) for name, array in of.items()}
    width, heads = MARIAN["d_model"], MARIAN["encoder_attention_heads"]
    linear = lambda name, x: x @ of[f"{name}.weight"].T + of[f"{name}.bias"]
    normal = lambda name, x: norm(x, of[f"{name}.weight"], of[f"{name}.bias"], 1e-5)

    def embed(tokens):
        angles = np.arange(tokens.shape[1])[:, None] / 10000 ** (2 * np.arange(width // 2) / width)
        halves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)  # all sines, then all cosines
        return of["model.shared.weight"][tokens] * math.sqrt(width) + halves

    def attention_block(name, x, memory, allowed):
        q, k, v = (linear(f"{name}.{n}_proj", y) for n, y in zip("qkv", (x, memory, memory)))
        return normal(f"{name}_layer_norm", x + linear(f"{name}.out_proj", heads_pool(q, k, v, heads, allowed)))

    def feed_forward(at, x):
        return normal(f"{at}.final_layer_norm", x + linear(f"{at}.fc2", swish(linear(f"{at}.fc1", x))))

    real = (np.arange(source.shape[1])[None] < source_length[:, None])[:, None]
    past = np.tril(np.ones((target.shape[1], target.shape[1]), bool))[None]
    memory = embed(source)
    for i in range(2):
        at = f"model.encoder.layers.{i}"
        memory = feed_forward(at, attention_block(f"{at}.self_attn", memory, memory, real))
    at = "model.decoder.layers.0"
    x = embed(target)
    x = attention_block(f"{at}.encoder_attn", attention_block(f"{at}.self_attn", x, x, past), memory, real)
    return feed_forward(at, x) @ of["model.shared.weight"].T + of["final_logits_bias"]


GPT2 = {"n_embd": 12, "n_head": 3, "n_layer": 2, "n_inner": 20, "n_positions": 9, "vocab_size": 11}
GPT2 |= {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}


def gpt2(vocabulary: int = GPT2["vocab_size"]) -> dict[str, np.ndarray]:
    """A `GPT2LMHeadModel` of two layers."""
    width, hidden = GPT2["n_embd"], GPT2["n_inner"]
    shapes = {"transformer.wte.weight": (vocabulary, width), "transformer.wpe.weight": (GPT2["n_positions"], width)}
    for i in range(GPT2["n_layer"]):
        maps = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        maps |= {"mlp.c_fc": (width, hidden), "mlp.c_proj": (hidden, width)}
        shapes |= {f"transformer.h.{i}.{name}.weight": shape for name, shape in maps.items()}
        shapes |= {f"transformer.h.{i}.{name}.bias": shape[1:] for name, shape in maps.items()}
        shapes |= {
            f"transformer.h.{i}.{name}.{suffix}": (width,) for name in ("ln_1", "ln_2") for suffix in ("weight", "bias")
        }
    return draw(shapes | {f"transformer.ln_f.{suffix}": (width,) for suffix in ("weight", "bias")}, 2)


def gpt2_outputs(of: dict, tokens) -> tuple[np.ndarray, np.ndarray]:
    """What GPT-2 computes of tokens [T]: logits [T, V] and attention weights [layers, H, T, T]."""
    of = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in of.items()}
    linear = lambda name, x: x @ of[f"{name}.weight"] + of[f"{name}.bias"]
    normal = lambda name, x: norm(x, of[f"{name}.weight"], of[f"{name}.bias"], 1e-5)
    gelu_new = lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    x, maps = of["wte.weight"][tokens] + of["wpe.weight"][: len(tokens)], []
    for i in range(GPT2["n_layer"]):
        query, key, value = np.split(linear(f"h.{i}.attn.c_attn", normal(f"h.{i}.ln_1", x)), 3, axis=-1)
        heads = [np.stack(np.split(projected, GPT2["n_head"], axis=-1)) for projected in (query, key, value)]
        scores = heads[0] @ heads[1].swapaxes(1, 2) / math.sqrt(heads[0].shape[-1])
        maps.append(softmax(np.where(np.tri(len(tokens), dtype=bool), scores, -1e30)))
        x = x + linear(f"h.{i}.attn.c_proj", np.concatenate(maps[-1] @ heads[2], axis=-1))
        x = x + linear(f"h.{i}.mlp.c_proj", gelu_new(linear(f"h.{i}.mlp.c_fc", normal(f"h.{i}.ln_2", x))))
    return normal("ln_f", x) @ of["wte.weight"].T, np.stack(maps)
