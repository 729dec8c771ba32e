"""Mutants of attention_jax/tasks."""

from mutants.mutant import Mutant

SEQ2SEQ = ("tests/tasks/test_seq2seq.py",)

MUTANTS = (
    Mutant(
        "padding-counted-in-the-loss",
        "attention_jax/tasks/seq2seq.py",
        '[None] < batch["target_length"][:, None]',
        '[None] <= batch["target_length"][:, None]',
        ("tests/tasks/test_seq2seq.py::test_loss_counts_real_tokens_of_rows_with_weight", *SEQ2SEQ),
    ),
    Mutant(
        "teacher-forcing-shifted",
        "attention_jax/tasks/seq2seq.py",
        'return batch["target"][:, :-1]\n',
        'return batch["target"][:, 1:]\n',
        SEQ2SEQ,
    ),
    Mutant(
        "loss-per-sentence-instead-of-per-token",
        "attention_jax/tasks/seq2seq.py",
        'float(rows[name][i].sum() / rows["tokens"][i].sum())',
        'float((rows[name][i] / rows["tokens"][i]).mean())',
        (
            "tests/tasks/test_seq2seq.py::test_evaluation_counts_every_held_out_row_once",
            *SEQ2SEQ,
        ),
    ),
    Mutant(
        "last-batch-is-not-evaluated",
        "attention_jax/tasks/__init__.py",
        "range(0, examples, size)",
        "range(0, examples - size + 1, size)",
        ("tests/tasks/test_eval_mean.py",),
    ),
    Mutant(
        "decoding-limit-knows-the-test-targets",
        "attention_jax/tasks/seq2seq.py",
        'for name, pairs in self.data.held_out.items() if name == "valid")',
        "for name, pairs in self.data.held_out.items())",
        ("tests/tasks/test_seq2seq.py::test_output_limit_ignores_test_references", *SEQ2SEQ),
    ),
    Mutant(
        "packed-target-begins-with-its-neighbor",
        "attention_jax/tasks/seq2seq.py",
        'begins = positions_within(batch["target_segment"]) == 0',
        'begins = positions_within(batch["target_segment"]) < 0',
        (*SEQ2SEQ, "tests/data/test_pairs.py"),
    ),
    Mutant(
        "mixed-loss-ignores-the-partner",
        "attention_jax/tasks/vision.py",
        "loss(label[partner], weight * (1 - share))[0]",
        "loss(label, weight * (1 - share))[0]",
        (
            "tests/tasks/test_vision.py::test_mixed_labels_are_shared_out",
            "tests/tasks/test_vision.py",
        ),
    ),
    Mutant(
        "dropout-uses-the-key-of-the-augmentation",
        "attention_jax/tasks/vision.py",
        'rngs={"dropout": dropping}',
        'rngs={"dropout": varying}',
        ("tests/tasks/test_vision.py",),
    ),
    Mutant(
        "match-of-a-target-longer-than-the-output",
        "attention_jax/tasks/scoring.py",
        ".all(1) & (pairs.target_length <= size)",
        ".all(1)",
        ("tests/tasks/test_seq2seq.py::test_truncated_output_does_not_match_longer_target", *SEQ2SEQ),
    ),
    Mutant(
        "bits-per-character-in-nats",
        "attention_jax/tasks/language.py",
        "per_token / self.data.characters_per_token[split] / np.log(2.0)",
        "per_token / self.data.characters_per_token[split]",
        ("tests/tasks/test_language.py",),
    ),
    Mutant(
        "sequences-cut-before-their-end",
        "attention_jax/tasks/memory.py",
        "cuts = (-(-longest * quarter // 4) for quarter in (1, 2, 3, 4))",
        "cuts = (longest * quarter // 4 for quarter in (1, 2, 3, 4))",
        ("tests/tasks/test_memory.py",),
    ),
    Mutant(
        "hull-must-start-at-the-same-corner",
        "experiments/papers/pointer.py",
        "return tuple(corners[at:] + corners[:at])",
        "return tuple(corners)",
        ("tests/papers/test_pointing.py",),
    ),
    Mutant(
        "hull-loss-of-the-padding",
        "experiments/papers/pointer.py",
        "return -jnp.where(real, log_p, 0.0).sum(1)",
        "return -log_p.sum(1)",
        ("tests/papers/test_pointing.py",),
    ),
)
