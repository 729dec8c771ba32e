"""Interventions on trained models as pure functions: record, replace, patch and ablate any activation, and read it with
lenses. docs/interpretability.md is a guide.

The names here are public, and imported on first use.
"""

from typing import TYPE_CHECKING

from attention_jax import lazy_attributes

if TYPE_CHECKING:
    from attention_jax.interpret.attribution import attribution_patch
    from attention_jax.interpret.circuits import HeadWeights, composition_scores, head_weights, ov_circuit, qk_circuit
    from attention_jax.interpret.edits import Part, decoding_edits
    from attention_jax.interpret.intervene import ablate, patch, path_patch, run, trace
    from attention_jax.interpret.lenses import (
        detached_attribution,
        direct_attribution,
        gradient_times_activation,
        integrated_gradients,
        jacobian_lens,
        logit_lens,
    )
    from attention_jax.interpret.patterns import head_scores, repeated_tokens, top_heads
    from attention_jax.interpret.sites import Batch, model_sites
    from attention_jax.interpret.store import ActivationStore, activations, open_activations
    from attention_jax.interpret.sweeps import draw_sweep, patch_sweep

MODULES = {
    "attribution": ("attribution_patch",),
    "circuits": ("HeadWeights", "composition_scores", "head_weights", "ov_circuit", "qk_circuit"),
    "edits": ("Part", "decoding_edits"),
    "intervene": ("ablate", "patch", "path_patch", "run", "trace"),
    "lenses": (
        *("detached_attribution", "direct_attribution", "gradient_times_activation", "integrated_gradients"),
        *("jacobian_lens", "logit_lens"),
    ),
    "patterns": ("head_scores", "repeated_tokens", "top_heads"),
    "sites": ("Batch", "model_sites"),
    "store": ("ActivationStore", "activations", "open_activations"),
    "sweeps": ("draw_sweep", "patch_sweep"),
}
HOMES = {name: f"attention_jax.interpret.{module}" for module, names in MODULES.items() for name in names}
__getattr__, __dir__ = lazy_attributes(__name__, HOMES)
__all__ = [*HOMES]
