"""Language models on characters: the next one from those before it. Transformers and recurrent networks alike.

A model has these methods (all batch-major): `hidden(tokens [B, T], train=, look=) -> (hidden [B, T, D], intermediates)`,
`output() -> (kernel [D, V], bias [V])`, `start(batch_size, max_length) -> cache`, `step(cache, token [B]) -> (logits [B, V], cache,
intermediates)` and `__call__(tokens, train=, look=) -> (logits [B, T, V], intermediates)`.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.data import batches, timemachine
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from attention_jax.report.figures import show_heatmaps
from attention_jax.tasks import Task
from attention_jax.tasks.transformers import language_model
from attention_jax.train.parallel import over_rows

EVALUATED = 1_000
"""Windows a batch when evaluating."""
WRITTEN = 20
"""Characters that `predict` adds to a text, as d2l does."""


def build_model(config, vocabulary_size: int):
    """The Flax module of a `config.LanguageModel` or `config.RecurrentLanguageModel`."""
    if type(config).__name__ == "LanguageModel":
        return language_model(config, vocabulary_size)
    from attention_jax.models.recurrent_lm import RecurrentLanguageModel

    return RecurrentLanguageModel(vocabulary_size, **vars(config))


def build(config) -> Task:
    """The task of a language model on the characters of The Time Machine."""
    data = timemachine.load(config.data)
    vocabulary = data.vocabulary
    model = build_model(config.model, len(vocabulary))

    def init(rng):
        return model.init(rng, data.train[:1, :-1])["params"]

    def loss(params, batch, rng):
        def teacher_forced(module):
            return module.hidden(batch["tokens"][:, :-1], train=True)[0], module.output()

        hidden, (kernel, bias) = model.apply({"params": params}, method=teacher_forced, rngs={"dropout": rng})
        targets = batch["tokens"][:, 1:]
        mask = jnp.broadcast_to((batch["weight"] > 0)[:, None], targets.shape)
        rows = (hidden.reshape(-1, hidden.shape[-1]), kernel, bias, targets.reshape(-1), mask.reshape(-1))
        return *linear_cross_entropy(*rows, label_smoothing=config.train.label_smoothing), {}

    def score_rows(params, batch):
        """The loss of each window (nats), summed over its characters."""
        logits, _ = model.apply({"params": params}, batch["tokens"][:, :-1])
        wanted = batch["tokens"][:, 1:]
        return jax.vmap(masked_cross_entropy)(logits, wanted, jnp.ones_like(wanted, bool))[0]

    def evaluate(params, full: bool) -> dict:
        metrics = {}
        for split, rows in data.held_out.items():
            per_token = float(
                over_rows(score_rows, params, {"tokens": rows}, EVALUATED).sum(dtype=np.float64) / rows[:, 1:].size
            )
            metrics |= {f"{split}.loss": per_token, f"{split}.perplexity": float(np.exp(min(per_token, 50.0)))}
        return metrics

    @functools.partial(jax.jit, static_argnames="length")
    def go_on(params, tokens, length: int):
        """[1, T] characters and the most probable `length` after them."""

        def one(carry, given):
            cache, last = carry
            logits, cache, _ = model.apply({"params": params}, cache, jnp.where(given >= 0, given, last), method="step")
            chosen = logits.argmax(-1).astype(jnp.int32)
            return (cache, chosen), chosen

        total = tokens.shape[1] + length
        given = jnp.concatenate([tokens[0], jnp.full((length - 1,), -1, jnp.int32)])
        cache = model.apply({"params": params}, 1, total, method="start")
        _, written = jax.lax.scan(one, (cache, jnp.zeros((1,), jnp.int32)), given)
        return written[-length:, 0]

    def predict(params, texts: list[str], figure: Path | None) -> list[str]:
        """Each text and what the model adds to it."""
        results = []
        for text in texts:
            plain = timemachine.letters(text) or " "
            tokens = jnp.asarray([vocabulary.encode(plain)], jnp.int32)
            results.append(plain + "".join(vocabulary.decode(go_on(params, tokens, WRITTEN))))
        if figure is not None:
            draw(params, results[0], figure)
        return results

    def draw(params, text: str, path: Path) -> Path:
        """Which characters each character looks at: one row of panels a layer, one panel a head."""
        tokens = jnp.asarray([vocabulary.encode(text)], jnp.int32)
        _, seen = model.apply({"params": params}, tokens, look=True)
        if "decoder_attention" not in seen:
            raise InputError("this model has no attention to draw; leave --attention out")
        weights = np.asarray(seen["decoder_attention"][0])  # [layers, H, T, T]
        names = [[list(text)] * weights.shape[1]] * weights.shape[0]
        return show_heatmaps(weights, names, names, path, xlabel="character looked at", ylabel="character")

    def report(params, directory: Path) -> list[Path]:
        texts = predict(params, ["it has", "time traveller"], None)
        (directory.parent / "samples.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        attends = "decoder_attention" in jax.eval_shape(
            lambda p, x: model.apply({"params": p}, x, look=True)[1], params, data.train[:1, :-1]
        )
        return [draw(params, texts[1][:24], directory / "attention.png")] if attends else []

    return Task(
        init=init,
        loss=loss,
        buckets=({"tokens": data.train},),
        plan=lambda epoch, steps_per_call: batches.plan(
            config.train.seed, epoch, [len(data.train)], [config.train.batch_size], steps_per_call
        ),
        evaluate=evaluate,
        report=report,
        predict=predict,
        describe=lambda: dict(data.facts),
    )
