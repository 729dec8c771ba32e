"""Mutants of claims, verdicts, the record and its check."""

from mutants.mutant import Mutant

VERDICTS = ("tests/report/test_verdicts.py", "tests/report/test_verdicts_last.py")
CHECK, LEDGER = ("tests/test_check.py",), ("tests/test_ledger.py",)

MUTANTS = (
    Mutant(
        "upper-bound-not-judged",
        "attention_jax/report/verdicts.py",
        "and (bound.at_most is None or value <= bound.at_most)",
        "",
        VERDICTS,
    ),
    Mutant(
        "loss-is-better-upward",
        "attention_jax/report/verdicts.py",
        "return not lower_is_better(bound.metric)",
        "return True",
        VERDICTS,
    ),
    Mutant(
        "difference-with-the-wrong-sign",
        "attention_jax/report/verdicts.py",
        "seed: value - values[bound.minus, seed] for",
        "seed: values[bound.minus, seed] - value for",
        VERDICTS,
    ),
    Mutant(
        "seeds-ranked-from-the-worst",
        "attention_jax/report/verdicts.py",
        "reverse=upward(bound))",
        "reverse=not upward(bound))",
        VERDICTS,
    ),
    Mutant(
        "beaten-within-the-noise",
        "attention_jax/report/verdicts.py",
        "all(found.high < low for found in around)",
        "all(found.low < low for found in around)",
        VERDICTS,
    ),
    Mutant(
        "beaten-by-two-seeds",
        "attention_jax/report/verdicts.py",
        "len(values) < SEEDS:",
        "len(values) < SEEDS - 1:",
        VERDICTS,
    ),
    Mutant(
        "best-epoch-of-a-loss-is-its-largest",
        "attention_jax/report/verdicts.py",
        "better = min if lower_is_better(bound.metric) else max",
        "better = max",
        VERDICTS,
    ),
    Mutant(
        "interval-of-another-fraction",
        "attention_jax/report/intervals.py",
        'return examples - facts.get(f"{split}_inputs_also_in_train", 0)',
        "return examples",
        VERDICTS,
    ),
    Mutant(
        "difference-of-two-intervals-shrinks",
        "attention_jax/report/intervals.py",
        "hypot(mine - around_mine.low, around_other.high - other)",
        "hypot(mine - around_mine.low, other - around_other.low)",
        (*VERDICTS, "tests/test_check.py"),
    ),
    Mutant(
        "best-epoch-on-a-test-split-allowed",
        "attention_jax/config/claims.py",
        'if self.best and self.metric.startswith("test"):',
        'if self.best and self.metric == "test":',
        (*VERDICTS, "tests/test_config.py", "tests/test_results.py", "tests/test_selection.py"),
    ),
    Mutant(
        "check-ends-well-whatever-differs",
        "attention_jax/check.py",
        'return int(any(one.verdict == "differs" for one in found))',
        "return 0",
        CHECK,
    ),
    Mutant(
        "check-runs-longer-than-its-time",
        "attention_jax/check.py",
        "if kind(again) not in covered and again.seconds <= left:",
        "if kind(again) not in covered and left >= 0:",
        CHECK,
    ),
    Mutant(
        "diverged-run-agrees",
        "attention_jax/comparison.py",
        "agrees = self.here is not None and self.expected.low <= self.here <= self.expected.high",
        "agrees = self.here is None or self.expected.low <= self.here <= self.expected.high",
        CHECK,
    ),
    Mutant(
        "record-replaces-the-other-seeds",
        "attention_jax/ledger.py",
        'identity = lambda run: (run["variant"], run["seed"])\n    results.mkdir',
        'identity = lambda run: (run["variant"],)\n    results.mkdir',
        LEDGER,
    ),
    Mutant(
        "recorded-with-other-options",
        "attention_jax/ledger.py",
        "for option in changed if option not in allowed)",
        "for option in changed if option in allowed)",
        LEDGER,
    ),
    Mutant(
        "last-epoch-thinned-out",
        "attention_jax/ledger.py",
        "if number % every == 0 or number == len(history)]",
        "if number % every == 0]",
        LEDGER,
    ),
    Mutant(
        "replication-decides-before-it-is-complete",
        "attention_jax/results.py",
        "complete = bool(common) and common <= by_seed(bound, replication).keys()",
        "complete = bool(common) and bool(by_seed(bound, replication))",
        ("tests/test_results.py", "tests/test_replication.py"),
    ),
    Mutant(
        "smoke-run-larger-than-the-experiment",
        "attention_jax/catalogue.py",
        "larger = lambda info, value: value > info.smoke or",
        "larger = lambda info, value: value < info.smoke or",
        ("tests/test_catalogue.py", "tests/test_config.py"),
    ),
)
