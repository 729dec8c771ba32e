# %% [markdown]
# # From kernel regression to many heads
#
# Kernel regression, additive attention, scaled dot products and multi-head attention are one function with different
# scores.

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from attention_jax import attend, attention_weights, models, scores
from attention_jax.ops.kernel_regression import learn_width, nadaraya_watson

# %% [markdown]
# ## 1964: kernel regression
#
# Nadaraya and Watson estimate a curve by a weighted mean of the training outputs, with weights that fall with the
# distance of their inputs.
#
# $$f(q) = \sum_i \frac{\kappa(q, x_i)}{\sum_j \kappa(q, x_j)}\, y_i$$
#
# Test inputs are queries, training inputs keys, training outputs values. A softmax of $\log \kappa$ is the fraction
# above, so the Gaussian kernel is the score $-|q - x|^2 / 2\sigma^2$.

# %%
draw = np.random.default_rng(0)
x = np.sort(draw.uniform(0, 5, (40, 1)), axis=0).astype(np.float32)
y = (2 * np.sin(x) + x + draw.normal(size=x.shape)).astype(np.float32)
query = jnp.linspace(0, 5, 100)[:, None]

by_hand = jnp.exp(-((query - x.T) ** 2) / 2)
by_hand = by_hand / by_hand.sum(1, keepdims=True) @ y
print(jnp.abs(attend(query, x, y, score=scores.Gaussian(1.0)) - by_hand).max())

# %% [markdown]
# The width is the only parameter. A narrow kernel overfits and a wide one oversmooths. `learn_width` minimizes the
# leave-one-out error by gradient descent.

# %%
width = learn_width(jnp.asarray(x), jnp.asarray(y))
plt.figure(figsize=(5, 3), layout="constrained")
plt.plot(x, y, "o", color="0.6", markersize=3, label="points")
plt.plot(query, 2 * np.sin(query) + query, "k:", label="the curve")
for kernel_width in (0.1, float(width), 3.0):
    plt.plot(query, nadaraya_watson(query, x, y, scores.Gaussian(kernel_width)), label=f"width {kernel_width:.2f}")
plt.legend()
plt.show()

# %% [markdown]
# ## 2015: additive attention
#
# In Bahdanau, Cho and Bengio's translation model the state of the decoder is the query, and the states of the encoder
# are keys and values. They have different sizes, so the score is a small network:
#
# $$a(q, k) = v^\top \tanh(W q + U k)$$

# %%
rng = jax.random.split(jax.random.key(0), 3)
states, source = jax.random.normal(rng[0], (5, 16)), jax.random.normal(rng[1], (7, 24))
score = scores.Additive.init(rng[2], query_width=16, key_width=24, hidden=32)
print(attend(states, source, source, score=score).shape)  # a context for each of 5 target words

# %% [markdown]
# ## 2017: scaled dot products and multiple heads
#
# Vaswani et al. use scaled dot products of learned projections, $QK^\top / \sqrt d$, in several heads. For vectors of
# unit length this is the Gaussian kernel again: $-|q - k|^2/2 = q \cdot k - |q|^2/2 - |k|^2/2$, and a constant for all
# keys does not change a softmax.

# %%
unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
q, k = unit(jax.random.normal(rng[0], (5, 16))), unit(jax.random.normal(rng[1], (7, 16)))
dot = attention_weights(q, k, score=scores.ScaledDot())  # divides by sqrt(16)
print(jnp.abs(dot - attention_weights(q, k, score=scores.Gaussian(16**0.25))).max())

# %% [markdown]
# A module owns the projections; `return_weights=True` also returns the weights of each head.

# %%
module = models.MultiHeadAttention(num_heads=4, hidden_size=32)
words = jax.random.normal(rng[2], (1, 10, 32))
params = module.init(jax.random.key(1), words, words, words)
output, weights = module.apply(params, words, words, words, return_weights=True)
print(output.shape, weights.shape)

# %% [markdown]
# ## A task that needs attention
#
# Eight cells hold a letter each. The query is the name of a cell, the keys are the names of all cells, the values are
# their letters; the model has to return the letter of the cell.

# %%
CELLS, LETTERS, SIZE = 8, 16, 32


def batch(rng):
    letters, queried = jax.random.split(rng)
    letters = jax.random.randint(letters, (64, CELLS), 0, LETTERS)
    queried = jax.random.randint(queried, (64,), 0, CELLS)
    return letters, queried, jnp.take_along_axis(letters, queried[:, None], 1)[:, 0]


def answers(params, letters, queried, return_weights=False):
    cells = jnp.broadcast_to(params["names"], (64, CELLS, SIZE))
    outputs, weights = module.apply(
        params["attention"],
        params["names"][queried][:, None],
        cells,
        params["letters"][letters],
        return_weights=return_weights,
    )
    return outputs[:, 0] @ params["out"], weights


def error(params, rng):
    letters, queried, targets = batch(rng)
    logits = jax.nn.log_softmax(answers(params, letters, queried)[0])
    return -jnp.mean(jnp.take_along_axis(logits, targets[:, None], 1))


shapes = {"names": (CELLS, SIZE), "letters": (LETTERS, SIZE), "out": (SIZE, LETTERS)}
tables = {name: jax.random.normal(key, shape) / 4 for (name, shape), key in zip(shapes.items(), rng)}
tables["attention"] = params


@jax.jit
def train(params, rngs):
    def step(params, rng):
        value, gradient = jax.value_and_grad(error)(params, rng)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient), value

    return jax.lax.scan(step, params, rngs)


tables, losses = train(tables, jax.random.split(jax.random.key(2), 1500))
letters, queried, targets = batch(jax.random.key(3))
logits, weights = answers(tables, letters, queried, return_weights=True)
print("loss", losses[0], "->", losses[-1], "right:", (logits.argmax(1) == targets).mean())

# %%
figure, panels = plt.subplots(1, 4, figsize=(7.5, 2.2), sharey=True, layout="constrained")
for head, panel in enumerate(panels):
    looks = [weights[queried == cell, head, 0].mean(0) for cell in range(CELLS)]
    panel.imshow(jnp.stack(looks), vmin=0, vmax=1, cmap="viridis")
    panel.set(title=f"head {head + 1}", xlabel="cell")
panels[0].set_ylabel("queried cell")
plt.show()
