"""What every sequence-to-sequence model promises: the fixture `contract` is this module, and `contract.check(model)` is
run on each of them."""

import jax
import jax.numpy as jnp
import numpy as np

SOURCE = jnp.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0], [10, 1, 2, 3, 0, 0]])
LENGTH = jnp.array([6, 3, 4])
TARGET = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8], [8, 1, 2, 0]])
UNOPTIMIZED = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}  # these programs run once


def draw(init, *inputs, seed: int = 0):
    """Parameters like those of `init`, but neither zero nor tiny, so that every path through the model matters. No
    program is compiled."""
    shapes, r = jax.eval_shape(init, jax.random.key(0), *inputs), np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), x.dtype), shapes)


def variables_of(model, seed: int = 0):
    variables = draw(model.init, SOURCE, LENGTH, TARGET, seed=seed)
    assert set(variables) == {"params"}
    return variables


def check(model):
    """Shapes, output(), intermediates, step = teacher forced, nothing from the padding or the future, a gradient
    everywhere."""

    def teacher_forced(v):
        memory = model.apply(v, SOURCE, LENGTH, method="encode")
        hidden, intermediates = model.apply(v, memory, TARGET, return_weights=True, method="decode")
        kernel, bias = model.apply(v, method="output")
        logits = hidden @ kernel + bias[None, None]
        return jnp.square(logits).sum(), (memory, logits, intermediates)

    def run_all(v):
        grads, (memory, logits, intermediates) = jax.grad(teacher_forced, has_aux=True)(v)

        def step(cache, token):
            step_logits, cache, step_intermediates = model.apply(v, cache, token, method="step")
            return cache, (step_logits, step_intermediates)

        cache = model.apply(v, memory, TARGET.shape[1], method="start")
        assert all(leaf.shape[0] == len(SOURCE) for leaf in jax.tree.leaves(cache))
        _, steps = jax.lax.scan(step, cache, TARGET.T)
        # other rows in the batch, more and other padding; and another future
        longer = jnp.where(jnp.arange(9)[None] < LENGTH[:, None], jnp.pad(SOURCE, ((0, 0), (0, 3))), 7)
        targets = jnp.concatenate([TARGET, TARGET.at[:, 2].set(3)])
        padded_logits, nothing = model.apply(v, jnp.tile(longer, (2, 1)), jnp.tile(LENGTH, 2), targets)
        assert nothing == {}
        return logits, intermediates, steps, padded_logits, grads

    variables = variables_of(model)
    results = jax.jit(run_all, compiler_options=UNOPTIMIZED)(variables)
    logits, intermediates, (stepwise, step_intermediates), padded_logits, grads = jax.tree.map(np.asarray, results)
    assert logits.shape == (*TARGET.shape, 9)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
    close(stepwise.swapaxes(0, 1), logits)
    close(padded_logits[:3], logits)
    close(padded_logits[3:, :2], logits[:, :2])
    assert not np.allclose(padded_logits[3:, 2], logits[:, 2])
    if intermediates:
        weights = np.asarray(intermediates["cross_attention"])  # [B, layers, heads, T, S]
        assert weights.ndim == 5 and weights.shape[0] == 3 and weights.shape[-2:] == (4, 6)
        close(np.moveaxis(np.asarray(step_intermediates["cross_attention"])[..., 0, :], 0, -2), weights)
        padding = np.arange(6)[None] >= np.asarray(LENGTH)[:, None]
        assert (weights[np.broadcast_to(padding[:, None, None, None], weights.shape)] == 0).all()
    for path, g in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(g).all(), path
        assert (g != 0).any(), f"no gradient reaches {jax.tree_util.keystr(path)}"
    return variables, logits, intermediates
