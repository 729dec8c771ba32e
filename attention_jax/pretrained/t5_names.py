"""T5, T5 1.1, Flan-T5 and mT5 (Raffel et al. 2020; Xue et al. 2021) as Hugging Face's T5ForConditionalGeneration has
them, and what their weights are called here.

They are pre-norm Transformers with RMSNorm, scores that are not scaled, no biases, one table of embeddings for source
and target, and relative positions that the layers of a stack share. Kernels are [out, in] there. Layouts: v tokens, d
width, m hidden units of the feed-forward, h heads of width e, b buckets of relative positions.
"""

from typing import ClassVar

import numpy as np

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.position_encodings import BUCKETS
from attention_jax.models.transformer import Transformer
from attention_jax.pretrained.facts import Facts, heads_of
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.naming import LAYERS, Arrays, Naming, differing_flags
from attention_jax.pretrained.vit_names import activation

SHARED, HEAD = "shared.weight", "lm_head.weight"
POSITIONS = "SelfAttention.relative_attention_bias.weight"
FIXED = {"relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": 128}
"""The settings in config.json that have no other value here."""


def attention_rows(tensor: str, param: str) -> list[Row]:
    """Rows of the query, key, value and output projections."""
    inputs = [(f"{tensor}.{name[0]}.weight", f"{param}/{name}/kernel") for name in ("query", "key", "value")]
    rows = [Row(source, "(h e) d", target, "d (h e)") for source, target in inputs]
    return [*rows, Row(f"{tensor}.o.weight", "d (h e)", f"{param}/out/kernel", "(h e) d")]


def stack_rows(side: str, hidden: dict[str, str]) -> list[Row]:
    """Rows of the encoder or the decoder; `hidden` has the first matrices of a feed-forward layer by our names."""
    tensor, param, last = f"{side}.block.*.layer", f"{side}/layer_*", 1 if side == "encoder" else 2
    norms = {"attention_norm": 0, "ffn_norm": last} | ({"cross_norm": 1} if side == "decoder" else {})
    rows = [Row(f"{tensor}.{n}.layer_norm.weight", "d", f"{param}/{name}/scale", "d") for name, n in norms.items()]
    rows += attention_rows(f"{tensor}.0.SelfAttention", f"{param}/attention")
    if side == "decoder":
        rows += attention_rows(f"{tensor}.1.EncDecAttention", f"{param}/cross_attention")
    ffn = f"{tensor}.{last}.DenseReluDense"
    rows += [
        Row(f"{ffn}.{name}.weight", "m d", f"{param}/ffn/{matrix}/kernel", "d m") for matrix, name in hidden.items()
    ]
    rows += [Row(f"{ffn}.wo.weight", "d m", f"{param}/ffn/out/kernel", "m d")]
    rows += [Row(f"{side}.block.0.layer.0.{POSITIONS}", "b h", f"{side}/bias_0/table", "h b")]
    return [*rows, Row(f"{side}.final_layer_norm.weight", "d", f"{side}/norm/scale", "d")]


def table_rows(hidden: dict[str, str]) -> tuple[Row, ...]:
    """Rows of the whole model."""
    shared = Row(SHARED, "v d", "target_embedding/token/embedding", "v d")
    return (shared, *stack_rows("encoder", hidden), *stack_rows("decoder", hidden), Row(HEAD, "v d", "kernel", "d v"))


def mlp_layer_of(act: str) -> str:
    """The gated feed-forward layer of an activation in config.json."""
    names = {"gelu": "geglu", "gelu_new": "geglu", "silu": "swiglu", "swish": "swiglu"}
    if act not in names:
        raise InputError(f"T5's feed_forward_proj in config.json must be gated-gelu or gated-silu, is gated-{act}")
    return names[act]


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


