"""Recurrent cells, weights whose gradients are deferred, and truncated backpropagation through time."""
