"""The cases of `bench attention` and `bench card`, and each competitor's function of query, key and value."""

import functools
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention_jax.ops.attention import Options, attend_head
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.heads import over_heads
from attention_jax.ops.masks import Mask, causal, window
from attention_jax.ops.normalizers import Entmax, Sigmoid, Softmax, Sparsemax
from attention_jax.ops.pooling import Mean
from attention_jax.ops.scores import Additive, Gaussian, ScaledDot, SoftCap

WINDOW, SIGMA, HIDDEN, CAP = 256, 4.0, 128, 50.0


class Case(NamedTuple):
    """One score, bias, mask and normalizer."""

    score: Callable[[jnp.dtype], Callable]
    mask: Mask | None
    competitors: tuple[str, ...]
    has_alibi: bool = False
    normalizer: Callable = Softmax()


def l1(query, key):
    """The negative L1 distance [Q, K], the logarithm of a Laplace kernel: a score that is not a dot product."""
    return -jnp.abs(query[:, None] - key[None]).sum(axis=-1)


dot = lambda dtype: ScaledDot()
PEERS = ("jax.nn", "jax.nn cudnn", "tokamax", "torch_sdpa", "torch_flex")
WINDOWED = ("jax.nn", "jax.nn cudnn", "tokamax", "torch_flex")
CASES = {
    "scaled_dot": Case(dot, None, ("fused", "cudnn", "plain", *PEERS)),
    "causal": Case(dot, causal(), ("fused", "cudnn", "plain", *PEERS)),
    "window": Case(dot, causal() & window(WINDOW), ("fused", "cudnn", *WINDOWED)),
    "gaussian": Case(lambda dtype: Gaussian(jnp.asarray(SIGMA, dtype)), None, ("fused", "plain", "torch_flex")),
    "alibi": Case(dot, causal(), ("fused", "plain", "torch_flex"), has_alibi=True),
    "soft_cap": Case(lambda dtype: SoftCap(CAP), causal(), ("fused", "plain", "tokamax", "torch_flex")),
    "sparsemax": Case(dot, causal(), ("fused", "plain"), normalizer=Sparsemax()),
    "entmax": Case(dot, causal(), ("fused", "plain"), normalizer=Entmax(1.5)),
    "sigmoid": Case(dot, causal(), ("fused", "plain"), normalizer=Sigmoid(-8.0)),
    "l1": Case(lambda dtype: l1, None, ("fused", "plain")),
    "additive": Case(
        lambda dtype: jax.tree.map(lambda x: x.astype(dtype), Additive.init(jax.random.key(1), 64, 64, HIDDEN)),
        None,
        ("fused", "plain"),
    ),
}
PACKAGES = {"tokamax": "tokamax", "torch_sdpa": "torch", "torch_flex": "torch"}
GPU_ONLY = ("cudnn", "jax.nn cudnn", "torch_flex")
"""FlexAttention has no gradient on a CPU."""


def is_available(competitor: str, platform: str) -> bool:
    """Whether a competitor's package is installed and it runs on the platform of JAX, cpu, gpu or tpu."""
    package = PACKAGES.get(competitor)
    if package and importlib.util.find_spec(package) is None:
        return False
    if competitor in GPU_ONLY:
        return platform == "gpu"
    return platform != "tpu" or package != "torch"


def layout(competitor: str) -> str:
    """The order of the axes for which a competitor is made: batch, heads, time, dimensions of a head.

    >>> layout("jax.nn cudnn"), layout("fused")
    ('BTHD', 'BHTD')
    """
    return "BTHD" if competitor.startswith(("jax.nn", "tokamax")) else "BHTD"


def jax_function(case: Case, competitor: str, dtype, blocks: tuple = (None, None)) -> Callable:
    """Return the function (query, key, value) -> output in JAX, of arrays in the competitor's `layout`; the parameters
    of the score are constants. The competitor "default" is what `attend` chooses."""
    if layout(competitor) == "BTHD":
        return peer_function(case, competitor)
    implementation = None if competitor == "default" else competitor
    function = functools.partial(attend_head, Options(implementation, *blocks), 0.0)

    def heads(query, key, value):
        bias = ALiBi(jnp.asarray(ALiBi.slopes(query.shape[1]))) if case.has_alibi else None
        rules = {"score": case.score(dtype), "bias": bias, "mask": case.mask, "normalizer": case.normalizer}
        return over_heads(function, query, key, value, rules | {"pool": Mean()})  # [B, H, T, D]

    return heads


def peer_function(case: Case, competitor: str) -> Callable:
    """Return the function of `jax.nn`, by XLA or by cuDNN, or of tokamax, [B, T, H, D]."""
    options = {"is_causal": case.mask is not None}
    if case is CASES["window"]:
        options["local_window_size"] = (WINDOW, 0)
    if competitor != "tokamax":
        implementation = "cudnn" if competitor == "jax.nn cudnn" else "xla"
        return functools.partial(jax.nn.dot_product_attention, implementation=implementation, **options)
    import tokamax

    if case is CASES["soft_cap"]:
        options["logits_soft_cap"] = CAP
    return functools.partial(tokamax.dot_product_attention, **options)


def torch_function(name: str, competitor: str, query) -> Callable:
    """Return the cases in PyTorch, [B, H, T, D], compiled where PyTorch requires it."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    if competitor == "torch_sdpa":
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=name == "causal")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rules = dict.fromkeys(("causal", "alibi", "soft_cap"), lambda b, h, q, k: k <= q)
    rules["window"] = lambda b, h, q, k: (k <= q) & (q - k <= WINDOW)
    (heads, length), device = query.shape[1:3], str(query.device)
    block_mask = create_block_mask(rules[name], None, None, length, length, device=device) if name in rules else None
    slopes = torch.tensor(ALiBi.slopes(heads), device=device)
    score_mod = {
        "alibi": lambda score, b, h, q, k: score - slopes[h] * (q - k),
        "soft_cap": lambda score, b, h, q, k: CAP * torch.tanh(score / CAP),
    }.get(name)
    flex = torch.compile(flex_attention, dynamic=False)
    if name != "gaussian":
        return lambda q, k, v: flex(q, k, v, score_mod=score_mod, block_mask=block_mask)

    def gaussian(q, k, v):
        # -|q - k|^2 / 2 s^2 is q.k / s^2 - |k|^2 / 2 s^2 up to a constant for all keys of a query
        squares = k.float().square().sum(dim=-1) / (2 * SIGMA**2)
        return flex(q, k, v, score_mod=lambda score, b, h, i, j: score - squares[b, h, j], scale=1 / SIGMA**2)

    return gaussian
