# %% [markdown]
# # Fine-tune a Vision Transformer on a folder
#
# A folder with a directory of images for each class is all that is needed. Here it is made of scikit-learn's digits,
# so that the notebook runs anywhere: ten images of each digit, larger than those that the model was trained on.

# %%
import sys

sys.path += [".", "../.."]  # a clone runs this without an installed package

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from attention_jax import load_experiment, train_run
from attention_jax.config import replace

directory = Path(tempfile.mkdtemp())
digits = load_digits()


def write_folder(folder, selection, pixels):
    """A directory for each digit; the digits' images, [8, 8] of 0 to 16, as PNG files."""
    for kind in range(10):
        (folder / str(kind)).mkdir(parents=True)
        for i, image in enumerate(digits.images[digits.target == kind][selection]):
            image = Image.fromarray((image * 255 / 16).astype(np.uint8)).resize((pixels, pixels))
            image.save(folder / str(kind) / f"{i:03}.png")
    return str(folder)


many, mine = write_folder(directory / "many", slice(0, 150), 8), write_folder(directory / "mine", slice(150, 160), 12)

# %% [markdown]
# ## A pretrained model
#
# A small ViT for images of 8 x 8 pixels. In your own work this is a file: `init_weights` takes safetensors of timm
# and Hugging Face and google-research's `.npz` as well ([weights.md](../weights.md)).

# %%
config = replace(
    load_experiment("vit_digits").config(),
    **{"data.dataset": "folder", "train.batch_size": 20, "train.steps_per_call": 4},
)
pretrained = train_run(
    replace(config, **{"data.path": many, "data.pixels": 8, "train.total_epochs": 8}), directory / "known", quiet=True
)
print(pretrained.result["metrics"]["test.accuracy"])

# %% [markdown]
# ## Fine-tuning
#
# The new images are 12 x 12 pixels, so there are 36 patches where there were 16: positions are resampled, all else is
# taken as it is. Beside it the same model from scratch, with as many steps.

# %%
short = replace(config, **{"data.path": mine, "data.pixels": 12, "train.total_epochs": 6})
scratch = train_run(short, directory / "scratch", quiet=True)
tuned = train_run(replace(short, **{"train.init_weights": str(pretrained.directory)}), directory / "tuned", quiet=True)
for name, run in {"from scratch": scratch, "fine-tuned": tuned}.items():
    print(f"{name}: {run.result['metrics']['test.accuracy']:.2f} of the held-out images right")

# %% [markdown]
# ## Use it
#
# A run predicts, and returns its attention maps. `look` makes a page of all layers and heads, shown in a notebook
# or saved as one file.

# %%
image = str(next(Path(mine, "7").glob("*.png")))
print(tuned.predict([image]))
[record] = tuned.attention([image])
encoder = record.predictions[0].attentions[0]
print(encoder.kind, encoder.weights.shape, "layers, heads, queries, keys")

# %%
page = tuned.look([image])
page.save(directory / "look.html")
page
