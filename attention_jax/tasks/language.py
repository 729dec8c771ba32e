"""Language modeling: predict the next character or subword, with Transformers or recurrent networks.

A model has these methods (all batch-major): `hidden(tokens [B, T], train=, return_weights=) -> (hidden [B, T, D],
intermediates)`, `output() -> (kernel [D, V], bias [V])`, `start(batch_size, max_length) -> cache`, `step(cache, token
[B]) -> (logits [B, V], cache, intermediates)` and `__call__(tokens, train=, return_weights=) -> (logits [B, T, V],
intermediates)`.
"""

import functools
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, LanguageModelConfig, Sampling
from attention_jax.data.batches import length_bucket
from attention_jax.data.stream import Stream, stream_of
from attention_jax.data.text_windows import Windows
from attention_jax.decode import forbid_token
from attention_jax.errors import InputError
from attention_jax.files import write_atomically
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.report.heatmaps import layer_heatmaps, show_heatmaps
from attention_jax.sampling import sample
from attention_jax.tasks import Evaluation, Task, build_model, mean_perplexity, text_metrics
from attention_jax.tasks.attention_maps import (
    ablate_heads,
    token_attention,
    top_by_layer,
    with_readings,
    with_rollout,
)
from attention_jax.tasks.objectives import readout_loss
from attention_jax.train.placement import map_batches

DRAWN = 24
"""Tokens in a figure of attention."""
PROMPTS, PROMPT_TOKENS = 2, 14
"""Held-out texts on the page of attention maps, and the tokens of each that are the prompt."""

EVALUATED, LOGITS = 1_000, 2**28
"""Windows per batch in evaluation, and their logits, at most: a pretrained model has a large vocabulary."""


