# %% [markdown]
# # Lesson 3: decoders that align
#
# **Question.** A decoder rewrites "september 25, 1984" as "1984-09-25". Where does it look for each character, and
# where in a recurrent decoder does attention go?
#
# d2l 11.4 and "Deep Learning from Scratch 2", chapter 8; 45 minutes. Before it: [lesson 2](masked_softmax.ipynb).

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from attention_jax import attend, attention_weights, config, models, normalizers, scores
from attention_jax.models import bahdanau, luong


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equations
#
# An encoder turns the source into annotations $h_1, \dots, h_S$. A recurrent decoder updates a vector, its state $s_i$
# ($h_t$ in Luong's code), by a network $f$ from the last state and the last output character $y_{i-1}$. At each step
# $i$ the state queries the annotations; the answer is the context $c_i$:
#
# $$\alpha_{ij} = \mathrm{softmax}_j\, a(\text{query}_i, h_j), \qquad c_i = \sum_j \alpha_{ij} h_j$$
#
# | | Bahdanau et al. 2015 | Luong et al. 2015 |
# |---|---|---|
# | query | the **previous** state $s_{i-1}$ | the **current** state $s_i$ |
# | score | additive | dot, general $q^\top W h$, concat (additive on $[s_i; h_j]$) |
# | $c_i$ enters | the recurrence: $s_i = f(s_{i-1}, y_{i-1}, c_i)$ | the output: $\tilde h_i = \tanh W_c [s_i; c_i]$ |
# | the next step sees | $s_i$, which has $c_i$ in it | $\tilde h_i$ as an input (input feeding) |
#
# The left column is d2l's decoder. The right one is the book's, which has the dot score and neither $\tanh$ nor input
# feeding.
#
# ## The functions
#
# One decoder step each:

# %%
print(inspect.getsource(bahdanau.step))
print(inspect.getsource(luong.feeding_step))

# %% [markdown]
# Find the other three rows of the table in them; `w.align` holds the score and softmax. `x.edits`, `x.noise` and
# `drop_weights` are for interventions and dropout, and do nothing here.
#
# ## A figure: alignments that nobody taught
#
# Dates in three forms, 4,000 for training. Nothing says which character comes from where.

# %%
MONTHS = [
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
]
TRAIN, TEST, SOURCE = 4000, 300, 20
draw = np.random.default_rng(0)


def pair():
    year, month, day = draw.integers(1950, 2050), draw.integers(1, 13), draw.integers(1, 29)
    name = MONTHS[month - 1]
    forms = f"{name} {day}, {year}", f"{day} {name[:3]} {year}", f"{name[:3]} {day}, {year}"
    return forms[draw.integers(3)], f"{year}-{month:02}-{day:02}"


pairs = [pair() for _ in range(TRAIN + TEST)]
characters = ["_", ">", *sorted({c for texts in pairs for text in texts for c in text})]
encode = lambda text, width: [characters.index(c) for c in text.ljust(width, "_")]
source = jnp.array([encode(text, SOURCE) for text, _ in pairs])
length = jnp.array([len(text) for text, _ in pairs])
target = jnp.array([encode(">" + text, 11) for _, text in pairs])  # ">" begins a target


def loss(model, params, rows):
    logits, _ = model.apply(params, source[rows], length[rows], target[rows, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, target[rows, 1:]).mean()


def train(model, steps=300):
    """Trained parameters, and the loss of each step."""
    optimizer = optax.adam(optax.cosine_decay_schedule(5e-3, steps))
    batches = jax.random.randint(jax.random.key(1), (steps, 32), 0, TRAIN)

    @jax.jit
    def run():
        def step(carry, rows):
            params, state = carry
            value, gradient = jax.value_and_grad(lambda params: loss(model, params, rows))(params)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), value

        params = model.init(jax.random.key(0), source[:1], length[:1], target[:1, :-1])
        (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), batches)
        return params, losses

    return run()


sizes = {"hidden_size": 48, "embed_size": 16, "readout_size": 48}
vocabularies = {"source_vocab": len(characters), "target_vocab": len(characters)}
decoders = {
    "Bahdanau": models.Bahdanau(config.BahdanauConfig(**sizes), **vocabularies),
    "Luong": models.Luong(config.LuongConfig(**sizes), **vocabularies),
}
test = slice(TRAIN, None)
losses, weights = {}, {}
for name, model in decoders.items():
    params, losses[name] = train(model)
    logits, maps = model.apply(params, source[test], length[test], target[test, :-1], return_weights=True)
    weights[name] = maps["cross_attention"][:, 0, 0]  # [TEST, target, source], of the layer and head
    correct = logits.argmax(axis=-1) == target[test, 1:]
    print(f"{name}: {correct.mean():.3f} of the characters, {correct.all(axis=1).mean():.3f} of the dates right")

# %%
example = next(i for i, (text, _) in enumerate(pairs[test]) if text.startswith("september"))
text, date = pairs[TRAIN + example]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for name, curve in losses.items():
    axes[0].plot(curve, label=name)
