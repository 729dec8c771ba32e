"""Vision Transformers of timm, of Hugging Face and of google-research (AugReg), and what their weights are called here.

Layouts as in `naming`; p, q rows and columns of a patch, c channels, r `rep_width`, y registers.
"""

import math
import re
from typing import ClassVar

from attention_jax.config import ViTConfig
from attention_jax.errors import InputError
from attention_jax.models.vit import ViT
from attention_jax.pretrained.config_json import Facts, activation, heads_of, hf_activation
from attention_jax.pretrained.naming import (
    LAYERS,
    Arrays,
    Naming,
    Row,
    attention_names,
    count_layers,
    layer_rows,
    linear_rows,
    norm_rows,
)

LAYER, ATTENTION = "trunk/layer_*", "trunk/layer_*/attention"
PATCHES = "patch_embedding/kernel", "(p q c) d"
TIMM = (
    Row("cls_token", "1 1 d", "class_token", "d"),
    Row("pos_embed", "1 n d", "positions", "n d"),
    Row("patch_embed.proj.weight", "d c p q", *PATCHES),
    Row("patch_embed.proj.bias", "d", "patch_embedding/bias", "d"),
    Row("blocks.*.attn.qkv.weight", "(s h e) d", f"{ATTENTION}/query|key|value/kernel", "s d (h e)"),
    Row("blocks.*.attn.qkv.bias", "(s h e)", f"{ATTENTION}/query|key|value/bias", "s (h e)"),
    *layer_rows(
        "blocks.*",
        LAYER,
        {
            "attention_norm": "norm1",
            "attention/out": "attn.proj",
            "ffn_norm": "norm2",
            "ffn/hidden": "mlp.fc1",
            "ffn/out": "mlp.fc2",
        },
    ),
    *norm_rows("norm", "trunk/norm"),
    *linear_rows("head", "trunk/head", "d", "k"),
)
HUGGINGFACE = (
    Row("vit.embeddings.cls_token", "1 1 d", "class_token", "d"),
    Row("vit.embeddings.distillation_token", "1 y d", "registers", "y d"),
    Row("vit.embeddings.position_embeddings", "1 n d", "positions", "n d"),
    Row("vit.embeddings.patch_embeddings.projection.weight", "d c p q", *PATCHES),
    Row("vit.embeddings.patch_embeddings.projection.bias", "d", "patch_embedding/bias", "d"),
    *layer_rows(
        "vit.encoder.layer.*",
        LAYER,
        {
            "attention_norm": "layernorm_before",
            **attention_names("attention.attention.{}", "query", "key", "value"),
            "attention/out": "attention.output.dense",
            "ffn_norm": "layernorm_after",
            "ffn/hidden": "intermediate.dense",
            "ffn/out": "output.dense",
        },
    ),
    *norm_rows("vit.layernorm", "trunk/norm"),
    *linear_rows("classifier", "trunk/head", "d", "k"),
)
BLOCK = "Transformer/encoderblock_*"
GOOGLE_LAYER = {
    "attention_norm": "LayerNorm_0",
    **attention_names("MultiHeadDotProductAttention_1/{}", "query", "key", "value", "out"),
    "ffn_norm": "LayerNorm_2",
    "ffn/hidden": "MlpBlock_3/Dense_0",
    "ffn/out": "MlpBlock_3/Dense_1",
}


def to_flax_row(row: Row) -> Row:
    """A row of PyTorch's names in those of Flax, whose arrays are ours before axes are merged.

    >>> [kernel, _] = linear_rows("out", "trunk/out", "(h e)", "d")
    >>> to_flax_row(kernel)
    Row(tensor='out/kernel', tensor_layout='h e d', param='trunk/out/kernel', param_layout='(h e) d')
    """
    module, name = row.tensor.rpartition(".")[0].replace(".", "/"), row.param.rpartition("/")[2]
    return row._replace(tensor=f"{module}/{name}", tensor_layout=re.sub("[()]", "", row.param_layout))


