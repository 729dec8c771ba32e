# %% [markdown]
# # Lesson 2: masked softmax and scores
#
# **Question.** Sentences of a batch have different lengths, so some keys are padding. How does attention leave them
# out, exactly? And which score compares a query with a key, at what scale?
#
# d2l 11.3, half an hour. Before it: [lesson 1](kernels.ipynb).

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from attention_jax import attend, causal, masked_softmax, scores, segments
from attention_jax.ops import normalizer_kinds


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equation
#
# With scores $s_{ij} = a(q_i, k_j)$ and a mask $m_{ij} \in \{0, 1\}$,
#
# $$\alpha_{ij} = \frac{m_{ij} \exp s_{ij}}{\sum_l m_{il} \exp s_{il}}$$
#
# Two scores are in every textbook. The first is a network with one hidden layer, for queries and keys of any widths;
# the second is one matrix product.
#
# $$a_\text{additive}(q, k) = v^\top \tanh(W_q q + W_k k), \qquad a_\text{scaled dot}(q, k) = q^\top k / \sqrt d$$
#
# ## The functions

# %%
print(inspect.getsource(masked_softmax))
print(inspect.getsource(normalizer_kinds._softmax))

# %% [markdown]
# `Softmax().weights` calls `_softmax`, whose `where=allowed` leaves the masked keys out of the maximum and of the sum.
# The scores:

# %%
print(inspect.getsource(scores.ScaledDot.__call__))
print(inspect.getsource(scores.Additive.__call__))

# %% [markdown]
# In `Additive`, `prepare_key` computes $W_k k$, once for all queries: a decoder that asks one query at a time does not
# repeat it.
#
# ## A figure: why $\sqrt d$?
#
# The entries of $q$ and $k$ have mean 0 and variance 1, so $q^\top k$ is a sum of $d$ terms of variance 1. Left, its
# standard deviation; middle and right, what that does to the softmax of 50 keys: the largest weight, and the gradient
# that reaches the scores (the norm of the Jacobian $\mathrm{diag}(\alpha) - \alpha\alpha^\top$).

# %%
widths = 4 ** np.arange(6)
deviation, largest, slope = ({"dot": [], "scaled dot": []} for _ in range(3))
for width in widths:
    query, key = jax.random.normal(jax.random.key(width), (2, 50, width))
    for name, score in (("dot", scores.Dot()), ("scaled dot", scores.ScaledDot())):
        logits = score(query, key)
        weights = masked_softmax(logits)
        jacobian = jax.vmap(jnp.diag)(weights) - weights[:, :, None] * weights[:, None, :]
        deviation[name].append(logits.std())
        largest[name].append(weights.max(axis=1).mean())
        slope[name].append(jnp.linalg.norm(jacobian, axis=(1, 2)).mean())

figure, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
titles = ("deviation of the scores", "largest of 50 weights", "gradient of the softmax")
for panel, curves, title in zip(axes, (deviation, largest, slope), titles):
    for name, values in curves.items():
        panel.plot(widths, values, "o-", label=name)
    panel.set(title=title, xlabel="width d", xscale="log")
axes[0].plot(widths, np.sqrt(widths), "k:", label=r"$\sqrt{d}$")
axes[0].set(yscale="log")
axes[0].legend()
plt.show()

# %% [markdown]
# Unscaled, a random query of width 1,024 puts nearly all weight on one key before anything is learned. Its gradient is
# larger than the scaled one's up to width 64, then falls as the softmax saturates: at 1,024 it is below a third of it.
#
# ## What the book reports, and what we get
#
# d2l's `masked_softmax` replaces masked scores by $-10^6$, and says that this "cheats ever so slightly". For scores of
# ordinary size the weights agree:


# %%
def softmax_of_d2l(logits, lengths):
    """What d2l 11.3 computes, logits [N, K] and lengths [N]."""
    return jax.nn.softmax(jnp.where(jnp.arange(logits.shape[1]) < lengths[:, None], logits, -1e6))


logits = jax.random.uniform(jax.random.key(0), (3, 4))
lengths = jnp.array([2, 3, 0])
mask = jnp.arange(4) < lengths[:, None]
print("d2l\n", softmax_of_d2l(logits, lengths).round(3))
print("masked_softmax\n", masked_softmax(logits, mask).round(3))

