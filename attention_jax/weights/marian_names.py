"""Name table for Marian's encoder-decoders in Hugging Face's `MarianMTModel`.

They are post-norm Transformers with shared embeddings. Their sinusoidal position encoding holds all sines, then all
cosines, where ours (and the paper's) interleaves them: with `t` for sine or cosine and f for the frequency, the
residual stream is "(t f)" there and "(f t)" here. Other letters: v tokens, h heads of width e, m hidden units of the
feed-forward network.
"""

import numpy as np

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.norms import EPSILON
from attention_jax.models.transformer import Transformer
from attention_jax.weights.facts import Facts, heads_of
from attention_jax.weights.layouts import Row, depth
from attention_jax.weights.naming import Arrays, Naming, differing
from attention_jax.weights.vit_names import activation

THERE, HERE = "(t f)", "(f t)"
SIDES, SHARED = ("encoder", "decoder"), "model.shared.weight"


def norm(theirs: str, ours: str) -> list[Row]:
    """Rows of a layer normalization."""
    return [Row(f"{theirs}.weight", THERE, f"{ours}/scale", HERE), Row(f"{theirs}.bias", THERE, f"{ours}/bias", HERE)]


def into(theirs: str, ours: str, inner: str) -> list[Row]:
    """Rows of a linear layer from the residual stream to the axes `inner`."""
    kernel = Row(f"{theirs}.weight", f"{inner} {THERE}", f"{ours}/kernel", f"{HERE} {inner}")
    return [kernel, Row(f"{theirs}.bias", inner, f"{ours}/bias", inner)]


def back(theirs: str, ours: str, inner: str) -> list[Row]:
    """Rows of a linear layer from the axes `inner` to the residual stream."""
    kernel = Row(f"{theirs}.weight", f"{THERE} {inner}", f"{ours}/kernel", f"{inner} {HERE}")
    return [kernel, Row(f"{theirs}.bias", THERE, f"{ours}/bias", HERE)]


def attention(theirs: str, ours: str) -> list[Row]:
    """Rows of the query, key, value and output projections."""
    inputs = [(f"{theirs}.{name[0]}_proj", f"{ours}/{name}") for name in ("query", "key", "value")]
    rows = [row for there, here in inputs for row in into(there, here, "(h e)")]
    return rows + back(f"{theirs}.out_proj", f"{ours}/out", "(h e)")


def stack(theirs: str, ours: str, cross: bool) -> list[Row]:
    """Map the parameters of all layers of an encoder, or with cross-attention of a decoder, by `Row`s."""
    rows = attention(f"{theirs}.self_attn", f"{ours}/attention")
    rows += norm(f"{theirs}.self_attn_layer_norm", f"{ours}/attention_norm")
    if cross:
        rows += attention(f"{theirs}.encoder_attn", f"{ours}/cross_attention")
        rows += norm(f"{theirs}.encoder_attn_layer_norm", f"{ours}/cross_norm")
    rows += into(f"{theirs}.fc1", f"{ours}/ffn/hidden", "m") + back(f"{theirs}.fc2", f"{ours}/ffn/out", "m")
    return rows + norm(f"{theirs}.final_layer_norm", f"{ours}/ffn_norm")


MARIAN = (
    *stack("model.encoder.layers.*", "encoder/layer_*", cross=False),
    *stack("model.decoder.layers.*", "decoder/layer_*", cross=True),
    Row(SHARED, f"v {THERE}", "target_embedding/token/embedding", f"v {HERE}"),
    Row("final_logits_bias", "1 v", "bias", "v"),
)


