"""T5, T5 1.1, Flan-T5 and mT5 (Raffel et al. 2020; Xue et al. 2021) as Hugging Face's T5ForConditionalGeneration has
them, and what their weights are called here.

They are pre-norm Transformers with RMSNorm, scores that are not scaled, no biases, one table of embeddings for source
and target, and relative positions that the layers of a stack share. Kernels are [out, in] there. Layouts: v tokens, d
width, m hidden units of the feed-forward, h heads of width e, b buckets of relative positions.
"""

import numpy as np

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.position_encodings import BUCKETS
from attention_jax.models.transformer import Transformer
from attention_jax.weights.facts import Facts, heads_of
from attention_jax.weights.layouts import Row, depth
from attention_jax.weights.naming import LAYERS, Arrays, Naming, differing
from attention_jax.weights.vit_names import activation

SHARED, HEAD = "shared.weight", "lm_head.weight"
POSITIONS = "SelfAttention.relative_attention_bias.weight"
FIXED = {"relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": 128}
"""The settings in config.json that have no other value here."""


def attention(theirs: str, ours: str) -> list[Row]:
    """Rows of the query, key, value and output projections."""
    inputs = [(f"{theirs}.{name[0]}.weight", f"{ours}/{name}/kernel") for name in ("query", "key", "value")]
    rows = [Row(there, "(h e) d", here, "d (h e)") for there, here in inputs]
    return [*rows, Row(f"{theirs}.o.weight", "d (h e)", f"{ours}/out/kernel", "(h e) d")]


def stack(side: str, hidden: dict[str, str]) -> list[Row]:
    """Rows of the encoder or the decoder; `hidden` has the first matrices of a feed-forward layer by our names."""
    there, here, last = f"{side}.block.*.layer", f"{side}/layer_*", 1 if side == "encoder" else 2
    norms = {"attention_norm": 0, "ffn_norm": last} | ({"cross_norm": 1} if side == "decoder" else {})
    rows = [Row(f"{there}.{n}.layer_norm.weight", "d", f"{here}/{name}/scale", "d") for name, n in norms.items()]
    rows += attention(f"{there}.0.SelfAttention", f"{here}/attention")
    if side == "decoder":
        rows += attention(f"{there}.1.EncDecAttention", f"{here}/cross_attention")
    ffn = f"{there}.{last}.DenseReluDense"
    rows += [Row(f"{ffn}.{name}.weight", "m d", f"{here}/ffn/{ours}/kernel", "d m") for ours, name in hidden.items()]
    rows += [Row(f"{ffn}.wo.weight", "d m", f"{here}/ffn/out/kernel", "m d")]
    rows += [Row(f"{side}.block.0.layer.0.{POSITIONS}", "b h", f"{side}/bias_0/table", "h b")]
    return [*rows, Row(f"{side}.final_layer_norm.weight", "d", f"{side}/norm/scale", "d")]


def table(hidden: dict[str, str]) -> tuple[Row, ...]:
    """Rows of the whole model."""
    shared = Row(SHARED, "v d", "target_embedding/token/embedding", "v d")
    return (shared, *stack("encoder", hidden), *stack("decoder", hidden), Row(HEAD, "v d", "kernel", "d v"))


def prepare(theirs: Arrays, facts: Facts) -> Arrays:
    """Leave out an output layer that is tied to the embeddings. Files of transformers 5 say that it is even if it is
    not, but then they also have scale_decoder_outputs."""
    if HEAD not in theirs:
        return theirs
    equal = np.array_equal(theirs[HEAD], theirs[SHARED])
    if not equal and facts.get("tie_word_embeddings", True) and "scale_decoder_outputs" not in facts.values:
        raise InputError(f"{HEAD} must be tied to {SHARED}, as config.json says, and differs from it")
    return {name: array for name, array in theirs.items() if name != HEAD} if equal else theirs


