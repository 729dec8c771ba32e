# %% [markdown]
# # Lesson 6: the Transformer and its three masks
#
# **Question.** A decoder without recurrence reads all of its target at once. What keeps it from copying the word that
# it is to predict, and what else must attention not see?
#
# d2l 11.7, 45 minutes. Before it: lessons [2](masked_softmax.ipynb), [4](heads.ipynb) and [5](positions.ipynb).

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect
import tempfile
from dataclasses import replace as with_fields
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from attention_jax import causal, config, lengths, load_experiment, models, tasks
from attention_jax.data.generated_texts import commands
from attention_jax.train.loop import train_one


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equations
#
# Every layer adds to a residual stream $x$: attention, then a feed-forward network at each position (Vaswani et al.
# 2017, figure 1). Here the norm comes first in the branch (pre-norm; d2l and the paper: post-norm). A decoder layer
# attends twice:
#
# $$x \leftarrow x + \mathrm{MHA}(\mathrm{LN}(x), \mathrm{LN}(x)), \qquad
# x \leftarrow x + \mathrm{MHA}(\mathrm{LN}(x), \text{encoder}), \qquad x \leftarrow x + \mathrm{MLP}(\mathrm{LN}(x))$$
#
# | attention | query | keys | a query may see |
# |---|---|---|---|
# | of the encoder | source | source | tokens before the padding |
# | of the decoder | target | target | itself and earlier tokens |
# | cross-attention | target | source | tokens before the padding |
#
# ## The functions

# %%
for function in (models.Transformer._encode, models.Transformer.decode):
    print(inspect.getsource(function).replace(f'"""{function.__doc__}"""', "..."))

# %% [markdown]
# `segment` is for packed sequences and `evaluation_mask` for an experiment below. The masks are functions of positions:

# %%
positions = jnp.arange(4)
print(lengths(3)(positions, positions).astype(int), causal()(positions, positions).astype(int), sep="\n\n")

# %% [markdown]
# ## 2,000 pairs
#
# SCAN's commands (Lake and Baroni 2018) and the actions that they mean, of at most eight actions. "And" keeps the order
# of two parts, "after" turns it around.

# %%
directory = Path(tempfile.mkdtemp())
shorter = lambda actions: " ".join(actions).replace("I_", "").replace("TURN_", "").lower()
lines = [f"{command}\t{shorter(actions)}" for command, actions in commands() if len(actions) <= 8]
lines = np.random.default_rng(0).permutation(lines)[:2500]
(directory / "scan.tsv").write_text("\n".join(lines) + "\n")

options = config.replace(
    load_experiment("translate_files").config(),
    **{"data.tsv_file": str(directory / "scan.tsv"), "data.tokenizer": "whitespace", "data.max_buckets": 1},
    **{"model.hidden_size": 64, "model.mlp_dim": 128, "model.dropout": 0.0, "decode.beam_size": 1},
    **{"optim.learning_rate": 4e-3, "optim.warmup_steps": 50, "train.batch_size": 50, "train.total_epochs": 20},
    **{"train.label_smoothing": 0.0, "train.steps_per_call": 40, "train.best_metric": "train.loss"},
)
task = tasks.build(options)
without_evaluation = with_fields(task, data=task.data._replace(held_out={}))
run, params = train_one(without_evaluation, options.optim, options.train, directory, quiet=True)

test, texts = task.data.held_out["test"], task.data.texts["test"]
outputs = task.predict(params, texts.source)
print(len(task.data.train[0].source), "pairs;", "parameters:", sum(leaf.size for leaf in jax.tree.leaves(params)))
print(f"right: {np.mean([output == target for output, target in zip(outputs, texts.target)]):.3f} of {len(outputs)}")
for source, output in list(zip(texts.source, outputs))[:3]:
    print(f"{source} -> {output}")

# %% [markdown]
# ## A figure: three attentions, three masks
#
# The last layer's weights, mean of four heads, for a test pair in which "after" turns the order around. Gray is what
# the mask forbids.

# %%
batch = [jnp.asarray(x) for x in (test.source, test.source_length, test.target[:, :-1])]
forward = jax.jit(lambda *batch: task.model.apply({"params": params}, *batch, return_weights=True))
logits, maps = forward(*batch)
row = next(i for i, text in enumerate(texts.source) if " after " in text and test.target_length[i] > 5)
source = task.data.source_vocabulary.decode(test.source[row])
target = task.data.target_vocabulary.decode(test.target[row, :-1])
sides = {
    "encoder": (maps["encoder_attention"], source, source),
    "decoder": (maps["decoder_attention"], target, target),
    "cross": (maps["cross_attention"], target, source),
}
figure, axes = plt.subplots(1, 3, figsize=(11, 4.2), layout="constrained")
colors = plt.get_cmap("viridis").with_extremes(bad="0.8")
for panel, (name, (weights, queries, keys)) in zip(axes, sides.items()):
    mean = np.asarray(weights[row, -1].mean(axis=0))
    image = panel.imshow(np.where(mean > 0, mean, np.nan), vmin=0, vmax=1, cmap=colors, aspect="auto")
    panel.set(title=name, xticks=range(len(keys)), yticks=range(len(queries)), yticklabels=queries, xlabel="key")
    panel.set_xticklabels(keys, rotation=90)