class T5Naming(Naming):
    """The conversion of a T5 (one matrix and relu), or if `gated` of a T5 1.1, Flan-T5 or mT5."""

    options_type = config.TransformerConfig
    ignored: ClassVar = {
        r"(en|de)coder\.embed_tokens\.weight": lambda state_dict, copy: state_dict[SHARED],
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": lambda state_dict, _: None,
    }

    def __init__(self, gated: bool):
        self.gated = gated
        self.table = table_rows({"gate": "wi_0", "hidden": "wi_1"} if gated else {"hidden": "wi"})
        self.mark = f"encoder.block.0.layer.1.DenseReluDense.{'wi_0' if gated else 'wi'}.weight"
        self.model_types = ("t5", "mt5") if gated else ("t5",)

    def prepare(self, state_dict: Arrays, facts: Facts) -> Arrays:
        """Leave out an output layer that is tied to the embeddings. Files of transformers 5 say so even if it is not,
        but then they also have scale_decoder_outputs."""
        if HEAD not in state_dict:
            return state_dict
        equal = np.array_equal(state_dict[HEAD], state_dict[SHARED])
        if not equal and facts.get("tie_word_embeddings", True) and "scale_decoder_outputs" not in facts.values:
            raise InputError(f"{HEAD} must be tied to {SHARED}, as config.json says, and differs from it")
        return {name: array for name, array in state_dict.items() if name != HEAD} if equal else state_dict

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.TransformerConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        tokens, width = state_dict[SHARED].shape
        layers = [count_layers(f"{side}.block.", state_dict) for side in ("encoder", "decoder")]
        inner = len(state_dict["encoder.block.0.layer.0.SelfAttention.q.weight"])
        heads = heads_of(facts, "num_heads", inner)
        hidden = len(state_dict[f"encoder.block.0.layer.1.DenseReluDense.{'wi_0' if self.gated else 'wi'}.weight"])
        facts.require("T5", FIXED | {"d_model": width, "d_kv": inner // heads, "d_ff": hidden, "vocab_size": tokens})
        facts.require("T5", {"num_layers": layers[0], "is_gated_act": self.gated, "is_decoder": False})
        if (num_decoder_layers := facts.get("num_decoder_layers", layers[1]) or layers[0]) != layers[1]:
            raise InputError(f"T5's config.json must have num_decoder_layers {layers[1]}, has {num_decoder_layers}")
        facts.read_names.add("n_positions")  # it has no meaning: positions are relative
        usual = "gated-gelu" if self.gated else "relu"
        act = str(facts.get("feed_forward_proj", usual, f"activation {usual}")).removeprefix("gated-")
        scaled = facts.get(
            "scale_decoder_outputs", facts.get("tie_word_embeddings", True) is not False
        )  # null is False
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
            mlp_layer=mlp_layer_of(act) if self.gated else "dense",
            activation="relu" if self.gated else activation(act),
            use_bias=False,
            mlp_bias=False,
            scale_embeddings=False,
            scale_output=bool(scaled),
            output_bias=False,
            tied_embeddings="inputs" if HEAD in state_dict else "all",
        )

    def layout_sizes(self, options: config.TransformerConfig) -> dict[str, int]:
        """Return the layout sizes that follow from the options."""
        heads = {"h": options.num_heads, "e": options.key_dim or options.hidden_size // options.num_heads}
        return heads | {"d": options.hidden_size, "m": options.mlp_dim, "b": BUCKETS}

    def build_module(self, options: config.TransformerConfig, params: Arrays) -> Transformer:
        """Return the Flax module of these weights."""
        vocabulary = len(params["target_embedding/token/embedding"])
        return Transformer(options, vocabulary, vocabulary)

    def missing_options(self, options: config.TransformerConfig) -> str:
        """Describe the options of our model that T5 does not have, self.gated or not."""
        layers = ("geglu", "swiglu") if self.gated else ("dense",)
        expected_layer = {"mlp_layer": options.mlp_layer if options.mlp_layer in layers else layers[0]}
        lacks = [f"--model.tied-embeddings {options.tied_embeddings}"] * (not options.needs_joint_vocabulary)
        lacks += [f"--model.value-dim {options.value_dim}"] * (options.value_dim != options.key_dim)
        return ", ".join([*lacks, *differing_flags(options, HAS | expected_layer)])

    def config_json(self, options: config.TransformerConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `T5ForConditionalGeneration`, with the special tokens of the run's vocabulary."""
        names = {"gelu_tanh": "gelu_new", "swish": "silu"}
        kinds = {"geglu": "gated-gelu", "swiglu": "gated-silu"}
        plain = names.get(options.activation, options.activation)
        vocabulary = getattr(data, "target_vocabulary", None)
        ids = {"pad": 0, "decoder_start": 0, "eos": 1}
        if vocabulary is not None:
            ids = {"pad": vocabulary.pad_id, "decoder_start": vocabulary.bos_id, "eos": vocabulary.eos_id}
        return FIXED | {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "vocab_size": len(params["target_embedding/token/embedding"]),
            "d_model": options.hidden_size,
            "d_kv": options.key_dim or options.hidden_size // options.num_heads,
            "d_ff": options.mlp_dim,
            "num_layers": options.num_encoder_layers,
            "num_decoder_layers": options.num_decoder_layers,
            "num_heads": options.num_heads,
            "layer_norm_epsilon": options.norm_epsilon,
            "feed_forward_proj": kinds.get(options.mlp_layer, plain),
            "tie_word_embeddings": options.tied_embeddings == "all",
            "scale_decoder_outputs": options.scale_output,
            **{f"{name}_token_id": number for name, number in ids.items()},
        }


NAMINGS = {"t5": T5Naming(gated=False), "t5_gated": T5Naming(gated=True)}
