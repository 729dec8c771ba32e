"""Flax Linen modules: they own weights, call `ops`, and return (output, intermediates)."""
