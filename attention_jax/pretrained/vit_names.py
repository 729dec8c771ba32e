"""Name tables for Vision Transformers of timm, of Hugging Face and of google-research (AugReg).

Layouts: p, q rows and columns of a patch, c channels, d width, n positions, m hidden units of the feed-forward, h heads
of width e, k classes, r `rep_width`, g registers, s query, key and value (layouts.py says how to read a row).
"""

import math
import re
from typing import ClassVar

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.vit import ViT
from attention_jax.pretrained.facts import Facts, heads_of
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.naming import Arrays, Naming, differing_flags

EMBEDDING = "patch_embedding/kernel", "(p q c) d"
ATTENTION = "trunk/layer_*/attention"

TIMM = (
    Row("cls_token", "1 1 d", "class_token", "d"),
    Row("pos_embed", "1 n d", "positions", "n d"),
    Row("patch_embed.proj.weight", "d c p q", *EMBEDDING),
    Row("patch_embed.proj.bias", "d", "patch_embedding/bias", "d"),
    Row("blocks.*.norm1.weight", "d", "trunk/layer_*/attention_norm/scale", "d"),
    Row("blocks.*.norm1.bias", "d", "trunk/layer_*/attention_norm/bias", "d"),
    Row("blocks.*.attn.qkv.weight", "(s h e) d", f"{ATTENTION}/query|key|value/kernel", "s d (h e)"),
    Row("blocks.*.attn.qkv.bias", "(s h e)", f"{ATTENTION}/query|key|value/bias", "s (h e)"),
    Row("blocks.*.attn.proj.weight", "d (h e)", f"{ATTENTION}/out/kernel", "(h e) d"),
    Row("blocks.*.attn.proj.bias", "d", f"{ATTENTION}/out/bias", "d"),
    Row("blocks.*.norm2.weight", "d", "trunk/layer_*/ffn_norm/scale", "d"),
    Row("blocks.*.norm2.bias", "d", "trunk/layer_*/ffn_norm/bias", "d"),
    Row("blocks.*.mlp.fc1.weight", "m d", "trunk/layer_*/ffn/hidden/kernel", "d m"),
    Row("blocks.*.mlp.fc1.bias", "m", "trunk/layer_*/ffn/hidden/bias", "m"),
    Row("blocks.*.mlp.fc2.weight", "d m", "trunk/layer_*/ffn/out/kernel", "m d"),
    Row("blocks.*.mlp.fc2.bias", "d", "trunk/layer_*/ffn/out/bias", "d"),
    Row("norm.weight", "d", "trunk/norm/scale", "d"),
    Row("norm.bias", "d", "trunk/norm/bias", "d"),
    Row("head.weight", "k d", "trunk/head/kernel", "d k"),
    Row("head.bias", "k", "trunk/head/bias", "k"),
)

LAYER, THEIR_ATTENTION = "vit.encoder.layer.*", "vit.encoder.layer.*.attention.attention"
HUGGINGFACE = (
    Row("vit.embeddings.cls_token", "1 1 d", "class_token", "d"),
    Row("vit.embeddings.distillation_token", "1 g d", "registers", "g d"),
    Row("vit.embeddings.position_embeddings", "1 n d", "positions", "n d"),
    Row("vit.embeddings.patch_embeddings.projection.weight", "d c p q", *EMBEDDING),
    Row("vit.embeddings.patch_embeddings.projection.bias", "d", "patch_embedding/bias", "d"),
    Row(f"{LAYER}.layernorm_before.weight", "d", "trunk/layer_*/attention_norm/scale", "d"),
    Row(f"{LAYER}.layernorm_before.bias", "d", "trunk/layer_*/attention_norm/bias", "d"),
    Row(f"{THEIR_ATTENTION}.query.weight", "(h e) d", f"{ATTENTION}/query/kernel", "d (h e)"),
    Row(f"{THEIR_ATTENTION}.query.bias", "(h e)", f"{ATTENTION}/query/bias", "(h e)"),
    Row(f"{THEIR_ATTENTION}.key.weight", "(h e) d", f"{ATTENTION}/key/kernel", "d (h e)"),
    Row(f"{THEIR_ATTENTION}.key.bias", "(h e)", f"{ATTENTION}/key/bias", "(h e)"),
    Row(f"{THEIR_ATTENTION}.value.weight", "(h e) d", f"{ATTENTION}/value/kernel", "d (h e)"),
    Row(f"{THEIR_ATTENTION}.value.bias", "(h e)", f"{ATTENTION}/value/bias", "(h e)"),
    Row(f"{LAYER}.attention.output.dense.weight", "d (h e)", f"{ATTENTION}/out/kernel", "(h e) d"),
    Row(f"{LAYER}.attention.output.dense.bias", "d", f"{ATTENTION}/out/bias", "d"),
    Row(f"{LAYER}.layernorm_after.weight", "d", "trunk/layer_*/ffn_norm/scale", "d"),
    Row(f"{LAYER}.layernorm_after.bias", "d", "trunk/layer_*/ffn_norm/bias", "d"),
    Row(f"{LAYER}.intermediate.dense.weight", "m d", "trunk/layer_*/ffn/hidden/kernel", "d m"),
    Row(f"{LAYER}.intermediate.dense.bias", "m", "trunk/layer_*/ffn/hidden/bias", "m"),
    Row(f"{LAYER}.output.dense.weight", "d m", "trunk/layer_*/ffn/out/kernel", "m d"),
    Row(f"{LAYER}.output.dense.bias", "d", "trunk/layer_*/ffn/out/bias", "d"),
    Row("vit.layernorm.weight", "d", "trunk/norm/scale", "d"),
    Row("vit.layernorm.bias", "d", "trunk/norm/bias", "d"),
    Row("classifier.weight", "k d", "trunk/head/kernel", "d k"),
    Row("classifier.bias", "k", "trunk/head/bias", "k"),
)

