"""Interventions on trained models as pure functions: record, replace, patch and ablate any activation, and read it with
lenses. docs/interpretability.md is a guide.

The names here are public, and imported on first use.
"""

from typing import TYPE_CHECKING

from attention_jax import lazily

if TYPE_CHECKING:
    from attention_jax.interpret.intervene import Part, ablate, patch, run, trace
    from attention_jax.interpret.sites import model_sites

HOMES, __getattr__, __dir__ = lazily(__name__)
__all__ = [*HOMES]
