"""Attention by kernels of vendors: cuDNN on GPUs, JAX's Pallas flash attention on TPUs."""
