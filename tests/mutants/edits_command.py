"""Mutants of the command line, run directories, decoding and files."""

from mutants.mutant import Mutant

LAUNCH, DECODE = ("tests/test_launch.py",), ("tests/test_decode.py",)

MUTANTS = (
    Mutant(
        "missed-claim-ends-well",
        "attention_jax/cli/commands.py",
        'raise SystemExit(1 if any(one.verdict == "missed" for one in rows) else 0)',
        'raise SystemExit(1 if all(one.verdict == "missed" for one in rows) else 0)',
        (
            "tests/test_commands.py",
            "tests/test_launch.py::test_a_file_of_ones_own_is_reproduced_beside_it",
            *LAUNCH,
            "tests/claims/test_record.py",
            "tests/claims/test_pages.py",
        ),
    ),
    Mutant(
        "bad-input-ends-with-1",
        "attention_jax/cli/commands.py",
        "raise SystemExit(2) from None",
        "raise SystemExit(1) from None",
        ("tests/test_launch.py::test_a_mistake_is_one_line_that_names_it", *LAUNCH),
    ),
    Mutant(
        "translation-skips-empty-lines",
        "attention_jax/cli/commands.py",
        '(next(translated) if line.strip() else "") + "\\n" for line in lines)',
        'next(translated) + "\\n" for line in full)',
        ("tests/test_launch.py::test_a_file_is_translated_line_by_line", *LAUNCH),
    ),
    Mutant(
        "preset-of-a-begun-run-ignored",
        "attention_jax/cli/commands.py",
        "    if asked.preset:\n        raise",
        "    if asked.preset == directory:\n        raise",
        ("tests/test_commands.py", "tests/test_launch.py::test_a_run_is_resumed_only_as_what_it_is", *LAUNCH),
    ),
    Mutant(
        "foreign-code-always-trusted",
        "attention_jax/cli/commands.py",
        "run = load_run(asked.run, trust_code=asked.trust_code)\n    for name, value",
        "run = load_run(asked.run, trust_code=True)\n    for name, value",
        ("tests/test_commands.py", *LAUNCH, "tests/runs/test_saved.py", "tests/config/test_config_json.py"),
    ),
    Mutant(
        "write-not-atomic",
        "attention_jax/files.py",
        'part = path.with_name(f"{path.name}.{os.getpid()}.part{path.suffix}")',
        "part = path",
        (
            "tests/train/test_checkpoint.py::test_lines_that_find_no_room_are_written_with_the_next",
            "tests/runs/test_lifecycle.py",
            "tests/test_full_disk.py",
            "tests/test_damaged_files.py",
            "tests/claims/test_record.py",
        ),
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
        "attention_jax/runs/directory.py",
        "return earlier[max(earlier)]",
        "return earlier[min(earlier)]",
        ("tests/test_launch.py::test_the_newest_run_is_the_one_with_the_greatest_number", *LAUNCH),
    ),
    Mutant(
        "resume-with-other-options",
        "attention_jax/runs/directory.py",
        "        if name not in resumable:\n",
        "        if name in resumable:\n",
        ("tests/test_launch.py::test_a_run_is_resumed_only_as_what_it_is", "tests/runs/test_lifecycle.py", *LAUNCH),
    ),
    Mutant(
        "changed-data-not-noticed",
        "attention_jax/runs/directory.py",
        "changed = [name for name in then if name in now and then[name] != now[name]]",
        "changed = [name for name in then if name not in now]",
        ("tests/runs/test_saved.py", "tests/test_own_data.py", *LAUNCH),
    ),
    Mutant(
        "failed-run-leaves-its-directory",
        "attention_jax/runs/lifecycle.py",
        "            if hosts.is_primary() and not any(",
        "            if hosts.is_primary() and any(",
        (
            "tests/test_launch.py::test_a_model_that_cannot_be_made_leaves_no_directory",
            "tests/runs/test_lifecycle.py",
            *LAUNCH,
        ),
    ),
    Mutant(
        "beam-penalty-without-alpha",
        "attention_jax/decode.py",
        "return ((5.0 + length) / 6.0) ** alpha",
        "return (5.0 + length) / 6.0",
        ("tests/test_decode.py::test_penalties_by_hand", *DECODE),
    ),
    Mutant(
        "beam-ends-at-its-first-hypothesis",
        "attention_jax/decode.py",
        "return (beams.t < max_length) & (reachable > settled).any()",
        "return (beams.t < max_length) & ~beams.ended.any()",
        ("tests/test_decode.py::test_early_stop_never_loses_the_best", *DECODE),
    ),
    Mutant(
        "beam-keeps-the-caches-of-its-parents",
        "attention_jax/decode.py",
        "cache=map_per_hypothesis(lambda leaf: replicated(leaf)[rows], cache)",
        "cache=cache",
        ("tests/test_decode.py::test_the_cache_follows_its_hypothesis", *DECODE),
    ),
    Mutant(
        "sample-reuses-one-key",
        "attention_jax/decode.py",
        "jax.random.gumbel(rng, logits.shape, logits.dtype)  # the argmax",
        "jax.random.gumbel(rngs[0], logits.shape, logits.dtype)  # the argmax",
        ("tests/test_decode.py::test_what_is_sampled_is_what_a_slow_definition_allows", *DECODE),
    ),
    Mutant(
        "nucleus-without-the-token-that-crosses-it",
        "attention_jax/decode.py",
        "before = jnp.cumsum(probability, axis=-1) - probability",
        "before = jnp.cumsum(probability, axis=-1)",
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
