"""Former names of modules, parts and classes of options, which runs and commands from before 2026-11-25 may have."""

MODULES = {
    "attention_jax.boxes": "attention_jax.ops.images.boxes",
    "attention_jax.data.corpora": "attention_jax.data.pairs",
    "attention_jax.data.labelled_texts": "attention_jax.data.labeled_texts",
    "attention_jax.ops.augment": "attention_jax.ops.images.augment",
    "attention_jax.ops.autoaugment": "attention_jax.ops.images.autoaugment",
    "attention_jax.ops.blockwise": "attention_jax.ops.blockwise.local",
    "attention_jax.ops.bptt": "attention_jax.ops.recurrent.bptt",
    "attention_jax.ops.cells": "attention_jax.ops.recurrent.cells",
    "attention_jax.ops.cudnn": "attention_jax.ops.kernels.cudnn",
    "attention_jax.ops.deferred": "attention_jax.ops.recurrent.deferred",
    "attention_jax.ops.derivatives": "attention_jax.ops.blockwise.derivatives",
    "attention_jax.ops.flash": "attention_jax.ops.kernels.flash",
    "attention_jax.ops.fused": "attention_jax.ops.blockwise.softmax",
    "attention_jax.ops.linear_maps": "attention_jax.ops.blockwise.linear_call",
    "attention_jax.ops.metrics": "attention_jax.ops.losses",
    "attention_jax.ops.normalisers": "attention_jax.ops.normalizers",
    "attention_jax.ops.normalising": "attention_jax.ops.normalizer_kinds",
    "attention_jax.ops.ordered": "attention_jax.ops.blockwise.ordered",
    "attention_jax.ops.randaugment": "attention_jax.ops.images.randaugment",
    "attention_jax.ops.rollout": "attention_jax.views.pictures",
    "attention_jax.ops.score_blocks": "attention_jax.ops.blockwise.score_blocks",
    "attention_jax.ops.sequence_parallel": "attention_jax.ops.blockwise.ring",
    "attention_jax.ops.tangents": "attention_jax.ops.blockwise.forward_mode",
    "attention_jax.ops.tiles": "attention_jax.ops.blockwise.higher_order",
    "attention_jax.ops.top_k": "attention_jax.ops.blockwise.top_k",
    "attention_jax.ops.weight_dropout": "attention_jax.ops.dropout",
}
"""{former module: present one}, for parts that are given by import path."""
NAMES = {
    "Cct": "CCT",
    "ConditionalGru": "ConditionalGRU",
    "Epanechikov": "Triangular",
    "Gnmt": "GNMT",
    "Vit": "ViT",
    "Normaliser": "Normalizer",
}
"""{former name in a module: present one}"""
KINDS = {
    "AttentionSeq2seq": "AttentionSeq2seqConfig",
    "Bahdanau": "BahdanauConfig",
    "Cct": "CCTConfig",
    "ConditionalGru": "ConditionalGRUConfig",
    "Convolutional": "ConvolutionalConfig",
    "DeepOutput": "DeepOutputConfig",
    "Gnmt": "GNMTConfig",
    "GraphAttention": "GraphAttentionConfig",
    "LanguageModel": "LanguageModelConfig",
    "Luong": "LuongConfig",
    "LuongSeq2seq": "LuongSeq2seqConfig",
    "NTM": "NTMConfig",
    "PeekySeq2seq": "PeekySeq2seqConfig",
    "PointerNetwork": "PointerNetworkConfig",
    "RecurrentLanguageModel": "RecurrentLanguageModelConfig",
    "ResNet": "ResNetConfig",
    "Seq2seq": "Seq2seqConfig",
    "StackedLSTM": "StackedLSTMConfig",
    "Sutskever": "SutskeverConfig",
    "TextClassifier": "TextClassifierConfig",
    "Transformer": "TransformerConfig",
    "Translator": "TranslatorConfig",
    "Vit": "ViTConfig",
}
"""{former name of a class of options in config.json: present one}"""


def present_path(import_path: str) -> str:
    """Return the import path "package.file:name" with the present names of what was renamed in this package.

    >>> present_path("attention_jax.ops.scores:Epanechikov"), present_path("mine.scores:Radial")
    ('attention_jax.ops.scores:Triangular', 'mine.scores:Radial')
    """
    file, _, name = import_path.partition(":")
    if file.partition(".")[0] != "attention_jax":
        return import_path
    return f"{MODULES.get(file, file)}:{NAMES.get(name, name)}"
