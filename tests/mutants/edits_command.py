"""Mutants of the command line, run directories, decoding and files."""

from mutants.mutant import Mutant

LAUNCH, DECODE = ("tests/test_launch.py",), ("tests/test_decode.py",)

MUTANTS = (
    Mutant(
        "missed-claim-ends-well",
        "attention_jax/commands.py",
        'raise SystemExit(1 if any(one.verdict == "missed" for one in rows) else 0)',
        'raise SystemExit(1 if all(one.verdict == "missed" for one in rows) else 0)',
        (*LAUNCH, "tests/test_ledger.py", "tests/test_results.py"),
    ),
    Mutant(
        "bad-input-ends-with-1",
        "attention_jax/commands.py",
        "raise SystemExit(2) from None",
        "raise SystemExit(1) from None",
        LAUNCH,
    ),
    Mutant(
        "translation-skips-empty-lines",
        "attention_jax/commands.py",
        '(next(translated) if line.strip() else "") + "\\n" for line in lines)',
        'next(translated) + "\\n" for line in full)',
        LAUNCH,
    ),
    Mutant(
        "preset-of-a-begun-run-ignored",
        "attention_jax/commands.py",
        "    if asked.preset:\n        raise",
        "    if asked.preset == directory:\n        raise",
        LAUNCH,
    ),
    Mutant(
        "foreign-code-always-trusted",
        "attention_jax/commands.py",
        "run = load_run(asked.run, trust_code=asked.trust_code)\n    for name, value",
        "run = load_run(asked.run, trust_code=True)\n    for name, value",
        (*LAUNCH, "tests/test_saved_run.py", "tests/test_config_json.py"),
    ),
    Mutant(
        "write-not-atomic",
        "attention_jax/files.py",
        'part = path.with_name(f"{path.name}.{os.getpid()}.part{path.suffix}")',
        "part = path",
        ("tests/test_lifecycle.py", "tests/test_full_disk.py", "tests/test_damaged_files.py", "tests/test_ledger.py"),
    ),
    Mutant(
        "missing-package-not-explained",
        "attention_jax/errors.py",
        "if package not in EXTRAS:",
        "if package in EXTRAS:",
        ("tests/test_public_api.py", "tests/test_imports.py"),
    ),
    Mutant(
        "resume-of-the-oldest-run",
        "attention_jax/run_directory.py",
        "return earlier[max(earlier)]",
        "return earlier[min(earlier)]",
        LAUNCH,
    ),
    Mutant(
        "resume-with-other-options",
        "attention_jax/run_directory.py",
        "        if name not in resumable:\n",
        "        if name in resumable:\n",
        ("tests/test_lifecycle.py", *LAUNCH),
    ),
    Mutant(
        "changed-data-not-noticed",
        "attention_jax/run_directory.py",
        "changed = [name for name in then if name in now and then[name] != now[name]]",
        "changed = [name for name in then if name not in now]",
        ("tests/test_saved_run.py", "tests/test_own_data.py", *LAUNCH),
    ),
    Mutant(
        "failed-run-leaves-its-directory",
        "attention_jax/lifecycle.py",
        "            if hosts.is_primary() and not any(",
        "            if hosts.is_primary() and any(",
        ("tests/test_lifecycle.py", *LAUNCH),
    ),
    Mutant(
        "beam-penalty-without-alpha",
        "attention_jax/decode.py",
        "return ((5.0 + length) / 6.0) ** alpha",
        "return (5.0 + length) / 6.0",
        DECODE,
    ),
    Mutant(
        "beam-ends-at-its-first-hypothesis",
        "attention_jax/decode.py",
        "return (beams.t < max_length) & (reachable > settled).any()",
        "return (beams.t < max_length) & ~beams.ended.any()",
        DECODE,
    ),
    Mutant(
        "beam-keeps-the-caches-of-its-parents",
        "attention_jax/decode.py",
        "cache=map_per_hypothesis(lambda leaf: leaf[rows], cache)",
        "cache=cache",
        DECODE,
    ),
    Mutant(
        "sample-reuses-one-key",
        "attention_jax/decode.py",
        "logits = logits + jax.random.gumbel(rng, logits.shape)",
        "logits = logits + jax.random.gumbel(rngs[0], logits.shape)",
        DECODE,
    ),
    Mutant(
        "nucleus-without-the-token-that-crosses-it",
        "attention_jax/decode.py",
        "nucleus = jnp.cumsum(probability, axis=-1) - probability < top_p",
        "nucleus = jnp.cumsum(probability, axis=-1) < top_p",
        DECODE,
    ),
    Mutant(
        "bleu-ignores-the-case",
        "attention_jax/report/bleu.py",
        "metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)",
        "metric = BLEU(tokenize=tokenize, lowercase=True, force=True)",
        ("tests/report/test_bleu.py",),
    ),
)
