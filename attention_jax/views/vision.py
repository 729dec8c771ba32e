"""Image classification: predicted classes, attention maps over images, and figures of mistakes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.data.image_files import decode
from attention_jax.data.images import ImageData, Split
from attention_jax.errors import InputError
from attention_jax.report import image_figures as figures
from attention_jax.report.attention_data import AttentionRecord, Prediction
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Evaluation
from attention_jax.tasks.vision import EVALUATED
from attention_jax.train.placement import map_batches
from attention_jax.views import View
from attention_jax.views.attention_maps import ablate_heads, image_attentions, with_rollout
from attention_jax.views.pictures import image_maps, prefix_of


class VisionView(View):
    """Predicted classes of images, and the patches that the model attends to."""

    def classify(self, params, batch):
        """Return probabilities [B, classes]."""
        x = self.task.preparation.for_evaluation(batch["image"])
        return self.answer(self.model.apply({"params": params}, x)[0])

    @property
    def meaning(self) -> str:
        """What a page calls the numbers of `answer`."""
        return "the probability"

    def answer(self, logits):
        """Return the probabilities [B, classes] that logits are."""
        return jax.nn.softmax(logits)

    def attention(self, params, batch):
        """Return probabilities, attention weights with their rollout, maps over the image, and the pixels of the input;
        without attention, weights and maps are empty."""
        centered = self.task.preparation.center(batch["image"])
        logits, weights = self.model.apply(
            {"params": params}, self.task.preparation.normalize(centered), return_weights=True
        )
        maps, pixels = image_maps(weights) if weights else {}, jnp.round(centered * 255).astype(jnp.uint8)
        return with_rollout(weights) | {"probabilities": self.answer(logits), "maps": maps, "pixels": pixels}

    def read(self, paths: list[str]) -> np.ndarray:
        """Read image files as bytes [N, S, S, C], like those of the data."""
        train, resized = self.data.train, self.task.config.data.resize_pixels
        mode = "L" if train.image.shape[-1] == 1 else "RGB"
        return np.stack([decode(path, resized or train.image.shape[1], mode, by_area=resized > 0) for path in paths])

    def confidence(self, params, batch):
        """Return the probability [B] of the class `label`."""
        return jnp.take_along_axis(self.classify(params, batch), batch["label"][:, None], axis=1)[:, 0]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the attention over image files, or over the first held-out image of each class."""
        names, test = self.data.names, self.data.held_out["test"]
        if texts:
            images, titles = self.read(texts), [Path(text).name for text in texts]
        else:
            first = first_of_each(test.label)
            images, titles = test.image[first], [f"a held-out image of class {names[test.label[i]]}" for i in first]
        outputs = map_batches(self.attention, params, {"image": images}, EVALUATED)
        if not outputs["weights"]:
            return ()
        probabilities = outputs["probabilities"]
        rows = {"image": images, "label": probabilities.argmax(1).astype(np.int32)}
        without = ablate_heads(self.confidence, params, rows, outputs["weights"])
        records = []
        for i, (title, label) in enumerate(zip(titles, rows["label"])):
            sure, attentions = (
                float(probabilities[i, label]),
                image_attentions(self.task.config.model, i, outputs, outputs["pixels"][i], without),
            )
            answer = Prediction(str(names[label]), attentions, sure, self.meaning, sure)
            records.append(AttentionRecord(str(title), (answer,)))
        return tuple(records)

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return the three most probable classes of each image file."""
        names, x = self.data.names, self.read(texts)
        probabilities = map_batches(self.classify, params, {"image": x}, EVALUATED)
        if figure and self.show_attention(params, x[: figures.SHOWN], None, Path(figure)) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        best = np.argsort(-probabilities, axis=1)[:, :3]
        return [", ".join(f"{names[i]} {row[i]:.3f}" for i in top) for row, top in zip(probabilities, best)]

    def show_attention(self, params, x, titles, path: Path) -> Path | None:
        """Plot the attention maps of some images, with predictions as default titles; None without attention."""
        outputs = map_batches(self.attention, params, {"image": x}, EVALUATED)
        probabilities, maps = outputs["probabilities"], outputs["maps"]
        if titles is None:
            titles = [f"{self.data.names[i]} {p[i]:.2f}" for p, i in zip(probabilities, probabilities.argmax(1))]
        return figures.show_attention(x, maps, titles, path) if maps else None

    def excerpt(self) -> ImageData:
        """Return one training image, for its shape, and the first test image of each class."""
        train, test = self.data.train, self.data.held_out["test"]
        rows = first_of_each(test.label)
        held_out = {"test": Split(np.asarray(test.image[rows]), test.label[rows])}
        return self.data._replace(train=Split(np.asarray(train.image[:1]), train.label[:1]), held_out=held_out)

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        test, names = self.data.held_out["test"], self.data.names
        probabilities = map_batches(self.classify, params, {"image": test.image}, EVALUATED)
        guesses = probabilities.argmax(1)
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (test.label, guesses), 1)
        paths = [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            figures.mistakes(test.image, test.label, probabilities, names, directory / "mistakes.png"),
        ]
        first = first_of_each(test.label)
        titles = [f"{names[test.label[i]]} ({names[guesses[i]]} {probabilities[i].max():.2f})" for i in first]
        paths.append(self.show_attention(params, test.image[first], titles, directory / "attention.png"))
        if "positions" in params:
            table = np.asarray(params["positions"])
            paths.append(figures.position_similarity(table[prefix_of(len(table)) :], directory / "positions.png"))
        return [path for path in paths if path]


def first_of_each(label: np.ndarray) -> np.ndarray:
    """Return the indices of the first image of each class, for as many classes as a figure shows.

    >>> first_of_each(np.array([2, 0, 2, 1])).tolist()
    [1, 3, 0]
    """
    return np.array([np.argmax(label == c) for c in np.unique(label)])[: figures.SHOWN]
