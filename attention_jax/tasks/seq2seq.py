"""Sequence to sequence: every encoder-decoder of `models` on every pair dataset of `data`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError, config as configs
from attention_jax.data import batches, corpora
from attention_jax.data.pairs import decode_targets, encode_sources, references
from attention_jax.decode import beam_search, greedy
from attention_jax.files import write_json
from attention_jax.models.convolutional import ConvSeq2seq
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from attention_jax.report import bleu
from attention_jax.report.figures import show_heatmaps
from attention_jax.tasks import Task, load_once
from attention_jax.tasks.transformers import encoder_decoder
from attention_jax.train.parallel import over_rows


def build_model(settings, source_vocabulary: int, target_vocabulary: int):
    """The Flax module of a model's configuration, whose fields are named as the module's attributes are."""
    if isinstance(settings, configs.Transformer):
        return encoder_decoder(settings, source_vocabulary, target_vocabulary)
    if isinstance(settings, configs.Convolutional):
        return ConvSeq2seq(source_vocabulary, target_vocabulary, **vars(settings))
    return configs.named(settings.module)(settings, source_vocabulary, target_vocabulary)


def target_mask(batch) -> jax.Array:
    """[B, T] bool: the positions of `target` after bos that hold a token to predict."""
    return jnp.arange(batch["target"].shape[1] - 1)[None] < batch["target_length"][:, None]


def build(config) -> Task:
    """The task of a recurrent, convolutional or Transformer encoder-decoder."""
    data = load_once(corpora.load, config.data, config.train.batch_size)
    model = build_model(config.model, len(data.source_vocabulary), len(data.target_vocabulary))
    vocabulary, settings = data.target_vocabulary, config.decode
    longest = max(int(pairs.target_length.max()) for pairs in data.held_out.values())
    fixed = vocabulary.eos_id is None  # outputs of one length: dates and sums
    max_length = settings.max_length or (longest if fixed else longest + longest // 2)
    first, generated = data.train[0], {}  # the last output for each split, kept for the report
    size = 512 if fixed else settings.batch_size

    def init(rng):
        row = (first.source[:1], first.source_length[:1], first.target[:1, :-1])
        return model.init(rng, *row)["params"]

    def loss(params, batch, rng):
        def teacher_forced(module):
            memory = module.encode(batch["source"], batch["source_length"], train=True)
            return module.decode(memory, batch["target"][:, :-1], train=True)[0], module.output()

        hidden, (kernel, bias) = model.apply({"params": params}, method=teacher_forced, rngs={"dropout": rng})
        mask = target_mask(batch) & (batch["weight"] > 0)[:, None]
        rows = (
            hidden.reshape(-1, hidden.shape[-1]),
            kernel,
            bias,
            batch["target"][:, 1:].reshape(-1),
            mask.reshape(-1),
        )
        return *linear_cross_entropy(*rows, label_smoothing=config.train.label_smoothing), {}

    def score_rows(params, batch):
        """Teacher forced, a row: sum of the loss, tokens, correct tokens."""
        logits, _ = model.apply({"params": params}, batch["source"], batch["source_length"], batch["target"][:, :-1])
        mask, wanted = target_mask(batch), batch["target"][:, 1:]
        total, count = jax.vmap(masked_cross_entropy)(logits, wanted, mask)
        return {"loss": total, "tokens": count, "correct": ((logits.argmax(-1) == wanted) & mask).sum(1)}

    def generate(params, batch):
        """The tokens [B, max_length] the model writes by itself."""

        def run(module):
            return module.start(module.encode(batch["source"], batch["source_length"]), max_length)

        cache, rows = model.apply({"params": params}, method=run), batch["source"].shape[0]
        split, join = (
            (model.own, model.with_memory)
            if hasattr(model, "with_memory")
            else (lambda cache: cache, lambda cache, _: cache)
        )
        # all hypotheses of a sentence read one memory: a beam search has nothing to copy or reorder there
        whole, cache = cache, split(cache)

        def step(tokens, cache):
            logits, cache, _ = model.apply({"params": params}, join(cache, whole), tokens, method="step")
            return logits, split(cache)

        ends = {
            "bos": vocabulary.bos_id,
            "eos": vocabulary.eos_id,
            "max_length": max_length,
            "pad": vocabulary.pad_id or 0,
        }
        if settings.beam_size == 1:
            return greedy(step, cache, rows, **ends)
        penalty = {"length_penalty": settings.length_penalty, "alpha": settings.alpha}
        return beam_search(step, cache, rows, beam_size=settings.beam_size, **penalty, **ends)[0][:, 0]

    def look(params, batch):
        """The weights with which the model wrote `target`."""
        return model.apply(
            {"params": params}, batch["source"], batch["source_length"], batch["target"][:, :-1], look=True
        )[1]

    def evaluate(params, full: bool) -> dict:
        metrics = {}
        for split, pairs in data.held_out.items():
            if not full and split != next(iter(data.held_out)):
                continue  # after an epoch only the first held-out split is looked at
            rows = over_rows(score_rows, params, pairs._asdict(), size)
            per_token = float(rows["loss"].sum() / rows["tokens"].sum())
            metrics[f"{split}.loss"] = per_token
            metrics[f"{split}.token_accuracy"] = float(rows["correct"].sum() / rows["tokens"].sum())
            if fixed or full:
                sources = {"source": pairs.source, "source_length": pairs.source_length}
                generated[split] = over_rows(generate, params, sources, size)
                metrics |= {f"{split}.{name}": value for name, value in compare(split, generated[split]).items()}
            if not fixed:
                metrics[f"{split}.perplexity"] = float(np.exp(min(per_token, 50.0)))
        return metrics

    def compare(split: str, written: np.ndarray) -> dict:
        """Generated tokens against the references of a split."""
        pairs = data.held_out[split]
        wanted, size = pairs.target[:, 1:], min(written.shape[1], pairs.target.shape[1] - 1)
        beyond = np.arange(size)[None] >= pairs.target_length[:, None]
        exact = ((written[:, :size] == wanted[:, :size]) | beyond).all(1)
        found = {"exact_match": float(exact.mean())}
        if (unseen := ~data.seen[split]).any():
            found["exact_match_unseen"] = float(exact[unseen].mean())
        if not fixed:
            outputs, wanted = decode_targets(data, written), references(data, split)
            found |= {
                "bleu": bleu.bleu(outputs, wanted, tokenize=data.bleu_tokenize).score,
                "chrf": bleu.chrf(outputs, wanted).score,
            }
            kept = bleu.kept_beyond(30, outputs, wanted, pairs.source_length - 1, data.bleu_tokenize)
            found |= {} if kept is None else {"bleu_kept_beyond_30": kept}
        return found

    def write(params, texts) -> tuple[np.ndarray, dict]:
        """(tokens the model writes, the batch they and their sources make)."""
        source, length = encode_sources(data, texts, None)
        if fixed and source.shape[1] > first.source.shape[1]:
            raise InputError(
                f"a source may have at most {first.source.shape[1]} characters; {max(texts, key=len)!r} has {source.shape[1]}: shorten it"
            )
        tokens = over_rows(generate, params, {"source": source, "source_length": length}, settings.batch_size)
        start = np.full((len(texts), 1), vocabulary.bos_id, np.int32)
        return tokens, {"source": source, "source_length": length, "target": np.concatenate([start, tokens], axis=1)}

    def predict(params, texts: list[str], figure: Path | None) -> list[str]:
        tokens, batch = write(params, texts)
        if figure is not None:
            draw(params, batch, tokens, texts, figure)
        return decode_targets(data, tokens)

    def draw(params, batch, tokens, texts, path: Path, shown: int = 4) -> Path | None:
        """Heatmaps of the cross-attention of the first few rows: one row of panels a sentence, one panel a head."""
        tokens = tokens[:shown]
        seen = jax.device_get(jax.jit(look)(params, {k: v[:shown] for k, v in batch.items()}))
        if "cross_attention" not in seen:
            raise InputError("this model has no attention to draw; leave --attention out")
        weights = seen["cross_attention"][:, -1]  # the last layer: [rows, heads, T, S]
        sources = [
            data.source_vocabulary.decode(row[:n])
            for row, n in zip(batch["source"][:shown], batch["source_length"], strict=False)
        ]
        targets = [data.target_vocabulary.sentence(row) for row in tokens]
        if getattr(config.data, "reverse_source", False):  # shown in reading order
            weights, sources = (
                [w[:, :, len(s) - 1 :: -1] for w, s in zip(weights, sources, strict=True)],
                [s[::-1] for s in sources],
            )
        heads = len(weights[0])
        panels = [
            [w[: max(len(t), 1), : len(s)] for w in row] for row, s, t in zip(weights, sources, targets, strict=True)
        ]
        every = lambda rows: [[row] * heads for row in rows[:shown]]
        return show_heatmaps(panels, every(targets), every(sources), path, xlabel="source", ylabel="output")

    def draw_layers(params, batch, tokens, directory: Path) -> list[Path]:
        """Layers x heads of every attention of a Transformer on the first row (d2l 11.7.5)."""
        if not isinstance(config.model, configs.Transformer):
            return []
        seen = jax.device_get(jax.jit(look)(params, {k: v[:1] for k, v in batch.items()}))
        source = data.source_vocabulary.decode(batch["source"][0, : batch["source_length"][0]])
        target = data.target_vocabulary.sentence(tokens[0])
        sides = {
            "encoder_attention": (source, source),
            "decoder_attention": (target, target),
            "cross_attention": (target, source),
        }
        return [
            show_heatmaps(
                seen[name][0, :, :, : max(len(q), 1), : max(len(k), 1)], q or None, k or None, directory / f"{name}.png"
            )
            for name, (q, k) in sides.items()
        ]

    def report(params, directory: Path) -> list[Path]:
        split = list(data.held_out)[-1 if fixed else min(1, len(data.held_out) - 1)]
        texts = data.texts[split].source[:8]
        tokens, batch = write(params, texts)
        outputs, wanted = decode_targets(data, tokens), data.texts[split].target if fixed else references(data, split)
        lines = [
            f"{text.strip()} -> {out}{'' if out == want else f'   (should be {want})'}"
            for text, out, want in zip(texts, outputs, wanted, strict=False)
        ]
        (directory.parent / "samples.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        attends = "cross_attention" in jax.eval_shape(look, params, {k: v[:1] for k, v in batch.items()})
        figures = (
            [
                draw(params, batch, tokens, texts, directory / "alignment.png"),
                *draw_layers(params, batch, tokens, directory),
            ]
            if attends
            else []
        )
        return figures + ([] if fixed else report_bleu(params, split, directory))

    def report_bleu(params, split: str, directory: Path) -> list[Path]:
        """The translations of a split, its BLEU with the signature, and BLEU by the length of the source."""
        pairs = data.held_out[split]
        if split not in generated:
            generated[split] = over_rows(
                generate, params, {"source": pairs.source, "source_length": pairs.source_length}, size
            )
        outputs, wanted = decode_targets(data, generated[split]), references(data, split)
        (directory.parent / f"{split}.txt").write_text("".join(f"{line}\n" for line in outputs), encoding="utf-8")
        found = {
            "bleu": bleu.bleu(outputs, wanted, tokenize=data.bleu_tokenize)._asdict(),
            "chrf": bleu.chrf(outputs, wanted)._asdict(),
        }
        bins = bleu.bleu_by_length(outputs, wanted, pairs.source_length - 1, tokenize=data.bleu_tokenize)
        write_json(directory.parent / f"{split}.bleu.json", found | {"by_length": [part._asdict() for part in bins]})
        return [bleu.length_figure({config.name: bins}, directory / "bleu_by_length.png")]

    sizes = [len(pairs.source) for pairs in data.train]

    def plan(epoch: int, steps_per_call: int) -> list:
        """A call has one bucket; with several, many steps of equal lengths in a row would teach the model that length."""
        return batches.plan(config.train.seed, epoch, sizes, data.batch_sizes, steps_per_call if len(sizes) == 1 else 1)

    return Task(
        init=init,
        loss=loss,
        buckets=tuple(pairs._asdict() for pairs in data.train),
        plan=plan,
        evaluate=evaluate,
        report=report,
        predict=predict,
        describe=lambda: {
            "source_vocabulary": len(data.source_vocabulary),
            "target_vocabulary": len(vocabulary),
            **data.facts,
        },
    )
