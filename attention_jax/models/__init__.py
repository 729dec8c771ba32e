"""Flax Linen modules: they own weights, call `ops`, and return (output, intermediates); and `check`, of their parts.

The modules named here are public, and imported on first use.
"""

from typing import TYPE_CHECKING

from attention_jax import lazy_attributes

if TYPE_CHECKING:
    from attention_jax.models.bahdanau import Bahdanau
    from attention_jax.models.bert import MaskedLanguageModel
    from attention_jax.models.gnmt import GNMT
    from attention_jax.models.language_model import LanguageModel
    from attention_jax.models.luong import Luong
    from attention_jax.models.multihead import MultiHeadAttention
    from attention_jax.models.ntm import NTM
    from attention_jax.models.part_checks import check
    from attention_jax.models.transformer import Transformer
    from attention_jax.models.vit import ViT

HOMES = {
    "Bahdanau": "attention_jax.models.bahdanau",
    "MaskedLanguageModel": "attention_jax.models.bert",
    "GNMT": "attention_jax.models.gnmt",
    "LanguageModel": "attention_jax.models.language_model",
    "Luong": "attention_jax.models.luong",
    "MultiHeadAttention": "attention_jax.models.multihead",
    "NTM": "attention_jax.models.ntm",
    "check": "attention_jax.models.part_checks",
    "Transformer": "attention_jax.models.transformer",
    "ViT": "attention_jax.models.vit",
}
__getattr__, __dir__ = lazy_attributes(__name__, HOMES)
__all__ = [*HOMES]