axes[0].set(xlabel="step", ylabel="loss (nats a character)", yscale="log")
axes[0].legend()
for panel, name in zip(axes[1:], decoders):
    image = panel.imshow(weights[name][example, :, : len(text)], vmin=0, vmax=1, aspect="auto")
    panel.set(title=name, xticks=range(len(text)), xticklabels=text, yticks=range(10), yticklabels=date)
axes[1].set_ylabel("output")
figure.colorbar(image, ax=axes[1:], label="weight")
plt.show()

# %% [markdown]
# Year, month and day are each found where they stand. An annotation has read the text on both sides of it, so a digit
# may be looked up at its neighbor. (Here the decoder reads the true previous characters; `predict` of a trained run
# reads its own.)
#
# How much of this is attention? Put `models.Bahdanau(config.BahdanauConfig(score="mean", **sizes), **vocabularies)`
# into `decoders`, with equal weights at every step: it gets 0.46 of the dates right.
#
# ## What the books report, and what we get
#
# | | source | this code |
# |---|---:|---:|
# | book's dates, no attention, exact match after 10 epochs | 0 | 0.068 ± 0.13 |
# | book's dates, attention, after epoch 2 | 0.518 | 0.51 ± 0.31 |
# | after epoch 4 | 0.999 | 0.9996 ± 0.00015 |
# | d2l 11.4, four French sentences, BLEU | 0.75 | 0.89 ± 0.06 |
# | Luong et al., English to German: input feeding with the location score, BLEU | +1.3 | worse, in a small model |
#
# The last row is a miss: with short sentences and six epochs,
# [input feeding](../results/input_feeding.md) raises the loss, and one cause is a general score that saturates.
#
# ## Exercises
#
# **1.** One step of Bahdanau's attention by hand, for one sentence: weights [S] and context [C], with 0 for padding.
# `score.query_kernel`, `score.key_kernel` and `score.vector` are $W_q$, $W_k$ and $v$ (kernels are [in, hidden]:
# `state @ score.query_kernel`).


# %%
def attention_step(score, state, annotations, length):
    """[H], [S, C] -> [S], [C]"""
    alpha = ...
    context = ...
    return alpha, context


# %%
score = scores.Additive.init(jax.random.key(2), query_width=6, key_width=8, hidden=5)
state, annotations = jax.random.normal(jax.random.key(3), (6,)), jax.random.normal(jax.random.key(4), (7, 8))
rules = {"score": score, "mask": (jnp.arange(7) < 4)[None]}
alpha, context = attention_step(score, state, annotations, 4)
check(alpha, attention_weights(state[None], annotations, **rules)[0])
check(context, attend(state[None], annotations, annotations, **rules)[0])

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def attention_step(score, state, annotations, length):
#     logits = jnp.tanh(state @ score.query_kernel + annotations @ score.key_kernel) @ score.vector
#     alpha = jax.nn.softmax(jnp.where(jnp.arange(len(logits)) < length, logits, -jnp.inf))
#     context = alpha @ annotations
#     return alpha, context
# ```
#
# </details>
#
# **2.** Luong's local-m looks at source positions within `reach` of the output's own position $t$. Write the mask
# [T, S] of all steps for a sentence of `length` tokens.


# %%
def local_mask(steps, width, length, reach):
    return ...


# %%
keys = jax.random.normal(jax.random.key(5), (1, 9, 4))
local = luong.Monotonic(scores.Dot(), keys, jnp.array([7]), None, normalizers.Softmax(), 2)
expected = jnp.stack([local(keys[:, 0], jnp.array([t]))[0] > 0 for t in range(8)])
check(local_mask(8, 9, 7, 2), expected)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def local_mask(steps, width, length, reach):
#     distance = jnp.arange(width)[None, :] - jnp.arange(steps)[:, None]
#     return (jnp.abs(distance) <= reach) & (jnp.arange(width) < length)
# ```
#
# Would local-m do for dates? The year comes first in the output and last in the source: no. Local-p predicts the
# position.
#
# </details>
#
# **3.** How much of its weight does a model put on the four characters of the year while it writes them? In all three
# forms the year ends the source. Return the mean over sentences and the first four outputs.


# %%
def weight_on_year(weights, length):
    """[N, T, S], [N] -> a number"""
    return ...


# %%
uniform = weight_on_year(jnp.full((2, 10, 20), 0.05), jnp.array([12, 18]))
check(uniform, 0.2)
blocks = jnp.zeros((2, 10, 20)).at[:, :4, 5:9].set(0.25).at[:, 4:, 0].set(1.0)
check(weight_on_year(blocks, jnp.array([8, 11])), 0.625)
if uniform is not ...:
    print({name: weight_on_year(weights[name], length[test]) for name in decoders})

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def weight_on_year(weights, length):
#     position = jnp.arange(weights.shape[2])
#     year = (position < length[:, None]) & (position >= length[:, None] - 4)  # [N, S]
#     return (weights[:, :4] * year[:, None]).sum(axis=2).mean()
# ```
#
# </details>
#
# **Next:** [lesson 4, heads](heads.ipynb). At the books' sizes:
# `python launch.py reproduce date_attention fra_eng_bahdanau`.
