"""Name table for Marian's encoder-decoders in Hugging Face's `MarianMTModel`.

They are post-norm Transformers with shared embeddings. Their sinusoidal position encoding holds all sines, then all
cosines, where ours (and the paper's) interleaves them: with `t` for sine or cosine and f for the frequency, the
residual stream is "(t f)" there and "(f t)" here. Other letters: v tokens, h heads of width e, m hidden units of the
feed-forward network.
"""

from typing import ClassVar

import numpy as np

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.norms import EPSILON
from attention_jax.models.transformer import Transformer
from attention_jax.pretrained.facts import Facts, heads_of
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.naming import Arrays, Naming, differing_flags
from attention_jax.pretrained.vit_names import activation

THERE, HERE = "(t f)", "(f t)"
SIDES, SHARED = ("encoder", "decoder"), "model.shared.weight"


def norm_rows(tensor: str, param: str) -> list[Row]:
    """Rows of a layer normalization."""
    return [Row(f"{tensor}.weight", THERE, f"{param}/scale", HERE), Row(f"{tensor}.bias", THERE, f"{param}/bias", HERE)]


def input_rows(tensor: str, param: str, inner: str) -> list[Row]:
    """Rows of a linear layer from the residual stream to the axes `inner`."""
    kernel = Row(f"{tensor}.weight", f"{inner} {THERE}", f"{param}/kernel", f"{HERE} {inner}")
    return [kernel, Row(f"{tensor}.bias", inner, f"{param}/bias", inner)]


def output_rows(tensor: str, param: str, inner: str) -> list[Row]:
    """Rows of a linear layer from the axes `inner` to the residual stream."""
    kernel = Row(f"{tensor}.weight", f"{THERE} {inner}", f"{param}/kernel", f"{inner} {HERE}")
    return [kernel, Row(f"{tensor}.bias", THERE, f"{param}/bias", HERE)]


def attention_rows(tensor: str, param: str) -> list[Row]:
    """Rows of the query, key, value and output projections."""
    inputs = [(f"{tensor}.{name[0]}_proj", f"{param}/{name}") for name in ("query", "key", "value")]
    rows = [row for source, target in inputs for row in input_rows(source, target, "(h e)")]
    return rows + output_rows(f"{tensor}.out_proj", f"{param}/out", "(h e)")


def stack_rows(tensor: str, param: str, cross: bool) -> list[Row]:
    """Map the parameters of all layers of an encoder, or with cross-attention of a decoder, by `Row`s."""
    rows = attention_rows(f"{tensor}.self_attn", f"{param}/attention")
    rows += norm_rows(f"{tensor}.self_attn_layer_norm", f"{param}/attention_norm")
    if cross:
        rows += attention_rows(f"{tensor}.encoder_attn", f"{param}/cross_attention")
        rows += norm_rows(f"{tensor}.encoder_attn_layer_norm", f"{param}/cross_norm")
    rows += input_rows(f"{tensor}.fc1", f"{param}/ffn/hidden", "m") + output_rows(
        f"{tensor}.fc2", f"{param}/ffn/out", "m"
    )
    return rows + norm_rows(f"{tensor}.final_layer_norm", f"{param}/ffn_norm")


MARIAN = (
    *stack_rows("model.encoder.layers.*", "encoder/layer_*", cross=False),
    *stack_rows("model.decoder.layers.*", "decoder/layer_*", cross=True),
    Row(SHARED, f"v {THERE}", "target_embedding/token/embedding", f"v {HERE}"),
    Row("final_logits_bias", "1 v", "bias", "v"),
)


