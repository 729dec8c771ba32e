"""Laws of attention: what theory says exactly, measured in seconds, with bounds that a broken mechanism misses.

Chapter: theory of attention
Source: the claims name a paper and an equation each
Data: none; random arrays, and one head that is trained on a generated task
Command: python launch.py reproduce laws
Cost: 0.56 minutes

The functions are in attention_jax/laws/, one for each number, of a few lines over `attend`; docs/laws.md has the
equations and says how to break each of them. `python launch.py laws mine:attention` measures an attention function of
your own. Related claims are in other experiments: the rate of kernel regression on random inputs (`nadaraya_watson`),
the capacity of softmax memories (`hopfield_retrieval`), the Jacobian of the softmax and its Lipschitz constant
(`exact_identities`).

Bounds follow from the theorems, with a margin for rounding and random arrays. Before they were committed, the code was
tried with seeds 77 and 3, which are not recorded; where that was at full size, the claim says so.
"""

from pathlib import Path

from attention_jax.config import Claim, Config, Samples, replace

SEEDS = 3
TRIED = "the number of seed 77 or 3, with which the code was tried"


def config() -> Config:
    return Config("laws", Samples(2_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 200})


def study(config: Config, directory: Path) -> dict:
    from attention_jax.laws import LAWS, figure

    seed, words = config.train.seed, config.data.samples
    figure.panels(directory / "figures" / "panels.png", seed)
    extra = {"memory.parity_positive": {"words": words}, "memory.parity_negative": {"words": words}}
    return {name: law.measure(law.subject, seed, **extra.get(name, {})) for name, law in LAWS.items()}


def exact(text: str, metric: str, published, source: str, low, high, after: str = TRIED) -> Claim:
    """A number that a theorem gives."""
    bounds = {"at_least": low, "at_most": high}
    return Claim(text, metric, published, source, kind="exact", since="2026-11-25", after=after, **bounds)


def order(text: str, metric: str, source: str, low, high, after: str = TRIED) -> Claim:
    """A number for which theory gives only an order."""
    bounds = {"at_least": low, "at_most": high}
    return Claim(text, metric, None, source, kind="order", since="2026-11-25", after=after, **bounds)


