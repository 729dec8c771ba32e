# %% [markdown]
# # Lesson 7: an image is a sequence of patches
#
# **Question.** A convolution knows that neighboring pixels belong together, and treats a pattern alike wherever it is
# (equivariance). A Transformer knows neither. What does it cost to learn, and what does the model look at?
#
# d2l 11.8, 40 minutes. Before it: lessons [4](heads.ipynb) and [5](positions.ipynb).

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import inspect
import tempfile
from dataclasses import replace as with_fields
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from attention_jax import config, load_experiment, models, tasks
from attention_jax.models.vit import patches
from attention_jax.train.loop import train_one
from attention_jax.train.placement import map_batches
from experiments.papers.options import ResNetConfig


def check(answer, expected, atol=1e-4):
    """Say whether the answer to an exercise is right; the placeholder `...`, None and another shape are not."""
    numbers = np.asarray(answer).dtype.kind in "biuf"
    same = numbers and np.shape(answer) == np.shape(expected) and np.allclose(answer, expected, atol=atol)
    print("right" if same else "not yet")


# %% [markdown]
# ## The equations
#
# An image is cut into patches $x_1, \dots, x_N$. A learned map $E$ makes a token of each, a learned class token goes
# before them, and positions $P$ are added (Dosovitskiy et al. 2021, equations 1 to 4):
#
# $$z_0 = [x_\text{class};\, x_1 E;\, \dots;\, x_N E] + P, \qquad
# z'_l = \mathrm{MSA}(\mathrm{LN}(z_{l-1})) + z_{l-1}, \qquad z_l = \mathrm{MLP}(\mathrm{LN}(z'_l)) + z'_l, \qquad
# y = \mathrm{LN}(z_L^0)$$
#
# The class token's last state, normalized, is classified. MSA is the multi-head self-attention of lesson 4.
#
# ## The functions

# %%
for function in (patches, models.ViT.__call__, models.ViT.add_positions):
    print(inspect.getsource(function).replace(f'"""{function.__doc__}"""', "..."))

# %% [markdown]
# ## A Transformer and a convolutional network
#
# scikit-learn's digits: 1,438 images of 8 x 8 pixels to train, 359 to test. A ViT of two layers, with 16 patches of
# 2 x 2 pixels; a residual network of two blocks with half as many parameters. Both go through the same trainer.

# %%
vit = config.replace(
    load_experiment("vit_digits").config(),
    **{"model.num_layers": 2, "model.hidden_size": 48, "model.mlp_dim": 96, "model.dropout": 0.0},
    **{"optim.learning_rate": 3e-3, "optim.warmup_steps": 20, "train.total_epochs": 12},
)
resnet = with_fields(vit, model=ResNetConfig(widths=(16, 32), blocks_per_stage=1, num_groups=8))
trained = {}
for name, settings in {"ViT": vit, "ResNet": resnet}.items():
    task = tasks.build(settings)
    run, params = train_one(task, settings.optim, settings.train, Path(tempfile.mkdtemp()), quiet=True)
    trained[name] = task, params
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{name}: {size:,} parameters, test accuracy {task.evaluate(params, True).metrics['test.accuracy']:.3f}")

# %% [markdown]
# ## A figure: the same digits, moved
#
# The test images move sideways by up to two pixels, without any training on moved ones.

# %%
test = task.data.held_out["test"]


def shift_images(images, by):
    """Images [N, S, S, C], moved to the right by `by` pixels; zeros come in."""
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (0, 0)))
    return padded[:, :, 2 - by : 10 - by]


shifts = range(-2, 3)
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
for name, (task, params) in trained.items():
    classify = task.classify
    probabilities = [map_batches(classify, params, {"image": shift_images(test.image, by)}, 512) for by in shifts]
    accuracy = [(p.argmax(axis=1) == test.label).mean() for p in probabilities]
    print(name, np.round(accuracy, 3))
    axis.plot(shifts, accuracy, "o-", label=name)
axis.set(xlabel="moved to the right (pixels)", ylabel="test accuracy", xticks=shifts, ylim=(0, 1.02))
axis.legend()
plt.show()

# %% [markdown]
# One pixel leaves the ViT 0.39, the ResNet 0.60. (Strides and zeros at the border are why a convolutional network does
# not stay at 0.975.) Two pixels are one patch: then most tokens are those of the image before, one position further,
# and the ViT has 0.2. It has learned what is where, not what follows what. Random crops in training
# (`--data.crop-padding 1`) show it moved digits.
#
# ## The patches it looks at
#
# Above, six test images; below, the mean over heads of the last layer's weights from the class token to the patches.

# %%
task, params = trained["ViT"]
rows = [np.argmax(test.label == digit) for digit in (0, 2, 3, 4, 5, 8)]
outputs = map_batches(task.attention, params, {"image": test.image[rows]}, 6)
figure, axes = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
for i, (row, above, below) in enumerate(zip(rows, *axes)):
    above.imshow(test.image[row, :, :, 0], cmap="gray_r")
    guess = outputs["probabilities"][i].argmax()
    above.set(title=f"{test.label[row]}, read as {guess}", xticks=[], yticks=[])
    image = below.imshow(outputs["maps"]["last"][i], vmin=0, vmax=0.25)
    below.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("image")
