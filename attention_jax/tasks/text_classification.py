"""Classes of texts: an encoder with attention pooling on your own labelled texts, and the words it looked at."""

from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, named
from attention_jax.data import batches
from attention_jax.data.labelled_texts import LabelledTexts, encode
from attention_jax.files import write_whole
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.ops.metrics import token_accuracy
from attention_jax.report.attended import Answer, Looked, Side, check_length
from attention_jax.report.heatmaps import show_heatmaps
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Evaluation, build_model, load_once
from attention_jax.tasks.looking import among_tokens, pool_attention, with_rollout, without_heads
from attention_jax.train.placement import map_batches

EVALUATED = 256
"""Texts a batch when evaluating."""
WORDS = 3
"""That are named with a prediction."""
SAMPLES, SHOWN, WIDEST = 12, 6, 40
"""Texts in samples.txt; texts in a picture, and tokens of each."""


def build(config: Config) -> "TextTask":
    """The task of a classifier of texts."""
    data = load_once(named(config.data.loader), config.data, config.train.batch_size)
    return TextTask(config, data, build_model(config, len(data.vocabulary), len(data.names)))


@dataclass(frozen=True, eq=False)
class TextTask:
    """A classifier of texts (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: Config
    data: LabelledTexts
    model: nn.Module

    @property
    def said(self) -> str:
        return self.data.said

    @property
    def buckets(self) -> tuple[dict, ...]:
        return tuple(part._asdict() for part in self.data.train)

    def init(self, rng):
        first = self.data.train[0]
        return self.model.init(rng, jnp.asarray(first.tokens[:1]), jnp.asarray(first.length[:1]))["params"]

    def loss(self, params, batch, rng):
        inputs = (batch["tokens"], batch["length"])
        logits, _ = self.model.apply({"params": params}, *inputs, train=True, rngs={"dropout": rng})
        label, weight = batch["label"], batch["weight"]
        total, _ = masked_cross_entropy(logits, label, weight, label_smoothing=self.config.train.label_smoothing)
        return total, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

    def plan(self, epoch: int, steps_per_call: int) -> list:
        """A call has one bucket; with several, many steps of equal lengths in a row would teach the model that
        length."""
        sizes, train = [len(part.label) for part in self.data.train], self.config.train
        steps = steps_per_call if len(sizes) == 1 else 1
        return batches.plan(train.seed, epoch, sizes, [train.batch_size] * len(sizes), steps)

    def score_rows(self, params, batch):
        """Loss and correctness, a text."""
        logits, _ = self.model.apply({"params": params}, batch["tokens"], batch["length"])
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["label"], jnp.ones_like(batch["label"], jnp.float32))
        return {"loss": nats, "accuracy": (logits.argmax(-1) == batch["label"]).astype(jnp.float32)}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Of the validation texts, and in `full` of the test texts, too. Balanced accuracy is the mean of the
        classes' accuracies: a rare class counts as much as a frequent one."""
        metrics = {}
        for split, part in self.data.held_out.items() if full else [("valid", self.data.held_out["valid"])]:
            rows = map_batches(self.score_rows, params, part._asdict(), EVALUATED)
            metrics |= {f"{split}.{name}": float(values.mean(dtype=np.float64)) for name, values in rows.items()}
            of_class = [rows["accuracy"][part.label == label].mean() for label in np.unique(part.label)]
            metrics[f"{split}.balanced_accuracy"] = float(np.mean(of_class))
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        splits = self.data.held_out if full else ["valid"]
        return [f"{split}.{name}" for split in splits for name in ("loss", "accuracy", "balanced_accuracy")]

    def evaluated_with(self) -> dict:
        largest = max(self.data.held_out.values(), key=lambda part: part.tokens.size)
        return {"evaluation": (self.score_rows, largest._asdict(), EVALUATED)}

    def look(self, params, batch):
        """Probabilities [B, classes] and what the model attends to."""
        logits, weights = self.model.apply({"params": params}, batch["tokens"], batch["length"], look=True)
        return jax.nn.softmax(logits), weights

    def classify(self, params, batch):
        """Probabilities [B, classes] and the weights [B, T] with which the tokens are pooled."""
        probabilities, weights = self.look(params, batch)
        return probabilities, weights["pool_attention"]

    def read(self, params, texts: list[str]) -> tuple[list[list[str]], np.ndarray, np.ndarray]:
        """(the tokens of each text, probabilities [N, classes], weights [N, T] of the tokens)."""
        words, most = self.data.tokenizer.split(texts), self.config.data.max_length
        tokens, length = encode(words, self.data.vocabulary, most)
        rows = map_batches(self.classify, params, {"tokens": tokens, "length": length}, EVALUATED)
        return [row[:most] for row in words], *rows

    def said_of(self, words: list[str], probabilities: np.ndarray, weights: np.ndarray) -> str:
        """A class, its probability, and the words with the largest weights [T]."""
        label = int(probabilities.argmax())
        largest = [place for place in np.argsort(-weights, kind="stable") if place < len(words)][:WORDS]
        looked = ", ".join(f"{words[place]} {weights[place]:.2f}" for place in largest)
        return f"{self.data.names[label]} {probabilities[label]:.3f} (looked at: {looked or 'nothing'})"

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        words, probabilities, pool = self.read(params, texts)
        if figure is not None:
            self.draw(words, probabilities, pool, figure)
        return [self.said_of(*row) for row in zip(words, probabilities, pool)]

    def look_through(self, params, batch):
        """Probabilities [B, classes], the weights, and their rollout."""
        probabilities, weights = self.look(params, batch)
        return with_rollout(weights) | {"probabilities": probabilities}

    def sureness(self, params, batch):
        """The probability [B] of `label`."""
        return jnp.take_along_axis(self.look(params, batch)[0], batch["label"][:, None], axis=1)[:, 0]

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where the model looks in texts, or in the first held-out one of each class."""
        if not texts:
            label = self.data.held_out["test"].label
            texts = [self.data.texts["test"][int(np.argmax(label == one))] for one in np.unique(label)]
        words = self.data.tokenizer.split(list(texts))
        for row, text in zip(words, texts):
            check_length(row[: self.config.data.max_length], text)
        tokens, length = encode(words, self.data.vocabulary, self.config.data.max_length)
        rows = {"tokens": tokens, "length": length}
        found = map_batches(self.look_through, params, rows, EVALUATED)
        probabilities = found["probabilities"]
        rows |= {"label": probabilities.argmax(1).astype(np.int32)}
        without = without_heads(self.sureness, params, rows, found["weights"])
        looked = []
        for i, (text, label) in enumerate(zip(texts, rows["label"])):
            shown, sure = tuple(words[i][: length[i]]) or ("",), float(probabilities[i, label])
            attentions = [pool_attention(found["weights"]["pool_attention"][i], Side(shown))]
            if "encoder_attention" in found["weights"]:
                attentions.append(among_tokens("encoder", i, found, shown, shown, without))
            answer = Answer(str(self.data.names[label]), tuple(attentions), sure, "the probability", sure)
            looked.append(Looked(text, (answer,)))
        return tuple(looked)

    def draw(self, words: list[list[str]], probabilities: np.ndarray, pool: np.ndarray, path: Path) -> Path:
        """The weights of the first texts, a row each, named by the class that is seen in it."""
        shown = [row[:WIDEST] or [""] for row in words[:SHOWN]]
        panels = [[weights[None, : len(row)]] for weights, row in zip(pool, shown)]
        classes = [[[self.data.names[p.argmax()]]] for p in probabilities[:SHOWN]]
        return show_heatmaps(panels, classes, [[row] for row in shown], path, xlabel="", ylabel="")

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """samples.txt, the classes confused with each other, and the words looked at."""
        test, texts, names = self.data.held_out["test"], self.data.texts["test"], self.data.names
        words, probabilities, pool = self.read(params, texts)
        guesses = probabilities.argmax(1)
        lines = [
            f"{text[:100]} -> {self.said_of(*row)}{'' if guess == label else f'   (should be {names[label]})'}"
            for text, guess, label, *row in zip(texts, guesses, test.label, words, probabilities, pool)
        ]
        write_whole(directory.parent / "samples.txt", "\n".join(lines[:SAMPLES]) + "\n")
        confusion = np.zeros((len(names), len(names)), np.int64)
        np.add.at(confusion, (test.label, guesses), 1)
        first = [int(np.argmax(test.label == label)) for label in np.unique(test.label)]  # of each class
        shown = [words[row] for row in first], probabilities[first], pool[first]
        return [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            self.draw(*shown, directory / "attention.png"),
        ]

    def describe(self) -> dict:
        return dict(self.data.facts)
