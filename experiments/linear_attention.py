"""A score that is a product of features makes `attend` linear in the sequence, and a recurrent network if it is causal.

Chapter: theory of attention
Source: Katharopoulos et al. 2020 (arXiv 2006.16236), equations 4-7, 16-20
Data: none; random sequences of width 32
Command: python launch.py reproduce linear_attention
Cost: 0.1 minutes

The same call, `attend(q, k, v, score=Elu())`, computes all weights or the sums over keys. Operations are those of the
matrix products in the traced program, with the body of a scan counted as often as it runs (XLA's `cost_analysis` counts
it once); exponents are fitted over lengths 512 to 4,096. They are fixed by the shapes of these products, so they are a
test (tests/experiments/test_theorems.py), not a claim, as is that sums, weights and the recurrent network agree; the
study measures it, too.
"""

import math
from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Sizes

WIDTH = 32


def config() -> Config:
    return Config("linear_attention", Sizes(max_length=4096), None)


def smoke() -> Config:
    return replace(config(), **{"data.max_length": 1024})


def call(implementation: str, masked: bool):
    """attend(query, key, value) with the features of the paper."""
    from attention_jax.ops.attention import attend
    from attention_jax.ops.linear import Elu
    from attention_jax.ops.masks import causal

    mask = causal() if masked else None
    return lambda query, key, value: attend(query, key, value, score=Elu(), mask=mask, implementation=implementation)


def costs(implementation: str, length: int) -> tuple[float, float]:
    """Operations in products, and bytes of temporaries, of one causal call."""
    import jax
    import jax.numpy as jnp

    x = jax.ShapeDtypeStruct((length, WIDTH), jnp.float32)
    traced = jax.jit(call(implementation, masked=True)).trace(x, x, x)
    memory = traced.lower().compile().memory_analysis()
    return float(products(traced.jaxpr.jaxpr)), float(memory.temp_size_in_bytes)


def products(jaxpr) -> int:
    """Multiplications and additions in the matrix products of a jaxpr; the body of a scan counts once per iteration."""
    import jax

    is_jaxpr, total = lambda value: hasattr(value, "eqns"), 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "while":
            raise NotImplementedError("a while loop does not say how often it runs")
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            over = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * over * math.prod(eqn.outvars[0].aval.shape)
        for inner in filter(is_jaxpr, jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr)):
            total += eqn.params.get("length", 1) * products(getattr(inner, "jaxpr", inner))
    return total


def study(config: Config, directory: Path) -> dict:
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.linear import Elu, recurrent
    from attention_jax.report.curves import lines

    arrays = jax.random.normal(jax.random.key(config.train.seed), (3, 1024, WIDTH))
    distance = lambda a, b: float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))
    causal, whole = (jax.jit(call("plain", masked))(*arrays) for masked in (True, False))
    metrics = {
        "causal.from_weights": distance(jax.jit(call("linear", True))(*arrays), causal),
        "whole.from_weights": distance(jax.jit(call("linear", False))(*arrays), whole),
        "recurrent.from_weights": distance(jax.jit(lambda *x: recurrent(*x, Elu()))(*arrays), causal),
    }
    lengths = [n for n in (512, 1024, 2048, 4096) if n <= config.data.max_length]
    series = {}
    for implementation in ("linear", "plain"):
        products, memory = np.transpose([costs(implementation, n) for n in lengths])
        series[implementation] = (lengths, products)
        for name, values in (("operations", products), ("memory", memory)):
            slope = np.polyfit(np.log(lengths), np.log(values), 1)[0]
            metrics[f"{implementation}.{name}.exponent"] = float(slope)
    lines(series, directory / "figures" / "operations.png", xlabel="length", ylabel="operations", log="xy")
    return metrics
