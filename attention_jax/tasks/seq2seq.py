"""Sequence-to-sequence learning: every encoder-decoder of `models` on every pair dataset of `data`.

A model has these methods (all batch-major): `encode(source [B, S], source_length [B], train=) -> memory`,
`decode(memory, target_in [B, T], train=, return_weights=) -> (hidden [B, T, D], intermediates)`, `output() ->
(kernel [D, V], bias [V])`, `start(memory, max_length) -> cache`, `step(cache, token [B]) -> (logits [B, V], cache,
intermediates)` and `__call__(source, source_length, target_in, train=, return_weights=) -> (logits [B, T, V],
intermediates)`. If the options of a model have `supports_packing`, its `encode` and `decode` also take `segment=`, the
number of the pair that each token of a packed sequence belongs to.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, Decode, model_name
from attention_jax.data.batches import length_bucket
from attention_jax.data.pairs import PairData, Pairs, Texts, decode_targets, encode_sources, references
from attention_jax.data.stream import Stream, stream_of
from attention_jax.data.text_tables import Columns
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.files import write_atomically, write_json
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.ops.positions import positions_within
from attention_jax.report import bleu
from attention_jax.report.attention_data import Attention, AttentionRecord, Prediction, check_length
from attention_jax.report.heatmaps import Heatmap, layer_heatmaps, show_heatmaps
from attention_jax.tasks import Evaluation, Task, build_model, loader_of, mean_perplexity
from attention_jax.tasks.attention_maps import ablate_heads, token_attention, with_rollout
from attention_jax.tasks.generation import generate, hypotheses
from attention_jax.tasks.objectives import readout_loss
from attention_jax.tasks.scoring import are_sentences, score_names, score_outputs
from attention_jax.train.placement import map_batches

SHOWN = 4
"""The number of sentences in a figure of alignments."""
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

    eval_means = ("examples", "batches", "sorted-batches")
    table_columns = Columns(text="source", output="translation")

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
                options = {"progress": f"decoding {split}"}
                written[split] = map_batches(self.generate, params, sources, self.eval_batch_size, **options)
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

    def describe(self) -> dict:
        sizes = {
            "source_vocabulary": len(self.data.source_vocabulary),
            "target_vocabulary": len(self.data.target_vocabulary),
        }
        return sizes | self.data.facts

    @property
    def has_width(self) -> bool:
        """Whether all sources are as wide as in training: the encoder reads their padding, or they are no sentences."""
        is_padding_read = getattr(self.config.model, "encoder_state", "last_token") == "last_step"
        return is_padding_read or not are_sentences(self.data)

    def warm_up(self, params, length: int, rows: int):
        limit, widest = self.config.model.longest_input, self.data.train[0].source.shape[1]
        width = widest if self.has_width else length_bucket(min(length, limit or length), limit)
        batch = {"source": np.zeros((rows, width), np.int32), "source_length": np.full(rows, width, np.int32)}
        map_batches(self.generate_words, params, batch, self.config.decode.batch_size, pad=True)

    def read(self, texts: list[str]) -> dict[str, np.ndarray]:
        """Encode the sources of new texts, padded to few lengths; InputError for a text that is too long."""
        limit = self.data.train[0].source.shape[1]
        source, length = encode_sources(self.data, texts, None, limit if self.has_width else 1)
        if not are_sentences(self.data) and length.max() > limit:
            raise InputError(
                f"a source may have at most {limit} characters; {max(texts, key=len)!r} has {length.max()}: shorten it"
            )
        if not self.has_width:
            width = length_bucket(source.shape[1], self.config.model.longest_input)
            padding = self.data.source_vocabulary.pad_id or 0
            source = np.pad(source, ((0, 0), (0, width - source.shape[1])), constant_values=padding)
        return {"source": source, "source_length": length}

    def generate_words(self, params, batch):
        """Decode tokens [B, T] for a reader: without the unknown token, which evaluation and attention maps keep."""
        limits, unknown = self.decoding_limits, self.data.target_vocabulary.unk_id
        return generate(self.model, params, batch, self.config.decode, forbidden=unknown, **limits)

    def write(self, params, texts: list[str], decode: Callable) -> tuple[np.ndarray, dict]:
        """Decode new texts by `decode`(params, batch); return the tokens [N, T] and a batch with them as targets."""
        batch = self.read(texts)
        tokens = map_batches(decode, params, batch, self.config.decode.batch_size, pad=True)
        return tokens, self.teacher_forced(batch, tokens[:, None])

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        tokens, batch = self.write(params, texts, self.generate_words)
        if figure is not None and self.draw(params, batch, tokens, figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        is_token = np.arange(batch["source"].shape[1])[None] < batch["source_length"][:, None]
        unknown = (batch["source"] == self.data.source_vocabulary.unk_id) & is_token
        for text, count in zip(texts, np.sum(unknown, axis=1)):
            if count:
                print(f"note: of {text!r} {count} tokens are not in the vocabulary", file=sys.stderr)
        longest = max(pairs.source.shape[1] for pairs in self.data.train)
        for text, length in zip(texts, batch["source_length"]):
            if length > longest:
                print(
                    f"note: {text[:40]!r}... has {length} tokens, the longest source in training has {longest}: its "
                    "output may lack a part",
                    file=sys.stderr,
                )
        return decode_targets(self.data, tokens)

    def hypotheses(self, params, batch):
        """Return all final hypotheses of the beam, best first: tokens [B, N, T] and scores [B, N]."""
        size = self.config.decode.beam_size
        return hypotheses(self.model, params, batch, self.config.decode, n_best=size, **self.decoding_limits)

    def attention(self, params, batch):
        """Return the attention weights for `target` with teacher forcing, their rollout, and its log p [B]."""
        inputs = (batch["source"], batch["source_length"], batch["target"][:, :-1])
        logits, weights = self.model.apply({"params": params}, *inputs, return_weights=True)
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["target"][:, 1:], target_mask(batch))
        return with_rollout(weights) | {"log_p": -nats}

    def log_p(self, params, batch):
        """Return the log-probability [B] of `target`."""
        return -self.score_rows(params, batch)["loss"]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the attention maps of every hypothesis of the beam, or of the greedy output."""
        samples = self.data.texts[self.sample_split].source[:SAMPLES]  # as in `report`: nothing new to compile
        batch = self.read(texts or samples)
        for text, length in zip(texts, batch["source_length"]):
            check_length(range(length), text)
        decode, scores = self.config.decode, None
        if decode.beam_size == 1:
            tokens = map_batches(self.generate, params, batch, decode.batch_size, pad=True)[:, None]
        else:
            tokens, scores = map_batches(self.hypotheses, params, batch, decode.batch_size, pad=True)
        count = len(texts) or SHOWN
        texts, tokens = texts or samples[:count], tokens[:count]
        rows = self.teacher_forced({name: array[:count] for name, array in batch.items()}, tokens)
        outputs = map_batches(self.attention, params, rows, SHOWN, pad=True)
        if not outputs["weights"]:
            return ()
        without = ablate_heads(self.log_p, params, rows, outputs["weights"])
        scores = (outputs["log_p"] if scores is None else scores[:count]).reshape(tokens.shape[:2])
        for text, row in zip(texts, scores):
            if not np.isfinite(row).any():
                raise InputError(
                    f"an attention map needs an output of finite log-probability; for {text.strip()[:40]!r} there is "
                    "none: the parameters are not finite, or too large; train again with a smaller learning rate"
                )
        answer = lambda row, score: Prediction(
            decode_targets(self.data, rows["target"][row : row + 1, 1:])[0],
            self.attentions(rows, row, outputs, without),
            float(score),
            "log p",
            float(outputs["log_p"][row]),
        )
        each = tokens.shape[1]
        return tuple(
            AttentionRecord(
                text, tuple(answer(i * each + n, score) for n, score in enumerate(beam_scores) if np.isfinite(score))
            )
            for i, (text, beam_scores) in enumerate(zip(texts, scores))
        )

    def teacher_forced(self, batch: dict, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Return the batch with every hypothesis, `tokens` [B, N, T], as a target of its source."""
        count, written = tokens.shape[1], tokens.reshape(-1, tokens.shape[-1]).astype(np.int32)
        eos, bos = self.data.target_vocabulary.eos_id, self.data.target_vocabulary.bos_id
        ended = (written == eos) if eos is not None else np.zeros(written.shape, bool)
        length = np.where(ended.any(1), ended.argmax(1) + 1, written.shape[1]).astype(np.int32)
        target = np.concatenate([np.full((len(written), 1), bos, np.int32), written], axis=1)
        sources = {name: np.repeat(array, count, axis=0) for name, array in batch.items()}
        return sources | {"target": target, "target_length": length}

    def attentions(self, rows: dict, row: int, outputs: dict, without: dict) -> tuple[Attention, ...]:
        """Return every kind of attention that the model has, for one example of `teacher_forced`."""
        source = self.data.source_vocabulary.decode(rows["source"][row, : rows["source_length"][row]])
        target = self.data.target_vocabulary.decode(rows["target"][row, : rows["target_length"][row] + 1])
        turned = self.config.data.reverse_source
        sides = {
            "encoder": (source, source, "qk" if turned else ""),
            "decoder": (target[1:], target[:-1], ""),
            "cross": (target[1:], source, "k" if turned else ""),
        }
        return tuple(
            token_attention(self.config.model, kind, row, outputs, queries, keys, without, turn)
            for kind, (queries, keys, turn) in sides.items()
            if f"{kind}_attention" in outputs["weights"]
        )

    def draw(self, params, batch, tokens, path: Path) -> Path | None:
        """Plot the cross-attention of the first sentences; None without attention."""
        rows = {name: array[:SHOWN] for name, array in batch.items()}
        weights = map_batches(self.attention, params, rows, SHOWN)["weights"]
        if "cross_attention" not in weights:
            return None
        return draw_alignment(weights, self.data, rows, tokens, self.config.data.reverse_source, path)

    def draw_layers(self, params, batch, tokens, directory: Path) -> list[Path]:
        """Plot every attention of a Transformer; [] for models without self-attention."""
        rows = {name: array[:SHOWN] for name, array in batch.items()}
        weights = map_batches(self.attention, params, rows, SHOWN)["weights"]
        return draw_layers(weights, self.data, rows, tokens, directory) if "encoder_attention" in weights else []

    @property
    def sample_split(self) -> str:
        """The held-out split with the examples of reports and pages."""
        splits = list(self.data.held_out)
        return splits[min(1, len(splits) - 1)] if are_sentences(self.data) else splits[-1]

    def excerpt(self) -> PairData:
        """Return the first pairs of each held-out split, and the pair with the longest target of each bucket and split,
        which determines the maximum length of an output."""
        data, rows = self.data, {}
        for split, pairs in data.held_out.items():
            rows[split] = np.append(np.arange(min(SAMPLES, len(pairs.source))), pairs.target_length.argmax())
        take = lambda arrays, at: type(arrays)(*(column[at] for column in arrays))
        texts = {name: [data.texts[name], at] for name, at in rows.items()}
        return data._replace(
            train=tuple(take(pairs, [pairs.target_length.argmax()]) for pairs in data.train),
            held_out={split: take(data.held_out[split], at) for split, at in rows.items()},
            texts={name: Texts(*([side[row] for row in at] for side in both)) for name, (both, at) in texts.items()},
            seen={split: data.seen[split][at] for split, at in rows.items()},
        )

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Write samples.txt, the attention of one example, and for sentences the translations of the test set with
        their BLEU."""
        data, split, sentences = self.data, self.sample_split, are_sentences(self.data)
        tokens, batch = self.write(params, data.texts[split].source[:SAMPLES], self.generate)
        lines = sample_lines(data, split, tokens)
        write_atomically(directory.parent / "samples.txt", "\n".join(lines) + "\n")
        row = clearest_row(data, batch, tokens)
        example_row = slice(row, row + 1)
        example = {name: array[example_row] for name, array in batch.items()}, tokens[example_row]
        figures = [self.draw(params, *example, directory / "alignment.png")]
        figures += self.draw_layers(params, *example, directory)
        if sentences:
            figures.append(write_translations(data, split, evaluation.written[split], self.config.name, directory))
        return [figure for figure in figures if figure]


def sample_lines(data: PairData, split: str, tokens: np.ndarray) -> tuple[str, ...]:
    """Return one line for each of the first texts of a split: source, output of `tokens` [N, T], and reference."""
    targets = references(data, split) if are_sentences(data) else data.texts[split].target
    return tuple(
        f"{text.strip()} -> {output}{'' if output == target else f'   (should be {target})'}"
        for text, output, target in zip(data.texts[split].source, decode_targets(data, tokens), targets)
    )


def write_translations(data: PairData, split: str, written: np.ndarray, name: str, directory: Path) -> Path | None:
    """Write the translations of a split, their BLEU with its signature, and BLEU by source length, to the parent of
    `directory`; plot the latter for the experiment `name` in `directory`, and return what `bleu.length_figure` does."""
    outputs, targets = decode_targets(data, written), references(data, split)
    write_atomically(directory.parent / f"{split}.txt", "".join(f"{line}\n" for line in outputs))
    lengths = data.held_out[split].source_length - 1
    bins = bleu.bleu_by_length(outputs, targets, lengths, tokenize=data.bleu_tokenize)
    scores = {
        "bleu": bleu.bleu(outputs, targets, tokenize=data.bleu_tokenize)._asdict(),
        "chrf": bleu.chrf(outputs, targets)._asdict(),
        "by_length": [bin_score._asdict() for bin_score in bins],
    }
    write_json(directory.parent / f"{split}.bleu.json", scores)
    return bleu.length_figure({name: bins}, directory / "bleu_by_length.png")


def draw_alignment(
    weights: dict, data: PairData, batch: dict, tokens: np.ndarray, reversed_source: bool, path: Path
) -> Path:
    """Plot the last layer's cross-attention, averaged over heads, with one panel for each of the first sentences.

    `weights` are the model's intermediates for `batch` and its outputs `tokens` [N, T]. A source that the model has
    read in reverse is shown in its original order.
    """
    cross = weights["cross_attention"][:SHOWN, -1]  # [rows, heads, T, S]
    panels = []
    for of_heads, source, length, row in zip(cross, batch["source"], batch["source_length"], tokens):
        mean = of_heads.mean(axis=0)
        words, written = data.source_vocabulary.decode(source[:length]), data.target_vocabulary.sentence(row)
        if reversed_source:
            mean, words = mean[:, len(words) - 1 :: -1], words[::-1]
        visible = [i for i, word in enumerate(words, 1) if word.strip()]
        words = words[: visible[-1] if visible else None]  # without the blanks that fill up a date
        written = written or [""]  # an empty output: the step of eos
        panels.append(Heatmap(mean[: len(written), : len(words)], written, words))
    heads = cross.shape[1]
    output = "output" if heads == 1 else f"output (last layer, mean of {heads} heads)"
    return show_heatmaps([panels], path, xlabel="source", ylabel=output)


def clearest_row(data: PairData, batch: dict, tokens: np.ndarray) -> int:
    """Return the first of the rows with the fewest unknown tokens in source and output: the example of a report."""
    sides = ((batch["source"], data.source_vocabulary), (tokens, data.target_vocabulary))
    rows = len(tokens)
    unknown = [
        np.sum(side[:rows] == vocabulary.unk_id, axis=1) for side, vocabulary in sides if vocabulary.unk_id is not None
    ]
    return int(np.argmin(sum(unknown, np.zeros(rows))))


def draw_layers(weights: dict, data: PairData, batch: dict, tokens: np.ndarray, directory: Path) -> list[Path]:
    """Plot layers by heads of every attention of a Transformer for the first example (d2l 11.7.5)."""
    source = data.source_vocabulary.decode(batch["source"][0, : batch["source_length"][0]])
    target = data.target_vocabulary.sentence(tokens[0])
    sides = {
        "encoder_attention": (source, source),
        "decoder_attention": (target, target),
        "cross_attention": (target, source),
    }
    figures = []
    for name, (queries, keys) in sides.items():
        maps = weights[name][0, :, :, : max(len(queries), 1), : max(len(keys), 1)]
        figures.append(show_heatmaps(layer_heatmaps(maps, queries or None, keys or None), directory / f"{name}.png"))
    return figures
