"""Mutants of claims, verdicts, the record and its check."""

from mutants.mutant import Mutant

VERDICTS, RULE = ("tests/claims/test_verdicts.py",), ("tests/claims/test_rule.py",)
CHECK, LEDGER = ("tests/claims/test_check.py",), ("tests/claims/test_record.py",)

MUTANTS = (
    Mutant(
        "upper-bound-not-judged",
        "attention_jax/claims/claim.py",
        "and (self.at_most is None or value <= self.at_most)",
        "",
        VERDICTS,
    ),
    Mutant(
        "difference-with-the-wrong-sign",
        "attention_jax/claims/verdicts.py",
        "seed: value - baseline[seed] for",
        "seed: baseline[seed] - value for",
        VERDICTS,
    ),
    Mutant(
        "best-epoch-of-a-loss-is-its-largest",
        "attention_jax/claims/verdicts.py",
        "better = min if lower_is_better(quantity.metric) else max",
        "better = max",
        VERDICTS,
    ),
    Mutant(
        "few-runs-agree",
        "attention_jax/claims/rule.py",
        "-margin <= low and high <= margin and len(values) >= needed",
        "-margin <= low and high <= margin",
        RULE,
    ),
    Mutant(
        "median-within-the-margin-agrees",
        "attention_jax/claims/rule.py",
        "-margin <= low and high <= margin and",
        "low <= margin and high >= -margin and",
        RULE,
    ),
    Mutant(
        "wider-margin",
        "attention_jax/claims/rule.py",
        "SHARE = 0.02",
        "SHARE = 0.05",
        RULE,
    ),
    Mutant(
        "most-signs-decide",
        "attention_jax/claims/rule.py",
        '"same sign" if signs == {sign}',
        '"same sign" if sign in signs',
        RULE,
    ),
    Mutant(
        "incomplete-registration-counts",
        "attention_jax/claims/verdicts.py",
        'if row["experiment"] == experiment.name and not seeds <= recorded:',
        'if row["experiment"] == experiment.name and not seeds & recorded:',
        VERDICTS,
    ),
    Mutant(
        "former-names-do-not-count",
        "attention_jax/claims/record.py",
        'former.get(run["variant"], run["variant"])',
        'run["variant"]',
        VERDICTS,
    ),
    Mutant(
        "unclaimed-metrics-not-compared",
        "attention_jax/claims/check.py",
        'for name in run["metrics"]]',
        "for name in ()]",
        CHECK,
    ),
    Mutant(
        "interval-of-another-fraction",
        "attention_jax/report/intervals.py",
        'return examples - facts.get(f"{split}_inputs_also_in_train", 0)',
        "return examples",
        ("attention_jax/report/intervals.py",),
    ),
    Mutant(
        "diverged-run-agrees",
        "attention_jax/claims/check.py",
        "agrees = self.repeated is not None and self.expected.low <= self.repeated <= self.expected.high",
        "agrees = self.repeated is None or self.expected.low <= self.repeated <= self.expected.high",
        CHECK,
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
        'return int(any(comparison.verdict == "differs" for comparison in comparisons))',
        "return 0",
        CHECK,
    ),
    Mutant(
        "check-runs-longer-than-its-time",
        "attention_jax/claims/check.py",
        "if kind(rerun) not in covered and rerun.seconds <= seconds_left:",
        "if kind(rerun) not in covered and seconds_left >= 0:",
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
        "smoke-run-larger-than-the-experiment",
        "attention_jax/claims/catalog.py",
        "larger = lambda info, value: value > info.smoke or",
        "larger = lambda info, value: value < info.smoke or",
        ("tests/claims/test_catalog.py", "tests/config/test_config.py"),
    ),
    Mutant(
        "law-of-permutation-of-the-keys-alone",
        "attention_jax/laws/weights.py",
        "run(query[order], key[order], value[order])",
        "run(query, key[order], value[order])",
        ("tests/laws/test_laws.py",),
    ),
)
