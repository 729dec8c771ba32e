# %% [markdown]
# # Lesson 1: from kernel regression to attention
#
# **Question.** You measured a curve at 40 points. What is its value at a point that you did not measure, and why is the
# answer a layer of a Transformer?
#
# d2l 11.1 and 11.2, half an hour. You need NumPy's broadcasting and, for the last part, gradient descent.

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from attention_jax import attend, attention_weights, nadaraya_watson, scores
from attention_jax.ops.kernel_regression import learn_width


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equation
#
# Nadaraya and Watson (1964) average the outputs $y_i$, with weights that fall with the distance between the query $q$
# and the inputs $x_i$:
#
# $$f(q) = \sum_i \alpha(q, x_i)\, y_i, \qquad
# \alpha(q, x_i) = \frac{\kappa(q, x_i)}{\sum_j \kappa(q, x_j)} = \mathrm{softmax}_i\,\log \kappa(q, x_i)$$
#
# The second form is attention: a **query** is compared with **keys** $x_i$ by a **score** $\log\kappa$, a softmax makes
# weights of the scores, and the weights average the **values** $y_i$. The Gaussian kernel of width $\sigma$ has the
# score $-|q - x|^2 / 2\sigma^2$.
#
# ## The function

# %%
print(inspect.getsource(nadaraya_watson))

# %% [markdown]
# It is one call of `attend`. The equation by hand, for comparison:


# %%
def curve(x):
    return 2 * np.sin(x) + x


def sample(seed, points=40):
    draw = np.random.default_rng(seed)
    x = np.sort(draw.uniform(0, 5, (points, 1)), axis=0).astype(np.float32)
    return x, (curve(x) + draw.normal(size=x.shape)).astype(np.float32)


x, y = sample(0)
query = np.linspace(0, 5, 50, dtype=np.float32)[:, None]

kernel = np.exp(-((query - x.T) ** 2) / 2)  # [50 queries, 40 keys]
by_hand = kernel / kernel.sum(axis=1, keepdims=True) @ y
print("largest difference:", np.abs(nadaraya_watson(query, x, y, scores.Gaussian(1.0)) - by_hand).max())

# %% [markdown]
# ## A figure: the width decides
#
# Above, estimates; below, the attention maps behind them: a row for each query, a column for each data point.
# `learn_width` finds the width that best predicts each point from the others.

# %%
widths = {"too narrow": 0.1, "learned": float(learn_width(jnp.asarray(x), jnp.asarray(y))), "too wide": 3.0}
figure, axes = plt.subplots(2, 3, figsize=(8, 5), sharex="row", sharey="row", layout="constrained")
for (name, width), (above, below) in zip(widths.items(), axes.T):
    above.plot(x, y, "o", color="0.6", markersize=3)
    above.plot(query, curve(query), "k:")
    above.plot(query, nadaraya_watson(query, x, y, scores.Gaussian(width)))
    above.set(title=f"{name}: {width:.2f}", xlabel="q")
    image = below.imshow(attention_weights(query, x, score=scores.Gaussian(width)), vmin=0, vmax=0.3, aspect="auto")
    below.set(xlabel="data point")
axes[0, 0].set_ylabel("f(q)")
axes[1, 0].set_ylabel("query")
figure.colorbar(image, ax=axes[1], label="weight", extend="max")
plt.show()

# %% [markdown]
# A narrow row copies a neighbor with its noise; a wide row averages what differs.
#
# ## What the book reports, and what we get
#
# d2l 11.2 draws four kernels on one sample and finds that all but the constant one are "fairly workable". It prints no
# error. One sample cannot rank them, so here are 100. (The kernel that d2l calls Epanechikov is the triangular one.)

# %%
kernels = {
    "Gaussian": scores.Gaussian(1.0),
    "Boxcar": scores.Boxcar(1.0),
    "Triangular": scores.Triangular(1.0),
    "Constant": scores.Constant(),
    "Gaussian 0.5": scores.Gaussian(0.5),
}
for name, score in kernels.items():
    estimate = jax.jit(lambda x, y, score=score: nadaraya_watson(query, x, y, score))
    errors = [np.mean((estimate(*sample(seed)) - curve(query)) ** 2) for seed in range(100)]
    print(f"{name:13} {np.mean(errors):.3f} +- {np.std(errors) / 10:.3f}")

# %% [markdown]
# The kernel's width matters as much as its shape: the Gaussian of width 1 loses to all but the constant kernel; at half
# the width it beats the boxcar and nears the triangle.
#
# ## From a kernel to a learned score
#
# A kernel compares points as they are. Attention learns the vectors that it compares. Eight cells hold a letter each;
# the model gets the number of a cell and must return its letter. Query and key vectors start at random, and nobody says
# which key belongs to which query.

# %%
CELLS, LETTERS, SIZE = 8, 16, 32


def batch(rng):
    letters, queried = jax.random.split(rng)
    letters = jax.random.randint(letters, (64, CELLS), 0, LETTERS)
    queried = jax.random.randint(queried, (64,), 0, CELLS)
    return letters, queried, jnp.take_along_axis(letters, queried[:, None], 1)[:, 0]


