"""Translation metrics: sacrebleu's corpus BLEU and chrF with their signatures, BLEU by source length, and d2l's score.

`tokenize="13a"` scores plain text (sacrebleu's default); `tokenize="none"` scores text that is already tokenized, as
many papers do. The two are not comparable, so every score is stored with its signature.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from attention_jax.errors import InputError
from attention_jax.report.curves import lines

Tokenize = Literal["13a", "none", "char", "zh", "ja-mecab", "ko-mecab", "intl"]


class Score(NamedTuple):
    score: float  # 0 .. 100
    signature: str  # settings and version of sacrebleu


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: Tokenize = "13a", lowercase: bool = False
) -> Score:
    """Corpus BLEU-4 (Papineni et al. 2002) by sacrebleu (Post 2018), one reference per sentence.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"]).score
    100.0
    """
    from sacrebleu.metrics import BLEU

    # force: text under "none" is meant to be tokenized, so sacrebleu need not warn that it looks so
    return _score(BLEU(tokenize=tokenize, lowercase=lowercase, force=True), hypotheses, references)


def bleu_interval(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: Tokenize = "13a", resamples: int = 1000
) -> tuple[float, float]:
    """Return sacrebleu's 95 % bootstrap interval of BLEU over resampled test sets (Koehn 2004), with a fixed seed: the
    mean of the resampled scores with half of their 95 % range to both sides, clipped to 0 and 100.

    >>> bleu_interval(["the cat sat on the mat"], ["the cat sat on the mat"], resamples=10)
    (100.0, 100.0)
    """
    from sacrebleu.metrics import BLEU

    _check_paired(hypotheses, references)
    metric = BLEU(tokenize=tokenize, force=True)
    score = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=resamples)
    result = json.loads(score.format(width=4, is_json=True, signature=str(metric.get_signature())))
    middle, half = (
        result.get("confidence_mean", 0.0),
        result.get("confidence_var", 0.0),
    )  # missing if all samples score 0
    return max(round(middle - half, 4), 0.0), min(round(middle + half, 4), 100.0)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2 (Popovic 2015), the character n-gram F-score, by sacrebleu.

    >>> chrf(["abc def"], ["abc def"]).score
    100.0
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def _score(metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    _check_paired(hypotheses, references)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(round(float(score), 4), str(metric.get_signature()))


class LengthBin(NamedTuple):
    low: int  # source lengths low .. high, both included
    high: int
    sentences: int
    bleu: float


def bleu_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    source_lengths: Sequence[int],
    edges: Sequence[int] = (0, 10, 20, 30, 40, 50, 60),
    tokenize: Tokenize = "13a",
) -> list[LengthBin]:
    """Corpus BLEU of the sentences whose source has low < length <= high tokens, for neighboring
    `edges`; empty bins are left out.

    Lengths beyond the last edge form one more bin. This is figure 2 of Bahdanau et al.
    2015, per bin instead of smoothed.
    """
    _check_paired(hypotheses, references)
    lengths = np.asarray(source_lengths)
    if len(lengths) != len(hypotheses):
        raise InputError(
            f"BLEU by length needs one source length per sentence: {len(hypotheses)} sentences, {len(lengths)} lengths"
        )
    edges = sorted({*edges, int(lengths.max())}) if lengths.max() > max(edges) else sorted(edges)
    bins = []
    for low, high in itertools.pairwise(edges):
        chosen = np.flatnonzero((lengths > low) & (lengths <= high))
        if len(chosen):
            score = bleu([hypotheses[i] for i in chosen], [references[i] for i in chosen], tokenize)
            bins.append(LengthBin(low + 1, high, len(chosen), score.score))
    return bins


def long_bleu_ratio(
    length: int,
    hypotheses: Sequence[str],
    references: Sequence[str],
    source_lengths: Sequence[int],
    tokenize: Tokenize = "13a",
) -> float | None:
    """Return BLEU of the sentences whose source is longer than `length` tokens, divided by BLEU of the others (Bahdanau
    et al. 2015, figure 2, in a number).

    None where either side has fewer than 100 sentences, or the shorter ones score 0.
    """
    bins = bleu_by_length(hypotheses, references, source_lengths, (0, length), tokenize)
    if len(bins) < 2 or min(length_bin.sentences for length_bin in bins) < 100 or bins[0].bleu == 0:
        return None
    return bins[1].bleu / bins[0].bleu


FEWEST = 5
"""The fewest sentences of a bin in a figure."""


def length_figure(series: Mapping[str, Sequence[LengthBin]], path: str | Path, inputs=None) -> Path | None:
    """BLEU over source length, one line per system, a point at the middle of each bin of at least `FEWEST` sentences;
    below it the bin and how many sentences it has. None of systems with fewer than three such bins, of
    which an earlier figure is removed."""
    middle = lambda b: (b.low + b.high) / 2
    series = {name: [b for b in bins if b.sentences >= FEWEST] for name, bins in series.items()}
    series = {name: bins for name, bins in series.items() if len(bins) > 2}
    if not series:
        Path(path).unlink(missing_ok=True)
        return None
    curves = {name: ([middle(b) for b in bins], [b.bleu for b in bins]) for name, bins in series.items()}
    bins_by_middle = {middle(b): b for bins in series.values() for b in bins}
    between = " " if len(bins_by_middle) > 7 else "\n"  # vertical labels for many bins
    ticks = {x: f"{b.low}-{b.high}{between}({b.sentences})" for x, b in bins_by_middle.items()}
    axes = {"xlabel": "source length in tokens (number of sentences)", "ylabel": "BLEU"}
    return lines(curves, path, **axes, ticks=ticks, inputs=inputs)


def _check_paired(hypotheses: Sequence[str], references: Sequence[str]):
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise InputError("BLEU needs lists of sentences, not one string")
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise InputError(
            f"BLEU needs as many hypotheses as references, at least one: got {len(hypotheses)} and {len(references)}"
        )
