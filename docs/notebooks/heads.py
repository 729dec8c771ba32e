# %% [markdown]
# # Lesson 4: heads, and what they do
#
# **Question.** A softmax makes one weighted mean. What can several means do that one cannot, at the same number of
# parameters, and how does one find out what a head does?
#
# d2l 11.5, 40 minutes. Before it: lessons [1](kernels.ipynb) and [2](masked_softmax.ipynb).

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from attention_jax import attend_heads, causal, models


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equation
#
# Every head $h$ attends with projections of its own, each $H$ times narrower than the model (Vaswani et al. 2017,
# section 3.2.2):
#
# $$\mathrm{head}_h = \mathrm{attend}(Q W^Q_h, K W^K_h, V W^V_h), \qquad
# \mathrm{MultiHead}(Q, K, V) = [\mathrm{head}_1; \dots; \mathrm{head}_H]\, W^O$$
#
# The widths of all heads add up to that of the model, so the number of parameters does not depend on $H$.
#
# ## The function
#
# `attend_heads` is `attend`, mapped over sequences and heads. Without its arguments and docstring:

# %%
source = inspect.getsource(attend_heads)
print(source[source.index("-> Float") :].replace(attend_heads.__doc__, " ... "))

# %% [markdown]
# `models.MultiHeadAttention` owns the projections. By hand, a head is a slice of them:

# %%
WIDTH = 32
x = jax.random.normal(jax.random.key(0), (2, 5, WIDTH))  # two sequences of five vectors
module = models.MultiHeadAttention(num_heads=4, hidden_size=WIDTH)
params = module.init(jax.random.key(1), x, x, x)
output, weights = module.apply(params, x, x, x, return_weights=True)
print(jax.tree.map(jnp.shape, params["params"]))

project = lambda name: x @ params["params"][name]["kernel"] + params["params"][name]["bias"]
query, key, value = (project(name).reshape(2, 5, 4, 8) for name in ("query", "key", "value"))
pooled = attend_heads(query, key, value).reshape(2, 5, WIDTH)  # heads side by side
by_hand = pooled @ params["params"]["out"]["kernel"] + params["params"]["out"]["bias"]
print("largest difference:", jnp.abs(output - by_hand).max(), "weights:", weights.shape)

# %% [markdown]
# ## A figure: two questions at once
#
# The lookup of lesson 1, twice: the query names two of eight cells, and the model must return the letter of the first
# **and** that of the second. One softmax can put half of its weight on each cell, but their equal mean does not say
# which is which.

# %%
CELLS, LETTERS, BATCH = 8, 16, 128


def batch(rng):
    """Letters of the cells [B, CELLS], the two queried cells [B, 2], and their letters [B, 2]."""
    for_letters, for_cells = jax.random.split(rng)
    letters = jax.random.randint(for_letters, (BATCH, CELLS), 0, LETTERS)
    cells = jax.random.randint(for_cells, (BATCH, 2), 0, CELLS)
    return letters, cells, jnp.take_along_axis(letters, cells, axis=1)


def predict(module, params, letters, cells):
    """Logits [B, 2, LETTERS] of the two letters, and the weights [B, heads, CELLS]."""
    query = params["first"][cells[:, 0]] + params["second"][cells[:, 1]]
    keys = jnp.broadcast_to(params["cells"], (len(letters), CELLS, WIDTH))
    values = params["letters"][letters]
    output, weights = module.apply(params["attention"], query[:, None], keys, values, return_weights=True)
    return (output[:, 0] @ params["read"]).reshape(-1, 2, LETTERS), weights[:, :, 0]


def train(module, steps=800):
    optimizer = optax.adam(3e-3)
    names = {"first": CELLS, "second": CELLS, "cells": CELLS, "letters": LETTERS}
    rngs = jax.random.split(jax.random.key(2), 6)
    params = {name: jax.random.normal(rng, (n, WIDTH)) / 2 for (name, n), rng in zip(names.items(), rngs)}
    params["read"] = jax.random.normal(rngs[4], (WIDTH, 2 * LETTERS)) / WIDTH**0.5
    params["attention"] = module.init(rngs[5], x[:, :1], x, x)

    def loss(params, rng):
        letters, cells, targets = batch(rng)
        logits, _ = predict(module, params, letters, cells)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    @jax.jit
    def run(params):
        def step(carry, rng):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, rng), state)
            return (optax.apply_updates(params, updates), state), None

        start = params, optimizer.init(params)
        return jax.lax.scan(step, start, jax.random.split(jax.random.key(3), steps))[0][0]

    return run(params)


letters, cells, targets = batch(jax.random.key(4))
trained = {}
for num_heads in (1, 2, 4):
    module = models.MultiHeadAttention(num_heads=num_heads, hidden_size=WIDTH)
    trained[num_heads] = train(module)
    logits, maps = predict(module, trained[num_heads], letters, cells)
    accuracy = (logits.argmax(axis=2) == targets).mean(axis=0)
    print(f"{num_heads} heads: first letter {accuracy[0]:.2f}, second {accuracy[1]:.2f} right")

# %% [markdown]
# What does each of the four heads look at? Above, mean weights by the **first** queried cell, below by the **second**:
# a diagonal means that the head looks that cell up.

