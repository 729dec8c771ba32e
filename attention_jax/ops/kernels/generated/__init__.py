"""Kernels that are generated from the arithmetic of a block, for GPUs: `tiles.py` follows one call."""

from attention_jax.ops.kernels.generated.block_step import Unsupported
from attention_jax.ops.kernels.generated.forward_pass import forward
from attention_jax.ops.kernels.generated.gradient_passes import backward
from attention_jax.ops.kernels.generated.triton import missing

__all__ = ["Unsupported", "backward", "forward", "missing"]
