"""The cases of `bench attention`, and each competitor's function of query, key and value [B, H, T, D]."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention_jax.ops.attention import attend
from attention_jax.ops.masks import Mask, causal, window
from attention_jax.ops.scores import Additive, Gaussian, ScaledDot, Score

WINDOW, SIGMA, HIDDEN = 256, 4.0, 128


class Case(NamedTuple):
    """One score and mask."""

    score: Callable[[jnp.dtype], Score]
    mask: Mask | None
    competitors: tuple[str, ...]


CASES = {
    "scaled_dot": Case(
        lambda dtype: ScaledDot(), None, ("fused", "cudnn", "plain", "jax.nn", "torch_sdpa", "torch_flex")
    ),
    "causal": Case(
        lambda dtype: ScaledDot(), causal(), ("fused", "cudnn", "plain", "jax.nn", "torch_sdpa", "torch_flex")
    ),
    "window": Case(lambda dtype: ScaledDot(), causal() & window(WINDOW), ("fused", "cudnn", "torch_flex")),
    "gaussian": Case(lambda dtype: Gaussian(jnp.asarray(SIGMA, dtype)), None, ("fused", "plain", "torch_flex")),
    "additive": Case(
        lambda dtype: jax.tree.map(lambda x: x.astype(dtype), Additive.init(jax.random.key(1), 64, 64, HIDDEN)),
        None,
        ("fused", "plain"),
    ),
}


def jax_function(case: Case, competitor: str, dtype, blocks: tuple = (None, None)) -> Callable:
    """Return the function (query, key, value) -> output in JAX; the parameters of the score are constants."""
    if competitor == "jax.nn":
        swap = lambda x: x.swapaxes(1, 2)
        return lambda *qkv: swap(jax.nn.dot_product_attention(*map(swap, qkv), is_causal=case.mask is not None))
    score = case.score(dtype)

    def one(query, key, value):
        return attend(
            query,
            key,
            value,
            score=score,
            mask=case.mask,
            implementation=competitor,
            block_q=blocks[0],
            block_k=blocks[1],
        )

    return jax.vmap(jax.vmap(one))


def torch_function(name: str, competitor: str, query) -> Callable:
    """Return the cases in PyTorch, compiled where PyTorch requires it."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    if competitor == "torch_sdpa":
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=name == "causal")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rules = {
        "causal": lambda b, h, q, k: k <= q,
        "window": lambda b, h, q, k: (k <= q) & (q - k <= WINDOW),
    }
    length, device = query.shape[2], str(query.device)
    block_mask = create_block_mask(rules[name], None, None, length, length, device=device) if name in rules else None
    flex = torch.compile(flex_attention, dynamic=False)
    if name != "gaussian":
        return lambda q, k, v: flex(q, k, v, block_mask=block_mask)

    def gaussian(q, k, v):
        # -|q - k|^2 / 2 s^2 is q.k / s^2 - |k|^2 / 2 s^2 up to a constant for all keys of a query
        squares = k.float().square().sum(dim=-1) / (2 * SIGMA**2)
        return flex(q, k, v, score_mod=lambda score, b, h, i, j: score - squares[b, h, j], scale=1 / SIGMA**2)

    return gaussian
