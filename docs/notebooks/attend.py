# %% [markdown]
# # `attend` with a score of your own
#
# Attention is a differentiable lookup: **score, mask, normalize, weighted sum**. `attend` takes the score as an
# argument, and never writes the matrix of all pairs where that would be large, whatever the score is.

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from attention_jax import attend, attention_weights, biases, causal, lengths, scores, window

query, key, value = jax.random.normal(jax.random.key(0), (3, 6, 4))  # one sequence, one head: [T, D] each

# %% [markdown]
# The default score is the scaled dot product, so this is the formula of Vaswani et al. (2017), equation 1:

# %%
weights = jax.nn.softmax(query @ key.T / 4**0.5)
print(jnp.abs(attend(query, key, value) - weights @ value).max())

# %% [markdown]
# ## A score
#
# A score is a function of all queries and all keys, `[Q, D] x [K, D] -> [Q, K]`. This one falls with the sum of
# absolute differences. Its learned parameter, a width, is bound with `jax.tree_util.Partial`, so that gradients reach
# it:


# %%
def laplace(width, query, key):
    return -jnp.abs(query[:, None] - key[None]).sum(-1) / width


def loss(width):
    score = jax.tree_util.Partial(laplace, width)
    return jnp.mean((attend(query, key, value, score=score) - value) ** 2)


print(loss(2.0), jax.grad(loss)(2.0))

# %% [markdown]
# The gradient is exact. Against a difference quotient:

# %%
print((loss(2.01) - loss(1.99)) / 0.02)

# %% [markdown]
# ## A mask, a bias
#
# A mask is `True` where a query may attend to a key. Combine masks with `&` and `|`. A query with no allowed key
# returns zero, not NaN and not a mean over padding. A bias is added to the scores; ALiBi's falls with the distance.

# %%
recent = attention_weights(query, key, mask=causal() & window(3), bias=biases.ALiBi(0.5))
nothing = attend(query, key, value, mask=lengths(0))
print(jnp.abs(nothing).max())

figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.4), sharey=True, layout="constrained")
attention_maps = {
    "scaled dot": attention_weights(query, key),
    "Laplace": attention_weights(query, key, score=jax.tree_util.Partial(laplace, 1.0)),
    "causal, window 3, ALiBi": recent,
}
for panel, (name, attention_map) in zip(panels, attention_maps.items()):
    panel.imshow(attention_map, vmin=0, vmax=1, cmap="viridis")
    panel.set(title=name, xlabel="key")
panels[0].set_ylabel("query")
plt.show()

# %% [markdown]
# ## Heads and batches
#
# `attend` is written for one head of one sequence; `jax.vmap` makes the rest, also for the score. Two heads, each with
# a Gaussian of its own width:

# %%
heads = jax.random.normal(jax.random.key(1), (3, 2, 6, 4))  # [query/key/value, H, T, D]
one_head = lambda q, k, v, width: attend(q, k, v, score=scores.Gaussian(width))
print(jax.vmap(one_head)(*heads, jnp.array([0.5, 5.0])).shape)

# %% [markdown]
# ## Memory
#
# All pairs of 4,096 queries and keys are 64 MiB in float32; a score that compares features one by one would need 64
# times that. What the compiled gradient needs:

# %%
large = jax.ShapeDtypeStruct((4096, 64), jnp.float32)


def temporaries(implementation):
    def total(query, key, value, width):
        score = jax.tree_util.Partial(laplace, width)
        return attend(query, key, value, score=score, implementation=implementation).sum()

    program = jax.jit(jax.grad(total, (0, 1, 2, 3))).lower(large, large, large, jnp.float32(8.0)).compile()
    return program.memory_analysis().temp_size_in_bytes / 2**20


print(f"written out {temporaries('plain'):.0f} MiB, block by block {temporaries('fused'):.0f} MiB")
