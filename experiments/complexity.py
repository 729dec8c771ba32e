"""The cost of a convolution, a recurrent layer and self-attention: operations, time, sequential steps, path lengths.

Chapter: Transformer
Source: Vaswani et al. 2017 (arXiv 1706.03762), table 1; Dive into Deep Learning 11.6.2
Data: none
Command: python launch.py reproduce complexity
Cost: 0.1 minutes

Sequences have n vectors of width d, self-attention has no projections, the kernel size is k = 3. Operations: XLA's cost
analysis of the program, exponents fitted over n and d. Sequential steps: the longest chain of matrix products in the
traced program. Path length: the number of hops from position to position (layers; for the recurrent layer, steps) until
the last output's gradient reaches the first input. All of these are fixed by the shapes of matrix products, so they are
tests (tests/experiments/test_theorems.py and test_recurrent.py), not claims; complexity.md lists them.
"""

import time
from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Sizes

KERNEL, REACH = 3, 24
LAYERS = ("convolution", "recurrent", "self-attention")


def config() -> Config:
    return Config("complexity", Sizes(), None)


def smoke() -> Config:
    return replace(config(), **{"data.max_length": 64, "data.max_width": 64})


def layer(name: str, unrolled: bool = False):
    """A function of (weights, x [n, d]) -> [n, d]; `unrolled` writes the recurrent layer as
    n steps, for the cost analysis."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.attention import attend

    def convolution(weights, x):
        padded = jnp.pad(x, ((KERNEL // 2, KERNEL // 2), (0, 0)))
        return sum(padded[i : i + x.shape[0]] @ weights[i] for i in range(KERNEL))

    def recurrent(weights, x):
        step = lambda h, projected: (jnp.tanh(projected + h @ weights[1]),) * 2
        projected, h, states = x @ weights[0], jnp.zeros(x.shape[1]), []
        if not unrolled:
            return jax.lax.scan(step, h, projected)[1]
        for row in projected:
            states.append(step(h, row)[0])
            h = states[-1]
        return jnp.stack(states)

    def self_attention(weights, x):
        return attend(x, x, x, implementation="plain")

    return {"convolution": convolution, "recurrent": recurrent, "self-attention": self_attention}[name]


def arguments(n: int, d: int):
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(KERNEL, d, d)) / d**0.5, jnp.float32), jnp.asarray(
        rng.normal(size=(n, d)), jnp.float32
    )


def operations(name: str, n: int, d: int) -> float:
    """Floating-point operations of one layer, counted by XLA."""
    import jax

    return jax.jit(layer(name, unrolled=True)).lower(*arguments(n, d)).cost_analysis()["flops"]


def seconds(name: str, n: int, d: int, times: int = 10) -> float:
    """The least time of one layer in a few trials."""
    import jax

    run, inputs, trials = jax.jit(layer(name)), arguments(n, d), []
    run(*inputs).block_until_ready()
    for _ in range(times):
        started = time.perf_counter()
        run(*inputs).block_until_ready()
        trials.append(time.perf_counter() - started)
    return min(trials)


def chain(jaxpr, depths: list[int]) -> list[int]:
    """Depth in matrix products of a traced program's outputs, given those of its inputs."""
    depth_of = dict(zip(jaxpr.invars, depths)) | {var: 0 for var in jaxpr.constvars}
    for eqn in jaxpr.eqns:
        inputs = [depth_of.get(var, 0) if type(var).__name__ != "Literal" else 0 for var in eqn.invars]
        inner = next((p for p in eqn.params.values() if hasattr(p, "jaxpr") or hasattr(p, "eqns")), None)
        if inner is not None:
            outputs = chain(getattr(inner, "jaxpr", inner), inputs)
        else:
            outputs = [max(inputs, default=0) + (eqn.primitive.name == "dot_general")] * len(eqn.outvars)
        depth_of |= dict(zip(eqn.outvars, outputs))
    return [depth_of.get(var, 0) if type(var).__name__ != "Literal" else 0 for var in jaxpr.outvars]


def sequential_steps(name: str, n: int, d: int = 4) -> int:
    """The longest chain of matrix products from the input to the output."""
    import jax

    traced = jax.make_jaxpr(layer(name, unrolled=True))(*arguments(n, d))
    return max(chain(traced.jaxpr, [0] * len(traced.jaxpr.invars)))


def path_length(name: str, n: int, d: int = 4) -> int:
    """Hops until the last output has a gradient with respect to the first input."""
    import jax
    import jax.numpy as jnp

    weights, x = arguments(n, d)

    def hop(state):
        if name == "recurrent":  # every position at once, each from its own input and the state one step earlier
            previous = jnp.concatenate([jnp.zeros((1, d)), state[:-1]])
            return jnp.tanh(x_now @ weights[0] + previous @ weights[1])
        return layer(name)(weights, state)

    def last(x, hops):
        nonlocal x_now
        x_now, state = x, jnp.zeros_like(x) if name == "recurrent" else x
        for _ in range(hops):
            state = hop(state)
        return state[-1].sum()

    x_now = x
    for hops in range(1, n + 1):
        if jnp.any(jax.grad(last)(x, hops)[0] != 0):
            return hops
    return n + 1


def exponent(sizes, values) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def study(config: Config, directory: Path) -> dict:
    from attention_jax.report.curves import lines
    from attention_jax.report.tables import Table, markdown

    lengths = [n for n in (16, 32, 64, 128, 256, 512, 1024) if n <= config.data.max_length]
    widths = [d for d in (32, 64, 128, 256, 512, 1024) if d <= config.data.max_width]
    middle_n, middle_d = 32, widths[-1]
    metrics, rows, times = {}, [], {}
    for name in LAYERS:
        in_n = exponent(lengths[:5], [operations(name, n, middle_d) for n in lengths[:5]])
        in_d = exponent(widths, [operations(name, middle_n, d) for d in widths])
        times[name] = (lengths, np.array([seconds(name, n, 128) for n in lengths]) * 1e3)
        steps, path = sequential_steps(name, REACH), path_length(name, REACH)
        facts = {
            "operations.exponent_n": in_n,
            "operations.exponent_d": in_d,
            "sequential_steps": steps,
            "path_length": path,
        }
        metrics |= {f"{name}.{key}": value for key, value in facts.items()} | {
            f"{name}.milliseconds": float(times[name][1][-1])
        }
        rows.append((name, f"n^{in_n:.2f} d^{in_d:.2f}", f"{steps}", f"{path}", f"{times[name][1][-1]:.2f}"))
    counts = {
        name: np.array([operations(name, n, 64) for n in lengths[:5]]) for name in ("recurrent", "self-attention")
    }
    crossing = np.interp(0.0, np.log(counts["self-attention"] / counts["recurrent"]), np.log(lengths[:5]))
    metrics["crossover.n_over_d"] = float(np.exp(crossing) / 64)
    lines(
        times, directory / "figures" / "time.png", xlabel="sequence length n (d = 128)", ylabel="milliseconds", log="xy"
    )
    size = f"n = {REACH}"
    columns = (
        "layer",
        "operations",
        f"sequential steps, {size}",
        f"path length, {size}",
        f"milliseconds, n = {lengths[-1]}, d = 128",
    )
    (directory / "complexity.md").write_text(markdown(Table("Cost of a layer", columns, rows)), encoding="utf-8")
    return metrics