RATES = "Fan & Gijbels 1996, section 3.2.5"
SINKS = "Ran-Milo 2026, arXiv 2603.11487: there the mean of the keys before the trigger, and its proof"
CLAIMS = (
    exact(
        "dot-product attention on a circle is kernel regression: error as a power of n, inside",
        "kernel.rate_inside",
        -0.8,
        "Stone 1982",
        -0.84,
        -0.76,
        after="",
    ),
    exact(
        "the same at the boundary of the data",
        "kernel.rate_boundary",
        -0.4,
        RATES,
        -0.44,
        -0.36,
        after="",
    ),
    exact(
        "local linear attention at the boundary",
        "kernel.local_linear_rate_boundary",
        -0.8,
        f"{RATES}; Zuo et al. 2025, arXiv 2510.01450",
        -0.84,
        -0.76,
        after="",
    ),
    exact(
        "kernel ridge regression by conjugate gradients over attend, error",
        "kernel.ridge_error",
        0.0,
        "Cubit, arXiv 2605.06501: (K + lambda I)^-1",
        None,
        3e-5,
    ),
    exact(
        "Parallax with the least-squares probe is local linear attention, error",
        "kernel.parallax_error",
        0.0,
        "Parallax, arXiv 2605.29157",
        None,
        1e-4,
    ),
    exact(
        "softmax: weight of a winner as a power of n, 4,096 to 65,536 keys",
        "weights.dispersion",
        -0.9956,
        "e^4 / (e^4 + n - 1); Velickovic et al. 2024, arXiv 2410.01104",
        -1.01,
        -0.98,
        after="",
    ),
    exact(
        "sparsemax: least weight of a winner among 16 to 65,536 keys",
        "weights.concentration",
        1.0,
        "Martins & Astudillo 2016, proposition 1",
        1 - 1e-6,
        1 + 1e-6,
        after="",
    ),
    exact(
        "sparsemax Hopfield network: error of one step at beta Delta = 1.01",
        "weights.retrieval_error",
        0.0,
        "Santos et al. 2024, arXiv 2402.13725: exact from beta Delta = 1",
        None,
        1e-5,
    ),
    order(
        "the same at beta Delta = 0.9: not exact",
        "weights.retrieval_error_below",
        "Santos et al. 2024: the condition is sharp",
        0.05,
        None,
    ),
    exact(
        "sigmoid attention: sum of the weights as a power of n",
        "weights.growth_sigmoid",
        1.0,
        "Ramapuram et al. 2024, arXiv 2409.04431",
        0.98,
        1.02,
    ),
    exact(
        "sigmoid attention with the bias -log n: the same",
        "weights.growth",
        0.0,
        "Ramapuram et al. 2024, arXiv 2409.04431",
        -0.03,
        0.03,
    ),
    order(
        "trained softmax head: weight of the first key where the output is zero",
        "weights.sink_softmax",
        SINKS,
        0.9,
        None,
    ),
    order("trained ReLU head: the same", "weights.sink_relu", SINKS, None, 0.1),
    order("trained softmax head: loss over that of the output zero", "weights.sink_softmax_loss", SINKS, None, 0.02),
    order("trained ReLU head: the same", "weights.sink_relu_loss", SINKS, None, 0.02),
    exact(
        "exclusive self-attention: largest cosine of an output with its own value",
        "weights.own_value",
        0.0,
        "arXiv 2603.09078",
        None,
        1e-5,
    ),
    exact(
        "self-attention: change under a permutation of the positions",
        "weights.permutation_error",
        0.0,
        "Lee et al. 2019, arXiv 1810.00825, property 1",
        None,
        1e-5,
    ),
    exact(
        "stacked masks: pairs in which the Jacobian differs from the Boolean power",
        "weights.closure_errors",
        0.0,
        "arXiv 2606.09951",
        None,
        0.0,
    ),
    exact(
        "Hebbian memory: squared error over (N - 1) / d",
        "memory.hebbian_crosstalk",
        1.0,
        "E cos^2 = 1 / d; Schlag et al. 2021, arXiv 2102.11174",
        0.97,
        1.03,
        after="",
    ),
    exact(
        "delta rule: error of the last of 256 pairs, d = 64",
        "memory.delta_last_error",
        0.0,
        "Yang et al. 2024, arXiv 2406.06484",
        None,
        1e-5,
        after="",
    ),
    exact(
        "least squares: squared error over 1 - d / N",
        "memory.least_squares_residual",
        1.0,
        "arXiv 2605.11196",
        0.98,
        1.02,
        after="",
    ),
    exact(
        "delta rule with rate (1 - exp(-beta k.k)) / k.k against the matrix exponential, error",
        "memory.exact_flow_error",
        0.0,
        "EFLA, arXiv 2512.12602",
        None,
        1e-5,
    ),
    exact(
        "causal linear attention with decay against its state-space model, error",
        "memory.duality_error",
        0.0,
        "Dao & Gu 2024, arXiv 2405.21060, section 5",
        None,
        1e-4,
    ),
    exact(
        "rank of the weights of late queries on early keys, D = 8",
        "memory.state_rank",
        8.0,
        "Dao & Gu 2024, definition 3.1: semiseparable",
        None,
        8.0,
    ),
    order(
        "parity of 256 bits, eigenvalues in [0, 1]: best accuracy",
        "memory.parity_positive",
        "Grazzi et al. 2024, arXiv 2411.12537, theorem 1",
        None,
        0.6,
    ),
    exact(
        "parity of 256 bits, eigenvalue -1: accuracy",
        "memory.parity_negative",
        1.0,
        "Grazzi et al. 2024, arXiv 2411.12537",
        1.0,
        1.0,
    ),
)
