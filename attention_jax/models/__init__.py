"""Flax Linen modules: they own weights, call `ops`, and return (output, intermediates).

The modules named here are public, and imported on first use.
"""

from typing import TYPE_CHECKING

from attention_jax import lazily

if TYPE_CHECKING:
    from attention_jax.models.bahdanau import Bahdanau
    from attention_jax.models.bert import MaskedLanguageModel
    from attention_jax.models.conditional_gru import ConditionalGRU
    from attention_jax.models.gnmt import GNMT
    from attention_jax.models.language_model import LanguageModel
    from attention_jax.models.luong import Luong
    from attention_jax.models.multihead import MultiHeadAttention
    from attention_jax.models.ntm import NTM
    from attention_jax.models.sutskever import Sutskever
    from attention_jax.models.transformer import Transformer
    from attention_jax.models.vit import ViT

HOMES, __getattr__, __dir__ = lazily(__name__)
__all__ = [*HOMES]
