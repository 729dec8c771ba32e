"""Encoder-decoder models: outputs for new texts, alignments, and attention maps of each hypothesis."""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from attention_jax.data.pairs import PairData, Texts, decode_targets, encode_sources, references
from attention_jax.errors import InputError
from attention_jax.files import write_atomically, write_json
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.report import bleu
from attention_jax.report.attention_data import Attention, AttentionRecord, Prediction, check_length
from attention_jax.tasks import Evaluation
from attention_jax.tasks.generation import generate, hypotheses
from attention_jax.tasks.scoring import are_sentences
from attention_jax.tasks.seq2seq import SAMPLES, sample_lines, target_mask
from attention_jax.train.placement import map_batches
from attention_jax.views import View, pictures
from attention_jax.views.attention_maps import ablate_heads, token_attention, with_rollout


class Seq2seqView(View):
    """Outputs of an encoder-decoder, and its attention maps."""

    def read(self, texts: list[str]) -> dict[str, np.ndarray]:
        """Encode the sources of new texts; InputError for a text that is too long."""
        limit = self.data.train[0].source.shape[1]
        padded = getattr(self.task.config.model, "encoder_state", "last_token") == "last_step"  # padding is read, too
        source, length = encode_sources(self.data, texts, None, limit if padded else 1)
        if not are_sentences(self.data) and source.shape[1] > limit:
            raise InputError(
                f"a source may have at most {limit} characters; {max(texts, key=len)!r} has {source.shape[1]}: "
                "shorten it"
            )
        return {"source": source, "source_length": length}

    def generate(self, params, batch):
        """Decode tokens [B, T] for a reader: without the unknown token, which evaluation and attention maps keep."""
        limits, unknown = self.task.decoding_limits, self.data.target_vocabulary.unk_id
        return generate(self.model, params, batch, self.task.config.decode, forbidden=unknown, **limits)

    def greedy(self, params, batch):
        """Decode the tokens [B, T] whose attention is shown, without a beam."""
        return self.task.generate(params, batch)

    def write(self, params, texts: list[str], decode: Callable) -> tuple[np.ndarray, dict]:
        """Decode new texts by `decode`(params, batch); return the tokens [N, T] and a batch with them as targets."""
        batch = self.read(texts)
        tokens = map_batches(decode, params, batch, self.task.config.decode.batch_size)
        return tokens, self.teacher_forced(batch, tokens[:, None])

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        tokens, batch = self.write(params, texts, self.generate)
        if figure is not None and self.draw(params, batch, tokens, figure) is None:
            raise InputError("this model has no attention to draw; leave --attention out")
        unknown = batch["source"][: len(texts)] == self.data.source_vocabulary.unk_id
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
        size = self.task.config.decode.beam_size
        return hypotheses(self.model, params, batch, self.task.config.decode, n_best=size, **self.task.decoding_limits)

    def attention(self, params, batch):
        """Return the attention weights for `target` with teacher forcing, their rollout, and its log p [B]."""
        inputs = (batch["source"], batch["source_length"], batch["target"][:, :-1])
        logits, weights = self.model.apply({"params": params}, *inputs, return_weights=True)
        nats, _ = jax.vmap(masked_cross_entropy)(logits, batch["target"][:, 1:], target_mask(batch))
        return with_rollout(weights) | {"log_p": -nats}

    def log_p(self, params, batch):
        """Return the log-probability [B] of `target`."""
        return -self.task.score_rows(params, batch)["loss"]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the attention maps of every hypothesis of the beam, or of the greedy output."""
        samples = self.data.texts[self.sample_split].source[:SAMPLES]  # as in `report`: nothing new to compile
        batch = self.read(texts or samples)
        for text, length in zip(texts, batch["source_length"]):
            check_length(range(length), text)
        decode, scores = self.task.config.decode, None
        if decode.beam_size == 1:
            tokens = map_batches(self.greedy, params, batch, decode.batch_size)[:, None]
        else:
            tokens, scores = map_batches(self.hypotheses, params, batch, decode.batch_size)
        count = len(texts) or pictures.SHOWN
        texts, tokens = texts or samples[:count], tokens[:count]
        rows = self.teacher_forced({name: array[:count] for name, array in batch.items()}, tokens)
        outputs = map_batches(self.attention, params, rows, pictures.SHOWN)
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
        turned = self.task.config.data.reverse_source
        sides = {
            "encoder": (source, source, "qk" if turned else ""),
            "decoder": (target[1:], target[:-1], ""),
            "cross": (target[1:], source, "k" if turned else ""),
        }
        return tuple(
            token_attention(self.task.config.model, kind, row, outputs, queries, keys, without, turn)
            for kind, (queries, keys, turn) in sides.items()
            if f"{kind}_attention" in outputs["weights"]
        )

    def draw(self, params, batch, tokens, path: Path) -> Path | None:
        """Plot the cross-attention of the first sentences; None without attention."""
        rows = {name: array[: pictures.SHOWN] for name, array in batch.items()}
        weights = map_batches(self.attention, params, rows, pictures.SHOWN)["weights"]
        if "cross_attention" not in weights:
            return None
        return pictures.alignment(weights, self.data, rows, tokens, self.task.config.data.reverse_source, path)

    def draw_layers(self, params, batch, tokens, directory: Path) -> list[Path]:
        """Plot every attention of a Transformer; [] for models without self-attention."""
        rows = {name: array[: pictures.SHOWN] for name, array in batch.items()}
        weights = map_batches(self.attention, params, rows, pictures.SHOWN)["weights"]
        return pictures.layers(weights, self.data, rows, tokens, directory) if "encoder_attention" in weights else []

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
        tokens, batch = self.write(params, data.texts[split].source[:SAMPLES], self.task.generate)
        lines = sample_lines(data, split, tokens)
        write_atomically(directory.parent / "samples.txt", "\n".join(lines) + "\n")
        row = pictures.clearest(data, batch, tokens)
        example_row = slice(row, row + 1)
        example = {name: array[example_row] for name, array in batch.items()}, tokens[example_row]
        figures = [self.draw(params, *example, directory / "alignment.png")]
        figures += self.draw_layers(params, *example, directory)
        if sentences:
            figures.append(write_translations(data, split, evaluation.written[split], self.task.config.name, directory))
        return [figure for figure in figures if figure]


def write_translations(data: PairData, split: str, written: np.ndarray, name: str, directory: Path) -> Path | None:
    """Write the translations of a split, their BLEU with its signature, and BLEU by source length, to the parent of
    `directory`; plot the latter for the experiment `name` in `directory` if there are several bins, and return the
    figure's path."""
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
    return bleu.length_figure({name: bins}, directory / "bleu_by_length.png") if len(bins) > 1 else None
