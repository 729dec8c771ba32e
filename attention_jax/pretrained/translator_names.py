"""Encoder-decoders as Hugging Face has them, and what their weights are called here: Marian, T5 and T5 1.1 (Flan-T5,
mT5; Raffel et al. 2020, Xue et al. 2021). Layouts as in `naming`; b buckets of relative positions.

Marian's are post-norm Transformers with shared embeddings. Their sinusoidal position encoding holds all sines, then all
cosines, where ours (and the paper's) interleaves them: with `t` for sine or cosine and f for the frequency, the
residual stream is "(t f)" there and "(f t)" here. T5's are pre-norm Transformers with RMSNorm, scores that are not
scaled, no biases, one table of embeddings for source and target, and relative positions that the layers of a stack
share.
"""

from typing import Any, ClassVar

import numpy as np

from attention_jax.config import TransformerConfig
from attention_jax.data.pairs import PairData
from attention_jax.data.vocabulary import BOS
from attention_jax.errors import InputError
from attention_jax.models.norms import EPSILON
from attention_jax.models.position_encodings import BUCKETS
from attention_jax.models.transformer import Transformer
from attention_jax.pretrained.config_json import Facts, activation, heads_of, hf_activation
from attention_jax.pretrained.naming import (
    LAYERS,
    Arrays,
    Naming,
    Row,
    attention_names,
    count_layers,
    layer_rows,
    norm_rows,
)

SIDES = ("encoder", "decoder")
LONGEST = 128
"""Tokens of a translation, at most, of a model whose files do not say it."""


class TranslatorNaming(Naming):
    """What the conversions of all encoder-decoders have in common."""

    options_type = TransformerConfig

    def build_module(self, options: TransformerConfig, params: Arrays) -> Transformer:
        """Return the Flax module of these weights."""
        vocabulary = len(params["target_embedding/token/embedding"])
        return Transformer(options, vocabulary, vocabulary)


# --- Marian -----------------------------------------------------------------------------------------------------------

MARIAN_SHARED = "model.shared.weight"
PROJECTIONS = ("q", "k", "v", "out")
ATTENTION = attention_names("self_attn.{}_proj", *PROJECTIONS) | {"attention_norm": "self_attn_layer_norm"}
CROSS = attention_names("encoder_attn.{}_proj", *PROJECTIONS, param="cross_attention")
CROSS |= {"cross_norm": "encoder_attn_layer_norm"}
FEED_FORWARD = {"ffn/hidden": "fc1", "ffn/out": "fc2", "ffn_norm": "final_layer_norm"}
MARIAN = tuple(
    Row(row.tensor, row.tensor_layout.replace("d", "(t f)"), row.param, row.param_layout.replace("d", "(f t)"))
    for row in (
        *layer_rows("model.encoder.layers.*", "encoder/layer_*", ATTENTION | FEED_FORWARD),
        *layer_rows("model.decoder.layers.*", "decoder/layer_*", ATTENTION | CROSS | FEED_FORWARD),
        Row(MARIAN_SHARED, "v d", "target_embedding/token/embedding", "v d"),
        Row("final_logits_bias", "1 v", "bias", "v"),
    )
)


