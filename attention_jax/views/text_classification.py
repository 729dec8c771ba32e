"""Text classification: the class of new texts, the words with the largest weights, and attention maps."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import MaskedLanguageModelConfig
from attention_jax.data.labeled_texts import LabeledTexts, encode
from attention_jax.files import write_atomically
from attention_jax.report.attention_data import AttentionRecord, Axis, Prediction, check_length
from attention_jax.report.heatmaps import show_heatmaps
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Evaluation
from attention_jax.tasks.text_classification import EVALUATED
from attention_jax.train.placement import map_batches
from attention_jax.views import View
from attention_jax.views.attention_maps import ablate_heads, pool_attention, token_attention, with_rollout
from attention_jax.views.pictures import layer_names

WORDS = 3
"""The number of words that a prediction lists."""
SAMPLES, SHOWN, WIDEST = 12, 6, 40
"""The numbers of texts in samples.txt, of texts in a figure, and of tokens of each."""


class TextView(View):
    """Predicted classes of texts, and the words that the model attends to."""

    @property
    def pools_by_attention(self) -> bool:
        """Whether the model weighs words in one place; a pretrained encoder does so in every layer and head only."""
        return not isinstance(self.task.config.model, MaskedLanguageModelConfig)

    def apply(self, params, batch):
        """Return probabilities [B, classes] and the attention weights."""
        logits, weights = self.model.apply({"params": params}, batch["tokens"], batch["length"], return_weights=True)
        return jax.nn.softmax(logits), weights

    def classify(self, params, batch):
        """Return probabilities [B, classes] and the attention pooling weights [B, T], zeros for other poolings."""
        probabilities, weights = self.apply(params, batch)
        return probabilities, weights.get("pool_attention", jnp.zeros(batch["tokens"].shape))

    def read(self, params, texts: list[str]) -> tuple[list[list[str]], np.ndarray, np.ndarray]:
        """Return the tokens of each text, probabilities [N, classes], and pooling weights [N, T]."""
        words, most = self.data.tokenizer.split(texts), self.task.config.data.max_length
        tokens, length = encode(words, self.data.vocabulary, most)
        rows = map_batches(self.classify, params, {"tokens": tokens, "length": length}, EVALUATED)
        return [row[:most] for row in words], *rows

    def summary(self, words: list[str], probabilities: np.ndarray, weights: np.ndarray) -> str:
        """Return a line with the class, its probability, and the words with the largest weights [T], if any."""
        label = int(probabilities.argmax())
        answer = f"{self.data.names[label]} {probabilities[label]:.3f}"
        if not self.pools_by_attention:
            return answer
        largest = [index for index in np.argsort(-weights, kind="stable") if index < len(words)][:WORDS]
        attended = ", ".join(f"{words[index]} {weights[index]:.2f}" for index in largest)
        return f"{answer} (attends to: {attended or 'nothing'})"

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        words, probabilities, pool = self.read(params, texts)
        if figure is not None:
            self.draw(params, words, probabilities, pool, figure)
        return [self.summary(*row) for row in zip(words, probabilities, pool)]

    def attention(self, params, batch):
        """Return probabilities [B, classes], the attention weights, and their rollout."""
        probabilities, weights = self.apply(params, batch)
        return with_rollout(weights) | {"probabilities": probabilities}

    def confidence(self, params, batch):
        """Return the probability [B] of `label`."""
        return jnp.take_along_axis(self.apply(params, batch)[0], batch["label"][:, None], axis=1)[:, 0]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the attention over texts, or over the first held-out text of each class."""
        if not texts:
            label = self.data.held_out["test"].label
            texts = [self.data.texts["test"][int(np.argmax(label == class_index))] for class_index in np.unique(label)]
        words = self.data.tokenizer.split(list(texts))
        for row, text in zip(words, texts):
            check_length(row[: self.task.config.data.max_length], text)
        tokens, length = encode(words, self.data.vocabulary, self.task.config.data.max_length)
        rows = {"tokens": tokens, "length": length}
        outputs = map_batches(self.attention, params, rows, EVALUATED)
        probabilities = outputs["probabilities"]
        rows |= {"label": probabilities.argmax(1).astype(np.int32)}
        without = ablate_heads(self.confidence, params, rows, outputs["weights"])
        records = []
        for i, (text, label) in enumerate(zip(texts, rows["label"])):
            text_words, sure = tuple(words[i][: length[i]]) or ("",), float(probabilities[i, label])
            attentions = []
            if self.pools_by_attention:
                attentions.append(pool_attention(outputs["weights"]["pool_attention"][i], Axis(text_words)))
            if "encoder_attention" in outputs["weights"]:
                attentions.append(
                    token_attention(self.task.config.model, "encoder", i, outputs, text_words, text_words, without)
                )
            answer = Prediction(str(self.data.names[label]), tuple(attentions), sure, "the probability", sure)
            records.append(AttentionRecord(text, (answer,)))
        return tuple(records)

    def draw(self, params, words: list[list[str]], probabilities, pool, path: Path) -> Path:
        """Plot the pooling weights of the first texts, labeled with the predicted classes; of another pooling the
        self-attention of the first text, layers by heads."""
        if not self.pools_by_attention:
            tokens, length = encode(words[:1], self.data.vocabulary, self.task.config.data.max_length)
            batch = {"tokens": tokens[:, :WIDEST], "length": np.minimum(length, WIDEST).astype(np.int32)}
            weights = map_batches(self.attention, params, batch, 1)["weights"]["encoder_attention"][0]
            names = words[0][:WIDEST]
            return show_heatmaps(weights, names, names, path, xlabel="key", **layer_names(weights))
        rows = [row[:WIDEST] or [""] for row in words[:SHOWN]]
        panels = [[weights[None, : len(row)]] for weights, row in zip(pool, rows)]
        classes = [[[self.data.names[p.argmax()]]] for p in probabilities[:SHOWN]]
        return show_heatmaps(panels, classes, [[row] for row in rows], path, xlabel="", ylabel="")

    def excerpt(self) -> LabeledTexts:
        """Return one training text of each bucket, for its shape, and the first test text of each class."""
        first = lambda split, rows: type(split)(*(column[rows] for column in split))
        test, texts = self.data.held_out["test"], self.data.texts["test"]
        rows = [int(np.argmax(test.label == label)) for label in np.unique(test.label)]
        return self.data._replace(
            train=tuple(first(split, [0]) for split in self.data.train),
            held_out={"test": first(test, rows)},
            texts={"test": [texts[row] for row in rows]},
        )

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Write samples.txt, plot the confusion matrix and the pooling weights."""
        test, texts, names = self.data.held_out["test"], self.data.texts["test"], self.data.names
        words, probabilities, pool = self.read(params, texts)
        guesses = probabilities.argmax(1)
        lines = [
            f"{text[:100]} -> {self.summary(*row)}{'' if guess == label else f'   (should be {names[label]})'}"
            for text, guess, label, *row in zip(texts, guesses, test.label, words, probabilities, pool)
        ]
        write_atomically(directory.parent / "samples.txt", "\n".join(lines[:SAMPLES]) + "\n")
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (test.label, guesses), 1)
        first = [int(np.argmax(test.label == label)) for label in np.unique(test.label)]  # of each class
        examples = [words[row] for row in first], probabilities[first], pool[first]
        return [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            self.draw(params, *examples, directory / "attention.png"),
        ]
