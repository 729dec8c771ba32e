"""Kernels that are generated from the arithmetic of a block, for GPUs (`passes.py`)."""

from attention_jax.ops.kernels.generated.block_step import Unsupported
from attention_jax.ops.kernels.generated.triton import missing

__all__ = ["Unsupported", "missing"]
