"""Exact match of generated sequences with the references of a split, and for sentences BLEU and chrF."""

import numpy as np

from attention_jax.data.pairs import PairData, decode_targets, references
from attention_jax.report import bleu


def are_sentences(data: PairData) -> bool:
    """Whether targets end where the model says so (eos), and not at one length as dates and sums do."""
    return data.target_vocabulary.eos_id is not None


def compare(data: PairData, split: str, written: np.ndarray) -> dict[str, float]:
    """Exact match of the tokens [N, T] written for a split (a target longer than T is not matched); if they are
    sentences BLEU, where 95 % of it lie (bleu_low, bleu_high), and chrF."""
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
        kept = bleu.kept_beyond(30, outputs, targets, pairs.source_length - 1, data.bleu_tokenize)
        if kept is not None:
            scores["bleu_kept_beyond_30"] = kept
    return scores


def score_names(data: PairData, split: str) -> list[str]:
    """What `compare` may give."""
    unseen = ["exact_match_unseen"] * bool((~data.seen[split]).any())
    of_sentences = ["bleu", "bleu_low", "bleu_high", "chrf", "bleu_kept_beyond_30"] * are_sentences(data)
    return ["exact_match", *unseen, *of_sentences]