class LanguageTask(Task):
    """A language model on windows of a text; `data` are `Windows`."""

    eval_means = ("examples", "batches")

    @classmethod
    def make_model(cls, config: Config, data: Windows):
        if not isinstance(config.decode, Sampling | None):
            raise InputError("a language model continues texts: give its configuration decode=Sampling(), or none")
        limit, added = config.model.longest_input, (config.decode or data.sampling).length
        if limit is not None and added >= limit:
            raise InputError(
                f"a text and the {added} tokens that are added to it need as many learned positions, got "
                f"--model.max-length {limit}: raise it, or add fewer with --decode.length"
            )
        return build_model(config, len(data.vocabulary))

    @property
    def sampling(self) -> Sampling:
        """The sampling options of the configuration, by default of the data."""
        return self.config.decode or self.data.sampling

    @property
    def rows_evaluated(self) -> int:
        """Windows per batch in evaluation."""
        return max(min(EVALUATED, LOGITS // (self.data.train.shape[1] * len(self.data.vocabulary))), 1)

    @property
    def examples(self) -> tuple[dict, ...]:
        return ({"tokens": self.data.train},)

    @property
    def stream(self) -> Stream | None:
        return stream_of(self.examples, self.batch_sizes, self.config)

    def init(self, rng):
        return self.model.init(rng, self.data.train[:1][:, :-1])["params"]

    def loss(self, params, batch, rng):
        def teacher_forced(module):
            return module.hidden(batch["tokens"][:, :-1], train=True)[0], module.output()

        hidden, (kernel, bias) = self.model.apply({"params": params}, method=teacher_forced, rngs={"dropout": rng})
        targets = batch["tokens"][:, 1:]
        mask = jnp.broadcast_to((batch["weight"] > 0)[:, None], targets.shape)
        rows = (hidden.reshape(-1, hidden.shape[-1]), kernel, bias, targets.reshape(-1), mask.reshape(-1))
        return *readout_loss(self.config.train, *rows, cap=self.config.model.logit_cap), {}

    def score_rows(self, params, batch):
        """Return the loss of each window [B] in nats, summed over its tokens."""
        logits, _ = self.model.apply({"params": params}, batch["tokens"][:, :-1])
        targets = batch["tokens"][:, 1:]
        return jax.vmap(masked_cross_entropy)(logits, targets, jnp.ones_like(targets, bool))[0]

    def evaluate(self, params, full: bool) -> Evaluation:
        metrics = {}
        for split, rows in self.data.held_out.items():
            nats = map_batches(self.score_rows, params, {"tokens": rows}, self.rows_evaluated)
            tokens = rows.shape[1] - 1
            chunks = (nats[chunk] for chunk in self.eval_slices(len(rows)))
            losses = [chunk.sum(dtype=np.float64) / (len(chunk) * tokens) for chunk in chunks]
            per_token, perplexity = float(np.mean(losses)), mean_perplexity(losses)
            metrics |= {f"{split}.loss": per_token, f"{split}.perplexity": perplexity}
            if self.data.characters_per_token:
                metrics[f"{split}.bits_per_character"] = per_token / self.data.characters_per_token[split] / np.log(2.0)
            for name, baseline in self.data.known.get(split, {}).items():
                metrics[f"{split}.loss_less_{name}"] = per_token - baseline
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        names = ["loss", "perplexity"] + ["bits_per_character"] * bool(self.data.characters_per_token)
        less = [f"{split}.loss_less_{name}" for split in self.data.held_out for name in self.data.known.get(split, {})]
        return [f"{split}.{name}" for split in self.data.held_out for name in names] + less

    def describe(self) -> dict:
        return dict(self.data.facts)

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return each text with its continuation."""
        data, results = self.data, []
        for text in texts:
            written = self.continue_prompt(params, self.encode(text)) if self.sampling.length else []
            results.append(data.tokenizer.text([*data.tokenizer.tokens(text), *data.vocabulary.decode(written)]))
        if figure is not None and self.draw(params, results[0], 40, figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        return results

    def continue_prompt(self, params, prompt: np.ndarray):
        """Return the tokens that follow a prompt [1, T]."""
        limit, unknown = self.config.model.longest_input, self.data.vocabulary.unk_id
        padded, length = pad_prompt(prompt[:, self.context], None if limit is None else limit - self.sampling.length)
        return continuation(self.model, params, padded, self.sampling, unknown, length)

    def warm_up(self, params, length: int, rows: int):
        if self.sampling.length:
            self.continue_prompt(params, np.zeros((1, length), np.int32))

    @property
    def context(self) -> slice:
        """The tokens of a prompt that fit the learned positions together with the continuation: the last ones."""
        limit = self.config.model.longest_input
        return slice(None if limit is None else self.sampling.length - limit, None)

    def log_p(self, params, batch):
        """Return the log-probability [B] of padded texts, without their first tokens."""
        logits, _ = self.model.apply({"params": params}, batch["tokens"][:, :-1])
        targets = batch["tokens"][:, 1:]
        mask = jnp.arange(targets.shape[1])[None] < batch["length"][:, None] - 1
        return -jax.vmap(masked_cross_entropy)(logits, targets, mask)[0]

    def perplexity(self, params, text: str) -> dict[str, float]:
        """Return loss in nats per token, perplexity and bits per character of a new text, in windows as those of the
        training, which begin with the last token of the one before: all tokens but the first are predicted once."""
        ids, width = self.encode(text)[0], self.data.train.shape[1]
        if len(ids) < 2:
            raise InputError(f"a text to evaluate needs at least two tokens; this one has {len(ids)}")
        windows = [ids[first : first + width] for first in range(0, len(ids) - 1, width - 1)]
        rows = np.stack([np.pad(window, (0, width - len(window))) for window in windows])
        batch = {"tokens": rows, "length": np.array([len(window) for window in windows], np.int32)}
        nats = -float(map_batches(self.log_p, params, batch, self.rows_evaluated).sum(dtype=np.float64))
        metrics = text_metrics(nats, len(ids) - 1, width - 1, len(ids), len(text))
        unknown = int((ids == self.data.vocabulary.unk_id).sum())
        return {"tokens": metrics["tokens"], "unknown_tokens": unknown} | metrics

    def attention(self, params, batch):
        """Return the self-attention weights and their rollout."""
        return with_rollout(self.model.apply({"params": params}, batch["tokens"], return_weights=True)[1])

    def lens(self, params, batch):
        """Return what the logit lens reads after each layer, [B, layers, T]."""
        return top_by_layer(self.model, params, batch["tokens"])

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the self-attention over each text and its continuation."""
        if not texts:
            rows = next(iter(self.data.held_out.values()))
            first = rows[:: max(len(rows) // PROMPTS, 1)][:PROMPTS, :PROMPT_TOKENS]
            texts = [self.data.tokenizer.text(self.data.vocabulary.decode(row)) for row in first]
        records = [self.attention_map(params, *pair) for pair in zip(texts, self.predict(params, texts, None))]
        return () if None in records else tuple(records)

    def attention_map(self, params, text: str, written: str) -> AttentionRecord | None:
        """Return the self-attention over `written`, a text with its continuation; None without attention."""
        tokens = self.data.tokenizer.tokens(written)
        check_length(tokens, written)
        if len(tokens) < 2:
            raise InputError(
                f"attention maps of a language model need at least two tokens; {written!r} has {len(tokens)}"
            )
        ids = self.encode(written)
        padded, length = pad_prompt(ids, self.config.model.longest_input)
        batch = {"tokens": padded, "length": np.array([length], np.int32)}
        outputs = map_batches(self.attention, params, batch, 1)
        if not outputs["weights"]:
            return None
        value = float(map_batches(self.log_p, params, batch, 1)[0])
        without = ablate_heads(self.log_p, params, batch, outputs["weights"])
        attention = token_attention(self.config.model, "decoder", 0, outputs, tuple(tokens), tuple(tokens), without)
        has_sites = isinstance(self.config.model, LanguageModelConfig)  # a model of one's own need not name them
        read = map_batches(self.lens, params, batch, 1)[0] if has_sites else None
        attention = with_readings(attention, ids[0], read, self.data.vocabulary.decode)
        return AttentionRecord(text, (Prediction(written, (attention,), None, "log p", value),))

    def excerpt(self) -> Windows:
        """Return one training window, for its shape, and the held-out windows of `attention_maps`."""
        held_out = {name: rows[:: max(len(rows) // PROMPTS, 1)][:PROMPTS] for name, rows in self.data.held_out.items()}
        return self.data._replace(train=self.data.train[:1], held_out=held_out)

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        texts = self.predict(params, list(self.data.beginnings), None)
        write_atomically(directory.parent / "samples.txt", "\n".join(texts) + "\n")
        figure = self.draw(params, texts[-1], DRAWN, directory / "attention.png")
        return [] if figure is None else [figure]

    def encode(self, text: str):
        """Return tokens [1, T]."""
        return np.array([self.data.vocabulary.encode_text(self.data.tokenizer.tokens(text))], np.int32)

    def draw(self, params, text: str, most: int, path: Path) -> Path | None:
        """Plot the self-attention of the first `most` tokens, layers by heads; None without attention."""
        batch = {"tokens": self.encode(text)[:, :most]}
        weights = map_batches(self.attention, params, batch, 1)["weights"]
        if "decoder_attention" not in weights:
            return None
        weights = np.asarray(weights["decoder_attention"][0])  # [layers, H, T, T]
        names = self.data.tokenizer.tokens(text)[:most]
        return show_heatmaps(layer_heatmaps(weights, names, names), path)


def pad_prompt(tokens, limit: int | None) -> tuple[np.ndarray, int]:
    """Return tokens [1, T] with zeros after them, as many as `length_bucket` says, and T."""
    length = tokens.shape[1]
    return np.pad(tokens, ((0, 0), (0, length_bucket(length, limit) - length))), length


@functools.partial(jax.jit, static_argnames=("model", "sampling", "unknown"))
def continuation(model: nn.Module, params, tokens, sampling: Sampling, unknown: int | None = None, length=None):
    """Sample a continuation of tokens [1, T], never the `unknown` one; deterministic given the options and the seed.

    What follows the first `length` tokens is padding.
    """

    def step(token, cache):
        return model.apply({"params": params}, cache, token, method="step")[:2]

    cache = model.apply({"params": params}, 1, tokens.shape[1] + sampling.length, method="start")
    options = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    options |= {"rng": jax.random.key(sampling.seed), "prompt_length": length}
    return sample(forbid_token(step, unknown), cache, tokens, sampling.length, **options)[0]
