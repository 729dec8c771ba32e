"""Language modeling: predict the next character or subword, with Transformers or recurrent networks.

A model has these methods (all batch-major): `hidden(tokens [B, T], train=, return_weights=) -> (hidden [B, T, D],
intermediates)`, `output() -> (kernel [D, V], bias [V])`, `start(batch_size, max_length) -> cache`, `step(cache, token
[B]) -> (logits [B, V], cache, intermediates)` and `__call__(tokens, train=, return_weights=) -> (logits [B, T, V],
intermediates)`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, Sampling
from attention_jax.data.stream import Stream, stream_of
from attention_jax.data.text_windows import Windows
from attention_jax.errors import InputError
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.tasks import Evaluation, Task, build_model, mean_perplexity
from attention_jax.tasks.objectives import readout_loss
from attention_jax.train.placement import map_batches

EVALUATED, LOGITS = 1_000, 2**28
"""Windows per batch in evaluation, and their logits, at most: a pretrained model has a large vocabulary."""


class LanguageTask(Task):
    """A language model on windows of a text; `data` are `Windows`."""

    view = "attention_jax.views.language:LanguageView"
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

    def eval_functions(self) -> dict:
        rows = max(self.data.held_out.values(), key=len)
        return {"evaluation": (self.score_rows, {"tokens": rows}, self.rows_evaluated)}

    def describe(self) -> dict:
        return dict(self.data.facts)
