"""Language models: continuations of new texts, and attention maps over them."""

import functools
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import decode
from attention_jax.config import Sampling
from attention_jax.data.text_windows import Windows
from attention_jax.errors import InputError
from attention_jax.files import write_atomically
from attention_jax.report.attention_data import AttentionRecord, Prediction, check_length
from attention_jax.report.heatmaps import show_heatmaps
from attention_jax.tasks import Evaluation
from attention_jax.train.placement import map_batches
from attention_jax.views import View
from attention_jax.views.attention_maps import (
    ablate_heads,
    token_attention,
    top_by_layer,
    with_readings,
    with_rollout,
)
from attention_jax.views.pictures import layer_names

DRAWN = 24
"""Tokens in a figure of attention."""
PROMPTS, PROMPT_TOKENS = 2, 14
"""Held-out texts on the page of attention maps, and the tokens of each that are the prompt."""


class LanguageView(View):
    """Continuations by a language model, and its self-attention."""

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return each text with its continuation."""
        data, results = self.data, []
        for text in texts:
            written = []
            if self.task.sampling.length:
                prompt, unknown = self.encode(text)[:, self.context], data.vocabulary.unk_id
                written = continuation(self.model, params, prompt, self.task.sampling, unknown)
            results.append(data.tokenizer.text([*data.tokenizer.tokens(text), *data.vocabulary.decode(written)]))
        if figure is not None and self.draw(params, results[0], 40, figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        return results

    @property
    def context(self) -> slice:
        """The tokens of a prompt that fit the learned positions together with the continuation: the last ones."""
        limit = self.task.config.model.longest_input
        return slice(None if limit is None else self.task.sampling.length - limit, None)

    def log_p(self, params, batch):
        """Return the log-probability [B] of each window, without its first token."""
        return -self.task.score_rows(params, batch)

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
        batch = {"tokens": np.asarray(self.encode(written))}
        outputs = map_batches(self.attention, params, batch, 1)
        if not outputs["weights"]:
            return None
        value = float(map_batches(self.log_p, params, batch, 1)[0])
        without = ablate_heads(self.log_p, params, batch, outputs["weights"])
        attention = token_attention(
            self.task.config.model, "decoder", 0, outputs, tuple(tokens), tuple(tokens), without
        )
        read = map_batches(self.lens, params, batch, 1)[0]
        attention = with_readings(attention, batch["tokens"][0], read, self.data.vocabulary.decode)
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
        return jnp.asarray([self.data.vocabulary.encode_text(self.data.tokenizer.tokens(text))], jnp.int32)

    def draw(self, params, text: str, most: int, path: Path) -> Path | None:
        """Plot the self-attention of the first `most` tokens, layers by heads; None without attention."""
        batch = {"tokens": np.asarray(self.encode(text))[:, :most]}
        weights = map_batches(self.attention, params, batch, 1)["weights"]
        if "decoder_attention" not in weights:
            return None
        weights = np.asarray(weights["decoder_attention"][0])  # [layers, H, T, T]
        names = self.data.tokenizer.tokens(text)[:most]
        return show_heatmaps(weights, names, names, path, xlabel="key", **layer_names(weights))


@functools.partial(jax.jit, static_argnames=("model", "sampling", "unknown"))
def continuation(model: nn.Module, params, tokens, sampling: Sampling, unknown: int | None = None):
    """Sample a continuation [length] of tokens [1, T], never the `unknown` one; deterministic given the options and the
    seed."""

    def step(token, cache):
        return model.apply({"params": params}, cache, token, method="step")[:2]

    cache = model.apply({"params": params}, 1, tokens.shape[1] + sampling.length, method="start")
    options = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    rng = jax.random.key(sampling.seed)
    return decode.sample(decode.forbid_token(step, unknown), cache, tokens, sampling.length, **options, rng=rng)[0]
