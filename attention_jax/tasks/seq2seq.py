"""Sequence-to-sequence learning: every encoder-decoder of `models` on every pair dataset of `data`.

A model has these methods (all batch-major): `encode(source [B, S], source_length [B], train=) -> memory`,
`decode(memory, target_in [B, T], train=, return_weights=) -> (hidden [B, T, D], intermediates)`, `output() ->
(kernel [D, V], bias [V])`, `start(memory, max_length) -> cache`, `step(cache, token [B]) -> (logits [B, V], cache,
intermediates)` and `__call__(source, source_length, target_in, train=, return_weights=) -> (logits [B, T, V],
intermediates)`. If the options of a model have `supports_packing`, its `encode` and `decode` also take `segment=`, the
number of the pair that each token of a packed sequence belongs to.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, Decode, model_name
from attention_jax.data.pairs import PairData, Pairs, decode_targets, references
from attention_jax.data.stream import Stream, stream_of
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.ops.positions import positions_within
from attention_jax.tasks import Evaluation, Task, build_model, loader_of, mean_perplexity
from attention_jax.tasks.generation import generate
from attention_jax.tasks.objectives import readout_loss
from attention_jax.tasks.scoring import are_sentences, score_names, score_outputs
from attention_jax.train.placement import map_batches

SAMPLES = 8
"""The number of held-out sources in samples.txt, with generated targets."""


def target_mask(batch) -> jax.Array:
    """Return the padding mask [B, T] of the targets after bos; True for a token to predict."""
    return jnp.arange(batch["target"].shape[1] - 1)[None] < batch["target_length"][:, None]


def target_in(batch) -> jax.Array:
    """Return the decoder's inputs [B, T] with teacher forcing; in a packed sequence every target begins with bos."""
    if "target_segment" not in batch:
        return batch["target"][:, :-1]
    begins = positions_within(batch["target_segment"]) == 0
    return jnp.where(begins, batch["target"][:, :1], batch["target"][:, :-1])


def segment(batch, side: str) -> dict[str, jax.Array]:
    """Return {"segment": pair of each token} of one side of packed sequences, {} without packing."""
    name = f"{side}_segment"
    return {"segment": batch[name]} if name in batch else {}


