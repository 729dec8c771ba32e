"""Metrics of generated sequences: exact match with the references, and for sentences BLEU and chrF."""

import numpy as np

from attention_jax.data.pairs import PairData, decode_targets, references
from attention_jax.report import bleu


def are_sentences(data: PairData) -> bool:
    """Whether targets end with eos; dates and sums have one fixed length instead."""
    return data.target_vocabulary.eos_id is not None


def score_outputs(data: PairData, split: str, written: np.ndarray) -> dict[str, float]:
    """Return the exact match of tokens [N, T] generated for a split; for sentences also BLEU with its 95 % interval
    (bleu_low, bleu_high), and chrF.

    Exact match compares token ids. A target longer than T does not match; one that was truncated to `data.max_length`
    counts as truncated, and unknown words match each other. BLEU and chrF compare with the whole texts.
    """
    pairs = data.held_out[split]
    size = min(written.shape[1], pairs.target.shape[1] - 1)
    beyond = np.arange(size)[None] >= pairs.target_length[:, None]
    exact = ((written[:, :size] == pairs.target[:, 1 : size + 1]) | beyond).all(1) & (pairs.target_length <= size)
    scores = {"exact_match": float(exact.mean())}
    if (unseen := ~data.seen[split]).any():
        scores["exact_match_unseen"] = float(exact[unseen].mean())
    if are_sentences(data):
        outputs, targets = decode_targets(data, written), references(data, split)
        scores["bleu"] = bleu.bleu(outputs, targets, tokenize=data.bleu_tokenize).score
        scores["bleu_low"], scores["bleu_high"] = bleu.bleu_interval(outputs, targets, data.bleu_tokenize)
        scores["chrf"] = bleu.chrf(outputs, targets).score
        retention = bleu.long_bleu_ratio(30, outputs, targets, pairs.source_length - 1, data.bleu_tokenize)
        if retention is not None:
            scores["bleu_kept_beyond_30"] = retention
    return scores


def score_names(data: PairData, split: str) -> list[str]:
    """Return the names of the metrics of `score_outputs`."""
    unseen = ["exact_match_unseen"] * bool((~data.seen[split]).any())
    of_sentences = ["bleu", "bleu_low", "bleu_high", "chrf", "bleu_kept_beyond_30"] * are_sentences(data)
    return ["exact_match", *unseen, *of_sentences]
