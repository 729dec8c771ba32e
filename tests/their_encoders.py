"""BERT, RoBERTa, DistilBERT, T5 and CLIP's text encoder with the names of their files, small and random, and what they
compute in NumPy, in float64. Nothing here shares code with the package; names and shapes are those of transformers.
"""

import math

import numpy as np
import their_weights as reference
from their_weights import gelu, gelu_tanh, norm

LAYERS = {
    "bert": "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
    "distilbert": "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 "
    "output_layer_norm",
}
"""{family: query, key, value, output, norm, both maps of the feed-forward and norm of a layer}"""
HEADS = {
    "bert": "cls.predictions.transform.dense cls.predictions.transform.LayerNorm cls.predictions.bias "
    "bert.pooler.dense classifier",
    "roberta": "lm_head.dense lm_head.layer_norm lm_head.bias classifier.dense classifier.out_proj",
    "distilbert": "vocab_transform vocab_layer_norm vocab_projector.bias pre_classifier classifier",
}
"""{family: map, norm and bias of the head for words, both maps of the classifier}"""
SIZES = {"width": 12, "hidden": 20, "heads": 3, "tokens": 11, "positions": 9, "classes": 4, "layers": 2}
CONFIGS = {
    "bert": {"model_type": "bert", "num_attention_heads": 3, "layer_norm_eps": 1e-12},
    "roberta": {"model_type": "roberta", "num_attention_heads": 3, "layer_norm_eps": 1e-12, "pad_token_id": 1},
    "distilbert": {"model_type": "distilbert", "n_heads": 3},
}


def stack(family: str) -> tuple[str, list[str]]:
    """The names of a layer and of its modules."""
    place = "distilbert.transformer.layer" if family == "distilbert" else f"{family}.encoder.layer"
    return place, LAYERS.get(family, LAYERS["bert"]).split()


def encoder(family: str) -> dict[str, np.ndarray]:
    """A model of the family with both heads."""
    width, hidden, positions = SIZES["width"], SIZES["hidden"], SIZES["positions"]
    shapes = {f"{family}.embeddings.word_embeddings.weight": (SIZES["tokens"], width)}
    shapes |= {f"{family}.embeddings.position_embeddings.weight": (positions, width)}
    if family != "distilbert":
        shapes[f"{family}.embeddings.token_type_embeddings.weight"] = (2, width)
    dense, word_norm, bias, pooler, classifier = HEADS[family].split()
    maps = {dense: (width, width), pooler: (width, width), classifier: (SIZES["classes"], width)}
    norms = [f"{family}.embeddings.LayerNorm", word_norm]
    place, modules = stack(family)
    for i in range(SIZES["layers"]):
        names = [f"{place}.{i}.{module}" for module in modules]
        maps |= dict.fromkeys(names[:4], (width, width)) | {names[5]: (hidden, width), names[6]: (width, hidden)}
        norms += [names[4], names[7]]
    shapes |= {f"{name}.weight": shape for name, shape in maps.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in maps.items()}
    shapes |= {f"{name}.{suffix}": (width,) for name in norms for suffix in ("weight", "bias")}
    return reference.draw(shapes | {bias: (SIZES["tokens"],)}, 3)


def bert(state: dict, ids, heads: int = 12, layers: int = 6, family: str = "") -> tuple[np.ndarray, np.ndarray]:
    """(states [T, D], attention maps [layers, heads, T, T]) of one text (Devlin et al. 2019); names without a prefix
    are BERT's."""
    w = {name: np.asarray(array, np.float64) for name, array in state.items() if "position_ids" not in name}
    place, modules = stack(family or "bert")
    place, at = (place, f"{family}.embeddings") if family else (place.removeprefix("bert."), "embeddings")
    normal = lambda x, name: norm(x, w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)
    linear = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    first = 2 if family == "roberta" else 0  # positions follow the number of padding, 1
    x = w[f"{at}.word_embeddings.weight"][ids] + w[f"{at}.position_embeddings.weight"][first : first + len(ids)]
    types = w.get(f"{at}.token_type_embeddings.weight", np.zeros((1, 1)))
    x, maps = normal(x + types[0], f"{at}.LayerNorm"), []
    for layer in range(layers):
        query, key, value, out, norm1, lin1, lin2, norm2 = (f"{place}.{layer}.{module}" for module in modules)
        q, k, v = (linear(x, name).reshape(len(ids), heads, -1).swapaxes(0, 1) for name in (query, key, value))
        maps.append(reference.softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])))
        x = normal(x + linear((maps[-1] @ v).swapaxes(0, 1).reshape(len(ids), -1), out), norm1)
        x = normal(x + linear(gelu(linear(x, lin1)), lin2), norm2)
    return x, np.stack(maps)