BLOCK = "Transformer/encoderblock_*"
THEIR_HEADS = f"{BLOCK}/MultiHeadDotProductAttention_1"
GOOGLE = (
    Row("cls", "1 1 d", "class_token", "d"),
    Row("Transformer/posembed_input/pos_embedding", "1 n d", "positions", "n d"),
    Row("embedding/kernel", "p q c d", *EMBEDDING),
    Row("embedding/bias", "d", "patch_embedding/bias", "d"),
    Row(f"{BLOCK}/LayerNorm_0/scale", "d", "trunk/layer_*/attention_norm/scale", "d"),
    Row(f"{BLOCK}/LayerNorm_0/bias", "d", "trunk/layer_*/attention_norm/bias", "d"),
    Row(f"{THEIR_HEADS}/query/kernel", "d h e", f"{ATTENTION}/query/kernel", "d (h e)"),
    Row(f"{THEIR_HEADS}/query/bias", "h e", f"{ATTENTION}/query/bias", "(h e)"),
    Row(f"{THEIR_HEADS}/key/kernel", "d h e", f"{ATTENTION}/key/kernel", "d (h e)"),
    Row(f"{THEIR_HEADS}/key/bias", "h e", f"{ATTENTION}/key/bias", "(h e)"),
    Row(f"{THEIR_HEADS}/value/kernel", "d h e", f"{ATTENTION}/value/kernel", "d (h e)"),
    Row(f"{THEIR_HEADS}/value/bias", "h e", f"{ATTENTION}/value/bias", "(h e)"),
    Row(f"{THEIR_HEADS}/out/kernel", "h e d", f"{ATTENTION}/out/kernel", "(h e) d"),
    Row(f"{THEIR_HEADS}/out/bias", "d", f"{ATTENTION}/out/bias", "d"),
    Row(f"{BLOCK}/LayerNorm_2/scale", "d", "trunk/layer_*/ffn_norm/scale", "d"),
    Row(f"{BLOCK}/LayerNorm_2/bias", "d", "trunk/layer_*/ffn_norm/bias", "d"),
    Row(f"{BLOCK}/MlpBlock_3/Dense_0/kernel", "d m", "trunk/layer_*/ffn/hidden/kernel", "d m"),
    Row(f"{BLOCK}/MlpBlock_3/Dense_0/bias", "m", "trunk/layer_*/ffn/hidden/bias", "m"),
    Row(f"{BLOCK}/MlpBlock_3/Dense_1/kernel", "m d", "trunk/layer_*/ffn/out/kernel", "m d"),
    Row(f"{BLOCK}/MlpBlock_3/Dense_1/bias", "d", "trunk/layer_*/ffn/out/bias", "d"),
    Row("Transformer/encoder_norm/scale", "d", "trunk/norm/scale", "d"),
    Row("Transformer/encoder_norm/bias", "d", "trunk/norm/bias", "d"),
    Row("pre_logits/kernel", "d r", "trunk/pre_logits/kernel", "d r"),
    Row("pre_logits/bias", "r", "trunk/pre_logits/bias", "r"),
    Row("head/kernel", "o k", "trunk/head/kernel", "o k"),
    Row("head/bias", "k", "trunk/head/bias", "k"),
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


def activation(name: str) -> str:
    """Convert Hugging Face's or timm's name of an activation to ours; InputError if it is not supported."""
    names = {"gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish"}
    names |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_tanh"), "gelu_tanh")
    if name not in names:
        raise InputError(f"the activation must be one of {', '.join(names)}, is {name!r} in config.json")
    return names[name]


def check_grid(rows: int, prefix: int) -> int:
    """The side of the square of patches whose positions follow `prefix` others; InputError if it is no square."""
    side = math.isqrt(max(rows - prefix, 0))
    if side**2 != rows - prefix:
        raise InputError(f"{rows} positions must be {prefix} and those of a square of patches: is the class token one?")
    return side


def prefix_of(options: config.ViTConfig) -> int:
    """Return the number of tokens before the patch tokens."""
    return (options.pool == "token") + options.num_registers


def sizes_of(options: config.ViTConfig, params: Arrays) -> tuple[int, int, int]:
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


ALL_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swish")


class ViTNaming(Naming):
    """What the conversions of a Vision Transformer have in common."""

    options_type = config.ViTConfig
    optional = ("trunk/head/",)
    activations: tuple[str, ...] = ALL_ACTIVATIONS
    """The activations that the library has."""
    has_pre_logits = False
    """Whether it has a layer before the head."""

    def layout_sizes(self, options: config.ViTConfig) -> dict[str, int]:
        """Return the layout sizes that follow from the options."""
        heads = {"h": options.num_heads, "e": options.hidden_size // options.num_heads, "d": options.hidden_size}
        patch = {"p": options.patch_size, "q": options.patch_size, "m": options.mlp_dim, "s": 3}
        return heads | patch | {"r": options.pre_logits_dim, "o": options.pre_logits_dim or options.hidden_size}

    def build_module(self, options: config.ViTConfig, params: Arrays) -> ViT:
        """Return the Flax module of these weights; InputError for a backbone without a head."""
        size, _, classes = sizes_of(options, params)
        if not classes:
            raise InputError(
                "these weights have no head: import them into an experiment, `launch.py import`, which makes one"
            )
        return ViT(options, classes, size)

    def missing_options(self, options: config.ViTConfig) -> str:
        """Describe the options of our model that the other library does not have; empty if it has all."""
        lacks = {
            f"--model.pool {options.pool}": options.pool != "token",
            f"--model.position-embedding {options.position_embedding}": options.position_embedding != "learned",
            f"--model.stem {options.stem}": options.stem != "patches",
            "--model.num-registers": options.num_registers,
            "--model.pre-logits-dim": options.pre_logits_dim and not self.has_pre_logits,
            "--model.no-use-bias": not options.use_bias,
            f"--model.activation {options.activation}": options.activation not in self.activations,
        }
        return ", ".join([*(name for name, is_so in lacks.items() if is_so), *differing_flags(options)])


class TimmNaming(ViTNaming):
    """The conversion of timm's VisionTransformer."""

    table = TIMM
    mark = "blocks.0.attn.qkv.weight"
    activations = ("gelu",)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.ViTConfig:
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
        return config.ViTConfig(*sizes, activation=act, norm_epsilon=epsilon)

    def config_json(self, options: config.ViTConfig, params: Arrays, data=None) -> dict:
        """Return the arguments of `timm.create_model("vit_base_patch16_224", **model_args)` for these weights."""
        size, channels, classes = sizes_of(options, params)
        args = {"img_size": size, "patch_size": options.patch_size, "in_chans": channels, "num_classes": classes}
        args |= {"embed_dim": options.hidden_size, "depth": options.num_layers, "num_heads": options.num_heads}
        args["mlp_ratio"] = options.mlp_dim / options.hidden_size
        about = {"architecture": "vit_base_patch16_224", "num_classes": classes, "model_args": args}
        return about | {"norm_epsilon": options.norm_epsilon}  # ignored by timm, read by this package

    def note(self, options: config.ViTConfig) -> str:
        """A note for libraries whose epsilon is fixed in their code; empty if it is ours."""
        epsilon = options.norm_epsilon
        return (
            "" if epsilon == 1e-6 else f"; theirs normalizes with epsilon 1e-6, ours with {epsilon:g}: change it there"
        )


class HuggingFaceNaming(ViTNaming):
    """The conversion of ViT and DeiT of Hugging Face."""

    table = HUGGINGFACE
    mark = "vit.encoder.layer.0.layernorm_before.weight"
    model_types = ("vit", "deit")
    ignored: ClassVar = {r"vit\.(pooler\..*|embeddings\.mask_token)": lambda state_dict, unused: None}

    def normalize_name(self, name: str) -> str:
        for pattern, old in IN_MEMORY:
            name = re.sub(pattern, old, name)
        return name

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.ViTConfig:
        """Infer the options from shapes and config.json; without it from Hugging Face's defaults, 64 per head."""
        embedding = state_dict["vit.embeddings.patch_embeddings.projection.weight"]
        width, mlp = len(embedding), len(state_dict["vit.encoder.layer.0.intermediate.dense.bias"])
        layers, attention = count_layers("vit.encoder.layer.", state_dict), THEIR_ATTENTION.replace("*", "0")
        use_bias = f"{attention}.query.bias" in state_dict
        if not use_bias and "vit.encoder.layer.0.attention.output.dense.bias" in state_dict:
            raise InputError("an output layer of attention with a bias, beside queries without one, is not supported")
        sizes = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers, "qkv_bias": use_bias}
        facts.require("ViT", sizes | {"patch_size": embedding.shape[-1], "num_channels": embedding.shape[1]})
        registers = int("vit.embeddings.distillation_token" in state_dict)
        grid = check_grid(state_dict["vit.embeddings.position_embeddings"].shape[1], 1 + registers)
        facts.require("ViT", {"image_size": grid * embedding.shape[-1]})
        return config.ViTConfig(
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

    def config_json(self, options: config.ViTConfig, params: Arrays, data=None) -> dict:
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
            "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh", "swish": "silu"}.get(
                options.activation, options.activation
            ),
            "layer_norm_eps": options.norm_epsilon,
            "image_size": size,
            "patch_size": options.patch_size,
            "num_channels": channels,
            "id2label": {str(k): name for k, name in enumerate(names)},
            "label2id": {name: k for k, name in enumerate(names)},
        }

    def extra_files(self, options: config.ViTConfig, params: Arrays, data=None) -> dict[str, dict]:
        """Build the preprocessor_config.json of a `ViTImageProcessor` if the run normalizes its images."""
        if data is None or data.normalization is None:
            return {}
        size, _, _ = sizes_of(options, params)
        mean, deviation = ([float(x) for x in values] for values in data.normalization)
        resize = {"do_resize": True, "size": {"height": size, "width": size}, "resample": 2}  # bilinear
        scale = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
        recipe = {"image_processor_type": "ViTImageProcessor", **resize, **scale}
        return {"preprocessor_config.json": recipe | {"image_mean": mean, "image_std": deviation}}


