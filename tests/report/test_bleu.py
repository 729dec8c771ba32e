"""BLEU by hand where that is possible, and the signatures that say what was computed."""

import math

import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.report.bleu import (
    LengthBin,
    bleu,
    bleu_by_length,
    bleu_interval,
    chrf,
    length_figure,
    long_bleu_ratio,
)


def test_corpus_bleu_by_hand():
    """Seven words of eight: p1 = 7/8, p2 = 6/7, p3 = 5/6, p4 = 4/5, no brevity penalty: 100 (0.5)^(1/4)."""
    score = bleu(["a b c d e f g x"], ["a b c d e f g h"], tokenize="none")
    assert score.score == pytest.approx(100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25, abs=1e-3)


def test_brevity_penalty_by_hand():
    assert bleu(["a b c d"], ["a b c d e f"], tokenize="none").score == pytest.approx(
        100 * math.exp(1 - 6 / 4), abs=1e-3
    )


def test_signature_names_tokenizer_and_case():
    assert "tok:13a" in bleu(["a b c d"], ["a b c d"]).signature
    assert "tok:none" in bleu(["a b c d ."], ["a b c d ."], tokenize="none").signature
    assert "case:mixed" in bleu(["A b c d e"], ["a b c d e"]).signature
    lower = bleu(["A b c d e"], ["a b c d e"], lowercase=True)
    assert lower.score == 100.0 > 90 > bleu(["A b c d e"], ["a b c d e"]).score and "case:lc" in lower.signature
    assert "version:" in chrf(["ab"], ["ab"]).signature


def test_tokenization_changes_the_score():
    plain, reference = ["Hello world, again today."], ["Hello world , again today ."]
    assert bleu(plain, reference).score == 100.0
    assert bleu(plain, reference, tokenize="none").score < 50


def test_bleu_interval_matches_resampled_test_sets():
    """Twenty draws by the seed that sacrebleu names, each scored by itself: their mean, and half their range."""
    references = [f"a{i} b{i} c{i} d{i} e{i}" for i in range(12)]
    hypotheses = [text if i % 3 else text[:-2] + " x" for i, text in enumerate(references)]
    draws = np.random.default_rng(12345).choice(12, size=(20, 12))
    pick = lambda texts, rows: [texts[i] for i in rows]
    scores = [bleu(pick(hypotheses, rows), pick(references, rows), tokenize="none").score for rows in draws]
    middle, half = np.mean(scores), (max(scores) - min(scores)) / 2
    actual = bleu_interval(hypotheses, references, "none", resamples=20)
    assert actual == pytest.approx((middle - half, middle + half), abs=1e-3) and half > 1


def test_bleu_interval_ends_at_100():
    references = [f"a{i} b{i} c{i} d{i} e{i}" for i in range(12)]
    hypotheses = [references[0][:-2] + " x", *references[1:]]
    low, high = bleu_interval(hypotheses, references, "none", resamples=20)
    assert 0 <= low < bleu(hypotheses, references, tokenize="none").score < high == 100.0


def test_bins_hold_the_corpus_score_of_their_sentences():
    references = ["a b c d e", "f g h i j", "k l m n o p", "q r s t u v"]
    hypotheses = ["a b c d e", "f g h i j", "k l m n o x", "q r s t u v"]
    bins = bleu_by_length(hypotheses, references, [3, 10, 11, 75], edges=(0, 10, 20, 30), tokenize="none")
    assert [(b.low, b.high, b.sentences) for b in bins] == [(1, 10, 2), (11, 20, 1), (31, 75, 1)]
    assert bins[0].bleu == 100.0 and bins[2].bleu == 100.0
    assert bins[1].bleu == bleu(hypotheses[2:3], references[2:3], tokenize="none").score < 100


def test_what_is_kept_of_bleu_beyond_a_length():
    references = ["a b c d e f g h"] * 200
    lengths = [30] * 100 + [31] * 100
    halves = references[:100] + ["a b c d x x x x"] * 100
    long = bleu(halves[100:], references[100:], tokenize="none").score
    assert long_bleu_ratio(30, references, references, lengths, "none") == pytest.approx(1.0)
    assert long_bleu_ratio(30, halves, references, lengths, "none") == pytest.approx(long / 100) and 0 < long < 100
    assert long_bleu_ratio(30, references[1:], references[1:], lengths[1:], "none") is None  # 99 short ones
    assert long_bleu_ratio(30, references[:100], references[:100], lengths[:100], "none") is None


@pytest.mark.parametrize("hypotheses, references", [(["a"], []), ([], []), ("a b", ["a b"])])
def test_unpaired_sentences_are_refused(hypotheses, references):
    with pytest.raises(InputError):
        bleu(hypotheses, references)


def test_empty_hypotheses_are_scored_not_refused():
    assert bleu(["", "a b c d"], ["x y", "a b c d"]).score < 100
    assert np.isfinite(bleu([""], ["x y"]).score)


def test_bin_of_few_sentences_is_not_drawn(tmp_path):
    """BLEU of four sentences is no point, and two points are no curve."""
    bins = [LengthBin(low, low + 9, sentences, 30.0) for low, sentences in ((1, 50), (11, 5), (21, 4))]
    assert length_figure({"a": bins}, tmp_path / "a.png") is None and not [*tmp_path.iterdir()]
    assert length_figure({"a": [*bins[:2], bins[2]._replace(sentences=5)]}, tmp_path / "a.png").exists()
    assert (
        length_figure({"a": bins}, tmp_path / "a.png") is None and not (tmp_path / "a.png").exists()
    )  # an earlier one