def head_logits(state: dict, states: np.ndarray, family: str) -> tuple[np.ndarray, np.ndarray]:
    """(logits of words [T, V], logits of classes) of the states of one text."""
    w = {name: array.astype(np.float64) for name, array in state.items()}
    linear = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    dense, word_norm, bias, pooler, classifier = HEADS[family].split()
    h = norm(gelu(linear(states, dense)), w[f"{word_norm}.weight"], w[f"{word_norm}.bias"], 1e-12)
    squash = (lambda x: np.maximum(x, 0)) if family == "distilbert" else np.tanh
    words = h @ w[f"{family}.embeddings.word_embeddings.weight"].T + w[bias]
    return words, linear(squash(linear(states[0], pooler)), classifier)


T5 = {"model_type": "t5", "num_heads": 3, "d_kv": 5, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu"}
FLAN = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def t5(config: dict) -> dict[str, np.ndarray]:
    """A T5, or with a gate a Flan-T5 with its output layer."""
    width, hidden, inner = SIZES["width"], SIZES["hidden"], config["num_heads"] * config["d_kv"]
    is_gated = config["feed_forward_proj"].startswith("gated")
    shapes = {"shared.weight": (SIZES["tokens"], width)} | ({"lm_head.weight": (11, width)} if is_gated else {})
    for side, last in (("encoder", 1), ("decoder", 2)):
        shapes[f"{side}.final_layer_norm.weight"] = (width,)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        shapes[bias] = (32, config["num_heads"])
        for i in range(2):
            at = f"{side}.block.{i}.layer"
            attentions = ["0.SelfAttention"] + ["1.EncDecAttention"] * (side == "decoder")
            shapes |= {f"{at}.{name}.{x}.weight": (inner, width) for name in attentions for x in "qkv"}
            shapes |= {f"{at}.{name}.o.weight": (width, inner) for name in attentions}
            shapes |= {f"{at}.{k}.layer_norm.weight": (width,) for k in range(last + 1)}
            first = ("wi_0", "wi_1") if is_gated else ("wi",)
            shapes |= {f"{at}.{last}.DenseReluDense.{name}.weight": (hidden, width) for name in first}
            shapes[f"{at}.{last}.DenseReluDense.wo.weight"] = (width, hidden)
    return reference.draw(shapes, 4)


def t5_logits(state: dict, source, target, config: dict) -> np.ndarray:
    """What T5 (Raffel et al. 2020) computes of tokens [S] and [T], teacher forced: [T, V], or without a target the
    states [S, D] of its encoder; at most 8 tokens each."""
    w = {name.removesuffix(".weight"): array.astype(np.float64) for name, array in state.items()}
    heads, is_gated = config["num_heads"], config["feed_forward_proj"].startswith("gated")
    normal = lambda x, name: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[name]
    split = lambda x: x.reshape(len(x), heads, -1).swapaxes(0, 1)

    def attend(name, x, memory, bias):
        q, k, v = (split(y @ w[f"{name}.{n}"].T) for n, y in zip("qkv", (x, memory, memory)))
        pooled = reference.softmax(q @ k.swapaxes(1, 2) + bias) @ v  # scores are not scaled
        return pooled.swapaxes(0, 1).reshape(len(x), -1) @ w[f"{name}.o"].T

    def feed_forward(at, x):
        if not is_gated:
            return np.maximum(x @ w[f"{at}.wi"].T, 0) @ w[f"{at}.wo"].T
        return (gelu_tanh(x @ w[f"{at}.wi_0"].T) * (x @ w[f"{at}.wi_1"].T)) @ w[f"{at}.wo"].T

    def position_bias(side, length, layer):
        """One bucket for each distance below 8 (of 16 a direction), and below 16 in the decoder, which looks back."""
        distance = np.arange(length)[None] - np.arange(length)[:, None]  # of the key from the query
        bucket = np.abs(distance) + 16 * (distance > 0) if side == "encoder" else np.maximum(-distance, 0)
        table = "{}.block.{}.layer.0.SelfAttention.relative_attention_bias".format
        table = w.get(table(side, layer), w[table(side, 0)])  # the layers of UMT5 have their own
        return table[bucket].transpose(2, 0, 1) - (1e30 * (distance > 0) if side == "decoder" else 0)

    memory, outputs = None, w["shared"][source]
    for side, tokens, last in (("encoder", source, 1), ("decoder", target, 2))[: 1 + (target is not None)]:
        x = w["shared"][tokens]
        for i in range(2):
            at, bias = f"{side}.block.{i}.layer", position_bias(side, len(tokens), i)
            h = normal(x, f"{at}.0.layer_norm")
            x = x + attend(f"{at}.0.SelfAttention", h, h, bias)
            if side == "decoder":
                x = x + attend(f"{at}.1.EncDecAttention", normal(x, f"{at}.1.layer_norm"), memory, 0)
            x = x + feed_forward(f"{at}.{last}.DenseReluDense", normal(x, f"{at}.{last}.layer_norm"))
        memory = outputs = normal(x, f"{side}.final_layer_norm")
    if target is None:
        return outputs
    return outputs @ w["lm_head"].T if is_gated else outputs / math.sqrt(SIZES["width"]) @ w["shared"].T


UMT5 = FLAN | {"model_type": "umt5"}
CLIP = {"model_type": "clip_text_model", "num_attention_heads": 3, "layer_norm_eps": 1e-5, "projection_dim": 7}
CLIP |= {"hidden_act": "quick_gelu"}


def t5_encoder(config: dict) -> dict[str, np.ndarray]:
    """The encoder of a T5, or of a UMT5, whose layers have a table of relative positions each."""
    name = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    state = {k: array for k, array in t5(config).items() if k.startswith(("encoder.", "shared."))}
    return state | ({name.format(1): -state[name.format(0)]} if config["model_type"] == "umt5" else {})


def clip_text(projection: int = CLIP["projection_dim"]) -> dict[str, np.ndarray]:
    """CLIP's text encoder, with a projection of this width if it is not 0."""
    width, hidden = SIZES["width"], SIZES["hidden"]
    shapes = {"embeddings.token_embedding": (SIZES["tokens"], width)}
    shapes |= {"embeddings.position_embedding": (SIZES["positions"], width), "final_layer_norm": (width,)}
    for i in range(SIZES["layers"]):
        at = f"encoder.layers.{i}"
        shapes |= {f"{at}.self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
        shapes |= {f"{at}.layer_norm{k}": (width,) for k in (1, 2)}
        shapes |= {f"{at}.mlp.fc1": (hidden, width), f"{at}.mlp.fc2": (width, hidden)}
    biases = {f"text_model.{name}.bias": shape[:1] for name, shape in shapes.items() if "embedding" not in name}
    shapes = {f"text_model.{name}.weight": shape for name, shape in shapes.items()} | biases
    return reference.draw(shapes | ({"text_projection.weight": (projection, width)} if projection else {}), 5)


def clip_states(state: dict, ids, config: dict, layers: int = SIZES["layers"]) -> np.ndarray:
    """The states [T, D] of CLIP's text encoder (Radford et al. 2021), or those behind fewer layers, not normalized."""
    w = {name.removeprefix("text_model."): array.astype(np.float64) for name, array in state.items()}
    normal = lambda x, name: norm(x, w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)
    linear = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    x = w["embeddings.token_embedding.weight"][ids] + w["embeddings.position_embedding.weight"][: len(ids)]
    for i in range(layers):
        at = f"encoder.layers.{i}"
        h = normal(x, f"{at}.layer_norm1")
        q, k, v = (
            linear(h, f"{at}.self_attn.{n}_proj").reshape(len(ids), config["num_attention_heads"], -1).swapaxes(0, 1)
            for n in "qkv"
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) - 1e30 * (1 - np.tri(len(ids)))
        pooled = (reference.softmax(scores) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + linear(pooled, f"{at}.self_attn.out_proj")
        h = linear(normal(x, f"{at}.layer_norm2"), f"{at}.mlp.fc1")
        x = x + linear(h / (1 + np.exp(-1.702 * h)), f"{at}.mlp.fc2")
    return normal(x, "final_layer_norm") if layers == SIZES["layers"] else x