# %%
figure, axes = plt.subplots(2, 4, figsize=(8, 4.2), sharex=True, sharey=True, layout="constrained")
for row, (panels, name) in enumerate(zip(axes, ("first", "second"))):
    for head, panel in enumerate(panels):
        by_cell = jnp.stack([maps[cells[:, row] == cell, head].mean(axis=0) for cell in range(CELLS)])
        image = panel.imshow(by_cell, vmin=0, vmax=1)
        panel.set(title=f"head {head + 1}" if row == 0 else None, xlabel="key: cell" if row else None)
    panels[0].set_ylabel(f"{name} queried cell")
figure.colorbar(image, ax=axes, label="mean weight")
plt.show()

# %% [markdown]
# A map shows where a head looks, not that it matters. Remove a head, by zeros in its rows of $W^O$, and see what is
# lost:


# %%
def without_head(params, head, num_heads=4):
    out = params["attention"]["params"]["out"]["kernel"]
    width = WIDTH // num_heads
    removed = out.at[head * width : (head + 1) * width].set(0)
    return jax.tree.map(lambda leaf: removed if leaf is out else leaf, params)


for head in range(4):
    logits, _ = predict(module, without_head(trained[4], head), letters, cells)
    accuracy = (logits.argmax(axis=2) == targets).mean(axis=0)
    print(f"without head {head + 1}: first {accuracy[0]:.2f}, second {accuracy[1]:.2f}")

# %% [markdown]
# Two heads share each question, and the maps of a pair look alike. But the output needs one of them more: which one, no
# map says.
#
# ## What the paper reports, and what we get
#
# d2l 11.5 prints a shape. The paper varies the heads at equal width (table 3, A; English to German): 24.9 BLEU with
# one head, 25.8 with 8 or 16, 25.4 with 32. One head is 0.9 worse than 8.
#
# Above, one head answers the second question rarely and two heads nearly always: with a linear readout, the task needs
# two means. Translation needs them less: on Multi30k one head costs us 0.27 ± 0.35 BLEU, which is undecided, and
# 0.13 ± 0.05 in perplexity, where the paper has 0.37 ([`table3_directions`](../results/table3_directions.md)). In
# pretrained models many heads can go ([what heads of a real model do](../real_model.md)).
#
# ## Exercises
#
# **1.** How many numbers do the four projections of multi-head attention have, with biases, at width `width` with
# `num_heads` heads?


# %%
def num_parameters(width, num_heads):
    return ...


# %%
for num_heads in (1, 4):
    module = models.MultiHeadAttention(num_heads=num_heads, hidden_size=24)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *[jnp.ones((1, 3, 24))] * 3)
    check(num_parameters(24, num_heads), sum(leaf.size for leaf in jax.tree.leaves(shapes)))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def num_parameters(width, num_heads):
#     return 4 * (width * width + width)
# ```
#
# The heads share the width, so their number does not enter.
#
# </details>
#
# **2.** Write causal multi-head attention [T, D] -> [T, D] for one sequence, from the projected `query`, `key` and
# `value` [T, D], without `attend_heads`: split, score, mask, softmax, pool, join. (Leave out $W^O$.)


# %%
def causal_heads(query, key, value, num_heads):
    return ...


# %%
vectors = jax.random.normal(jax.random.key(5), (3, 6, 12))
split = vectors.reshape(3, 1, 6, 3, 4)
check(causal_heads(*vectors, 3), attend_heads(*split, mask=causal()).reshape(6, 12))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def causal_heads(query, key, value, num_heads):
#     steps, width = query.shape
#     query, key, value = (x.reshape(steps, num_heads, -1) for x in (query, key, value))
#     logits = jnp.einsum("qhd,khd->hqk", query, key) / (width // num_heads) ** 0.5
#     logits = jnp.where(jnp.tril(jnp.ones((steps, steps), bool)), logits, -jnp.inf)
#     return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(logits), value).reshape(steps, width)
# ```
#
# The scale is that of a head's width, not of the model's.
#
# </details>
#
# **3.** Multi-query attention (Shazeer 2019) keeps one head of keys and values for all heads of queries; grouped-query
# attention keeps a few. By what factor does the cache of keys and values shrink with `num_groups`? And what does
# `attend_heads` compute then? Write it by repeating keys and values [B, S, G, D].


# %%
def cache_factor(num_heads, num_groups):
    return ...


def attend_in_groups(query, key, value):
    """[B, T, H, D], [B, S, G, D] -> [B, T, H, D]"""
    return ...


# %%
check(cache_factor(32, 8), 4)
query = jax.random.normal(jax.random.key(6), (2, 5, 4, 8))
key, value = jax.random.normal(jax.random.key(7), (2, 2, 5, 2, 8))
check(attend_in_groups(query, key, value), attend_heads(query, key, value))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def cache_factor(num_heads, num_groups):
#     return num_heads / num_groups
#
#
# def attend_in_groups(query, key, value):
#     repeats = query.shape[2] // key.shape[2]
#     return attend_heads(query, jnp.repeat(key, repeats, axis=2), jnp.repeat(value, repeats, axis=2))
# ```
#
# `attend_heads` does not repeat them in memory.
#
# </details>
#
# **Next:** [lesson 5, positions](positions.ipynb). At scale:
# `python launch.py reproduce table3_directions head_pruning`.