axes[0].set_ylabel("query")
figure.colorbar(image, ax=axes, label="weight")
plt.show()

# %% [markdown]
# Each row of the right panel predicts the token after its query: the first reads "left" behind "after", and only then
# "jump" and "right" in front of it. Nobody said what "after" does. A row of padding still has weights, but no loss.
#
# Two tests of the masks: what they hide can change, and the outputs stay.

# %%
future = batch[2].at[:, 3:].set(0)
changed, _ = forward(batch[0], batch[1], future)
print("other targets from step 3 on, change at steps 0 to 2:", jnp.abs(changed - logits)[:, :3].max())
print("                              change at steps 3 ...:", jnp.abs(changed - logits)[:, 3:].max())
noise = jnp.where(jnp.arange(batch[0].shape[1]) < batch[1][:, None], batch[0], 5)
changed, _ = forward(noise, batch[1], batch[2])
print("words in place of the source's padding, change:", jnp.abs(changed - logits).max())

# %% [markdown]
# ## What the book reports, and what we get
#
# d2l 11.7 applies the causal mask in training only: when it validates, every position sees the targets after it. What
# does that do to the loss? Here with our model, in nats a token:

# %%
rows = {"source": batch[0], "source_length": batch[1], "target": jnp.asarray(test.target)}
rows["target_length"] = jnp.asarray(test.target_length)
for mask in ("causal", "none"):
    settings = config.replace(options, **{"model.evaluation_mask": mask})
    changed = with_fields(task, config=settings, model=type(task).make_model(settings, task.data))
    scores = jax.jit(changed.score_rows)(params, rows)
    print(f"evaluation mask {mask}: {scores['loss'].sum() / scores['tokens'].sum():.3f}")

# %% [markdown]
# A model that was trained without seeing a future is harmed by it: a loss of 2.53 instead of 0.004. On the book's 512
# sentence pairs, best epoch of the validation ([`fra_eng_transformer`](../results/fra_eng_transformer.md)):
#
# | | the book's code | this code |
# |---|---:|---:|
# | as plotted, without the mask | 1.773 ± 0.25 | 1.774 ± 0.27 |
# | with the mask | 1.396 ± 0.015 | 1.401 ± 0.008 |
#
# The rows differ in the mask, and in one pair that the book averages as a batch of its own. Without the mask the loss
# is larger, and differs 17 times as much from run to run.
#
# ## Exercises
#
# **1.** Write the masks of cross-attention [T, S] and of the decoder [T, T], for a target of `steps` positions and a
# source of `length` tokens, padded to `width`.


# %%
def masks(steps, width, length):
    cross = ...
    decoder = ...
    return cross, decoder


# %%
cross, decoder = masks(5, 7, 4)
check(cross, lengths(4)(jnp.arange(5), jnp.arange(7)))
check(decoder, causal()(jnp.arange(5), jnp.arange(5)))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def masks(steps, width, length):
#     cross = np.broadcast_to(np.arange(width) < length, (steps, width))
#     decoder = np.tril(np.ones((steps, steps), bool))
#     return cross, decoder
# ```
#
# Padding of the target needs no mask: it comes last, so no real position sees it, and the loss leaves it out.
#
# </details>
#
# **2.** How many parameters has an encoder layer, and how many a decoder layer, of width `d` with `m` hidden units? A
# norm has a scale and a bias of width `d`, and each linear map has a bias.


# %%
def layer_parameters(d, m):
    encoder = ...
    decoder = ...
    return encoder, decoder


# %%
for answer, stack in zip(layer_parameters(64, 128), ("encoder", "decoder")):
    check(answer, sum(leaf.size for leaf in jax.tree.leaves(params[stack]["layer_0"])))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def layer_parameters(d, m):
#     attention, norm = 4 * (d * d + d), 2 * d
#     encoder = attention + norm + (d * m + m) + (m * d + d) + norm
#     decoder = encoder + attention + norm
#     return encoder, decoder
# ```
#
# </details>
#
# **3.** In training all steps run at once; in use there is no target yet. Write greedy decoding: begin with `bos`,
# append what `next_token(tokens)` returns, stop at `eos`. Return the tokens between the two.


# %%
def greedy(next_token, bos, eos):
    return ...


# %%
vocabulary = task.data.target_vocabulary
compiled = jax.jit(lambda target: task.model.apply({"params": params}, batch[0][:1], batch[1][:1], target)[0])


def next_token(tokens):
    padded = np.zeros((1, test.target.shape[1]), np.int32)
    padded[0, : len(tokens)] = tokens
    return int(compiled(padded)[0, len(tokens) - 1].argmax())


answer = greedy(next_token, vocabulary.bos_id, vocabulary.eos_id)
check(answer, vocabulary.encode(outputs[0].split()))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def greedy(next_token, bos, eos):
#     tokens = [bos]
#     while tokens[-1] != eos:
#         tokens.append(next_token(tokens))
#     return tokens[1:-1]
# ```
#
# Every step computes all earlier ones again. The causal mask makes that needless: their keys and values stay, and a
# cache keeps them (`models.Transformer.step`).
#
# </details>
#
# **Next:** [lesson 7, images](vision.ipynb). With your own pairs: [a translator](../train_a_translator.md).
# At the book's size: `python launch.py reproduce fra_eng_transformer`.
