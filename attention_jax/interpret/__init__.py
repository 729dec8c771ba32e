"""Interventions on trained models as pure functions: record, replace, patch and ablate any activation, and read it with
lenses. docs/interpretability.md is a guide.

The names here are public, and imported on first use.
"""

from typing import TYPE_CHECKING

from attention_jax import lazily

if TYPE_CHECKING:
    from attention_jax.interpret.edits import Part
    from attention_jax.interpret.intervene import ablate, head_sweep, patch, path_patch, run, trace
    from attention_jax.interpret.lenses import (
        detached_attribution,
        direct_attribution,
        gradient_times_activation,
        integrated_gradients,
        jacobian_lens,
        logit_lens,
    )
    from attention_jax.interpret.patterns import head_scores, repeated_tokens
    from attention_jax.interpret.sites import model_sites

HOMES, __getattr__, __dir__ = lazily(__name__)
__all__ = [*HOMES]