def options(gated: bool, theirs: Arrays, facts: Facts) -> config.TransformerConfig:
    """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
    tokens, width = theirs[SHARED].shape
    layers = [depth(f"{side}.block.", theirs) for side in ("encoder", "decoder")]
    inner = len(theirs["encoder.block.0.layer.0.SelfAttention.q.weight"])
    heads = heads_of(facts, "num_heads", inner)
    hidden = len(theirs[f"encoder.block.0.layer.1.DenseReluDense.{'wi_0' if gated else 'wi'}.weight"])
    facts.require("T5", FIXED | {"d_model": width, "d_kv": inner // heads, "d_ff": hidden, "vocab_size": tokens})
    facts.require("T5", {"num_layers": layers[0], "is_gated_act": gated, "is_decoder": False})
    if (said := facts.get("num_decoder_layers", layers[1]) or layers[0]) != layers[1]:
        raise InputError(f"T5's config.json must have num_decoder_layers {layers[1]}, has {said}")
    facts.known.add("n_positions")  # it has no meaning: positions are relative
    usual = "gated-gelu" if gated else "relu"
    act = str(facts.get("feed_forward_proj", usual, f"activation {usual}")).removeprefix("gated-")
    scaled = facts.get("scale_decoder_outputs", facts.get("tie_word_embeddings", True) is not False)  # null is False
    own_width = 0 if inner == width else inner // heads
    return config.TransformerConfig(
        *layers,
        width,
        heads,
        hidden,
        key_dim=own_width,
        value_dim=own_width,
        norm="pre",
        norm_layer="rms",
        norm_epsilon=float(facts.get("layer_norm_epsilon", 1e-6)),
        score="dot",
        position_embedding="t5",
        mlp_layer=gated_layer(act) if gated else "dense",
        activation="relu" if gated else activation(act),
        use_bias=False,
        mlp_bias=False,
        scale_embeddings=False,
        scale_output=bool(scaled),
        output_bias=False,
        tied_embeddings="inputs" if HEAD in theirs else "all",
    )


def gated_layer(act: str) -> str:
    """The gated feed-forward layer of an activation in config.json."""
    names = {"gelu": "geglu", "gelu_new": "geglu", "silu": "swiglu", "swish": "swiglu"}
    if act not in names:
        raise InputError(f"T5's feed_forward_proj in config.json must be gated-gelu or gated-silu, is gated-{act}")
    return names[act]


def their_config(ours_options: config.TransformerConfig, ours: Arrays, data=None) -> dict:
    """Build the config.json of a `T5ForConditionalGeneration`, with the special tokens of the run's vocabulary."""
    names = {"gelu_tanh": "gelu_new", "swish": "silu"}
    kinds = {"geglu": "gated-gelu", "swiglu": "gated-silu"}
    plain = names.get(ours_options.activation, ours_options.activation)
    own = getattr(data, "target_vocabulary", None)
    ids = {"pad": 0, "decoder_start": 0, "eos": 1}
    if own is not None:
        ids = {"pad": own.pad_id, "decoder_start": own.bos_id, "eos": own.eos_id}
    return FIXED | {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": len(ours["target_embedding/token/embedding"]),
        "d_model": ours_options.hidden_size,
        "d_kv": ours_options.key_dim or ours_options.hidden_size // ours_options.num_heads,
        "d_ff": ours_options.mlp_dim,
        "num_layers": ours_options.num_encoder_layers,
        "num_decoder_layers": ours_options.num_decoder_layers,
        "num_heads": ours_options.num_heads,
        "layer_norm_epsilon": ours_options.norm_epsilon,
        "feed_forward_proj": kinds.get(ours_options.mlp_layer, plain),
        "tie_word_embeddings": ours_options.tied_embeddings == "all",
        "scale_decoder_outputs": ours_options.scale_output,
        **{f"{name}_token_id": number for name, number in ids.items()},
    }


def known(ours: config.TransformerConfig) -> dict[str, int]:
    """Return the layout sizes that follow from the options."""
    heads = {"h": ours.num_heads, "e": ours.key_dim or ours.hidden_size // ours.num_heads}
    return heads | {"d": ours.hidden_size, "m": ours.mlp_dim, "b": BUCKETS}


def module(ours_options: config.TransformerConfig, ours: Arrays) -> Transformer:
    """Return the Flax module of these weights."""
    vocabulary = len(ours["target_embedding/token/embedding"])
    return Transformer(ours_options, vocabulary, vocabulary)


HAS = {
    **LAYERS,
    "norm": "pre",
    "norm_layer": "rms",
    "score": "dot",
    "position_embedding": "t5",
    "use_bias": False,
    "mlp_bias": False,
    "scale_embeddings": False,
    "output_bias": False,
    "shared_layers": False,
}
"""The options that have no other value there."""


def lacking(gated: bool, ours: config.TransformerConfig) -> str:
    """Describe the options of our model that T5 does not have, gated or not."""
    layers = ("geglu", "swiglu") if gated else ("dense",)
    mine = {"mlp_layer": ours.mlp_layer if ours.mlp_layer in layers else layers[0]}
    lacks = [f"--model.tied-embeddings {ours.tied_embeddings}"] * (not ours.needs_joint_vocabulary)
    lacks += [f"--model.value-dim {ours.value_dim}"] * (ours.value_dim != ours.key_dim)
    return ", ".join([*lacks, *differing(ours, HAS | mine)])


def naming(gated: bool) -> Naming:
    """The conversion for T5 (one matrix and relu) or for T5 1.1, Flan-T5 and mT5 (gated)."""
    first = "wi_0" if gated else "wi"
    hidden = {"gate": "wi_0", "hidden": "wi_1"} if gated else {"hidden": "wi"}
    return Naming(
        kind=config.TransformerConfig,
        table=table(hidden),
        mark=f"encoder.block.0.layer.1.DenseReluDense.{first}.weight",
        prepare=prepare,
        options=lambda theirs, facts: options(gated, theirs, facts),
        config=their_config,
        known=known,
        module=module,
        lacking=lambda ours: lacking(gated, ours),
        model_types=("t5", "mt5") if gated else ("t5",),
        ignored={
            r"(en|de)coder\.embed_tokens\.weight": lambda theirs, copy: theirs[SHARED],
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": lambda theirs, unused: (
                None
            ),
        },
    )


NAMINGS = {"t5": naming(gated=False), "t5_gated": naming(gated=True)}