axes[1, 0].set_ylabel("weight")
figure.colorbar(image, ax=axes[1], label="weight", extend="max")
plt.show()

# %% [markdown]
# Do these patches matter? Blank the four of largest weight in every test image, and as a control four others at random.

# %%
weights = map_batches(task.attention, params, {"image": test.image}, 359)["maps"]["last"].reshape(-1, 16)
chance = np.random.default_rng(0).random(weights.shape)
for name, rank in {"largest weights": weights, "smallest weights": -weights, "at random": chance}.items():
    blank = np.zeros((len(rank), 16), bool)
    np.put_along_axis(blank, np.argsort(rank, axis=1)[:, -4:], True, axis=1)
    blank = blank.reshape(-1, 4, 4).repeat(2, axis=1).repeat(2, axis=2)[..., None]
    probabilities = map_batches(task.classify, params, {"image": np.where(blank, 0, test.image).astype(np.uint8)}, 512)
    print(f"without the four patches, {name}: {(probabilities.argmax(axis=1) == test.label).mean():.3f}")

# %% [markdown]
# The weights of the last layer do not tell: without the patches of *smallest* weight more is lost. By then a token
# holds what the first layer brought from all patches. As in lesson 4: a map shows where a head looks, not what counts.
#
# ## What the book reports, and what we get
#
# d2l 11.8.6 trains both on Fashion-MNIST: the ViT does not outperform the ResNet, 0.861 and 0.903. In models of 80,000
# parameters we get the same sign, a difference of -0.032 ± 0.007 where the book has -0.042
# ([`vit_resnet_fashion_mnist`](../results/vit_resnet_fashion_mnist.md)). The paper finds where it turns: pretrained on
# ImageNet's 1.3 million images, large ViTs lose to ResNets; on 300 million they win.
#
# On the 359 digits above, the ResNet has six more right; one run each does not rank them. At 60 epochs and twice the
# layers, the ViT has 0.972
# ([`vit_digits`](../results/vit_digits.md)).
#
# ## Exercises
#
# **1.** Cut images [B, S, S] into patches [B, N, P P], row by row, with `reshape` and `transpose` alone.


# %%
def cut(images, size):
    return ...


# %%
numbers = np.arange(2 * 36.0).reshape(2, 6, 6)
check(cut(numbers, 2), patches(numbers[..., None], 2))
check(cut(numbers, 3), patches(numbers[..., None], 3))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def cut(images, size):
#     grid = images.shape[1] // size
#     x = images.reshape(-1, grid, size, grid, size)  # rows, rows in a patch, columns, columns in a patch
#     return x.transpose(0, 1, 3, 2, 4).reshape(len(images), grid * grid, size * size)
# ```
#
# </details>
#
# **2.** How many numbers has an attention map of one head, with a class token, for images of `pixels` x `pixels`?


# %%
def map_size(pixels, patch):
    return ...


# %%
for pixels, patch in ((8, 2), (16, 2), (224, 16)):
    model = models.ViT(config.replace(vit.model, patch_size=patch), classes=10, image_size=pixels)
    forward = lambda images, model=model: model.init_with_output(jax.random.key(0), images, return_weights=True)
    shapes = jax.eval_shape(forward, np.zeros((1, pixels, pixels, 1), np.float32))[0][1]["encoder_attention"].shape
    check(map_size(pixels, patch), shapes[-1] * shapes[-2])

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def map_size(pixels, patch):
#     return (1 + (pixels // patch) ** 2) ** 2
# ```
#
# Twice the side is sixteen times the map: the cost of attention grows with the fourth power of the resolution.
#
# </details>
#
# **3.** A convolution is linear, too: write the patch embedding, [P P, D] applied to every patch, as one convolution of
# stride `size`, with `jax.lax.conv_general_dilated`. What is its kernel [P, P, C, D]?


# %%
def kernel_of(embedding, size):
    return ...


# %%
embedding = params["patch_embedding"]["kernel"]  # [4, 48]
image = np.asarray(test.image[:3], np.float32) / 255
kernel = kernel_of(embedding, 2)
if np.shape(kernel) == (2, 2, 1, 48):
    layout = ("NHWC", "HWIO", "NHWC")
    kernel = jax.lax.conv_general_dilated(image, kernel, (2, 2), "VALID", dimension_numbers=layout).reshape(3, 16, -1)
check(kernel, patches(image, 2) @ embedding)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def kernel_of(embedding, size):
#     return embedding.reshape(size, size, -1, embedding.shape[1])
# ```
#
# So the first layer of a ViT is a convolution; what differs is all that follows.
#
# </details>
#
# **Next:** [lesson 8, truncated gradients](truncation.ipynb). With your own images:
# [fine-tune a ViT on a folder](finetune.ipynb). At scale: `python launch.py reproduce vit_digits`.