class GoogleNaming(ViTNaming):
    """The conversion of google-research's ViT."""

    table = GOOGLE
    mark = "Transformer/encoderblock_0/LayerNorm_0/scale"
    activations = ("gelu_tanh",)
    has_pre_logits = True

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.ViTConfig:
        """Infer the options from shapes; activation and epsilon are Flax's defaults, tanh-GELU and 1e-6."""
        size, _, _, width = state_dict["embedding/kernel"].shape
        heads = state_dict[f"{THEIR_HEADS}/query/bias".replace("*", "0")].shape[0]
        mlp = state_dict[f"{BLOCK}/MlpBlock_3/Dense_0/bias".replace("*", "0")]
        rep = state_dict["pre_logits/bias"].shape[0] if "pre_logits/bias" in state_dict else 0
        epsilon = float(facts.get("norm_epsilon", 1e-6, "norms with epsilon 1e-6"))
        check_grid(state_dict["Transformer/posembed_input/pos_embedding"].shape[1], 1)
        extra = {"activation": "gelu_tanh", "norm_epsilon": epsilon, "pre_logits_dim": rep}
        return config.ViTConfig(
            size, width, len(mlp), count_layers("Transformer/encoderblock_", state_dict), heads, **extra
        )

    def config_json(self, options: config.ViTConfig, params: Arrays, data=None) -> dict:
        """Return what a file of google-research does not say; only this package reads it."""
        return {"norm_epsilon": options.norm_epsilon}

    def note(self, options: config.ViTConfig) -> str:
        """A note for libraries whose epsilon is fixed in their code; empty if it is ours."""
        epsilon = options.norm_epsilon
        return (
            "" if epsilon == 1e-6 else f"; theirs normalizes with epsilon 1e-6, ours with {epsilon:g}: change it there"
        )


NAMINGS = {"timm": TimmNaming(), "huggingface": HuggingFaceNaming(), "google": GoogleNaming()}