def position_table(state_dict: Arrays, table: np.ndarray) -> np.ndarray:
    """Marian's positions: all sines, then all cosines."""
    positions, width = table.shape
    angles = np.arange(positions)[:, None] / 10_000 ** (2 * np.arange(width // 2) / width)
    computed = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return table if np.allclose(table, computed, rtol=0, atol=1e-3) else computed  # stored in half precision


class MarianNaming(TranslatorNaming):
    """The conversion of a MarianMT."""

    table = MARIAN
    mark = "model.encoder.layers.0.self_attn.q_proj.weight"
    model_types = ("marian",)
    copies: ClassVar = {
        r"lm_head\.weight|model\.(en|de)coder\.embed_tokens\.weight": lambda arrays, copy: arrays[MARIAN_SHARED],
        r"model\.(en|de)coder\.embed_positions\.weight": position_table,
    }
    fixed_options: ClassVar = {
        "norm": "post",
        "position_embedding": "sinusoidal",
        "tied_embeddings": "all",
        "use_bias": True,
        "mlp_bias": True,
        "scale_output": False,
        "norm_epsilon": EPSILON,
        "shared_layers": False,
        "scan_layers": False,
        "output_bias": True,
        **LAYERS,
    }

    def infer_options(self, state_dict: Arrays, facts: Facts) -> TransformerConfig:
        """Infer the options from shapes and config.json; without the latter from OPUS-MT's models, 64 per head."""
        if any(
            [facts.get(name, False) for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm")]
        ):
            raise InputError("Marian's weights must be of a post-norm model without further normalizations")
        if not all([facts.get(name, True) for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")]):
            raise InputError("Marian's weights must share the embeddings of both languages and of the output layer")
        tokens, width = state_dict[MARIAN_SHARED].shape
        layers = {side: count_layers(f"model.{side}.layers.", state_dict) for side in SIDES}
        hidden = {side: len(state_dict[f"model.{side}.layers.0.fc1.bias"]) for side in SIDES}
        facts.require("Marian", {f"{side}_layers": layers[side] for side in SIDES} | {"vocab_size": tokens})
        facts.require("Marian", {f"{side}_ffn_dim": hidden[side] for side in SIDES} | {"d_model": width})
        facts.require("Marian", {"decoder_vocab_size": tokens, "static_position_embeddings": True})
        facts.require("Marian", {"add_bias_logits": False, "is_decoder": False})
        # sines have no end; the other repeats a number
        facts.read_names |= {"max_position_embeddings", "num_hidden_layers"}
        heads = heads_of(facts, "encoder_attention_heads", width)
        if int(facts.get("decoder_attention_heads", heads)) != heads or len(set(hidden.values())) > 1 or width % 2:
            raise InputError(
                "Marian's weights must have an even width, and as many heads and hidden units in both stacks"
            )
        act, scaled = facts.absent("activation_function", "swish"), facts.absent("scale_embedding", True)
        scaled = facts.get("scale_embedding", scaled, f"{'scaled' if scaled else 'unscaled'} embeddings")
        if not isinstance(scaled, bool):
            raise InputError(f"scale_embedding in config.json must be true or false, is {scaled!r}")
        return TransformerConfig(
            *layers.values(),
            width,
            heads,
            hidden["encoder"],
            activation=activation(facts.get("activation_function", act, f"activation {act}")),
            scale_embeddings=scaled,
            tied_embeddings="all",
        )

    def layout_sizes(self, options: TransformerConfig) -> dict[str, int]:
        return super().layout_sizes(options) | {"t": 2, "f": options.hidden_size // 2}

    def reader_options(self, options: TransformerConfig) -> dict[str, Any]:
        even = options.hidden_size // 2 * 2
        widths = (0, options.hidden_size // options.num_heads)
        return self.fixed_options | {"key_dim": widths, "value_dim": widths, "hidden_size": even}

    def config_json(self, options: TransformerConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `MarianMTModel` with the special tokens of the run's vocabulary; without one
        Marian's: eos is token 0; pad is the last and starts decoding."""
        vocabulary = len(params["bias"])
        ids = {"pad": vocabulary - 1, "decoder_start": vocabulary - 1, "eos": 0}
        if data is not None:
            words = data.target_vocabulary
            ids = {"pad": words.pad_id, "bos": words.bos_id, "decoder_start": words.bos_id, "eos": words.eos_id}
        sides = {}
        for side, layers in zip(SIDES, (options.num_encoder_layers, options.num_decoder_layers)):
            sides |= {f"{side}_layers": layers, f"{side}_attention_heads": options.num_heads}
            sides[f"{side}_ffn_dim"] = options.mlp_dim
        return sides | {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "d_model": options.hidden_size,
            "vocab_size": vocabulary,
            "activation_function": {"gelu_tanh": "gelu_pytorch_tanh"}.get(options.activation, options.activation),
            "scale_embedding": options.scale_embeddings,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
            "max_position_embeddings": options.max_length,
            **{f"{name}_token_id": number for name, number in ids.items()},
            "forced_eos_token_id": ids["eos"],
        }

    def extra_files(self, options: TransformerConfig, params: Arrays, data=None) -> dict[str, dict | list | bytes]:
        """Build the files of a `MarianTokenizer` for a run with one sentencepiece model for both sides, if it is one;
        bos, which starts the decoder, is no token of the published ones."""
        if not isinstance(data, PairData) or data.source_bos or data.source_tokenizer.recipe[0] != "sentencepiece":
            return {}
        words, model = data.target_vocabulary, data.source_tokenizer.recipe[1]
        if data.target_tokenizer.recipe != data.source_tokenizer.recipe:
            return {}
        special = {"pad": "<pad>", "bos": BOS, "eos": "</s>", "unk": "<unk>"}
        ids = {name: getattr(words, f"{name}_id") for name in special}
        names = dict(enumerate(words.tokens)) | {ids[name]: token for name, token in special.items()}
        settings = {f"{name}_token": token for name, token in special.items()}
        generation = {f"{name}_token_id": ids[name] for name in ("pad", "bos", "eos")}
        generation |= {"decoder_start_token_id": ids["bos"], "max_length": LONGEST}
        return {
            "vocab.json": {token: number for number, token in names.items()},
            **dict.fromkeys(("source.spm", "target.spm"), model),
            "tokenizer_config.json": {"tokenizer_class": "MarianTokenizer"} | settings,
            "generation_config.json": generation,
        }


# --- T5 ---------------------------------------------------------------------------------------------------------------

T5_SHARED, T5_HEAD = "shared.weight", "lm_head.weight"
POSITIONS = "SelfAttention.relative_attention_bias.weight"
T5_CONFIG = {"relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": 128}
"""The settings in config.json that have no other value here."""


ENCODER_LAYER = attention_names("0.SelfAttention.{}", *"qkvo") | {"attention_norm": "0.layer_norm"}
DECODER_LAYER = ENCODER_LAYER | attention_names("1.EncDecAttention.{}", *"qkvo", param="cross_attention")
DECODER_LAYER |= {"cross_norm": "1.layer_norm"}


def t5_table(hidden: dict[str, str]) -> tuple[Row, ...]:
    """Rows of the whole model; `hidden` has the first matrices of a feed-forward layer by our names."""
    rows = [Row(T5_SHARED, "v d", "target_embedding/token/embedding", "v d"), Row(T5_HEAD, "v d", "kernel", "d v")]
    for side, modules, last in (("encoder", ENCODER_LAYER, 1), ("decoder", DECODER_LAYER, 2)):
        ffn = {f"ffn/{matrix}": f"{last}.DenseReluDense.{name}" for matrix, name in (hidden | {"out": "wo"}).items()}
        modules = modules | ffn | {"ffn_norm": f"{last}.layer_norm"}
        rows += layer_rows(f"{side}.block.*.layer", f"{side}/layer_*", modules, biased=())
        rows += [Row(f"{side}.block.0.layer.0.{POSITIONS}", "b h", f"{side}/bias_0/table", "h b")]
        rows += norm_rows(f"{side}.final_layer_norm", f"{side}/norm", bias=False)
    return tuple(rows)


FIRST_MATRIX = "decoder.block.0.layer.2.DenseReluDense.{}.weight"


class T5Naming(TranslatorNaming):
    """The conversion of a T5, whose feed-forward layers have one matrix before the activation."""

    table = t5_table({"hidden": "wi"})
    mark = FIRST_MATRIX.format("wi")
    model_types: tuple[str, ...] = ("t5",)
    is_gated = False
    usual_activation = "relu"
    """feed_forward_proj of the published models."""
    copies: ClassVar = {
        r"(en|de)coder\.embed_tokens\.weight": lambda state_dict, copy: state_dict[T5_SHARED],
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": lambda state_dict, _: None,
    }
    fixed_options: ClassVar = {
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

    def feed_forward_options(self, act: str) -> dict[str, str]:
        """Return the options of the feed-forward layer with an activation in config.json."""
        return {"mlp_layer": "dense", "activation": activation(act)}

    def prepare(self, state_dict: Arrays, facts: Facts) -> Arrays:
        """Leave out an output layer that is tied to the embeddings. Files of transformers 5 say so even if it is not,
        but then they also have scale_decoder_outputs."""
        if T5_HEAD not in state_dict:
            return state_dict
        equal = np.array_equal(state_dict[T5_HEAD], state_dict[T5_SHARED])
        if not equal and facts.get("tie_word_embeddings", True) and "scale_decoder_outputs" not in facts.values:
            raise InputError(f"{T5_HEAD} must be tied to {T5_SHARED}, as config.json says, and differs from it")
        return {name: array for name, array in state_dict.items() if name != T5_HEAD} if equal else state_dict

    def infer_options(self, state_dict: Arrays, facts: Facts) -> TransformerConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        layers = [count_layers(f"{side}.block.", state_dict) for side in SIDES]
        shared = self.layer_options(state_dict, facts, layers[0])
        if (num_decoder_layers := facts.get("num_decoder_layers", layers[1]) or layers[0]) != layers[1]:
            raise InputError(f"T5's config.json must have num_decoder_layers {layers[1]}, has {num_decoder_layers}")
        is_tied = facts.get("tie_word_embeddings", True) is not False
        is_scaled = facts.values.get("model_type") != "mt5"  # whose output transformers never scales
        return TransformerConfig(
            *layers,
            **shared,
            scale_embeddings=False,
            scale_output=is_scaled and bool(facts.get("scale_decoder_outputs", is_tied)),  # null is False
            output_bias=False,
            tied_embeddings="inputs" if T5_HEAD in state_dict else "all",
        )

    def layer_options(self, state_dict: Arrays, facts: Facts, layers: int) -> dict[str, Any]:
        """Infer the options of the layers, of which the encoder has so many."""
        tokens, width = state_dict[T5_SHARED].shape
        inner, hidden = len(state_dict["encoder.block.0.layer.0.SelfAttention.q.weight"]), len(state_dict[self.mark])
        heads = heads_of(facts, "num_heads", inner)
        sizes = {"d_model": width, "d_kv": inner // heads, "d_ff": hidden, "vocab_size": tokens}
        facts.require("T5", T5_CONFIG | sizes)
        facts.require("T5", {"num_layers": layers, "is_gated_act": self.is_gated, "is_decoder": False})
        facts.read_names.add("n_positions")  # it has no meaning: positions are relative
        usual = self.usual_activation
        act = str(facts.get("feed_forward_proj", usual, f"activation {usual}")).removeprefix("gated-")
        head_width = 0 if inner == width else inner // heads
        return {
            "hidden_size": width,
            "num_heads": heads,
            "mlp_dim": hidden,
            "key_dim": head_width,
            "value_dim": head_width,
            "norm": "pre",
            "norm_layer": "rms",
            "norm_epsilon": float(facts.get("layer_norm_epsilon", 1e-6)),
            "score": "dot",
            "position_embedding": "t5",
            "use_bias": False,
            "mlp_bias": False,
            **self.feed_forward_options(act),
        }

    def layout_sizes(self, options: TransformerConfig) -> dict[str, int]:
        return super().layout_sizes(options) | {"b": BUCKETS}

    def reader_options(self, options: TransformerConfig) -> dict[str, Any]:
        return self.fixed_options | {"tied_embeddings": ("inputs", "all"), "value_dim": options.key_dim}

    def feed_forward_proj(self, options: TransformerConfig) -> str:
        """Return the entry of the feed-forward layer in config.json."""
        return hf_activation(options.activation)

    def config_json(self, options: TransformerConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `T5ForConditionalGeneration`, with the special tokens of the run's vocabulary."""
        vocabulary = getattr(data, "target_vocabulary", None)
        ids = {"pad": 0, "decoder_start": 0, "eos": 1}
        if vocabulary is not None:
            ids = {"pad": vocabulary.pad_id, "decoder_start": vocabulary.bos_id, "eos": vocabulary.eos_id}
        return T5_CONFIG | {
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
            "feed_forward_proj": self.feed_forward_proj(options),
            "tie_word_embeddings": options.tied_embeddings == "all",
            "scale_decoder_outputs": options.scale_output,
            **{f"{name}_token_id": number for name, number in ids.items()},
        }


class GatedT5Naming(T5Naming):
    """The conversion of a T5 1.1, Flan-T5 or mT5."""

    table = t5_table({"gate": "wi_0", "hidden": "wi_1"})
    mark = FIRST_MATRIX.format("wi_0")
    model_types = ("t5", "mt5")
    is_gated = True
    usual_activation = "gated-gelu"
    fixed_options: ClassVar = T5Naming.fixed_options | {"mlp_layer": ("geglu", "swiglu")}

    def feed_forward_options(self, act: str) -> dict[str, str]:
        layers = {"gelu": "geglu", "gelu_new": "geglu", "silu": "swiglu", "swish": "swiglu"}
        if act not in layers:
            raise InputError(f"T5's feed_forward_proj in config.json must be gated-gelu or gated-silu, is gated-{act}")
        return {"mlp_layer": layers[act], "activation": "relu"}

    def feed_forward_proj(self, options: TransformerConfig) -> str:
        return {"geglu": "gated-gelu", "swiglu": "gated-silu"}[options.mlp_layer]


NAMINGS = {"marian": MarianNaming(), "t5": T5Naming(), "t5_gated": GatedT5Naming()}
