# %% [markdown]
# # Lesson 8: backpropagation through time, truncated and unbiased
#
# **Question.** A recurrent network reads a text without end, and its gradient would go back to the first letter. What
# does one lose by cutting it, and can one cut without being wrong on average?
#
# d2l 9.7, 30 minutes; no lesson before it is needed. Attention is one answer to what this lesson shows: it reaches
# every step back in one.

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from attention_jax.ops.recurrent import bptt
from experiments import influence_balancing


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equation
#
# With states $h_t = f(x_t, h_{t-1}, w)$ and a loss at every step, the derivative of a state by the weights is a
# recurrence itself (d2l 9.7.1). Its estimate $z_t$ puts a factor $\xi_t$ before what comes from the past:
#
# $$\frac{d h_t}{d w} \approx z_t = \frac{\partial f}{\partial w} + \xi_t \frac{\partial f}{\partial h_{t-1}} z_{t-1},
# \qquad \xi_t = \begin{cases} 1 & \text{full} \\ 0 \text{ at } t = 0, L, 2L, \dots & \text{truncated} \\
# 0 \text{ with probability } c, \text{ else } \tfrac{1}{1 - c} & \text{randomized} \end{cases}$$
#
# Only the full estimate equals the derivative. Randomized factors have $E[\xi_t] = 1$. They are independent, so a
# product of them has the expectation 1, too, and the expected gradient is the full one (Tallec and Ollivier 2017).
#
# ## The functions

# %%
for function in (bptt.run_with_factors, bptt.scan_with_factors, bptt.truncation_factors, bptt.random_factors):
    print(inspect.getsource(function).replace(f'"""{function.__doc__}"""', "..."))

# %% [markdown]
# `scale_gradient` returns its argument and multiplies what flows back through it: the losses are those of the full
# computation, only the gradient differs.
#
# ## A figure: how far back a gradient reaches
#
# The last loss of a linear network, by the state at each step before: `gradient_norms` for recurrent matrices of three
# spectral radii (largest absolute eigenvalues).


# %%
def linear_step(matrix, state, x):
    state = matrix @ state + x
    return state, state.sum()


draw = np.random.default_rng(1)
matrix = draw.normal(size=(16, 16)).astype(np.float32)
matrix /= np.abs(np.linalg.eigvals(matrix)).max()
inputs = draw.normal(size=(60, 16)).astype(np.float32)
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
for radius in (0.5, 0.9, 1.0, 1.1):
    norms = bptt.gradient_norms(linear_step, radius * matrix, jnp.zeros(16), inputs)[::-1]
    axis.plot(np.arange(1, 61), norms, label=f"{radius}")
    print(f"radius {radius}: a factor of {(norms[-1] / norms[19]) ** (1 / 40):.2f} a step")
axis.set(xlabel="steps back", ylabel="norm of the gradient", yscale="log")
axis.legend(title="spectral radius")
plt.show()

# %% [markdown]
# In the long run, the gradient falls or grows like a power of the radius. Below 1 it vanishes, and a cut loses little;
# above it explodes.
#
# ## Biased and unbiased
#
# A tanh network of four units reads 30 steps. Its gradient by the 16 recurrent weights: full, cut every 8 steps, and
# the mean of 1, 2, 4, ... gradients that are cut at random, every 8 steps on average.


# %%
def tanh_step(matrix, state, x):
    state = jnp.tanh(matrix @ state + x)
    return state, 0.5 * jnp.sum((state - 1) ** 2)


STEPS, UNITS, LENGTH, SAMPLES = 30, 4, 8, 2**14
draw = np.random.default_rng(0)
weights = jnp.asarray(draw.normal(size=(UNITS, UNITS)) * 0.6, jnp.float32)
inputs = jnp.asarray(draw.normal(size=(STEPS, UNITS)) * 0.5, jnp.float32)


@jax.jit
def gradient(factors):
    return jax.grad(lambda w: bptt.run_with_factors(tanh_step, w, jnp.zeros(UNITS), inputs, factors)[0])(weights)


full = gradient(jnp.ones(STEPS))
truncated = gradient(bptt.truncation_factors(STEPS, LENGTH))
rngs = jax.random.split(jax.random.key(0), SAMPLES)
samples = jax.lax.map(lambda rng: gradient(bptt.random_factors(rng, STEPS, 1 / LENGTH)), rngs, batch_size=1024)

counts = 2 ** np.arange(15)
means = np.cumsum(samples, axis=0)[counts - 1] / counts[:, None, None]
error = lambda estimate: np.linalg.norm(estimate - full, axis=(-2, -1)) / np.linalg.norm(full)
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
axis.plot(counts, error(means), "o-", label="randomized, mean")
axis.axhline(error(truncated), color="C1", label="truncated")
axis.set(xscale="log", yscale="log", xlabel="gradients averaged", ylabel="error (share of the full gradient)")
axis.legend()
plt.show()
print(f"truncated {error(truncated):.3f}; randomized: one {error(samples[:1])[0]:.2f}, 16,384 {error(means)[-1]:.4f}")

# %% [markdown]
# A single randomized gradient is worse than the truncated one, 0.48 against 0.32. But errors cancel: the mean of two is
# better already, and that of 16,384 is off by 0.0015. Training averages over many steps, too, and no average mends
# the truncated one.
#
# ## When the bias decides
#
# Tallec and Ollivier built a linear system of 23 units in which a parameter first raises the output, and lowers it in
# the long run. A short gradient sees only the rise.