def predict(params, letters, queried):
    """Logits of the letter in each queried cell, [B, LETTERS]."""
    pooled = jax.vmap(attend, (0, None, 0))(
        params["queries"][queried][:, None],  # [B, 1, SIZE]
        params["keys"],  # [CELLS, SIZE]
        params["values"][letters],  # [B, CELLS, SIZE]
    )
    return pooled[:, 0] @ params["out"]


def loss(params, rng):
    letters, queried, targets = batch(rng)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(predict(params, letters, queried)), targets[:, None], 1))


@jax.jit
def train(params, rngs):
    def step(params, rng):
        value, gradient = jax.value_and_grad(loss)(params, rng)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient), value

    return jax.lax.scan(step, params, rngs)


shapes = {"queries": (CELLS, SIZE), "keys": (CELLS, SIZE), "values": (LETTERS, SIZE), "out": (SIZE, LETTERS)}
rngs = jax.random.split(jax.random.key(0), 4)
untrained = {name: jax.random.normal(rng, shape) / 4 for (name, shape), rng in zip(shapes.items(), rngs)}
trained, losses = train(untrained, jax.random.split(jax.random.key(1), 2000))
letters, queried, targets = batch(jax.random.key(2))
print("loss", losses[0], "->", losses[-1], "right:", (predict(trained, letters, queried).argmax(1) == targets).mean())

figure, axes = plt.subplots(1, 2, figsize=(6, 2.6), sharey=True, layout="constrained")
for panel, params, title in zip(axes, (untrained, trained), ("before training", "after")):
    image = panel.imshow(attention_weights(params["queries"], params["keys"]), vmin=0, vmax=1)
    panel.set(title=title, xlabel="key: cell")
axes[0].set_ylabel("query: cell")
figure.colorbar(image, ax=axes, label="weight")
plt.show()

# %% [markdown]
# The loss speaks of letters alone; the diagonal is what attention found. The score is a scaled dot product,
# $q \cdot k / \sqrt d$ (lesson 2).
#
# ## Exercises
#
# **1.** Compute the weights of the Gaussian kernel, [Q, K], with NumPy alone. Subtract each row's largest score before
# `np.exp`: the check has a query so far away that all kernels underflow to 0.


# %%
def gaussian_weights(query, x, width):
    return ...


# %%
far_query = np.array([[1.0], [60.0]], np.float32)
check(gaussian_weights(far_query, x, 0.5), attention_weights(far_query, x, score=scores.Gaussian(0.5)))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def gaussian_weights(query, x, width):
#     score = -((query - x.T) ** 2) / (2 * width**2)
#     kernel = np.exp(score - score.max(axis=1, keepdims=True))
#     return kernel / kernel.sum(axis=1, keepdims=True)
# ```
#
# A softmax does not change when a row's scores all grow by the same number, so the far query still has a nearest point.
#
# </details>
#
# **2.** What is the estimate as the width goes to 0, and to infinity? Return both limits, each [Q, 1], without using a
# kernel.


# %%
def limits(query, x, y):
    narrow = ...
    wide = ...
    return narrow, wide


# %%
for limit, width in zip(limits(query, x, y), (1e-3, 1e4)):
    check(limit, nadaraya_watson(query, x, y, scores.Gaussian(width)))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def limits(query, x, y):
#     narrow = y[np.abs(query - x.T).argmin(axis=1)]  # the nearest neighbor's value
#     wide = np.full(query.shape, y.mean())
#     return narrow, wide
# ```
#
# A score divided by a small width is a hard lookup, by a large one a mean. Lesson 2 divides by $\sqrt d$ for this
# reason.
#
# </details>
#
# **3.** Vectors $k$ of one length turn the Gaussian of width 1 into a dot product, as $-|q - k|^2/2 = q \cdot k -
# |q|^2/2 - |k|^2/2$. Which of these terms may a softmax over keys drop? Write the shortest score that gives the
# Gaussian's weights for keys of any length.


# %%
def shortest_score(query, key):
    """[Q, D], [K, D] -> [Q, K]"""
    return ...


# %%
vectors = jax.random.normal(jax.random.key(3), (9, 4))
answer = shortest_score(vectors[:3], vectors[3:])
weights = jax.nn.softmax(answer, axis=1) if np.shape(answer) == (3, 6) else ...
check(weights, attention_weights(vectors[:3], vectors[3:], score=scores.Gaussian(1.0)))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def shortest_score(query, key):
#     return query @ key.T - (key**2).sum(axis=1) / 2
# ```
#
# $|q|^2$ is the same for all keys of a query, so the softmax drops it. $|k|^2$ is not, unless all keys have one length:
# then the dot product alone remains.
#
# </details>
#
# **Next:** [lesson 2, masked softmax and scores](masked_softmax.ipynb). The recorded experiment, with the error's fall
# as $n^{-4/5}$ away from the edges: `python launch.py reproduce nadaraya_watson`.