GOOGLE = (
    Row("cls", "1 1 d", "class_token", "d"),
    Row("Transformer/posembed_input/pos_embedding", "1 n d", "positions", "n d"),
    *map(to_flax_row, linear_rows("embedding", "patch_embedding", "(p q c)", "d")),
    *map(to_flax_row, layer_rows(BLOCK, LAYER, GOOGLE_LAYER)),
    *map(to_flax_row, norm_rows("Transformer/encoder_norm", "trunk/norm")),
    *map(to_flax_row, linear_rows("pre_logits", "trunk/pre_logits", "d", "r")),
    *map(to_flax_row, linear_rows("head", "trunk/head", "o", "k")),
)
PUBLISHED = r"(?:vit|deit)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+(?:_in21k|_dino|_sam|_mae)?(?:\..*)?"
"""Names of timm's plain Vision Transformers: GELU, epsilon 1e-6, a class token, and the heads below."""
PUBLISHED_HEADS = {"tiny": 3, "small": 6, "base": 12} | dict.fromkeys(("large", "huge", "giant", "gigantic"), 16)
TIMM_HARMLESS = (
    r"\w*drop\w*|weight_init|fix_init|dynamic_img_\w+|strict_img_size|img_size|mlp_ratio|global_pool|num_classes"
)
TIMM_REQUIRED = {
    "class_token": True,
    "no_embed_class": False,
    "pos_embed": "learn",
    "reg_tokens": 0,
    "pre_norm": False,
    "final_norm": True,
    "fc_norm": False,
    "qkv_bias": True,
    "proj_bias": True,
    "qk_norm": False,
    "norm_layer": "layernorm",
}
"""Arguments of timm's VisionTransformer that have no other value here."""


def check_grid(rows: int, prefix: int) -> int:
    """The side of the square of patches whose positions follow `prefix` others; InputError if it is no square."""
    side = math.isqrt(max(rows - prefix, 0))
    if side**2 != rows - prefix:
        raise InputError(f"{rows} positions must be {prefix} and those of a square of patches: is the class token one?")
    return side


def prefix_of(options: ViTConfig) -> int:
    """Return the number of tokens before the patch tokens."""
    return (options.pool == "token") + options.num_registers


def sizes_of(options: ViTConfig, params: Arrays) -> tuple[int, int, int]:
    """Return (image side in pixels, channels, classes) of our weights; channels are 0 without a patch projection."""
    prefix = prefix_of(options)
    size = math.isqrt(max(len(params["positions"]) - prefix, 0)) * options.patch_size if "positions" in params else 0
    classes = len(params["trunk/head/bias"]) if "trunk/head/bias" in params else 0
    return size, len(params.get("patch_embedding/kernel", ())) // options.patch_size**2, classes