def words(tokens: np.ndarray, length: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Return the number of tokens [N] of padded sequences [N, T] that are neither bos nor eos."""
    special = [number for number in (vocabulary.bos_id, vocabulary.eos_id) if number is not None]
    return ((np.arange(tokens.shape[1])[None] < length[:, None]) & ~np.isin(tokens, special)).sum(1)


def by_lengths(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the order of pairs by the lengths [N] of both sides, whose bits alternate, as torchtext sorts them.

    >>> by_lengths(np.array([2, 2, 1, 1]), np.array([2, 1, 2, 1])).tolist()
    [3, 2, 1, 0]
    """
    bits = np.arange(16)
    apart = lambda lengths: (((lengths[:, None] >> bits) & 1) << (2 * bits)).sum(1)
    return np.argsort(2 * apart(source) + apart(target), kind="stable")


def per_token(name: str, rows: dict, slices: Sequence[slice]) -> list[float]:
    """Return the total of `name` over the number of tokens, for every part of the rows that `score_rows` returns."""
    return [float(rows[name][i].sum() / rows["tokens"][i].sum()) for i in slices]


def check_packing(config: Config) -> None:
    """Raise InputError for sequence packing that the model does not support or has too few positions for."""
    if config.data.packing and not config.model.supports_packing:
        raise InputError(
            f"--data.packing needs a model that supports packed sequences, which {model_name(config.model)} "
            "does not: give --data.packing 0, or train a Transformer"
        )
    longest, limit = config.data.max_length, config.model.longest_input
    if config.data.packing and limit is not None and longest > limit:
        raise InputError(
            f"packed sentences of --data.max-length {longest} tokens need as many learned positions, got "
            f"--model.max-length {limit}: raise it to {longest}, or take shorter sentences"
        )


class Seq2seqTask(Task):
    """An encoder-decoder on pairs of sequences; `data` is a `PairData`."""

    view = "attention_jax.views.seq2seq:Seq2seqView"
    eval_means = ("examples", "batches", "sorted-batches")

    @classmethod
    def load(cls, config: Config) -> PairData:
        check_packing(config)
        return loader_of(config.data.loader)(config.data, config.train.batch_size)

    @classmethod
    def make_model(cls, config: Config, data: PairData):
        if not isinstance(config.decode, Decode):
            raise InputError("a sequence-to-sequence model needs decoding options: give its configuration Decode()")
        source, target = data.source_vocabulary, data.target_vocabulary
        if config.model.needs_joint_vocabulary and source.tokens != target.tokens:
            raise InputError(
                f"--model.tied-embeddings {config.model.tied_embeddings} needs one vocabulary for both languages, got "
                f"two different ones of {len(source)} tokens: give --data.joint-vocabulary, or --model.tied-embeddings "
                "output"
            )
        return build_model(config, len(source), len(target))

    @property
    def examples(self) -> tuple[dict, ...]:
        return tuple(pairs._asdict() for pairs in self.data.train)

    @property
    def stream(self) -> Stream | None:
        return stream_of(self.examples, self.batch_sizes, self.config)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return self.data.batch_sizes

    def init(self, rng):
        limit, longest = self.config.model.longest_input, self.decoding_limits["max_length"]
        if limit is not None and longest > limit:  # found here, and not when the final evaluation decodes
            raise InputError(
                f"decoding up to {longest} tokens needs as many learned positions, got --model.max-length {limit}: "
                "raise it, or lower --decode.max-length"
            )
        first = self.data.train[0]
        row = map(jnp.asarray, (first.source[:1], first.source_length[:1], first.target[:1][:, :-1]))
        return self.model.init(rng, *row)["params"]

    def loss(self, params, batch, rng):
        def teacher_forced(module):
            memory = module.encode(batch["source"], batch["source_length"], train=True, **segment(batch, "source"))
            hidden, _ = module.decode(memory, target_in(batch), train=True, **segment(batch, "target"))
            return hidden, module.output()

        hidden, (kernel, bias) = self.model.apply({"params": params}, method=teacher_forced, rngs={"dropout": rng})
        mask = target_mask(batch) & (batch["weight"] > 0)[:, None]
        hidden, targets = hidden.reshape(-1, hidden.shape[-1]), batch["target"][:, 1:].reshape(-1)
        rows = (hidden, kernel, bias, targets, mask.reshape(-1))
        return *readout_loss(self.config.train, *rows), {}

    @property
    def eval_batch_size(self) -> int:
        """Sequences per batch in evaluation."""
        return self.config.decode.batch_size if are_sentences(self.data) else 512

    def score_rows(self, params, batch):
        """Return summed loss, tokens and correct tokens of each pair [B], with teacher forcing."""
        inputs = (batch["source"], batch["source_length"], batch["target"][:, :-1])
        logits, _ = self.model.apply({"params": params}, *inputs)
        mask, targets = target_mask(batch), batch["target"][:, 1:]
        total, count = jax.vmap(masked_cross_entropy)(logits, targets, mask)
        return {"loss": total, "tokens": count, "correct": ((logits.argmax(-1) == targets) & mask).sum(1)}

    @property
    def decoding_limits(self) -> dict:
        """The special tokens and the maximum length T of decoding.

        T is `decode.max_length`, or 1.5 times the longest training or validation target (with packing at most
        `data.max_length`). Targets of one fixed length, such as dates, have that length.
        """
        vocabulary, longest = self.data.target_vocabulary, self.config.decode.max_length
        if not longest:
            visible_pairs = [
                *self.data.train,
                *(pairs for name, pairs in self.data.held_out.items() if name == "valid"),
            ]
            longest = max(int(pairs.target_length.max()) for pairs in visible_pairs)
            if are_sentences(self.data):
                longest = min(longest, self.config.data.max_length or longest)
                longest += longest // 2
        special = {"bos": vocabulary.bos_id, "eos": vocabulary.eos_id, "pad": vocabulary.pad_id or 0}
        return special | {"max_length": longest}

    def generate(self, params, batch):
        """Decode tokens [B, T]."""
        return generate(self.model, params, batch, self.config.decode, **self.decoding_limits)

    def evaluate(self, params, full: bool) -> Evaluation:
        """Evaluate the first held-out split without decoding sentences; in `full` every split, with decoding."""
        metrics, written, sentences = {}, {}, are_sentences(self.data)
        for split in list(self.data.held_out)[: None if full else 1]:
            pairs = self.data.held_out[split]
            rows = map_batches(self.score_rows, params, pairs._asdict(), self.eval_batch_size)
            if self.config.train.eval_mean == "sorted-batches":
                order = self.by_words(pairs)
                rows = {name: values[order] for name, values in rows.items()}
            slices = self.eval_slices(len(rows["loss"]))
            losses = per_token("loss", rows, slices)
            metrics[f"{split}.loss"] = float(np.mean(losses))
            metrics[f"{split}.token_accuracy"] = float(np.mean(per_token("correct", rows, slices)))
            if full or not sentences:
                sources = {"source": pairs.source, "source_length": pairs.source_length}
                written[split] = map_batches(self.generate, params, sources, self.eval_batch_size)
                scores = score_outputs(self.data, split, written[split])
                metrics |= {f"{split}.{name}": value for name, value in scores.items()}
            if sentences:
                metrics[f"{split}.perplexity"] = mean_perplexity(losses)
        return Evaluation(metrics, written, self.samples(written))

    def by_words(self, pairs: Pairs) -> np.ndarray:
        """Return the order of pairs by the number of words on both sides."""
        source = words(pairs.source, pairs.source_length, self.data.source_vocabulary)
        target = words(pairs.target[:, 1:], pairs.target_length, self.data.target_vocabulary)
        return by_lengths(source, target)

    def metric_names(self, full: bool) -> list[str]:
        sentences, names = are_sentences(self.data), []
        for split in list(self.data.held_out)[: None if full else 1]:
            names += [f"{split}.loss", f"{split}.token_accuracy"] + [f"{split}.perplexity"] * sentences
            if full or not sentences:
                names += [f"{split}.{score}" for score in score_names(self.data, split)]
        return names

    def samples(self, written: dict[str, np.ndarray]) -> tuple[str, ...]:
        """Return lines with the outputs for the first texts of the first decoded split."""
        split = next(iter(written), None)
        return sample_lines(self.data, split, written[split][:SAMPLES]) if split else ()

    def eval_functions(self) -> dict:
        largest = max(self.data.held_out.values(), key=lambda pairs: pairs.source.size + pairs.target.size)._asdict()
        sources = {name: largest[name] for name in ("source", "source_length")}
        size = self.eval_batch_size
        return {"evaluation": (self.score_rows, largest, size), "decoding": (self.generate, sources, size)}

    def describe(self) -> dict:
        sizes = {
            "source_vocabulary": len(self.data.source_vocabulary),
            "target_vocabulary": len(self.data.target_vocabulary),
        }
        return sizes | self.data.facts


def sample_lines(data: PairData, split: str, tokens: np.ndarray) -> tuple[str, ...]:
    """Return one line for each of the first texts of a split: source, output of `tokens` [N, T], and reference."""
    targets = references(data, split) if are_sentences(data) else data.texts[split].target
    return tuple(
        f"{text.strip()} -> {output}{'' if output == target else f'   (should be {target})'}"
        for text, output, target in zip(data.texts[split].source, decode_targets(data, tokens), targets)
    )
