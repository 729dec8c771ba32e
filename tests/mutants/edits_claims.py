"""Mutants of claims, verdicts, the record and its check."""

from mutants.mutant import Mutant

VERDICTS = ("tests/claims/test_verdicts.py", "tests/claims/test_verdicts_last.py")
CHECK, LEDGER = ("tests/claims/test_check.py",), ("tests/claims/test_record.py",)

MUTANTS = (
    Mutant(
        "upper-bound-not-judged",
        "attention_jax/claims/verdicts.py",
        "and (bound.at_most is None or value <= bound.at_most)",
        "",
        VERDICTS,
    ),
    Mutant(
        "loss-is-better-upward",
        "attention_jax/claims/verdicts.py",
        "return not lower_is_better(bound.metric)",
        "return True",
        VERDICTS,
    ),
    Mutant(
        "difference-with-the-wrong-sign",
        "attention_jax/claims/verdicts.py",
        "seed: value - values[bound.minus, seed] for",
        "seed: values[bound.minus, seed] - value for",
        VERDICTS,
    ),
    Mutant(
        "seeds-ranked-from-the-worst",
        "attention_jax/claims/verdicts.py",
        "reverse=upward(bound))",
        "reverse=not upward(bound))",
        VERDICTS,
    ),
    Mutant(
        "beaten-within-the-noise",
        "attention_jax/claims/verdicts.py",
        "all(found.high < low for found in around)",
        "all(found.low < low for found in around)",
        VERDICTS,
    ),
    Mutant(
        "beaten-by-two-seeds",
        "attention_jax/claims/verdicts.py",
        "len(values) < SEEDS:",
        "len(values) < SEEDS - 1:",
        VERDICTS,
    ),
    Mutant(
        "best-epoch-of-a-loss-is-its-largest",
        "attention_jax/claims/verdicts.py",
        "better = min if lower_is_better(bound.metric) else max",
        "better = max",
        VERDICTS,
    ),
    Mutant(
        "interval-of-another-fraction",
        "attention_jax/claims/intervals.py",
        'return examples - facts.get(f"{split}_inputs_also_in_train", 0)',
        "return examples",
        VERDICTS,
    ),
    Mutant(
        "difference-of-two-intervals-shrinks",
        "attention_jax/claims/intervals.py",
        "hypot(mine - around_mine.low, around_other.high - other)",
        "hypot(mine - around_mine.low, other - around_other.low)",
        (*VERDICTS, "tests/claims/test_check.py"),
    ),
    Mutant(
        "best-epoch-on-a-test-split-allowed",
        "attention_jax/claims/claim.py",
        'if self.best and self.metric.startswith("test"):',
        'if self.best and self.metric == "test":',
        (*VERDICTS, "tests/config/test_config.py", "tests/claims/test_pages.py", "tests/claims/test_selection.py"),
    ),
    Mutant(
        "check-ends-well-whatever-differs",
        "attention_jax/claims/check.py",
        'return int(any(one.verdict == "differs" for one in found))',
        "return 0",
        CHECK,
    ),
    Mutant(
        "check-runs-longer-than-its-time",
        "attention_jax/claims/check.py",
        "if kind(again) not in covered and again.seconds <= left:",
        "if kind(again) not in covered and left >= 0:",
        CHECK,
    ),
    Mutant(
        "diverged-run-agrees",
        "attention_jax/claims/comparison.py",
        "agrees = self.here is not None and self.expected.low <= self.here <= self.expected.high",
        "agrees = self.here is None or self.expected.low <= self.here <= self.expected.high",
        CHECK,
    ),
    Mutant(
        "record-replaces-the-other-seeds",
        "attention_jax/claims/record.py",
        'identity = lambda run: (run["variant"], run["seed"])\n    results.mkdir',
        'identity = lambda run: (run["variant"],)\n    results.mkdir',
        LEDGER,
    ),
    Mutant(
        "recorded-with-other-options",
        "attention_jax/claims/record.py",
        "for option in changed if option not in allowed)",
        "for option in changed if option in allowed)",
        LEDGER,
    ),
    Mutant(
        "last-epoch-thinned-out",
        "attention_jax/claims/record.py",
        "if number % every == 0 or number == len(history)]",
        "if number % every == 0]",
        LEDGER,
    ),
    Mutant(
        "replication-decides-before-it-is-complete",
        "attention_jax/claims/judged.py",
        "complete = bool(common) and common <= by_seed(bound, replication).keys()",
        "complete = bool(common) and bool(by_seed(bound, replication))",
        ("tests/claims/test_pages.py", "tests/claims/test_replication.py"),
    ),
    Mutant(
        "incomplete-replication-falls-back-to-the-original-run",
        "attention_jax/claims/judged.py",
        "decides = bool(common) and (complete or was_complete)",
        "decides = bool(common) and complete",
        ("tests/claims/test_pages.py",),
    ),
    Mutant(
        "smoke-run-larger-than-the-experiment",
        "attention_jax/claims/catalog.py",
        "larger = lambda info, value: value > info.smoke or",
        "larger = lambda info, value: value < info.smoke or",
        ("tests/claims/test_catalog.py", "tests/config/test_config.py"),
    ),
)
