"""Text classification: an encoder with attention pooling on labeled texts."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config
from attention_jax.data.labeled_texts import LabeledTexts
from attention_jax.data.stream import Stream, stream_of
from attention_jax.errors import InputError
from attention_jax.ops.losses import masked_cross_entropy, token_accuracy
from attention_jax.tasks import Evaluation, Task, build_model, loader_of
from attention_jax.tasks.objectives import class_loss
from attention_jax.train.placement import map_batches

EVALUATED = 256
"""Texts per batch in evaluation."""


class TextTask(Task):
    """A classifier of texts; `data` are `LabeledTexts`."""

    view = "attention_jax.views.text_classification:TextView"

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
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        splits = self.data.held_out if full else ["valid"]
        return [f"{split}.{name}" for split in splits for name in ("loss", "accuracy", "balanced_accuracy")]

    def eval_functions(self) -> dict:
        largest = max(self.data.held_out.values(), key=lambda texts: texts.tokens.size)
        return {"evaluation": (self.score_rows, largest._asdict(), EVALUATED)}

    def describe(self) -> dict:
        return dict(self.data.facts)