IN_MEMORY = (
    (r"^deit\.", "vit."),
    (r"^(embeddings|encoder|layers|layernorm|pooler)\.", r"vit.\1."),
    (r"^vit\.layers\.", "vit.encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)
"""DeiT's prefix, that of a backbone alone, and what transformers 5 calls modules whose files keep the older names."""


class ViTNaming(Naming):
    """What the conversions of a Vision Transformer have in common."""

    options_type = ViTConfig
    optional = ("trunk/head/",)
    fixed_options: ClassVar = {
        "pool": "token",
        "position_embedding": "learned",
        "stem": "patches",
        "num_registers": 0,
        "use_bias": True,
        **LAYERS,
    }
    has_fixed_epsilon = True
    """Whether the library's code has the epsilon of the norms, 1e-6."""

    def layout_sizes(self, options: ViTConfig) -> dict[str, int]:
        patch = {"p": options.patch_size, "q": options.patch_size, "r": options.pre_logits_dim}
        return super().layout_sizes(options) | patch | {"o": options.pre_logits_dim or options.hidden_size}

    def build_module(self, options: ViTConfig, params: Arrays) -> ViT:
        """Return the Flax module of these weights; InputError for a backbone without a head."""
        size, _, classes = sizes_of(options, params)
        if not classes:
            raise InputError(
                "these weights have no head: import them into an experiment, `launch.py import`, which makes one"
            )
        return ViT(options, classes, size)

    def note(self, options: ViTConfig) -> str:
        """A note for libraries whose epsilon is fixed in their code; empty if it is ours."""
        if not self.has_fixed_epsilon or options.norm_epsilon == 1e-6:
            return ""
        return f"; theirs normalizes with epsilon 1e-6, ours with {options.norm_epsilon:g}: change it there"


class TimmNaming(ViTNaming):
    """The conversion of timm's VisionTransformer."""

    table = TIMM
    mark = "blocks.0.attn.qkv.weight"
    fixed_options: ClassVar = ViTNaming.fixed_options | {"pre_logits_dim": 0, "activation": "gelu"}

    def infer_options(self, state_dict: Arrays, facts: Facts) -> ViTConfig:
        """Infer the options from shapes and config.json: its `architecture`, if that is a published name, and its
        `model_args`, all of which must be supported."""
        embedding, layers = state_dict["patch_embed.proj.weight"], count_layers("blocks.", state_dict)
        width, args, name = len(embedding), Facts(facts.get("model_args", {})), str(facts.get("architecture", ""))
        published = re.fullmatch(PUBLISHED, name)
        if re.search("quick_?gelu|_gap_|_clip_", name):
            raise InputError(f"the architecture {name} is not supported: activation, pooling or norms differ")
        for entry in (facts, args):
            entry.require("timm", {"global_pool": "token"})
        check_grid(state_dict["pos_embed"].shape[1], 1)
        args.require("timm", TIMM_REQUIRED)
        args.require("timm", {"embed_dim": width, "depth": layers, "patch_size": embedding.shape[-1]})
        args.require("timm", {"in_chans": embedding.shape[1]})
        usual = PUBLISHED_HEADS[published[1]] if published else max(width // 64, 1)
        text = lambda words: "" if published else words
        if "global_pool" not in facts.values.keys() | args.values.keys() and not published:
            facts.assumed.append("pooling by the class token")
        heads = args.get("num_heads", usual, text(f"{usual} head{'s' * (usual > 1)} of {width // usual}"))
        act = activation(args.get("act_layer", "gelu", text("activation gelu")))
        if unread := [entry for entry in args.unread() if not re.fullmatch(TIMM_HARMLESS, entry)]:
            raise InputError(f"model_args.{unread[0]} in config.json is not supported: {args.values[unread[0]]!r}")
        facts.read_names.add("num_classes")
        facts.assumed += args.assumed
        epsilon = float(facts.get("norm_epsilon", 1e-6, text("norms with epsilon 1e-6")))
        sizes = embedding.shape[-1], width, len(state_dict["blocks.0.mlp.fc1.bias"]), layers, int(heads)
        return ViTConfig(*sizes, activation=act, norm_epsilon=epsilon)

    def config_json(self, options: ViTConfig, params: Arrays, data=None) -> dict:
        """Return the arguments of `timm.create_model("vit_base_patch16_224", **model_args)` for these weights."""
        size, channels, classes = sizes_of(options, params)
        args = {"img_size": size, "patch_size": options.patch_size, "in_chans": channels, "num_classes": classes}
        args |= {"embed_dim": options.hidden_size, "depth": options.num_layers, "num_heads": options.num_heads}
        args["mlp_ratio"] = options.mlp_dim / options.hidden_size
        about = {"architecture": "vit_base_patch16_224", "num_classes": classes, "model_args": args}
        return about | {"norm_epsilon": options.norm_epsilon}  # ignored by timm, read by this package


class HuggingFaceNaming(ViTNaming):
    """The conversion of ViT and DeiT of Hugging Face."""

    table = HUGGINGFACE
    mark = "vit.encoder.layer.0.layernorm_before.weight"
    model_types = ("vit", "deit")
    has_fixed_epsilon = False
    fixed_options: ClassVar = ViTNaming.fixed_options | {"pre_logits_dim": 0}
    copies: ClassVar = {r"vit\.(pooler\..*|embeddings\.mask_token)": lambda state_dict, unused: None}

    def normalize_name(self, name: str) -> str:
        for pattern, old in IN_MEMORY:
            name = re.sub(pattern, old, name)
        return name

    def infer_options(self, state_dict: Arrays, facts: Facts) -> ViTConfig:
        """Infer the options from shapes and config.json; without it from Hugging Face's defaults, 64 per head."""
        embedding = state_dict["vit.embeddings.patch_embeddings.projection.weight"]
        width, mlp = len(embedding), len(state_dict["vit.encoder.layer.0.intermediate.dense.bias"])
        layers = count_layers("vit.encoder.layer.", state_dict)
        use_bias = "vit.encoder.layer.0.attention.attention.query.bias" in state_dict
        if not use_bias and "vit.encoder.layer.0.attention.output.dense.bias" in state_dict:
            raise InputError("an output layer of attention with a bias, beside queries without one, is not supported")
        sizes = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers, "qkv_bias": use_bias}
        facts.require("ViT", sizes | {"patch_size": embedding.shape[-1], "num_channels": embedding.shape[1]})
        registers = int("vit.embeddings.distillation_token" in state_dict)
        grid = check_grid(state_dict["vit.embeddings.position_embeddings"].shape[1], 1 + registers)
        facts.require("ViT", {"image_size": grid * embedding.shape[-1]})
        return ViTConfig(
            embedding.shape[-1],
            width,
            mlp,
            layers,
            heads_of(facts, "num_attention_heads", width),
            use_bias=use_bias,
            num_registers=registers,
            activation=activation(facts.get("hidden_act", "gelu", "activation gelu")),
            norm_epsilon=float(facts.get("layer_norm_eps", 1e-12, "norms with epsilon 1e-12")),
        )

    def config_json(self, options: ViTConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `ViTForImageClassification`, with the class names of the run, if it has any."""
        size, channels, classes = sizes_of(options, params)
        names = [f"LABEL_{k}" for k in range(classes)] if data is None else [str(name) for name in data.names]
        return {
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "hidden_size": options.hidden_size,
            "num_hidden_layers": options.num_layers,
            "num_attention_heads": options.num_heads,
            "intermediate_size": options.mlp_dim,
            "hidden_act": hf_activation(options.activation, gelu_tanh="gelu_pytorch_tanh"),
            "layer_norm_eps": options.norm_epsilon,
            "image_size": size,
            "patch_size": options.patch_size,
            "num_channels": channels,
            "id2label": {str(k): name for k, name in enumerate(names)},
            "label2id": {name: k for k, name in enumerate(names)},
        }

    def extra_files(self, options: ViTConfig, params: Arrays, data=None) -> dict[str, dict]:
        """Build the preprocessor_config.json of a `ViTImageProcessor` for the images of a run."""
        if data is None:
            return {}
        size, _, _ = sizes_of(options, params)
        resize = {"do_resize": True, "size": {"height": size, "width": size}, "resample": 2}  # bilinear
        scale = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": data.normalization is not None}
        moments = zip(("image_mean", "image_std"), data.normalization or ())
        scale |= {name: [float(x) for x in values] for name, values in moments}
        return {"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor", **resize, **scale}}


class GoogleNaming(ViTNaming):
    """The conversion of google-research's ViT."""

    table = GOOGLE
    mark = "Transformer/encoderblock_0/LayerNorm_0/scale"
    fixed_options: ClassVar = ViTNaming.fixed_options | {"activation": "gelu_tanh"}

    def infer_options(self, state_dict: Arrays, facts: Facts) -> ViTConfig:
        """Infer the options from shapes; activation and epsilon are Flax's defaults, tanh-GELU and 1e-6."""
        size, _, _, width = state_dict["embedding/kernel"].shape
        heads = state_dict["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/bias"].shape[0]
        mlp = state_dict["Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias"]
        rep = state_dict["pre_logits/bias"].shape[0] if "pre_logits/bias" in state_dict else 0
        epsilon = float(facts.get("norm_epsilon", 1e-6, "norms with epsilon 1e-6"))
        check_grid(state_dict["Transformer/posembed_input/pos_embedding"].shape[1], 1)
        extra = {"activation": "gelu_tanh", "norm_epsilon": epsilon, "pre_logits_dim": rep}
        return ViTConfig(size, width, len(mlp), count_layers("Transformer/encoderblock_", state_dict), heads, **extra)

    def config_json(self, options: ViTConfig, params: Arrays, data=None) -> dict:
        """Return what a file of google-research does not say; only this package reads it."""
        return {"norm_epsilon": options.norm_epsilon}


NAMINGS = {"timm": TimmNaming(), "huggingface": HuggingFaceNaming(), "google": GoogleNaming()}
