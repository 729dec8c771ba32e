"""The text encoders of image generators as Hugging Face has them: the encoder of T5, T5 1.1 (Flan-T5, mT5) or UMT5, and
CLIP's text encoder (Radford et al. 2021), alone or with its projection. Layouts as in `naming`, and j the width of the
projection.

All are pre-norm encoders whose embeddings are not normalized. The layers of UMT5 have a bias of relative positions
each, and those of CLIP's are causal: its embedding of a text is the state of the last token.
"""

import re
from pathlib import Path
from typing import Any, ClassVar

from attention_jax.config import MaskedLanguageModelConfig
from attention_jax.errors import InputError
from attention_jax.pretrained.config_json import Facts, activation, heads_of
from attention_jax.pretrained.encoder_names import ANY_VALUE, BertNaming
from attention_jax.pretrained.naming import (
    Arrays,
    Naming,
    Row,
    attention_names,
    count_layers,
    layer_rows,
    linear_rows,
    norm_rows,
)
from attention_jax.pretrained.sentence_files import add_pooling
from attention_jax.pretrained.translator_names import T5_SHARED, GatedT5Naming, T5Naming

DECODER = r"decoder\..*|lm_head\.weight"
"""The tensors of a T5 that its encoder does not have."""


class TextEncoderNaming(Naming):
    """What the conversions of text encoders have in common."""

    options_type = MaskedLanguageModelConfig
    read_only = True
    architecture = ""
    build_module = BertNaming.build_module

    def config_json(self, options: MaskedLanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the entries of config.json that training may change."""
        tokens = len(params["embedding/token/embedding"])
        return {"architectures": [self.architecture], "vocab_size": tokens}


# --- T5 ---------------------------------------------------------------------------------------------------------------


def encoder_table(table: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows of the encoder, of those of a whole T5."""
    encoder = [row for row in table if row.param.startswith("encoder/")]
    return (Row(T5_SHARED, "v d", "embedding/token/embedding", "v d"), *encoder)


class T5EncoderNaming(TextEncoderNaming, T5Naming):
    """The conversion of the encoder of a T5."""

    table = encoder_table(T5Naming.table)
    mark = "encoder.block.0.layer.1.DenseReluDense.wi.weight"
    architecture = "T5EncoderModel"
    copies: ClassVar = {}

    def normalize_name(self, name: str) -> str:
        return T5_SHARED if name == "encoder.embed_tokens.weight" else name

    def prepare(self, state_dict: Arrays, facts: Facts) -> Arrays:
        if any(re.fullmatch(DECODER, name) for name in state_dict):
            raise InputError("it has a decoder, too, which is not read here: load_pretrained(DIR, encoder_only=True)")
        return state_dict

    def infer_options(self, state_dict: Arrays, facts: Facts) -> MaskedLanguageModelConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        layers = count_layers("encoder.block.", state_dict)
        facts.read_names |= {"num_decoder_layers", "tie_word_embeddings", "scale_decoder_outputs"}  # of the decoder
        return MaskedLanguageModelConfig(
            layers,
            **self.layer_options(state_dict, facts, layers),
            num_token_types=0,
            norm_embedding=False,
            word_head=False,
        )

    def complete(
        self, options: MaskedLanguageModelConfig, params: Arrays, directory: Path
    ) -> tuple[MaskedLanguageModelConfig, Arrays]:
        """Add the pooling that the files of sentence-transformers say."""
        return add_pooling(options, directory), params


class GatedT5EncoderNaming(T5EncoderNaming, GatedT5Naming):
    """The conversion of the encoder of a T5 1.1, Flan-T5 or mT5."""

    table = encoder_table(GatedT5Naming.table)
    mark = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
    model_types = ("t5", "mt5")


class UMT5EncoderNaming(GatedT5EncoderNaming):
    """The conversion of the encoder of a UMT5, whose layers have a table of relative positions each (Chung et al.
    2023)."""

    table = tuple(
        Row(*(column.replace("block.0", "block.*").replace("bias_0", "layer_*/attention/head_bias") for column in row))
        for row in GatedT5EncoderNaming.table
    )
    model_types = ("umt5",)
    architecture = "UMT5EncoderModel"

    def layer_options(self, state_dict: Arrays, facts: Facts, layers: int) -> dict[str, Any]:
        return super().layer_options(state_dict, facts, layers) | {"position_embedding": "none", "bias": "t5"}


# --- CLIP -------------------------------------------------------------------------------------------------------------

CLIP_LAYER = {
    "attention_norm": "layer_norm1",
    **attention_names("self_attn.{}_proj", "q", "k", "v", "out"),
    "ffn_norm": "layer_norm2",
    "ffn/hidden": "mlp.fc1",
    "ffn/out": "mlp.fc2",
}
TOKENS, POSITIONS = (f"text_model.embeddings.{kind}_embedding.weight" for kind in ("token", "position"))
PROJECTION = "text_projection.weight"


class CLIPTextNaming(TextEncoderNaming):
    """The conversion of CLIP's text encoder; of a whole CLIP the image encoder is left out."""

    table = (
        Row(TOKENS, "v d", "embedding/token/embedding", "v d"),
        Row(POSITIONS, "n d", "embedding/position/embedding", "n d"),
        *layer_rows("text_model.encoder.layers.*", "encoder/layer_*", CLIP_LAYER),
        *norm_rows("text_model.final_layer_norm", "encoder/norm"),
        *linear_rows("text_projection", "projection", "d", "j", bias=False),
    )
    mark = TOKENS
    model_types = ("clip_text_model", "clip")
    optional = ("projection/",)
    copies: ClassVar = {
        r"vision_model\..*|visual_projection\.weight|logit_scale|text_model\.embeddings\.position_ids": ANY_VALUE
    }

    def normalize_name(self, name: str) -> str:
        return re.sub(r"^(embeddings\.(token|position)|encoder\.layers|final_layer_norm)", r"text_model.\1", name)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> MaskedLanguageModelConfig:
        """Infer the options from shapes and config.json, of a whole CLIP from its text_config; without it from OpenAI's
        models, 64 per head."""
        text, is_whole = facts, facts.values.get("model_type") == "clip"
        if is_whole:
            config, override = facts.get("text_config"), facts.get("text_config_dict")  # older files; it replaces all
            text_config = {"model_type": "clip_text_model"} | (override or config or {})
            text = Facts(text_config | {"projection_dim": facts.get("projection_dim")})
        (tokens, width), positions = state_dict[TOKENS].shape, len(state_dict[POSITIONS])
        layers = count_layers("text_model.encoder.layers.", state_dict)
        hidden = len(state_dict["text_model.encoder.layers.0.mlp.fc1.bias"])
        projection = len(state_dict.get(PROJECTION, ()))
        sizes = {"vocab_size": tokens, "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers}
        text.require("CLIP", sizes | {"max_position_embeddings": positions})
        text.require("CLIP", {"projection_dim": projection or text.get("projection_dim")})
        options = MaskedLanguageModelConfig(
            layers,
            width,
            heads_of(text, "num_attention_heads", width),
            hidden,
            num_token_types=0,
            max_length=positions,
            activation=activation(text.get("hidden_act", "quick_gelu", "activation quick_gelu")),
            norm_epsilon=float(text.get("layer_norm_eps", 1e-5, "norms with epsilon 1e-05")),
            norm="pre",
            norm_embedding=False,
            mask="causal",
            word_head=False,
            pool="last",
            projection_dim=projection,
        )
        if is_whole:
            facts.read_names.add("logit_scale_init_value")
            facts.values |= {f"text_config.{name}": text.values[name] for name in text.unread()}
            facts.assumed += text.assumed
        return options

    def config_json(self, options: MaskedLanguageModelConfig, params: Arrays, data=None) -> dict:
        suffix = "WithProjection" if options.projection_dim else ""
        return super().config_json(options, params) | {"architectures": [f"CLIPTextModel{suffix}"]}


NAMINGS = {
    "t5_encoder": T5EncoderNaming(),
    "t5_gated_encoder": GatedT5EncoderNaming(),
    "umt5_encoder": UMT5EncoderNaming(),
    "clip_text": CLIPTextNaming(),
}
