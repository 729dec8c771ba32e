"""Gemma 2 and the text models of Gemma 3 as Hugging Face has them: Llama's names (`llama_names`), with norms before and
after each sub-layer that multiply by 1 + w, a GELU, scaled embeddings, and layers of which some have a window.

Gemma 2 caps the scores of attention and the logits; Gemma 3 normalizes queries and keys, and layers with a window have
another base of rotary positions. Both divide scores by the root of `query_pre_attn_scalar`; where that is not the width
of a head, the quotient is multiplied into the queries.
"""

import numpy as np

from attention_jax import config
from attention_jax.config.per_layer import layer_list
from attention_jax.errors import InputError
from attention_jax.weights.facts import Facts
from attention_jax.weights.layouts import Row, depth
from attention_jax.weights.llama_names import (
    COMMON,
    DECODER,
    HERE,
    READ_ONLY,
    THERE,
    activation,
    decoder_options,
    number,
    rotary,
    scaling,
    sliding,
    window,
    without_tied_head,
)
from attention_jax.weights.naming import Arrays, Naming
from attention_jax.weights.qwen_names import QK_NORMS

GEMMA2 = (
    *DECODER,
    Row(f"{THERE}.post_attention_layernorm.weight", "d", f"{HERE}/attention_output_norm/scale", "d"),
    Row(f"{THERE}.pre_feedforward_layernorm.weight", "d", f"{HERE}/ffn_norm/scale", "d"),
    Row(f"{THERE}.post_feedforward_layernorm.weight", "d", f"{HERE}/ffn_output_norm/scale", "d"),
)
GEMMA3 = (*GEMMA2, *QK_NORMS)
GELU = {"gelu_pytorch_tanh": "geglu"}


def own_options(family: str, theirs: Arrays, facts: Facts, every: int, **own) -> config.LanguageModelConfig:
    """The options of a Gemma; `own` are those of one generation, and every `every`-th layer has no window."""
    facts.require(family, {"attention_bias": False, "use_bidirectional_attention": False})
    facts.values.setdefault("head_dim", 256)  # the library's default
    facts.get("hidden_act", "")  # an earlier name of the next; not read by the library
    layers = depth("model.layers.", theirs)
    usual = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    facts.get("sliding_window_pattern", every), facts.get("_sliding_window_pattern", every)
    narrow = sliding(family, facts.get("layer_types", usual), layers)
    local = [f"mask={window(facts.get('sliding_window', 4096))}", *own.pop("local", [])]
    cap = facts.get("attn_logit_softcapping", own.pop("cap"))
    options = {
        "mlp_layer": activation(family, facts, "hidden_activation", GELU, "gelu_pytorch_tanh"),
        "norm": "sandwich",
        "scale_embeddings": True,
        "score": f"soft_cap({number(cap)})" if cap else "scaled_dot",
        "per_layer": f"{layer_list(narrow)}:{','.join(local)}" if narrow else "",
    }
    return decoder_options(family, theirs, facts, **options, **own)


def gemma2_options(theirs: Arrays, facts: Facts) -> config.LanguageModelConfig:
    """The options of a Gemma 2, of which every second layer has a window."""
    logit_cap = float(facts.get("final_logit_softcapping", 30.0))
    return own_options("Gemma 2", theirs, facts, 2, cap=50.0, logit_cap=logit_cap, **rotary("Gemma 2", facts))


def gemma3_options(theirs: Arrays, facts: Facts) -> config.LanguageModelConfig:
    """The options of a Gemma 3, of which five of six layers have a window and rotary positions of their own base."""
    by_kind = facts.get("rope_parameters", {})
    if by_kind:
        near, far = by_kind.get("sliding_attention", {}), by_kind.get("full_attention", {})
    else:
        near = {"rope_theta": facts.get("rope_local_base_freq", 10_000.0)}
        far = {"rope_theta": facts.get("rope_theta", 1_000_000.0)} | facts.get("rope_scaling", {})
    if scaling("Gemma 3", near) != "none":
        raise InputError("Gemma 3's layers with a window must have rotary positions that are not scaled")
    rope = {"rope_theta": float(far.get("rope_theta", 1_000_000.0)), "rope_scaling": scaling("Gemma 3", far)}
    local = [f"rope_theta={number(near.get('rope_theta', 10_000.0))}", "rope_scaling=none"]
    logit_cap = float(facts.get("final_logit_softcapping", 0.0))
    own = {"local": local, "cap": 0.0, "logit_cap": logit_cap, "normalize_qk": True}
    return own_options("Gemma 3", theirs, facts, 6, **own, **rope)


def finish(options: config.LanguageModelConfig, facts: Facts, ours: Arrays) -> Arrays:
    """Add 1 to the scales, and divide scores by the root of `query_pre_attn_scalar`."""
    of_head = options.key_dim or options.hidden_size // options.num_heads
    ratio = (of_head / float(facts.get("query_pre_attn_scalar", 256))) ** 0.5
    # a norm of the queries undoes a factor before it
    queries = "/attention/query_norm/scale" if options.normalize_qk else "/attention/query/kernel"
    more = lambda array: array + np.float32(1)
    times = lambda array: array * np.float32(ratio)
    ours = {name: array.then(more) if name.endswith("norm/scale") else array for name, array in ours.items()}
    return {name: array.then(times) if name.endswith(queries) else array for name, array in ours.items()}


GEMMA = COMMON | READ_ONLY | {"prepare": without_tied_head(True), "finish": finish}
NAMINGS = {
    "gemma2": Naming(**GEMMA, table=GEMMA2, options=gemma2_options, model_types=("gemma2",)),
    "gemma3": Naming(**GEMMA, table=GEMMA3, options=gemma3_options, model_types=("gemma3_text",)),
}
