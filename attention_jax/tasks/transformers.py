"""From the configuration of a Transformer to its Flax module."""

import dataclasses

import jax.numpy as jnp

from attention_jax import InputError
from attention_jax.models.blocks import Block
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import Transformer


def _values(kind, config) -> dict:
    """The fields of `config` that `kind`, a dataclass, has too."""
    names = {f.name for f in dataclasses.fields(kind)}
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name in names}


def block(config) -> Block:
    """What the layers share, from `config.Transformer` or `config.LanguageModel`."""
    if config.width % config.heads and not (getattr(config, "key_width", 0) and getattr(config, "value_width", 0)):
        raise InputError(f"--model.width must be a multiple of --model.heads, got {config.width} and {config.heads}")
    return Block(**_values(Block, config) | {"dtype": jnp.dtype(config.dtype)})


def encoder_decoder(config, source_vocabulary: int, target_vocabulary: int) -> Transformer:
    """The module of a `config.Transformer`."""
    if config.tied == "all" and source_vocabulary != target_vocabulary:
        raise InputError(
            f"--model.tied all needs one vocabulary for both languages, got {source_vocabulary} and {target_vocabulary} tokens; "
            "use a joint vocabulary, or --model.tied output"
        )
    return Transformer(source_vocabulary, target_vocabulary, block(config), **_values(Transformer, config))


def language_model(config, vocabulary_size: int) -> LanguageModel:
    """The module of a `config.LanguageModel`."""
    return LanguageModel(vocabulary_size, block(config), **_values(LanguageModel, config))
