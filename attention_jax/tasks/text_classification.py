"""Text classification: an encoder with attention pooling on labeled texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, MaskedLanguageModelConfig, replace
from attention_jax.data.batches import length_bucket
from attention_jax.data.labeled_texts import LabeledTexts, encode, read_examples
from attention_jax.data.stream import Stream, stream_of
from attention_jax.data.text_tables import Columns, write_table
from attention_jax.errors import InputError
from attention_jax.files import write_atomically
from attention_jax.ops.losses import masked_cross_entropy, token_accuracy
from attention_jax.report.attention_data import PROBABILITY, AttentionRecord, Axis, Prediction, check_length
from attention_jax.report.class_report import class_bars, reliability, report_classes
from attention_jax.report.heatmaps import Heatmap, layer_heatmaps, show_heatmaps
from attention_jax.report.panels import confusion_matrix, count_confusions
from attention_jax.tasks import Evaluation, Task, build_model, format_classes, loader_of
from attention_jax.tasks.attention_maps import ablate_heads, pool_attention, token_attention, with_rollout
from attention_jax.tasks.objectives import class_loss
from attention_jax.train.placement import map_batches

WORDS = 3
"""The number of words that a prediction lists."""
SAMPLES, SHOWN, WIDEST = 12, 6, 40
"""The numbers of texts in samples.txt, of texts in a figure, and of tokens of each."""

EVALUATED = 256
"""Texts per batch in evaluation."""


class TextTask(Task):
    """A classifier of texts; `data` are `LabeledTexts`."""

    @classmethod
    def load(cls, config: Config) -> LabeledTexts:
        return loader_of(config.data.loader)(config.data, config.train.batch_size)

    @classmethod
    def make_model(cls, config: Config, data: LabeledTexts):
        limit, longest = config.model.longest_input, config.data.max_length
        if limit is not None and longest > limit:
            raise InputError(
                f"--data.max-length must be at most {limit}, the model's learned positions, got {longest}: lower it"
            )
        return build_model(config, len(data.vocabulary), len(data.names))

    @property
    def examples(self) -> tuple[dict, ...]:
        return tuple(texts._asdict() for texts in self.data.train)

    @property
    def stream(self) -> Stream | None:
        return stream_of(self.examples, self.batch_sizes, self.config)

    def init(self, rng):
        first = self.data.train[0]
        return self.model.init(rng, jnp.asarray(first.tokens[:1]), jnp.asarray(first.length[:1]))["params"]

    def loss(self, params, batch, rng):
        inputs = (batch["tokens"], batch["length"])
        logits, _ = self.model.apply({"params": params}, *inputs, train=True, rngs={"dropout": rng})
        label, weight = batch["label"], batch["weight"]
        total, _ = class_loss(self.config.train, logits, label, weight)
        return total, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

    def score_rows(self, params, batch):
        """Return loss and correctness of each text [B]."""
        logits, _ = self.model.apply({"params": params}, batch["tokens"], batch["length"])
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["label"], jnp.ones_like(batch["label"], jnp.float32))
        return {"loss": nats, "accuracy": (logits.argmax(-1) == batch["label"]).astype(jnp.float32)}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Evaluate the validation texts, in `full` also the test texts.

        Balanced accuracy is the mean of the accuracies of the classes: a rare class weighs as much as a frequent one.
        """
        metrics = {}
        for split, texts in self.data.held_out.items() if full else [("valid", self.data.held_out["valid"])]:
            rows = map_batches(self.score_rows, params, texts._asdict(), EVALUATED)
            metrics |= {f"{split}.{name}": float(values.mean(dtype=np.float64)) for name, values in rows.items()}
            of_class = [rows["accuracy"][texts.label == label].mean() for label in np.unique(texts.label)]
            metrics[f"{split}.balanced_accuracy"] = float(np.mean(of_class))
        if not full:
            return Evaluation(metrics)
        test = self.data.held_out["test"]
        probabilities = map_batches(self.classify, params, test._asdict(), EVALUATED)[0]
        classification = {"test": report_classes(test.label, probabilities, self.data.names)}
        return Evaluation(metrics, probabilities={"test": probabilities}, classification=classification)

    def metric_names(self, full: bool) -> list[str]:
        splits = self.data.held_out if full else ["valid"]
        return [f"{split}.{name}" for split in splits for name in ("loss", "accuracy", "balanced_accuracy")]

    def describe(self) -> dict:
        return dict(self.data.facts)

    @property
    def pools_by_attention(self) -> bool:
        """Whether the model weighs words in one place; a pretrained encoder does so in every layer and head only."""
        return not isinstance(self.config.model, MaskedLanguageModelConfig)

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
        words, batch = self.encode_texts(texts)
        return words, *map_batches(self.classify, params, batch, EVALUATED, pad=True)

    def encode_texts(self, texts: list[str]) -> tuple[list[list[str]], dict[str, np.ndarray]]:
        """Return the tokens of each text, at most `data.max_length`, and a batch of them, padded to few lengths."""
        most = self.config.data.max_length
        words = [row[:most] for row in self.data.tokenizer.split(texts)]
        tokens, length = encode(words, self.data.vocabulary, most)
        width = length_bucket(tokens.shape[1], most)
        padding = self.data.vocabulary.pad_id or 0
        tokens = np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])), constant_values=padding)
        return words, {"tokens": tokens, "length": length}

    @property
    def table_columns(self) -> Columns:
        return Columns(text=self.config.data.columns[1])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, self.data.names))

    def probabilities(self, params, texts: list[str]) -> np.ndarray:
        return self.read(params, texts)[1]

    def warm_up(self, params, length: int, rows: int):
        most = self.config.data.max_length
        width = length_bucket(min(length, most), most)
        batch = {"tokens": np.zeros((rows, width), np.int32), "length": np.full(rows, width, np.int32)}
        map_batches(self.classify, params, batch, EVALUATED, pad=True)

    def new_examples(self, path: str) -> Iterator[tuple[str, str]]:
        return read_examples(replace(self.config.data, tsv_file=path), damaged="")

    def summary(self, words: list[str], probabilities: np.ndarray, weights: np.ndarray) -> str:
        """Return a line with the three most probable classes and the words with the largest weights [T], if any."""
        answer = format_classes(self.data.names, probabilities)
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
        words, rows = self.encode_texts(list(texts))
        for row, text in zip(words, texts):
            check_length(row, text)
        outputs = map_batches(self.attention, params, rows, EVALUATED, pad=True)
        probabilities = outputs["probabilities"]
        rows |= {"label": probabilities.argmax(1).astype(np.int32)}
        without = ablate_heads(self.confidence, params, rows, outputs["weights"])
        records = []
        for i, (text, label) in enumerate(zip(texts, rows["label"])):
            text_words, sure = tuple(words[i]) or ("",), float(probabilities[i, label])
            attentions = []
            if self.pools_by_attention:
                attentions.append(pool_attention(outputs["weights"]["pool_attention"][i], Axis(text_words)))
            if "encoder_attention" in outputs["weights"]:
                attentions.append(
                    token_attention(self.config.model, "encoder", i, outputs, text_words, text_words, without)
                )
            answer = Prediction(str(self.data.names[label]), tuple(attentions), sure, PROBABILITY, sure)
            records.append(AttentionRecord(text, (answer,)))
        return tuple(records)

    def draw(self, params, words: list[list[str]], probabilities, pool, path: Path) -> Path:
        """Plot the pooling weights of the first texts, labeled with the predicted classes; of another pooling the
        self-attention of the first text, layers by heads."""
        if not self.pools_by_attention:
            tokens, length = encode(words[:1], self.data.vocabulary, self.config.data.max_length)
            batch = {"tokens": tokens[:, :WIDEST], "length": np.minimum(length, WIDEST).astype(np.int32)}
            weights = map_batches(self.attention, params, batch, 1)["weights"]["encoder_attention"][0]
            names = words[0][:WIDEST]
            return show_heatmaps(layer_heatmaps(weights, names, names), path)
        rows = [row[:WIDEST] or [""] for row in words[:SHOWN]]
        classes = [self.data.names[p.argmax()] for p in probabilities[:SHOWN]]
        panels = [[Heatmap(weights[None, : len(row)], [kind], row)] for weights, kind, row in zip(pool, classes, rows)]
        return show_heatmaps(panels, path, xlabel="", ylabel="")

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
        """Write samples.txt and mistakes.csv, plot confusions, the metrics of each class, calibration and the pooling
        weights."""
        test, texts, names = self.data.held_out["test"], self.data.texts["test"], self.data.names
        words, probabilities, pool = self.read(params, texts[:SAMPLES])
        guesses = probabilities.argmax(1)
        lines = [
            f"{text[:100]} -> {self.summary(*row)}{'' if guess == label else f'   (should be {names[label]})'}"
            for text, guess, label, *row in zip(texts, guesses, test.label, words, probabilities, pool)
        ]
        write_atomically(directory.parent / "samples.txt", "\n".join(lines) + "\n")
        probabilities = evaluation.probabilities["test"]
        write_mistakes(names, texts, test.label, probabilities, directory.parent / "mistakes.csv")
        first = [int(np.argmax(test.label == label)) for label in np.unique(test.label)]  # of each class
        confusion = count_confusions(test.label, probabilities.argmax(1), len(names))
        return [
            confusion_matrix(confusion, names, directory / "confusion.png"),
            class_bars(evaluation.classification["test"], directory / "classes.png"),
            reliability(evaluation.classification["test"], directory / "reliability.png"),
            self.draw(params, *self.read(params, [texts[row] for row in first]), directory / "attention.png"),
        ]


def write_mistakes(names: Sequence[str], texts: Sequence[str], label, probabilities: np.ndarray, path: Path):
    """Write a table of the texts whose most probable class, of probabilities [N, classes], is not their `label` [N]."""
    columns, guesses = ("label", "predicted", "probability", "text"), probabilities.argmax(1)
    wrong = np.flatnonzero(guesses != label)
    rows = [(names[label[i]], names[guesses[i]], f"{probabilities[i].max():.6g}", texts[i]) for i in wrong]
    with write_table(path, columns) as write:
        write([dict(zip(columns, row, strict=True)) for row in rows])
