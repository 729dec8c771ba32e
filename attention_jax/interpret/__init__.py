"""Interventions on trained models as pure functions: record, replace, patch and ablate any activation, and read it with
lenses. docs/interpretability.md is a guide.

The names here are public, and imported on first use.
"""

from typing import TYPE_CHECKING

from attention_jax import lazy_attributes

if TYPE_CHECKING:
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
    from attention_jax.interpret.patterns import head_scores, repeated_tokens
    from attention_jax.interpret.sites import Batch, model_sites
    from attention_jax.interpret.store import ActivationStore, activations, open_activations
    from attention_jax.interpret.sweeps import draw_sweep, patch_sweep

HOMES = {
    "HeadWeights": "attention_jax.interpret.circuits",
    "composition_scores": "attention_jax.interpret.circuits",
    "head_weights": "attention_jax.interpret.circuits",
    "ov_circuit": "attention_jax.interpret.circuits",
    "qk_circuit": "attention_jax.interpret.circuits",
    "Batch": "attention_jax.interpret.sites",
    "Part": "attention_jax.interpret.edits",
    "decoding_edits": "attention_jax.interpret.edits",
    "ablate": "attention_jax.interpret.intervene",
    "patch": "attention_jax.interpret.intervene",
    "path_patch": "attention_jax.interpret.intervene",
    "run": "attention_jax.interpret.intervene",
    "trace": "attention_jax.interpret.intervene",
    "detached_attribution": "attention_jax.interpret.lenses",
    "direct_attribution": "attention_jax.interpret.lenses",
    "gradient_times_activation": "attention_jax.interpret.lenses",
    "integrated_gradients": "attention_jax.interpret.lenses",
    "jacobian_lens": "attention_jax.interpret.lenses",
    "logit_lens": "attention_jax.interpret.lenses",
    "head_scores": "attention_jax.interpret.patterns",
    "repeated_tokens": "attention_jax.interpret.patterns",
    "model_sites": "attention_jax.interpret.sites",
    "ActivationStore": "attention_jax.interpret.store",
    "activations": "attention_jax.interpret.store",
    "open_activations": "attention_jax.interpret.store",
    "draw_sweep": "attention_jax.interpret.sweeps",
    "patch_sweep": "attention_jax.interpret.sweeps",
}
__getattr__, __dir__ = lazy_attributes(__name__, HOMES)
__all__ = [*HOMES]
