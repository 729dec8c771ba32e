"""When cuDNN is taken, and that the call it gets is well formed. Where there is no NVIDIA GPU
the program is traced, not run."""

import jax
import jax.numpy as jnp
import pytest

from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.dispatch import PLATFORMS, choose
from attention_jax.ops.kernels import cudnn
from attention_jax.ops.masks import causal, dense, lengths, window
from attention_jax.ops.scores import Dot, ScaledDot

X = jnp.ones((16, 64), jnp.bfloat16)
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal & lengths": lambda n: lengths(n) & causal(),
    "causal & window": lambda n: causal() & window(3),
}


@pytest.fixture
def library(monkeypatch):
    """Make jax believe that cuDNN is installed, for tracing and lowering."""
    kernel = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    cudnn.missing.cache_clear()
    for name, answer in {
        "check_cudnn_version": 91100,
        "check_compute_capability": True,
        "is_cuda_compute_capability_equal": False,
    }.items():
        monkeypatch.setattr(kernel, name, lambda *_, answer=answer: answer, raising=False)
    yield
    cudnn.missing.cache_clear()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_what_cudnn_can_do_goes_there(library, mask):
    """Batched over any axes, with operands that are not batched, and gradients from outside and inside of the vmap."""
    many, shared, n = (
        jnp.ones((3, 16, 4, 64), jnp.bfloat16),
        jnp.ones((16, 64), jnp.bfloat16),
        jnp.array([16, 0, 9], jnp.int32),
    )

    def pooled(query, key, n):
        return attend(query, key, key, mask=mask(n))

    def outside(query, key):
        heads = jax.vmap(pooled, (1, None, None), 1)
        return jax.vmap(heads, (0, None, 0))(query, key, n).astype(jnp.float32).sum()

    inside = jax.vmap(
        jax.vmap(jax.grad(lambda q, k, n: pooled(q, k, n).astype(jnp.float32).sum(), (0, 1)), (1, None, None), 1),
        (0, None, 0),
    )
    for function, arguments in ((jax.grad(outside, (0, 1)), (many, shared)), (inside, (many, shared, n))):
        program = jax.jit(function).trace(*arguments)
        assert program.out_info[0].shape == many.shape
        text = {p: program.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda", "tpu")}
        assert {p: "cudnn$fmhaSoftmaxBackward" in text[p] for p in text} == {"cpu": False, "cuda": True, "tpu": False}


@pytest.mark.parametrize(
    "change",
    [
        {"score": Dot()},
        {"bias": ALiBi(0.1)},
        {"dropout": 0.1},
        {"mask": window(3)},
        {"mask": dense(jnp.ones((16, 16), bool))},
        {"mask": causal() | lengths(3)},
        {"mask": causal() & window(3) & lengths(4)},
        {"mask": lengths(3) & lengths(4)},
        {"mask": causal(), "query_offset": 1},
        {"mask": causal(), "key": X[:8], "value": X[:8]},
        {"query": X.astype(jnp.float32)},
        {"value": X[:, :32]},
        {"query": X[:, :60], "key": X[:, :60], "value": X[:, :60]},
    ],
)
def test_what_cudnn_cannot_do_goes_elsewhere(library, change):
    call = {
        "query": X,
        "key": X,
        "value": X,
        "score": ScaledDot(),
        "bias": None,
        "mask": None,
        "dropout": None,
        "query_offset": 0,
    }
    small = dict.fromkeys(PLATFORMS, "plain")
    assert choose(**call, asked=None) == small | {"cuda": "cudnn"}
    assert choose(**(call | change), asked=None) == small


def test_without_the_library_there_is_no_cudnn():
    call = (X, X, X, ScaledDot(), None, None, None, 0)
    if cudnn.missing() is None:
        assert cudnn.unsupported_reason(*call) is None
    else:
        assert "cuDNN" in cudnn.missing() and cudnn.missing() in cudnn.unsupported_reason(*call)
        assert choose(*call, asked=None) == dict.fromkeys(PLATFORMS, "plain")