def options(theirs: Arrays, facts: Facts) -> config.TransformerConfig:
    """Infer the options from shapes and config.json; without the latter from OPUS-MT's models, 64 per head."""
    if any([facts.get(name, False) for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm")]):
        raise InputError("Marian's weights must be of a post-norm model without further normalizations")
    if not all([facts.get(name, True) for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")]):
        raise InputError("Marian's weights must share the embeddings of both languages and of the output layer")
    tokens, width = theirs[SHARED].shape
    layers = {side: depth(f"model.{side}.layers.", theirs) for side in SIDES}
    hidden = {side: len(theirs[f"model.{side}.layers.0.fc1.bias"]) for side in SIDES}
    facts.require("Marian", {f"{side}_layers": layers[side] for side in SIDES} | {"vocab_size": tokens})
    facts.require("Marian", {f"{side}_ffn_dim": hidden[side] for side in SIDES} | {"d_model": width})
    facts.require("Marian", {"decoder_vocab_size": tokens, "static_position_embeddings": True})
    facts.require("Marian", {"add_bias_logits": False})
    facts.require("Marian", {"is_decoder": False})
    facts.known |= {"max_position_embeddings", "num_hidden_layers"}  # sines have no end; the other repeats a number
    heads = heads_of(facts, "encoder_attention_heads", width)
    if int(facts.get("decoder_attention_heads", heads)) != heads or len(set(hidden.values())) > 1 or width % 2:
        raise InputError("Marian's weights must have an even width, and as many heads and hidden units in both stacks")
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


def waves(theirs: Arrays, table: np.ndarray) -> np.ndarray:
    """Marian's positions: all sines, then all cosines."""
    positions, width = table.shape
    angles = np.arange(positions)[:, None] / 10_000 ** (2 * np.arange(width // 2) / width)
    computed = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return table if np.allclose(table, computed, rtol=0, atol=1e-3) else computed  # stored in half precision


def their_config(ours_options: config.TransformerConfig, ours: Arrays, data=None) -> dict:
    """Build the config.json of a `MarianMTModel` with the special tokens of the run's vocabulary; without one, Marian's
    own: eos is token 0; pad is the last and starts decoding."""
    vocabulary = len(ours["bias"])
    ids = {"pad": vocabulary - 1, "decoder_start": vocabulary - 1, "eos": 0}
    if data is not None:
        own = data.target_vocabulary
        ids = {"pad": own.pad_id, "bos": own.bos_id, "decoder_start": own.bos_id, "eos": own.eos_id}
    names = {"gelu_tanh": "gelu_pytorch_tanh"}
    sides = {
        f"{side}_{name}": value
        for side, number in (("encoder", ours_options.num_encoder_layers), ("decoder", ours_options.num_decoder_layers))
        for name, value in (
            ("layers", number),
            ("attention_heads", ours_options.num_heads),
            ("ffn_dim", ours_options.mlp_dim),
        )
    }
    return sides | {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "d_model": ours_options.hidden_size,
        "vocab_size": vocabulary,
        "activation_function": names.get(ours_options.activation, ours_options.activation),
        "scale_embedding": ours_options.scale_embeddings,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": ours_options.max_length,
        **{f"{name}_token_id": number for name, number in ids.items()},
        "forced_eos_token_id": ids["eos"],
    }


def known(ours: config.TransformerConfig) -> dict[str, int]:
    """Return the layout sizes that follow from the options."""
    width = {"t": 2, "f": ours.hidden_size // 2, "h": ours.num_heads, "e": ours.hidden_size // ours.num_heads}
    return width | {"m": ours.mlp_dim}


def module(ours_options: config.TransformerConfig, ours: Arrays) -> Transformer:
    """Return the Flax module of these weights."""
    vocabulary = len(ours["target_embedding/token/embedding"])
    return Transformer(ours_options, vocabulary, vocabulary)


def lacking(ours: config.TransformerConfig) -> str:
    """Describe the options of our model that MarianMT does not have."""
    lacks = {
        f"--model.norm {ours.norm}": ours.norm != "post",
        f"--model.position-embedding {ours.position_embedding}": ours.position_embedding != "sinusoidal",
        f"--model.tied-embeddings {ours.tied_embeddings}": ours.tied_embeddings != "all",
        "--model.no-use-bias": not ours.use_bias,
        "--model.no-mlp-bias": not ours.mlp_bias,
        "--model.scale-output": ours.scale_output,
        f"--model.norm-epsilon {ours.norm_epsilon}": ours.norm_epsilon != EPSILON,
        "--model.shared-layers": ours.shared_layers,
        "--model.scan-layers": ours.scan_layers,
        "--model.no-output-bias": not ours.output_bias,
        "--model.key-dim": ours.key_dim not in (0, ours.hidden_size // ours.num_heads),
        "--model.value-dim": ours.value_dim not in (0, ours.hidden_size // ours.num_heads),
        "an odd --model.hidden-size": ours.hidden_size % 2,
    }
    return ", ".join([*(name for name, is_so in lacks.items() if is_so), *differing(ours)])


NAMINGS = {
    "marian": Naming(
        kind=config.TransformerConfig,
        table=MARIAN,
        mark="model.encoder.layers.0.self_attn.q_proj.weight",
        options=options,
        config=their_config,
        known=known,
        module=module,
        lacking=lacking,
        model_types=("marian",),
        ignored={
            r"lm_head\.weight|model\.(en|de)coder\.embed_tokens\.weight": lambda theirs, copy: theirs[SHARED],
            r"model\.(en|de)coder\.embed_positions\.weight": waves,
        },
    ),
}
