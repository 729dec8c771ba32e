"""Mutants of attention_jax/laws: the subject of each law, broken in the code, or what it is measured against."""

from mutants.mutant import Mutant

LAWS = ("tests/laws/test_laws.py",)
REGRESSION, WEIGHTS, FAST = (f"attention_jax/laws/{name}.py" for name in ("regression", "weights", "fast_weights"))
ALL = "attention_jax/laws/__init__.py"

MUTANTS = (
    Mutant(
        "a-circle-of-one-radius",  # kernel.rate_inside, kernel.rate_boundary
        REGRESSION,
        "jnp.concatenate([jnp.cos(x), jnp.sin(x)], axis=1) / width",
        "jnp.concatenate([jnp.cos(x), jnp.sin(x)], axis=1) + 0 * width",
        LAWS,
    ),
    Mutant(
        "a-local-line-without-a-slope",  # kernel.local_linear_rate_boundary
        REGRESSION,
        "score=Gaussian(width), pool=LocalLinear())",
        "score=Gaussian(width), pool=LocalLinear(ridge=1e6))",
        LAWS,
    ),
    Mutant(
        "another-penalty",  # kernel.ridge_error
        REGRESSION,
        "product(x, x, a) + penalty * a",
        "product(x, x, a) + penalty**2 * a",
        LAWS,
    ),
    Mutant(
        "the-slope-is-subtracted",  # kernel.parallax_error
        REGRESSION,
        "return mean + slope",
        "return mean - slope",
        LAWS,
    ),
    Mutant(
        "a-winner-that-leads-more-with-more-keys",  # weights.dispersion
        WEIGHTS,
        "rows = 4.0 * jnp.eye(16)",
        "rows = keys**0.3 * jnp.eye(16)",
        LAWS,
    ),
    Mutant(
        "sparsemax-of-an-eighth-of-the-scores",  # weights.concentration, weights.retrieval_error
        WEIGHTS,
        "attend(query, key, value, normalizer=Sparsemax())",
        "attend(query / 8, key, value, normalizer=Sparsemax())",
        LAWS,
    ),
    Mutant(
        "a-pattern-that-is-hardly-damaged",  # weights.retrieval_error_below
        WEIGHTS,
        "(sharpness * 64**0.5 / (first - second))",
        "(2 * sharpness * 64**0.5 / (first - second))",
        LAWS,
    ),
    Mutant(
        "a-bias-where-there-is-none",  # weights.growth_sigmoid
        WEIGHTS,
        "attend(query, key, value, normalizer=Sigmoid())",
        "attend(query, key, value, normalizer=Sigmoid(-jnp.log(jnp.float32(len(key)))))",
        LAWS,
    ),
    Mutant(
        "the-bias-of-a-sigmoid-has-the-other-sign",  # weights.growth
        WEIGHTS,
        "normalizer=Sigmoid(-jnp.log(jnp.float32(len(key)))))",
        "normalizer=Sigmoid(jnp.log(jnp.float32(len(key)))))",
        LAWS,
    ),
    Mutant(
        "a-head-that-hardly-learns",  # weights.sink_softmax, weights.sink_softmax_loss, weights.sink_relu_loss
        WEIGHTS,
        "optax.cosine_decay_schedule(0.01, steps)",
        "optax.cosine_decay_schedule(1e-6, steps)",
        LAWS,
    ),
    Mutant(
        "a-relu-that-sums-to-one",  # weights.sink_relu
        ALL,
        "SOFTMAX, RELU = Softmax(), ReluPower(1)",
        "SOFTMAX, RELU = Softmax(), Softmax()",
        LAWS,
    ),
    Mutant(
        "a-projection-on-a-value-that-is-no-unit-vector",  # weights.own_value
        WEIGHTS,
        "jnp.sum(output * value, axis=1) / jnp.sum(value**2, axis=1)",
        "jnp.sum(output * value, axis=1)",
        LAWS,
    ),
    Mutant(
        "positions-that-do-not-move",  # weights.permutation_error
        WEIGHTS,
        "moved - output[order]",
        "moved - output",
        LAWS,
    ),
    Mutant(
        "a-window-of-four",  # weights.closure_errors
        WEIGHTS,
        "mask=sliding_window(3)",
        "mask=sliding_window(4)",
        LAWS,
    ),
    Mutant(
        "a-memory-that-forgets-half",  # memory.hebbian_crosstalk
        FAST,
        "return attend(key, key, value, score=Dot(), normalizer=Signed())",
        "return attend(key, key, 0.5 * value, score=Dot(), normalizer=Signed())",
        LAWS,
    ),
    Mutant(
        "half-of-a-correction",  # memory.delta_last_error
        FAST,
        "rate, decay = jnp.ones(len(key)), jnp.zeros(len(key))",
        "rate, decay = jnp.ones(len(key)) / 2, jnp.zeros(len(key))",
        LAWS,
    ),
    Mutant(
        "squares-that-are-not-the-least",  # memory.least_squares_residual
        FAST,
        "Signed(), penalty=1e-4)",
        "Signed(), penalty=10.0)",
        LAWS,
    ),
    Mutant(
        "the-rate-of-unit-keys-for-all",  # memory.exact_flow_error
        FAST,
        "return -jnp.expm1(-beta * square) / square",
        "return -jnp.expm1(-beta) + 0 * square",
        LAWS,
    ),
    Mutant(
        "keys-without-their-decay",  # memory.duality_error
        FAST,
        "key * jnp.exp(-total), value",
        "key, value",
        LAWS,
    ),
    Mutant(
        "linear-attention-with-a-softmax",  # memory.state_rank
        FAST,
        "return attend(query, key, value, score=Dot(), normalizer=Signed(), mask=causal())",
        "return attend(query, key, value, score=Dot(), mask=causal())",
        LAWS,
    ),
    Mutant(
        "rates-up-to-two",  # memory.parity_positive
        ALL,
        "jnp.linspace(0.0, 1.0, 21)",
        "jnp.linspace(0.0, 2.0, 21)",
        LAWS,
    ),
    Mutant(
        "no-negative-eigenvalue",  # memory.parity_negative
        ALL,
        "jnp.array([2.0])",
        "jnp.array([1.0])",
        LAWS,
    ),
)