def position_table(state_dict: Arrays, table: np.ndarray) -> np.ndarray:
    """Marian's positions: all sines, then all cosines."""
    positions, width = table.shape
    angles = np.arange(positions)[:, None] / 10_000 ** (2 * np.arange(width // 2) / width)
    computed = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return table if np.allclose(table, computed, rtol=0, atol=1e-3) else computed  # stored in half precision


class MarianNaming(Naming):
    """The conversion of a MarianMT."""

    options_type = config.TransformerConfig
    table = MARIAN
    mark = "model.encoder.layers.0.self_attn.q_proj.weight"
    model_types = ("marian",)
    ignored: ClassVar = {
        r"lm_head\.weight|model\.(en|de)coder\.embed_tokens\.weight": lambda state_dict, copy: state_dict[SHARED],
        r"model\.(en|de)coder\.embed_positions\.weight": position_table,
    }

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.TransformerConfig:
        """Infer the options from shapes and config.json; without the latter from OPUS-MT's models, 64 per head."""
        if any(
            [facts.get(name, False) for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm")]
        ):
            raise InputError("Marian's weights must be of a post-norm model without further normalizations")
        if not all([facts.get(name, True) for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")]):
            raise InputError("Marian's weights must share the embeddings of both languages and of the output layer")
        tokens, width = state_dict[SHARED].shape
        layers = {side: count_layers(f"model.{side}.layers.", state_dict) for side in SIDES}
        hidden = {side: len(state_dict[f"model.{side}.layers.0.fc1.bias"]) for side in SIDES}
        facts.require("Marian", {f"{side}_layers": layers[side] for side in SIDES} | {"vocab_size": tokens})
        facts.require("Marian", {f"{side}_ffn_dim": hidden[side] for side in SIDES} | {"d_model": width})
        facts.require("Marian", {"decoder_vocab_size": tokens, "static_position_embeddings": True})
        facts.require("Marian", {"add_bias_logits": False})
        facts.require("Marian", {"is_decoder": False})
        facts.read_names |= {
            "max_position_embeddings",
            "num_hidden_layers",
        }  # sines have no end; the other repeats a number
        heads = heads_of(facts, "encoder_attention_heads", width)
        if int(facts.get("decoder_attention_heads", heads)) != heads or len(set(hidden.values())) > 1 or width % 2:
            raise InputError(
                "Marian's weights must have an even width, and as many heads and hidden units in both stacks"
            )
        act, scaled = facts.absent("activation_function", "swish"), facts.absent("scale_embedding", True)
        scaled = facts.get("scale_embedding", scaled, f"{'scaled' if scaled else 'unscaled'} embeddings")
        if not isinstance(scaled, bool):
            raise InputError(f"scale_embedding in config.json must be true or false, is {scaled!r}")
        return config.TransformerConfig(
            *layers.values(),
            width,
            heads,
            hidden["encoder"],
            activation=activation(facts.get("activation_function", act, f"activation {act}")),
            scale_embeddings=scaled,
            tied_embeddings="all",
        )

    def layout_sizes(self, options: config.TransformerConfig) -> dict[str, int]:
        """Return the layout sizes that follow from the options."""
        width = {
            "t": 2,
            "f": options.hidden_size // 2,
            "h": options.num_heads,
            "e": options.hidden_size // options.num_heads,
        }
        return width | {"m": options.mlp_dim}

    def build_module(self, options: config.TransformerConfig, params: Arrays) -> Transformer:
        """Return the Flax module of these weights."""
        vocabulary = len(params["target_embedding/token/embedding"])
        return Transformer(options, vocabulary, vocabulary)

    def missing_options(self, options: config.TransformerConfig) -> str:
        """Describe the options of our model that MarianMT does not have."""
        lacks = {
            f"--model.norm {options.norm}": options.norm != "post",
            f"--model.position-embedding {options.position_embedding}": options.position_embedding != "sinusoidal",
            f"--model.tied-embeddings {options.tied_embeddings}": options.tied_embeddings != "all",
            "--model.no-use-bias": not options.use_bias,
            "--model.no-mlp-bias": not options.mlp_bias,
            "--model.scale-output": options.scale_output,
            f"--model.norm-epsilon {options.norm_epsilon}": options.norm_epsilon != EPSILON,
            "--model.shared-layers": options.shared_layers,
            "--model.scan-layers": options.scan_layers,
            "--model.no-output-bias": not options.output_bias,
            "--model.key-dim": options.key_dim not in (0, options.hidden_size // options.num_heads),
            "--model.value-dim": options.value_dim not in (0, options.hidden_size // options.num_heads),
            "an odd --model.hidden-size": options.hidden_size % 2,
        }
        return ", ".join([*(name for name, is_so in lacks.items() if is_so), *differing_flags(options)])

    def config_json(self, options: config.TransformerConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `MarianMTModel` with the special tokens of the run's vocabulary; without one
        Marian's: eos is token 0; pad is the last and starts decoding."""
        vocabulary = len(params["bias"])
        ids = {"pad": vocabulary - 1, "decoder_start": vocabulary - 1, "eos": 0}
        if data is not None:
            target_vocabulary = data.target_vocabulary
            ids = {
                "pad": target_vocabulary.pad_id,
                "bos": target_vocabulary.bos_id,
                "decoder_start": target_vocabulary.bos_id,
                "eos": target_vocabulary.eos_id,
            }
        names = {"gelu_tanh": "gelu_pytorch_tanh"}
        sides = {
            f"{side}_{name}": value
            for side, number in (("encoder", options.num_encoder_layers), ("decoder", options.num_decoder_layers))
            for name, value in (
                ("layers", number),
                ("attention_heads", options.num_heads),
                ("ffn_dim", options.mlp_dim),
            )
        }
        return sides | {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "d_model": options.hidden_size,
            "vocab_size": vocabulary,
            "activation_function": names.get(options.activation, options.activation),
            "scale_embedding": options.scale_embeddings,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
            "max_position_embeddings": options.max_length,
            **{f"{name}_token_id": number for name, number in ids.items()},
            "forced_eos_token_id": ids["eos"],
        }


NAMINGS = {"marian": MarianNaming()}