# %%
UPDATES = 3000
with jax.enable_x64(True):
    curves = {f"truncated, {n}": influence_balancing.losses(UPDATES, n) for n in (1, 10, 100)}
    curves["randomized, 16"] = influence_balancing.losses(UPDATES, "randomised")
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, losses in curves.items():
    axis.plot(np.arange(0, UPDATES, 10), losses[:-1:10], label=name)
    print(f"{name:15} final loss {losses[-1]:.2g}")
axis.set(xlabel="update", ylabel="loss", yscale="log")
figure.legend(loc="outside right center", title="steps back")
plt.show()

# %% [markdown]
# Cut after 1 or 10 steps, the parameter runs away: the loss ends at 210 and $3.5 \cdot 10^{15}$. More steps are not
# always less biased: ten see the whole rise and nothing else. With 100 steps, or random cuts every 16 on average, it
# finds the optimum.
#
# ## What the book reports, and what we get
#
# d2l 9.7.1.4 prints no number. It says that truncation works well in practice, and that randomized truncation, for all
# its theory, does not work much better. On its Time Machine, in windows of 32 characters, six runs each
# ([`time_machine_truncation`](../results/time_machine_truncation.md)):
#
# | validation perplexity | |
# |---|---:|
# | full | 7.34 |
# | truncated every 8 | 7.19 |
# | randomized, every 8 on average | 7.34 |
#
# The book is right here: randomized minus truncated is 0.13 ± 0.11, more perplexity, not less. The variance costs
# nothing here: randomized is as good as full. Cutting helped, in all six runs, as the regularizing effect that d2l
# describes would have it. Tallec and Ollivier's abstract reports the opposite for the characters of Penn Treebank: a
# slight win of their randomized gradient over the truncated one.
#
# ## Exercises
#
# **1.** $h_t = w\, h_{t-1} + x_t$ with scalars, and one loss, the last state $h_T$. Write its derivative by $w$ when
# the gradient goes back `length` states: only $h_{T-1}, \dots, h_{T-length}$ count, each with the power of $w$ that
# leads to it.


# %%
def derivative(states, w, length):
    """states = [h_0, ..., h_T]"""
    return ...


# %%
def scalar_step(w, state, x):
    h, counts = x
    state = w * state + h
    return state, counts * state


xs = jnp.array([0.5, -1.0, 2.0, 1.0, 0.3]), jnp.array([0.0, 0.0, 0.0, 0.0, 1.0])
states = [1.0]
for x in xs[0]:
    states.append(0.8 * states[-1] + float(x))
for length in (1, 3, 5):
    factors = jnp.ones(5).at[5 - length].set(0)
    expected = jax.grad(lambda w, cut=factors: bptt.run_with_factors(scalar_step, w, 1.0, xs, cut)[0])(0.8)
    check(derivative(states, 0.8, length), expected)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def derivative(states, w, length):
#     last = len(states) - 1
#     return sum(w ** (k - 1) * states[last - k] for k in range(1, length + 1))
# ```
#
# </details>
#
# **2.** A gradient reaches back $k$ steps only if none of $k$ factors cuts it. With which probability, and by what are
# the survivors multiplied? Return both for a cut with probability `c`.


# %%
def survival(c, k):
    probability = ...
    multiplier = ...
    return probability, multiplier


# %%
answers = survival(0.25, 3)
factors = jax.vmap(lambda rng: bptt.random_factors(rng, 3, 0.25))(jax.random.split(jax.random.key(1), 2**16))
products = np.asarray(factors.prod(axis=1))
check(answers[0], (products > 0).mean(), atol=0.005)
check(answers[1], products.max())

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def survival(c, k):
#     probability = (1 - c) ** k
#     multiplier = 1 / (1 - c) ** k
#     return probability, multiplier
# ```
#
# Their product is 1: unbiased. But the multiplier grows like an exponential, and with it the variance: far dependencies
# come seldom and loud.
#
# </details>
#
# **3.** Forward mode needs no cut: it carries $d h_t / d w$ along. Write the recurrence of the equation above with
# $\xi_t = 1$ for $h_t = \tanh(w\, h_{t-1} + x_t)$, and return $d h_T / d w$ for $h_0 = 0$ and a sequence of numbers
# `xs`.


# %%
def forward_derivative(w, xs):
    return ...


# %%
def last_state(w, state, x):
    state = jnp.tanh(w * state + x)
    return state, state


xs = jnp.array([0.3, -0.7, 1.2, 0.4])
_, _, expected = bptt.forward(last_state, jnp.array(0.9), jnp.array(0.0), jnp.array(0.0), xs)
check(forward_derivative(0.9, xs), expected)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def forward_derivative(w, xs):
#     h, derivative = 0.0, 0.0
#     for x in xs:
#         new = np.tanh(w * h + x)
#         h, derivative = new, (1 - new**2) * (h + w * derivative)
#     return derivative
# ```
#
# One number here; for a layer of $n$ units it is $n \times n^2$ numbers, which is why one goes backward.
#
# </details>
#
# The theorem in 100,000 samples: `python launch.py reproduce bptt_unbiasedness`. The [course page](../d2l.md).
