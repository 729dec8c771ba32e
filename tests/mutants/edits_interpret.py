"""Mutants of attention_jax/interpret and of the taps of models."""

from mutants.mutant import Mutant

INTERVENE, HEADS, LENSES = (f"tests/interpret/test_{name}.py" for name in ("intervene", "heads", "lenses"))

MUTANTS = (
    Mutant(
        "scanned-layers-are-set-in-the-wrong-order",
        "attention_jax/interpret/edits.py",
        "zip_longest(*layers)",
        "zip_longest(*layers[::-1])",
        (INTERVENE,),
    ),
    Mutant(
        "a-set-activation-is-ignored",
        "attention_jax/models/taps.py",
        "return jax.lax.optimization_barrier(value.reshape(x.shape)) if edits else x",
        "return x",
        (INTERVENE,),
    ),
    Mutant(
        "a-recurrence-is-set-at-the-steps-from-its-end",
        "attention_jax/models/taps.py",
        "jnp.broadcast_to(x, shape).swapaxes(0, 1)",
        "jnp.broadcast_to(x, shape).swapaxes(0, 1)[::-1]",
        ("tests/interpret/test_recurrent.py",),
    ),
    Mutant(
        "a-sweep-ablates-the-next-head",
        "attention_jax/interpret/intervene.py",
        "jnp.arange(count) == pair[1])",
        "jnp.arange(count) == (pair[1] + 1) % count)",
        (HEADS,),
    ),
    Mutant(
        "positions-of-keys-for-those-of-queries",
        "attention_jax/interpret/sites.py",
        "2 if heads_axis(name) == 1 else 1",
        "3 if heads_axis(name) == 1 else 1",
        ("attention_jax/interpret/sites.py",),
    ),
    Mutant(
        "the-scale-of-a-norm-is-not-held",
        "attention_jax/interpret/lenses.py",
        "y = exact * jax.lax.stop_gradient(scale) * parameter",
        "y = exact * scale * parameter",
        (LENSES,),
    ),
    Mutant(
        "the-gate-is-not-held",
        "attention_jax/interpret/lenses.py",
        'jax.lax.stop_gradient(output) if module.name == "gate" else output',
        "output",
        (LENSES,),
    ),
    Mutant(
        "the-quotient-of-an-activation-is-not-held",
        "attention_jax/interpret/lenses.py",
        "return x * jax.lax.stop_gradient(jnp.where(x == 0, 0, method(x) / jnp.where(x == 0, 1, x)))",
        "return method(x)",
        (LENSES,),
    ),
    Mutant(
        "the-weights-of-a-pool-are-not-held",
        "attention_jax/interpret/lenses.py",
        "weights = jax.lax.stop_gradient(method(*args[:2], return_weights=True)[1])",
        "weights = method(*args[:2], return_weights=True)[1]",
        (LENSES,),
    ),
    Mutant(
        "parts-that-do-not-sum-to-the-measure",
        "attention_jax/interpret/lenses.py",
        "not abs(total - value) <= rounding",
        "abs(total - value) < 0",
        (LENSES,),
    ),
    Mutant(
        "a-token-beyond-the-vocabulary-is-clamped",
        "attention_jax/interpret/sites.py",
        "0 <= least <= most < count",
        "0 <= least <= most <= count",
        ("tests/interpret/test_misuse.py",),
    ),
    Mutant(
        "induction-attends-to-the-occurrence-itself",
        "attention_jax/interpret/patterns.py",
        "return follows, broadcast",
        "return earlier, broadcast",
        (LENSES,),
    ),
    Mutant(
        "mean-ablation-over-the-rows-alone",
        "attention_jax/interpret/intervene.py",
        "axis=0 if axis is None else (0, axis)",
        "axis=0",
        (INTERVENE, HEADS),
    ),
    Mutant(
        "a-sweep-patches-every-position",
        "attention_jax/interpret/intervene.py",
        'kwargs = {"positions": positions}',
        'kwargs = {"positions": None}',
        (HEADS,),
    ),
    Mutant(
        "receivers-of-the-other-input-itself",
        "attention_jax/interpret/intervene.py",
        "set=frozen_edits | patch(sent), sites=names",
        "set=patch(sent), sites=names",
        ("tests/interpret/test_paths.py",),
    ),
    Mutant(
        "the-transposed-jacobian",
        "attention_jax/interpret/lenses.py",
        "jax.linear_transpose(lambda bar: back(bar)[0], out)(direction)[0]",
        "back(direction)[0]",
        (LENSES,),
    ),
    Mutant(
        "an-added-activation-replaces-the-other",
        "attention_jax/interpret/edits.py",
        "reduce(operator.and_, masks) if masks else None, function, spec.adds)",
        "reduce(operator.and_, masks) if masks else None, function)",
        ("tests/interpret/test_misuse.py", HEADS),
    ),
    Mutant(
        "a-frozen-head-is-that-of-the-other-input",
        "attention_jax/interpret/intervene.py",
        "activations = trace(model, params, *inputs, sites=[*freeze, *senders])",
        "activations = trace(model, params, *source, sites=[*freeze, *senders])",
        ("tests/interpret/test_paths.py",),
    ),
)
