"""Sequence to sequence: every encoder-decoder of `models` on every pair dataset of `data`.

A model has these methods (all batch-major): `encode(source [B, S], source_length [B], train=) -> memory`,
`decode(memory, target_in [B, T], train=, look=) -> (hidden [B, T, D], intermediates)`, `output() -> (kernel [D, V],
bias [V])`, `start(memory, max_length) -> cache`, `step(cache, token [B]) -> (logits [B, V], cache, intermediates)` and
`__call__(source, source_length, target_in, train=, look=) -> (logits [B, T, V], intermediates)`. Where the options of a
model say `packs`, its `encode` and `decode` also take `segment=`, of which pair in a row each token is.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.config import Config, Decode
from attention_jax.data import batches, corpora
from attention_jax.data.pairs import PairData, decode_targets, encode_sources, references
from attention_jax.data.streams import Stream
from attention_jax.files import write_whole
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from attention_jax.ops.positions import within
from attention_jax.report.attended import Answer, Attention, Looked, check_length
from attention_jax.tasks import Evaluation, build_model, load_once, pictures
from attention_jax.tasks.generation import generate, hypotheses
from attention_jax.tasks.looking import among_tokens, with_rollout, without_heads
from attention_jax.tasks.scoring import are_sentences, compare, score_names, write_translations
from attention_jax.train.placement import map_batches

SAMPLES = 8
"""Sources that a report shows with what the model wrote for them."""


def target_mask(batch) -> jax.Array:
    """[B, T] bool: the positions of `target` after bos that hold a token to predict."""
    return jnp.arange(batch["target"].shape[1] - 1)[None] < batch["target_length"][:, None]


def target_in(batch) -> jax.Array:
    """[B, T]: what precedes each token to predict. In a packed row every target begins with bos, the row's first."""
    if "target_segment" not in batch:
        return batch["target"][:, :-1]
    begins = within(batch["target_segment"]) == 0
    return jnp.where(begins, batch["target"][:, :1], batch["target"][:, :-1])


def segment(batch, side: str) -> dict[str, jax.Array]:
    """The argument that tells a model which pair of a packed row each token of a side is of; else none."""
    name = f"{side}_segment"
    return {"segment": batch[name]} if name in batch else {}


def build(config: Config) -> "Seq2seqTask":
    """The task of a recurrent, convolutional or Transformer encoder-decoder."""
    if config.data.packing and not config.model.packs:
        raise InputError(
            f"--data.packing needs a model that keeps the pairs of a row apart, which {type(config.model).__name__} "
            "does not: give --data.packing 0, or train a Transformer"
        )
    longest, limit = config.data.max_length, config.model.longest_input
    if config.data.packing and limit is not None and longest > limit:
        raise InputError(
            f"packed sentences of --data.max-length {longest} tokens need as many learned positions, got "
            f"--model.max-length {limit}: raise it to {longest}, or take shorter sentences"
        )
    data = load_once(corpora.load, config.data, config.train.batch_size)
    if not isinstance(config.decode, Decode):
        raise InputError("a model that writes sequences needs to know how: give its configuration decode=Decode()")
    model = build_model(config, len(data.source_vocabulary), len(data.target_vocabulary))
    if config.model.needs_joint_vocabulary and data.source_vocabulary.tokens != data.target_vocabulary.tokens:
        raise InputError(
            "--model.tied-embeddings all needs one vocabulary for both languages, got two different ones of "
            f"{len(data.source_vocabulary)} tokens: give --data.joint-vocabulary, or --model.tied-embeddings output"
        )
    return Seq2seqTask(config, data, model)


