"""Attention block by block for any score and normalizer; `softmax` is the algorithm of FlashAttention."""
