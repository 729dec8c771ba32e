"""Language models on characters: the next one from those before it. Transformers and recurrent networks alike.

A model has these methods (all batch-major): `hidden(tokens [B, T], train=, look=) -> (hidden [B, T, D],
intermediates)`, `output() -> (kernel [D, V], bias [V])`, `start(batch_size, max_length) -> cache`, `step(cache, token
[B]) -> (logits [B, V], cache, intermediates)` and `__call__(tokens, train=, look=) -> (logits [B, T, V],
intermediates)`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.config import Config
from attention_jax.data import batches, timemachine
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from attention_jax.report.attended import Answer, Looked, check_length
from attention_jax.report.figures import show_heatmaps
from attention_jax.tasks import Evaluation, build_model
from attention_jax.tasks.looking import among_tokens, with_rollout, without_heads
from attention_jax.tasks.pictures import layer_names
from attention_jax.train.parallel import over_rows

EVALUATED = 1_000
"""Windows a batch when evaluating."""
PROMPTS = ("it has", "time traveller")
"""What `report` goes on with, as d2l does; the page's texts are as long as the second: nothing new to compile."""
DRAWN = 24
"""Characters in a figure of attention."""
LOOKED_AT = 2
"""Held-out texts on the page of where a model looks."""
WRITTEN = 20
"""Characters that `predict` adds to a text, as d2l does."""


def build(config: Config) -> "LanguageTask":
    """The task of a language model on the characters of The Time Machine."""
    data = timemachine.load(config.data)
    return LanguageTask(config, data, build_model(config, len(data.vocabulary)))


@dataclass(frozen=True, eq=False)
class LanguageTask:
    """A language model on windows of characters (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: Config
    data: timemachine.Windows
    model: nn.Module

    @property
    def buckets(self) -> tuple[dict, ...]:
        return ({"tokens": self.data.train},)

    def init(self, rng):
        return self.model.init(rng, self.data.train[:1, :-1])["params"]

    def loss(self, params, batch, rng):
        def teacher_forced(module):
            return module.hidden(batch["tokens"][:, :-1], train=True)[0], module.output()

        hidden, (kernel, bias) = self.model.apply({"params": params}, method=teacher_forced, rngs={"dropout": rng})
        targets = batch["tokens"][:, 1:]
        mask = jnp.broadcast_to((batch["weight"] > 0)[:, None], targets.shape)
        rows = (hidden.reshape(-1, hidden.shape[-1]), kernel, bias, targets.reshape(-1), mask.reshape(-1))
        return *linear_cross_entropy(*rows, label_smoothing=self.config.train.label_smoothing), {}

    def plan(self, epoch: int, steps_per_call: int) -> list:
        train = self.config.train
        return batches.plan(train.seed, epoch, [len(self.data.train)], [train.batch_size], steps_per_call)

    def score_rows(self, params, batch):
        """The loss of each window (nats), summed over its characters."""
        logits, _ = self.model.apply({"params": params}, batch["tokens"][:, :-1])
        targets = batch["tokens"][:, 1:]
        return jax.vmap(masked_cross_entropy)(logits, targets, jnp.ones_like(targets, bool))[0]

    def evaluate(self, params, full: bool) -> Evaluation:
        metrics = {}
        for split, rows in self.data.held_out.items():
            nats = over_rows(self.score_rows, params, {"tokens": rows}, EVALUATED)
            per_token = float(nats.sum(dtype=np.float64) / rows[:, 1:].size)
            metrics |= {f"{split}.loss": per_token, f"{split}.perplexity": float(np.exp(min(per_token, 50.0)))}
        return Evaluation(metrics, {})

    def evaluated_with(self) -> dict:
        [rows] = self.data.held_out.values()
        return {"evaluation": (self.score_rows, {"tokens": rows}, EVALUATED)}

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        """Each text and what the model adds to it."""
        results = []
        for text in texts:
            plain = timemachine.letters(text) or " "
            added = continuation(self.model, params, self.encode(plain), WRITTEN)
            results.append(plain + "".join(self.data.vocabulary.decode(added)))
        if figure is not None and self.draw(params, results[0], figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        return results

    def log_p(self, params, batch):
        """The log-probability [B] of all characters of each window but the first."""
        return -self.score_rows(params, batch)

    def look_through(self, params, batch):
        """The weights among the characters, and their rollout."""
        return with_rollout(self.model.apply({"params": params}, batch["tokens"], look=True)[1])

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where the model looks in each text and in what it adds to it."""
        if not texts:
            [rows] = self.data.held_out.values()
            first = rows[:: max(len(rows) // LOOKED_AT, 1), : len(PROMPTS[1])][:LOOKED_AT]
            texts = ["".join(self.data.vocabulary.decode(row)) for row in first]
        for text in texts:
            check_length(text, text)
        looked = [self.looked_at(params, text) for text in self.predict(params, texts, None)]
        return () if None in looked else tuple(looked)

    def looked_at(self, params, text: str) -> Looked | None:
        """Where the model looks in one text; None if it has no attention."""
        batch = {"tokens": np.asarray(self.encode(text))}
        found = over_rows(self.look_through, params, batch, 1)
        if not found["weights"]:
            return None
        value = float(over_rows(self.log_p, params, batch, 1)[0])
        without = without_heads(self.log_p, params, batch, found["weights"])
        attention = among_tokens("decoder", 0, found, tuple(text), tuple(text), without)
        return Looked(text[:-WRITTEN], (Answer(text, (attention,), None, "log p", value),))

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        texts = self.predict(params, list(PROMPTS), None)
        (directory.parent / "samples.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        figure = self.draw(params, texts[1][:DRAWN], directory / "attention.png")
        return [] if figure is None else [figure]

    def describe(self) -> dict:
        return dict(self.data.facts)

    def encode(self, text: str):
        """[1, T] tokens."""
        return jnp.asarray([self.data.vocabulary.encode(text)], jnp.int32)

    def draw(self, params, text: str, path: Path) -> Path | None:
        """Which characters each character looks at: one row of panels a layer, one panel a head. None if the model has
        no attention."""
        _, weights = self.model.apply({"params": params}, self.encode(text), look=True)
        if "decoder_attention" not in weights:
            return None
        weights = np.asarray(weights["decoder_attention"][0])  # [layers, H, T, T]
        names = list(text)
        return show_heatmaps(weights, names, names, path, xlabel="character looked at", **layer_names(weights))


@functools.partial(jax.jit, static_argnames=("model", "length"))
def continuation(model, params, tokens, length: int):
    """[1, T] characters -> the most probable `length` after them, one by one."""

    def one(carry, forced):
        cache, last = carry
        logits, cache, _ = model.apply({"params": params}, cache, jnp.where(forced >= 0, forced, last), method="step")
        chosen = logits.argmax(-1).astype(jnp.int32)
        return (cache, chosen), chosen

    total = tokens.shape[1] + length
    forced = jnp.concatenate([tokens[0], jnp.full((length - 1,), -1, jnp.int32)])
    cache = model.apply({"params": params}, 1, total, method="start")
    _, written = jax.lax.scan(one, (cache, jnp.zeros((1,), jnp.int32)), forced)
    return written[-length:, 0]