# %% [markdown]
# The last row differs. A sentence of length 0 has no key, and d2l's row is the mean over padding, 0.25 each; here it is
# 0. Such rows occur: packed sequences, a window without tokens, an image without objects. A second difference: a masked
# key that holds NaN or infinity.

# %%
query, key = jax.random.normal(jax.random.key(1), (2, 3, 8))
key = key.at[2].set(jnp.nan)  # padding that nobody initialized
mask = jnp.array([True, True, False])[None]
gradient = jax.grad(lambda query: attend(query, key, key, mask=jnp.broadcast_to(mask, (3, 3))).sum())(query)
print("gradient of attend, finite:", jnp.isfinite(gradient).all())
by_value = jax.nn.softmax(jnp.where(mask, query @ key.T / 8**0.5, -1e6)) @ key
print("output with -1e6, finite:", jnp.isfinite(by_value).all())

# %% [markdown]
# A weight of 0 times NaN is NaN, so `attend` also replaces keys and values that no query may see. d2l prints no
# comparison of the scores. On 29,000 sentence pairs of Multi30k we do: the table of
# [`multi30k_scores`](../results/multi30k_scores.md).
#
# ## Exercises
#
# **1.** Write the masked softmax with NumPy: no overflow for scores of 1,000, 0 for a row without keys, and no NaN, not
# even where a masked score is NaN.


# %%
def masked_softmax_by_hand(scores, mask):
    """[Q, K], [Q, K] -> [Q, K]"""
    return ...


# %%
example = np.array([[1000.0, 999.0, 5.0, 0.0], [-1000.0, -1001.0, 1000.0, np.nan], [1.0, 2.0, 3.0, np.nan]])
allowed = np.array([[True, True, True, True], [True, True, False, False], [False, False, False, False]])
check(masked_softmax_by_hand(example, allowed), masked_softmax(example, allowed))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def masked_softmax_by_hand(scores, mask):
#     largest = np.max(scores, axis=1, keepdims=True, where=mask, initial=-1e30)
#     exponentials = np.where(mask, np.exp(np.where(mask, scores - largest, 0)), 0)
#     total = exponentials.sum(axis=1, keepdims=True)
#     return exponentials / np.where(total > 0, total, 1)
# ```
#
# The maximum is that of the allowed keys. With that of all keys, the second row would be NaN. So would a masked
# exponential that is multiplied by 0 instead of replaced.
#
# </details>
#
# **2.** Three sentences share a row to save padding: `ids` says which sentence each position belongs to, -1 is padding.
# Write the mask [T, T] of a language model: each position attends to its own sentence, up to itself; padding to nothing
# and nobody to padding.


# %%
def document_mask(ids):
    return ...


# %%
ids = jnp.array([0, 0, 0, 1, 1, 2, -1, -1])
positions = jnp.arange(8)
expected = (causal() & segments(ids, ids))(positions, positions) & (ids >= 0)[:, None]
check(document_mask(ids), expected)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def document_mask(ids):
#     positions = jnp.arange(len(ids))
#     same = ids[:, None] == ids[None, :]
#     return same & (positions[:, None] >= positions[None, :]) & (ids >= 0)[:, None]
# ```
#
# The rows of padding are fully masked: with $-10^6$ they would average all positions.
#
# </details>
#
# **3.** A layer's queries and keys have entries of variance $\sigma_q^2$ and $\sigma_k^2$, independent, with mean 0. By
# which factor must the dot product be multiplied so that scores have variance 1?


# %%
def factor(width, deviation_q, deviation_k):
    return ...


# %%
for width in (64, 16):
    check(factor(width, 1.0, 1.0), scores.ScaledDot()(jnp.ones((1, width)), jnp.ones((1, width)))[0, 0] / width)
query, key = np.random.default_rng(0).normal(size=(2, 500, 64)) * np.array([3.0, 0.5])[:, None, None]
check(factor(64, 3.0, 0.5), 1 / np.std(query @ key.T), atol=0.004)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def factor(width, deviation_q, deviation_k):
#     return 1 / (deviation_q * deviation_k * width**0.5)
# ```
#
# Variances of independent terms add, those of independent factors with mean 0 multiply. Training changes the
# deviations: QK norm (`scores.QKNorm`) fixes them again.
#
# </details>
#
# **Next:** [lesson 3, decoders that align](alignment.ipynb). Every score and mask: [masks](../masks.md),
# [mechanisms](../mechanisms.md).
