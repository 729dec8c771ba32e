"""Mutants of attention_jax/sweep."""

from mutants.mutant import Mutant

SPACE, SEARCH = ("tests/sweep/test_space.py",), ("tests/sweep/test_search.py",)
DRIVER = ("tests/sweep/test_driver.py",)

MUTANTS = (
    Mutant(
        "log-range-may-touch-zero",
        "attention_jax/sweep/space.py",
        "if log and low <= 0:",
        "if log and low < 0:",
        SPACE,
    ),
    Mutant(
        "value-out-of-bounds-not-refused",
        "attention_jax/sweep/space.py",
        "else (dimension.low, dimension.high):",
        "else (dimension.low,):",
        (*SPACE, *DRIVER),
    ),
    Mutant(
        "first-parameter-varies-fastest",
        "attention_jax/sweep/space.py",
        "return [dict(zip(space, values)) for values in itertools.product(*axes)]",
        "return [dict(zip(space, values[::-1])) for values in itertools.product(*axes[::-1])]",
        (*SPACE, *SEARCH, *DRIVER),
    ),
    Mutant(
        "search-maximizes-the-loss",
        "attention_jax/sweep/search.py",
        'direction="minimize" if settings.lower else "maximize"',
        'direction="maximize" if settings.lower else "minimize"',
        (*SEARCH, *DRIVER),
    ),
    Mutant(
        "repeated-point-trained-again",
        "attention_jax/sweep/search.py",
        "if trial.params in tried:",
        "if trial.params in tried[:0]:",
        (*SEARCH, *DRIVER),
    ),
    Mutant(
        "population-shares-one-learning-rate",
        "attention_jax/sweep/population.py",
        "config = configs.replace(config, **numbers)\n    gradients",
        "gradients",
        (
            "tests/sweep/test_population.py::test_members_are_the_runs_alone",
            "tests/sweep/test_population.py",
        ),
    ),
    Mutant(
        "population-with-and-without-dropout",
        "attention_jax/sweep/partition.py",
        "value != 0 if info.traced else value",
        "None if info.traced else value",
        (*DRIVER, "tests/sweep/test_population.py"),
    ),
    Mutant(
        "best-trial-is-the-worst",
        "attention_jax/sweep/plan.py",
        "return value if self.lower else -value",
        "return -value if self.lower else value",
        DRIVER,
    ),
    Mutant(
        "mean-over-the-seeds-that-have-ended",
        "attention_jax/sweep/plan.py",
        "sum(values) / len(values) if len(values) == settings.seeds else None",
        "sum(values) / len(values) if values else None",
        DRIVER,
    ),
    Mutant(
        "diverged-trial-is-done",
        "attention_jax/sweep/plan.py",
        "(value is None or not math.isfinite(value))",
        "value is None",
        DRIVER,
    ),
    Mutant(
        "sweep-of-other-settings-resumed",
        "attention_jax/sweep/driver.py",
        "        if old != new:\n",
        "        if type(old) is not type(new):\n",
        DRIVER,
    ),
)
