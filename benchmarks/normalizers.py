"""`python launch.py bench normalizers`: time and memory of causal attention with each normalizer, beside the softmax
and beside the package entmax and plain PyTorch, which write all weights out.

Ours is `attend` block by block. Peers must agree with it to 1e-4 before anything is measured. Memory is XLA's plan of
temporary buffers; that of the peers, at least one matrix of weights, is not measured.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend
from attention_jax.ops.masks import causal
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Entmax, ReluPower, Sigmoid, Softmax, Sparsemax, StickBreaking, TopK
from benchmarks._rounds import compare, import_torch

TOLERANCE = 1e-4


class Case(NamedTuple):
    """A normalizer and, if there is one, a peer: torch's scores [Q, K], -inf where masked, to weights."""

    normalizer: Normalizer
    peer: str = ""
    weights: Callable[[Any, Any], Any] | None = None
    """A function of (torch, scores)."""


def from_entmax(name: str, *arguments):
    """The function `name` of the package entmax."""

    def weights(torch, scores):
        try:
            import entmax
        except ImportError:
            raise InputError("this comparison needs entmax, not found: pip install entmax, or --no-torch") from None
        return getattr(entmax, name)(scores, *arguments, dim=-1)

    return weights


CASES = {
    "softmax": Case(Softmax(), "torch", lambda torch, s: torch.softmax(s, -1)),
    "sink": Case(Softmax(0.0), "torch sink", lambda torch, s: torch.exp(s - torch.logaddexp(
        torch.logsumexp(s, -1, keepdim=True), torch.zeros(())
    ))),
    "sigmoid": Case(Sigmoid(-4.0), "torch sigmoid", lambda torch, s: torch.sigmoid(s - 4)),
    "relu": Case(ReluPower(), "torch relu", lambda torch, s: torch.relu(s) / (s > -torch.inf).sum(-1, keepdim=True)),
    "sparsemax": Case(Sparsemax(), "entmax sparsemax", from_entmax("sparsemax")),
    "entmax(1.5)": Case(Entmax(1.5), "entmax 1.5", from_entmax("entmax15")),
    "entmax(1.3)": Case(Entmax(1.3), "entmax bisect 1.3", from_entmax("entmax_bisect", 1.3)),
    "top_k(8)": Case(TopK(8)),
    "stick_breaking": Case(StickBreaking()),
}  # fmt: skip


def main(
    length: int = 2048,
    width: int = 64,
    rounds: int = 7,
    forward: bool = False,
    normalizers: tuple[str, ...] = tuple(CASES),
    torch: bool = True,
    anyway: bool = False,
) -> dict[str, list[float]]:
    """Measure normalizers side by side, on one head.

    Args:
        length: Queries and keys.
        width: Width of the head.
        rounds: Alternating rounds.
        forward: Measure the output alone instead of the output and its gradient.
        normalizers: softmax, sink, sigmoid, relu, sparsemax, entmax(1.5), entmax(1.3), top_k(8),
            stick_breaking.
        torch: Measure PyTorch and entmax, too.
        anyway: Print ratios even where they mean nothing.
    """
    unknown = [name for name in normalizers if name not in CASES]
    if unknown:
        raise InputError(f"--normalizers knows {', '.join(CASES)}, got {', '.join(unknown)}")
    torch_ = import_torch() if torch else None
    arrays = np.random.default_rng(0).normal(size=(3, length, width)).astype(np.float32)
    programs, memory = {}, {}
    for name in dict.fromkeys(("softmax", *normalizers)):
        programs[name], memory[name], output = jax_program(CASES[name].normalizer, arrays, forward)
        if torch_ and CASES[name].peer:
            peer = CASES[name].peer
            programs[peer], peer_output = with_torch(torch_, CASES[name].weights, arrays, forward)
            if not (worst := np.abs(output - peer_output).max()) < TOLERANCE:
                raise InputError(
                    f"{peer} differs from {name} by {worst:.1e}, more than {TOLERANCE}: nothing is measured"
                )
    for name, bytes_ in memory.items():
        print(f"{name:18} {bytes_ / 2**20:8.1f} MiB ({bytes_ / memory['softmax']:.2f}x)")
    title = f"causal attention of {length} tokens, one head of {width}, float32, " + (
        "output" if forward else "gradient"
    )
    return compare(title, programs, length, "tokens", rounds=rounds, anyway=anyway)


def jax_program(normalizer: Normalizer, arrays, forward: bool):
    """(The program, its temporary bytes, the output)."""
    call = {"mask": causal(), "normalizer": normalizer, "implementation": "fused"}
    output = jax.jit(lambda q, k, v: attend(q, k, v, **call))
    gradient = jax.value_and_grad(lambda *qkv: jnp.square(attend(*qkv, **call)).sum(), (0, 1, 2))
    inputs = [jnp.asarray(x) for x in arrays]
    compiled = (output if forward else jax.jit(gradient)).lower(*inputs).compile()
    used = compiled.memory_analysis().temp_size_in_bytes
    return lambda: jax.block_until_ready(compiled(*inputs)), used, np.asarray(output(*inputs))


def with_torch(torch, weights, arrays, forward: bool):
    """(The program of a peer that writes all weights out, its output)."""
    inputs = [torch.from_numpy(x.copy()).requires_grad_() for x in arrays]
    masked = torch.ones(len(arrays[0]), len(arrays[0]), dtype=torch.bool).triu(1)

    def output():
        query, key, value = inputs
        scores = (query @ key.T / arrays.shape[-1] ** 0.5).masked_fill(masked, -torch.inf)
        return weights(torch, scores) @ value

    def run():
        if not forward:
            return torch.autograd.grad(output().square().sum(), inputs)
        with torch.no_grad():
            return output()

    return run, output().detach().numpy()
