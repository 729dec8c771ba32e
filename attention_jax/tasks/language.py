"""Language models: the next character, or piece of a word, from those before it. Transformers and recurrent networks
alike.

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

from attention_jax import InputError, decode
from attention_jax.config import Config, Sampling, named
from attention_jax.data import batches
from attention_jax.data.text_windows import Windows
from attention_jax.files import write_whole
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from attention_jax.report.attended import Answer, Looked, check_length
from attention_jax.report.figures import show_heatmaps
from attention_jax.tasks import Evaluation, build_model, load_once
from attention_jax.tasks.looking import among_tokens, with_rollout, without_heads
from attention_jax.tasks.pictures import layer_names
from attention_jax.train.placement import map_batches

EVALUATED = 1_000
"""Windows a batch when evaluating."""
DRAWN = 24
"""Tokens in a figure of attention."""
LOOKED_AT, BEGUN = 2, 14
"""Held-out texts on the page of where a model looks, and how many tokens of each it goes on with."""


def build(config: Config) -> "LanguageTask":
    """The task of a language model on the text that its data name."""
    if not isinstance(config.decode, Sampling | None):
        raise InputError("a language model continues texts: give its configuration decode=Sampling(), or none")
    data = load_once(named(config.data.loader), config.data)
    limit = config.model.longest_input
    task = LanguageTask(config, data, build_model(config, len(data.vocabulary)))
    if limit is not None and task.sampling.length >= limit:
        raise InputError(
            f"a text and the {task.sampling.length} tokens that are added to it need as many learned positions, got "
            f"--model.max-length {limit}: raise it, or add fewer with --decode.length"
        )
    return task


@dataclass(frozen=True, eq=False)
class LanguageTask:
    """A language model on windows of a text (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: Config
    data: Windows
    model: nn.Module

    @property
    def said(self) -> str:
        return self.data.said

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
        """The loss of each window (nats), summed over its tokens."""
        logits, _ = self.model.apply({"params": params}, batch["tokens"][:, :-1])
        targets = batch["tokens"][:, 1:]
        return jax.vmap(masked_cross_entropy)(logits, targets, jnp.ones_like(targets, bool))[0]

    def evaluate(self, params, full: bool) -> Evaluation:
        metrics = {}
        for split, rows in self.data.held_out.items():
            nats = map_batches(self.score_rows, params, {"tokens": rows}, EVALUATED)
            per_token = float(nats.sum(dtype=np.float64) / rows[:, 1:].size)
            metrics |= {f"{split}.loss": per_token, f"{split}.perplexity": float(np.exp(min(per_token, 50.0)))}
            if self.data.characters_per_token:
                metrics[f"{split}.bits_per_character"] = per_token / self.data.characters_per_token[split] / np.log(2.0)
            for name, known in self.data.known.get(split, {}).items():
                metrics[f"{split}.loss_less_{name}"] = per_token - known
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        names = ["loss", "perplexity"] + ["bits_per_character"] * bool(self.data.characters_per_token)
        less = [f"{split}.loss_less_{name}" for split in self.data.held_out for name in self.data.known.get(split, {})]
        return [f"{split}.{name}" for split in self.data.held_out for name in names] + less

    def evaluated_with(self) -> dict:
        rows = max(self.data.held_out.values(), key=len)
        return {"evaluation": (self.score_rows, {"tokens": rows}, EVALUATED)}

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        """Each text and what the model adds to it."""
        data, results = self.data, []
        for text in texts:
            begun, written = self.encode(text), []
            if self.sampling.length:
                written = continuation(self.model, params, begun[:, self.remembered], self.sampling)
            results.append(data.tokenizer.text([*data.tokenizer.tokens(text), *data.vocabulary.decode(written)]))
        if figure is not None and self.draw(params, results[0], 40, figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        return results

    @property
    def remembered(self) -> slice:
        """The tokens of a text that are gone on with: the last ones, where learned positions must do for what is added
        too."""
        limit = self.config.model.longest_input
        return slice(None if limit is None else self.sampling.length - limit, None)

    @property
    def sampling(self) -> Sampling:
        """How texts are continued: the configuration's choice, or else that of the data."""
        return self.config.decode or self.data.sampling

    def log_p(self, params, batch):
        """The log-probability [B] of all tokens of each window but the first."""
        return -self.score_rows(params, batch)

    def look_through(self, params, batch):
        """The weights among the tokens, and their rollout."""
        return with_rollout(self.model.apply({"params": params}, batch["tokens"], look=True)[1])

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where the model looks in each text and in what it adds to it."""
        if not texts:
            rows = next(iter(self.data.held_out.values()))
            first = rows[:: max(len(rows) // LOOKED_AT, 1), :BEGUN][:LOOKED_AT]
            texts = [self.data.tokenizer.text(self.data.vocabulary.decode(row)) for row in first]
        looked = [self.looked_at(params, *pair) for pair in zip(texts, self.predict(params, texts, None))]
        return () if None in looked else tuple(looked)

    def looked_at(self, params, text: str, written: str) -> Looked | None:
        """Where the model looks in a text and what it wrote after it; None if it has no attention."""
        tokens = self.data.tokenizer.tokens(written)
        check_length(tokens, written)
        batch = {"tokens": np.asarray(self.encode(written))}
        found = map_batches(self.look_through, params, batch, 1)
        if not found["weights"]:
            return None
        value = float(map_batches(self.log_p, params, batch, 1)[0])
        without = without_heads(self.log_p, params, batch, found["weights"])
        attention = among_tokens("decoder", 0, found, tuple(tokens), tuple(tokens), without)
        return Looked(text, (Answer(written, (attention,), None, "log p", value),))

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        texts = self.predict(params, list(self.data.beginnings), None)
        write_whole(directory.parent / "samples.txt", "\n".join(texts) + "\n")
        figure = self.draw(params, texts[-1], DRAWN, directory / "attention.png")
        return [] if figure is None else [figure]

    def describe(self) -> dict:
        return dict(self.data.facts)

    def encode(self, text: str):
        """[1, T] tokens."""
        return jnp.asarray([self.data.vocabulary.encode(self.data.tokenizer.tokens(text))], jnp.int32)

    def draw(self, params, text: str, most: int, path: Path) -> Path | None:
        """Which tokens each token looks at, of the first `most`: one row of panels a layer, one panel a head. None if
        the model has no attention."""
        tokens = self.encode(text)[:, :most]
        _, weights = self.model.apply({"params": params}, tokens, look=True)
        if "decoder_attention" not in weights:
            return None
        weights = np.asarray(weights["decoder_attention"][0])  # [layers, H, T, T]
        names = self.data.tokenizer.tokens(text)[:most]
        return show_heatmaps(weights, names, names, path, xlabel="token looked at", **layer_names(weights))


@functools.partial(jax.jit, static_argnames=("model", "sampling"))
def continuation(model: nn.Module, params, tokens, sampling: Sampling):
    """[1, T] tokens -> what the model writes after them, [length]; always the same for the same options and seed."""

    def step(token, cache):
        return model.apply({"params": params}, cache, token, method="step")[:2]

    cache = model.apply({"params": params}, 1, tokens.shape[1] + sampling.length, method="start")
    options = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    rng = jax.random.key(sampling.seed)
    return decode.sample(step, cache, tokens, sampling.length, **options, rng=rng)[0]