@dataclass(frozen=True, eq=False)
class Seq2seqTask:
    """An encoder-decoder on pairs of sequences (attention_jax/tasks/__init__.py says what the methods promise)."""

    config: Config
    data: PairData
    model: nn.Module

    @property
    def said(self) -> str:
        return self.data.said

    @property
    def buckets(self) -> tuple[dict, ...]:
        return () if self.data.stream else tuple(pairs._asdict() for pairs in self.data.train)

    @property
    def stream(self) -> Stream | None:
        return self.data.stream and replace(self.data.stream, seed=self.config.train.seed)

    def init(self, rng):
        first = self.data.train[0]
        row = map(jnp.asarray, (first.source[:1], first.source_length[:1], first.target[:1, :-1]))
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
        return *linear_cross_entropy(*rows, label_smoothing=self.config.train.label_smoothing), {}

    def plan(self, epoch: int, steps_per_call: int) -> list:
        """A call has one bucket; with several, many steps of equal lengths in a row would teach the model that
        length."""
        sizes = [len(pairs.source) for pairs in self.data.train]
        steps = steps_per_call if len(sizes) == 1 else 1
        return batches.plan(self.config.train.seed, epoch, sizes, self.data.batch_sizes, steps)

    @property
    def evaluated(self) -> int:
        """Sequences a batch when evaluating."""
        return self.config.decode.batch_size if are_sentences(self.data) else 512

    def score_rows(self, params, batch):
        """Teacher forced, a row: sum of the loss, tokens, correct tokens."""
        inputs = (batch["source"], batch["source_length"], batch["target"][:, :-1])
        logits, _ = self.model.apply({"params": params}, *inputs)
        mask, targets = target_mask(batch), batch["target"][:, 1:]
        total, count = jax.vmap(masked_cross_entropy)(logits, targets, mask)
        return {"loss": total, "tokens": count, "correct": ((logits.argmax(-1) == targets) & mask).sum(1)}

    @property
    def ends(self) -> dict:
        """Where decoding begins and ends: T is `decode.max_length`, or 1.5 times the longest training or validation
        target, which a packed row does not exceed; targets of one length (dates) are as long as those."""
        vocabulary, longest = self.data.target_vocabulary, self.config.decode.max_length
        if not longest:
            known = [*self.data.train, *(pairs for name, pairs in self.data.held_out.items() if name == "valid")]
            longest = max(int(pairs.target_length.max()) for pairs in known)
            if are_sentences(self.data):
                longest = min(longest, self.config.data.max_length or longest)
                longest += longest // 2
        special = {"bos": vocabulary.bos_id, "eos": vocabulary.eos_id, "pad": vocabulary.pad_id or 0}
        return special | {"max_length": longest}

    def generate(self, params, batch):
        """The tokens [B, T] the model writes by itself."""
        return generate(self.model, params, batch, self.config.decode, **self.ends)

    def hypotheses(self, params, batch):
        """All that the beam holds in the end: (tokens [B, N, T], scores [B, N]), best first."""
        size = self.config.decode.beam_size
        return hypotheses(self.model, params, batch, self.config.decode, n_best=size, **self.ends)

    def look(self, params, batch):
        """The weights with which the model writes `target`, their rollout, and the log-probability [B] of `target`."""
        inputs = (batch["source"], batch["source_length"], batch["target"][:, :-1])
        logits, weights = self.model.apply({"params": params}, *inputs, look=True)
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["target"][:, 1:], target_mask(batch))
        return with_rollout(weights) | {"log_p": -nats}

    def log_p(self, params, batch):
        """The log-probability [B] of `target`."""
        return -self.score_rows(params, batch)["loss"]

    def evaluate(self, params, full: bool) -> Evaluation:
        """Of every held-out split; after an epoch of the first one, where sentences are not written."""
        metrics, written, sentences = {}, {}, are_sentences(self.data)
        for split in list(self.data.held_out)[: None if full else 1]:
            pairs = self.data.held_out[split]
            rows = map_batches(self.score_rows, params, pairs._asdict(), self.evaluated)
            per_token = float(rows["loss"].sum() / rows["tokens"].sum())
            metrics[f"{split}.loss"] = per_token
            metrics[f"{split}.token_accuracy"] = float(rows["correct"].sum() / rows["tokens"].sum())
            if full or not sentences:
                sources = {"source": pairs.source, "source_length": pairs.source_length}
                written[split] = map_batches(self.generate, params, sources, self.evaluated)
                scores = compare(self.data, split, written[split])
                metrics |= {f"{split}.{name}": value for name, value in scores.items()}
            if sentences:
                metrics[f"{split}.perplexity"] = float(np.exp(min(per_token, 50.0)))
        return Evaluation(metrics, written, self.samples(written))

    def metric_names(self, full: bool) -> list[str]:
        sentences, names = are_sentences(self.data), []
        for split in list(self.data.held_out)[: None if full else 1]:
            names += [f"{split}.loss", f"{split}.token_accuracy"] + [f"{split}.perplexity"] * sentences
            if full or not sentences:
                names += [f"{split}.{score}" for score in score_names(self.data, split)]
        return names

    def samples(self, written: dict[str, np.ndarray]) -> tuple[str, ...]:
        """What was written for the first texts of the first split that was written for."""
        split = next(iter(written), None)
        return sample_lines(self.data, split, written[split][:SAMPLES]) if split else ()

    def evaluated_with(self) -> dict:
        largest = max(self.data.held_out.values(), key=lambda pairs: pairs.source.size + pairs.target.size)._asdict()
        sources = {name: largest[name] for name in ("source", "source_length")}
        size = self.evaluated
        return {"evaluation": (self.score_rows, largest, size), "decoding": (self.generate, sources, size)}

    def read(self, texts: list[str]) -> dict[str, np.ndarray]:
        """The sources of new texts. Raises InputError for a text that is too long."""
        source, length = encode_sources(self.data, texts, None)
        limit = self.data.train[0].source.shape[1]
        if not are_sentences(self.data) and source.shape[1] > limit:
            raise InputError(
                f"a source may have at most {limit} characters; {max(texts, key=len)!r} has {source.shape[1]}: "
                "shorten it"
            )
        return {"source": source, "source_length": length}

    def write(self, params, texts: list[str]) -> tuple[np.ndarray, dict]:
        """(tokens the model writes for new texts, the batch they and their sources make)."""
        batch = self.read(texts)
        tokens = map_batches(self.generate, params, batch, self.config.decode.batch_size)
        return tokens, self.forced(batch, tokens[:, None])

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        tokens, batch = self.write(params, texts)
        if figure is not None and self.draw(params, batch, tokens, figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        unknown = batch["source"][: len(texts)] == self.data.source_vocabulary.unk_id
        for text, count in zip(texts, np.sum(unknown, axis=1)):
            if count:
                print(f"note: of {text!r} {count} tokens are not in the vocabulary", file=sys.stderr)
        return decode_targets(self.data, tokens)

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where the model looks while it writes each hypothesis of its beam; or, greedily, what it writes."""
        samples = self.data.texts[self.sampled].source[:SAMPLES]  # as in `report`: nothing new to compile
        batch = self.read(texts or samples)
        for text, length in zip(texts, batch["source_length"]):
            check_length(range(length), text)
        decode, scores = self.config.decode, None
        if decode.beam_size == 1:
            tokens = map_batches(self.generate, params, batch, decode.batch_size)[:, None]
        else:
            tokens, scores = map_batches(self.hypotheses, params, batch, decode.batch_size)
        count = len(texts) or pictures.SHOWN
        texts, tokens = texts or samples[:count], tokens[:count]
        rows = self.forced({name: array[:count] for name, array in batch.items()}, tokens)
        found = map_batches(self.look, params, rows, pictures.SHOWN)
        if not found["weights"]:
            return ()
        without = without_heads(self.log_p, params, rows, found["weights"])
        scores = (found["log_p"] if scores is None else scores[:count]).reshape(tokens.shape[:2])
        answer = lambda row, score: Answer(
            decode_targets(self.data, rows["target"][row : row + 1, 1:])[0],
            self.attentions(rows, row, found, without),
            float(score),
            "log p",
            float(found["log_p"][row]),
        )
        each = tokens.shape[1]
        return tuple(
            Looked(text, tuple(answer(i * each + n, score) for n, score in enumerate(own) if np.isfinite(score)))
            for i, (text, own) in enumerate(zip(texts, scores))
        )

    def forced(self, batch: dict, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """The batch in which the model is made to write every hypothesis, `tokens` [B, N, T], of its source."""
        count, written = tokens.shape[1], tokens.reshape(-1, tokens.shape[-1]).astype(np.int32)
        eos, bos = self.data.target_vocabulary.eos_id, self.data.target_vocabulary.bos_id
        ended = (written == eos) if eos is not None else np.zeros(written.shape, bool)
        length = np.where(ended.any(1), ended.argmax(1) + 1, written.shape[1]).astype(np.int32)
        target = np.concatenate([np.full((len(written), 1), bos, np.int32), written], axis=1)
        sources = {name: np.repeat(array, count, axis=0) for name, array in batch.items()}
        return sources | {"target": target, "target_length": length}

    def attentions(self, rows: dict, row: int, found: dict, without: dict) -> tuple[Attention, ...]:
        """The kinds of attention that a model has, of one row of `forced`."""
        source = self.data.source_vocabulary.decode(rows["source"][row, : rows["source_length"][row]])
        target = self.data.target_vocabulary.decode(rows["target"][row, : rows["target_length"][row] + 1])
        turned = self.config.data.reverse_source
        sides = {
            "encoder": (source, source, "qk" if turned else ""),
            "decoder": (target[1:], target[:-1], ""),
            "cross": (target[1:], source, "k" if turned else ""),
        }
        return tuple(
            among_tokens(kind, row, found, queries, keys, without, turn)
            for kind, (queries, keys, turn) in sides.items()
            if f"{kind}_attention" in found["weights"]
        )

    def draw(self, params, batch, tokens, path: Path) -> Path | None:
        """Which source tokens each written token looks at; None if the model has no attention."""
        rows = {name: array[: pictures.SHOWN] for name, array in batch.items()}
        weights = map_batches(self.look, params, rows, pictures.SHOWN)["weights"]
        if "cross_attention" not in weights:
            return None
        return pictures.alignment(weights, self.data, rows, tokens, self.config.data.reverse_source, path)

    def draw_layers(self, params, batch, tokens, directory: Path) -> list[Path]:
        """Every attention of a Transformer; other models have none in their encoder."""
        rows = {name: array[: pictures.SHOWN] for name, array in batch.items()}
        weights = map_batches(self.look, params, rows, pictures.SHOWN)["weights"]
        return pictures.layers(weights, self.data, rows, tokens, directory) if "encoder_attention" in weights else []

    @property
    def sampled(self) -> str:
        """The held-out split that a report and a page show something of."""
        splits = list(self.data.held_out)
        return splits[min(1, len(splits) - 1)] if are_sentences(self.data) else splits[-1]

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """samples.txt, alignments, and for sentences the translations of the test set with their BLEU."""
        data, split, sentences = self.data, self.sampled, are_sentences(self.data)
        tokens, batch = self.write(params, data.texts[split].source[:SAMPLES])
        lines = sample_lines(data, split, tokens)
        write_whole(directory.parent / "samples.txt", "\n".join(lines) + "\n")
        figures = [self.draw(params, batch, tokens, directory / "alignment.png")]
        figures += self.draw_layers(params, batch, tokens, directory)
        if sentences:
            figures.append(write_translations(data, split, evaluation.written[split], self.config.name, directory))
        return [figure for figure in figures if figure]

    def describe(self) -> dict:
        sizes = {
            "source_vocabulary": len(self.data.source_vocabulary),
            "target_vocabulary": len(self.data.target_vocabulary),
        }
        return sizes | self.data.facts


def sample_lines(data: PairData, split: str, tokens: np.ndarray) -> tuple[str, ...]:
    """A line for each of the first texts of a split: what the model wrote, [N, T] tokens, and what it should be."""
    targets = references(data, split) if are_sentences(data) else data.texts[split].target
    return tuple(
        f"{text.strip()} -> {output}{'' if output == target else f'   (should be {target})'}"
        for text, output, target in zip(data.texts[split].source, decode_targets(data, tokens), targets)
    )
