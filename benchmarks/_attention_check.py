"""`bench attention --check`: cuDNN and fused against plain in float32, under every mask, with gradients; and generated
kernels against plain, for `bench card` and tests/test_gpu.py."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import causal, lengths, window
from attention_jax.ops.normalizers import Sparsemax
from attention_jax.ops.scores import SoftCap
from benchmarks._attention_cases import CAP, l1

MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal&lengths": lambda n: causal() & lengths(n),
    "causal&window": lambda n: causal() & window(100),
}


def differences(dtype: str, width: int) -> Iterator[str]:
    """A line for each mask and implementation: the largest difference of output and gradients from plain in float32,
    relative to the largest value of each."""
    draw = lambda key: jax.random.normal(key, (3, 512, 4, width))  # [B, T, H, D]
    qkv = [draw(key).astype(dtype).astype(jnp.float32) for key in jax.random.split(jax.random.key(0), 3)]
    for name, mask in MASKS.items():
        with jax.default_matmul_precision("highest"):
            exact = _run(mask, "plain", qkv)
        for implementation in ("cudnn", "fused"):
            try:
                actual = _run(mask, implementation, [x.astype(dtype) for x in qkv])
                far = [float(abs(a - b).max() / abs(b).max()) for a, b in zip(actual, exact, strict=True)]
                message = "differs by " + ", ".join(f"{d:.1e}" for d in far)
            except Exception as error:
                message = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:160]
            yield f"check {implementation} {name}: {message}"


def _run(mask, implementation: str, qkv) -> list[np.ndarray]:
    """Output [B, T, H, D] and the gradients of a loss with respect to query, key and value, in float32."""
    n = jnp.array([512, 0, 301], jnp.int32)

    def loss(q, k, v):
        attend_head = lambda q, k, v, n: attend(q, k, v, mask=mask(n), implementation=implementation)
        heads = jax.vmap(attend_head, (1, 1, 1, None), 1)
        out = jax.vmap(heads)(q, k, v, n).astype(jnp.float32)
        return jnp.sin(3 * out).sum(), out

    (_, out), bars = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv)
    return [np.asarray(x, np.float32) for x in (out, *bars)]


KERNELS = {
    "dot": lambda learned, n: {},
    "soft_cap": lambda learned, n: {"score": SoftCap(CAP)},
    "l1": lambda learned, n: {"score": l1},
    "sparsemax": lambda learned, n: {"normalizer": Sparsemax()},
    "alibi": lambda learned, n: {"bias": ALiBi(learned[0, :4])},
    "bias": lambda learned, n: {"bias": learned[:n, :n]},
}
"""Rules of generated kernels that a card checks first, of numbers that are learned [T, T], with GQA: four heads of
queries and two of keys."""


def kernel_error(name: str, tokens: int) -> float:
    """The largest difference of "kernel" from "plain" in output and gradients, relative to the largest value of each:
    causal, in float32 by products of the highest precision."""
    draw = lambda key, *shape: jax.random.normal(jax.random.key(key), shape)
    query, key, value = (draw(n, 2, tokens, heads, 32) for n, heads in enumerate((4, 2, 2)))
    learned = draw(3, max(tokens, 4), max(tokens, 4))

    def run(implementation):
        def loss(learned, *arrays):
            rules = {"mask": causal(), **KERNELS[name](learned, tokens)}
            out = attend_heads(*arrays, implementation=implementation, **rules)
            return jnp.sin(3 * out).sum(), out

        compute = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))
        return jax.tree.leaves(compute(learned, query, key, value))[1:]

    with jax.default_matmul_precision("highest"), jax.numpy_rank_promotion("allow"):
        pairs = list(zip(run("kernel"), run("plain"), strict=True))
    return max(float(abs(a - b).max() / jnp.maximum(abs(b).max(), 1e-30)) for a, b in pairs)
