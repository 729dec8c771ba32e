"""Mutants of attention_jax/train."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "warmup-off-by-one",
        "attention_jax/train/optimizer.py",
        "step = jnp.asarray(step, jnp.float32) + 1.0",
        "step = jnp.asarray(step, jnp.float32)",
        ("tests/train/test_optimizer.py",),
    ),
    Mutant(
        "cosine-counts-the-warmup",
        "attention_jax/train/optimizer.py",
        "done = jnp.clip((step - warmup) / jnp.maximum(total_steps - warmup, 1.0), 0.0, 1.0)",
        "done = jnp.clip(step / total_steps, 0.0, 1.0)",
        ("tests/train/test_optimizer.py",),
    ),
    Mutant(
        "gradient-clipped-after-adam",
        "attention_jax/train/optimizer.py",
        "parts += precondition(optim)",
        "parts = precondition(optim) + parts",
        ("tests/train/test_optimizer.py",),
    ),
    Mutant(
        "adam-decays-like-adamw",
        "attention_jax/train/optimizer.py",
        'coupled = optim.name in ("sgd", "adam")',
        'coupled = optim.name == "sgd"',
        ("tests/train/test_optimizer.py",),
    ),
    Mutant(
        "decay-of-the-parameters-of-scores",
        "attention_jax/train/optimizer.py",
        "names[-1] in NTM_KERNELS) and not of_a_score",
        "names[-1] in NTM_KERNELS)",
        ("tests/train/test_optimizer.py",),
    ),
    Mutant(
        "same-dropout-in-every-step",
        "attention_jax/train/step.py",
        "rng = jax.random.fold_in(state.rng, state.step)",
        "rng = state.rng",
        (
            "tests/train/test_loop.py::test_each_step_draws_anew",
            "tests/train/test_step.py",
            "tests/train/test_loop.py",
            "tests/train/test_placement.py",
        ),
    ),
    Mutant(
        "same-dropout-in-every-micro-batch",
        "attention_jax/train/step.py",
        "sums(rows, jax.random.fold_in(rng, number))",
        "sums(rows, rng)",
        (
            "tests/train/test_placement.py::test_each_micro_batch_has_a_key_of_its_own",
            "tests/train/test_step.py",
            "tests/train/test_loop.py",
            "tests/train/test_placement.py",
        ),
    ),
    Mutant(
        "update-for-a-batch-of-padding",
        "attention_jax/train/step.py",
        "jax.lax.cond(count > 0, update",
        "jax.lax.cond(count >= 0, update",
        ("tests/train/test_step.py", "tests/train/test_loop.py"),
    ),
    Mutant(
        "mean-instead-of-sum-over-devices",
        "attention_jax/train/placement.py",
        "gradient if AXIS in spec else jax.lax.psum(gradient, AXIS)",
        "gradient if AXIS in spec else jax.lax.pmean(gradient, AXIS)",
        (
            "tests/train/test_placement.py::test_on_four_devices_pieces_equal_copies",
            "tests/train/test_placement.py",
        ),
    ),
    Mutant(
        "same-dropout-on-every-device",
        "attention_jax/train/placement.py",
        "rng = jax.random.fold_in(rng, jax.lax.axis_index(AXIS))\n    return jax.lax.psum",
        "return jax.lax.psum",
        (
            "tests/train/test_placement.py::test_on_four_devices_pieces_equal_copies",
            "tests/train/test_placement.py",
            "tests/train/test_hosts.py",
        ),
    ),
    Mutant(
        "padding-of-the-last-evaluation-batch-counts",
        "attention_jax/train/placement.py",
        "np.concatenate(parts)[:total]",
        "np.concatenate(parts)",
        ("tests/train/test_placement.py",),
    ),
    Mutant(
        "patience-one-epoch-too-long",
        "attention_jax/train/run.py",
        "self.train.min_delta) >= self.train.patience",
        "self.train.min_delta) > self.train.patience",
        (
            "tests/train/test_loop.py::test_patience_ends_a_run_that_no_longer_improves",
            "tests/train/test_loop.py",
        ),
    ),
    Mutant(
        "early-stopping-compares-the-wrong-way",
        "attention_jax/train/run.py",
        "return -metrics[name] if lower_is_better(name) else metrics[name]",
        "return metrics[name]",
        ("tests/train/test_loop.py",),
    ),
    Mutant(
        "last-step-left-out",
        "attention_jax/train/run.py",
        "(done < steps) & (steps <= most)",
        "(done < steps) & (steps < most)",
        (
            "tests/train/test_loop.py::test_a_run_that_comes_to_its_last_step_ends_its_epoch_there",
            "tests/train/test_loop.py",
        ),
    ),
    Mutant(
        "best-checkpoint-is-the-worst",
        "attention_jax/train/checkpoint.py",
        "return max(after)[1] if after else None",
        "return min(after)[1] if after else None",
        (
            "tests/train/test_loop.py::test_a_run_may_end_with_the_parameters_of_its_best_epoch",
            "tests/train/test_checkpoint.py",
            "tests/train/test_loop.py",
        ),
    ),
    Mutant(
        "average-of-one-epoch-too-many",
        "attention_jax/train/checkpoint.py",
        "if epoch > max(at.values()) - count]",
        "if epoch >= max(at.values()) - count]",
        (
            "tests/train/test_loop.py::test_the_best_and_the_last_checkpoints_are_kept_and_averaged",
            "tests/train/test_checkpoint.py",
            "tests/train/test_loop.py",
        ),
    ),
    Mutant(
        "average-forgets-a-failed-save",
        "attention_jax/train/checkpoint.py",
        "self.failing, self.failed_saves = True, [*self.failed_saves, number]",
        "self.failing = True",
        ("tests/train/test_checkpoint.py", "tests/train/test_loop.py"),
    ),
    Mutant(
        "jit-over-a-mesh-replicates-the-batch",
        "attention_jax/train/placement.py",
        "batches = PartitionSpec(None, AXIS)\n    in_specs",
        "batches = PartitionSpec()\n    in_specs",
        ("tests/train/test_placement.py",),
    ),
)
