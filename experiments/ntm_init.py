"""What should a Neural Turing Machine's memory hold at first: a constant, something learned, or something random?

Chapter: memory
Source: Collier & Beel 2018 (arXiv 1807.08518), section 4: the constant 1e-6 learns to copy fastest and most reliably
Data: sequences of 1 to 20 random 8-bit vectors, generated
Command: python launch.py reproduce ntm_init
Cost: 14 minutes for 3 x 5 seeds on 2 cores

`ntm_copy` with each of the three. The random memory is sampled once a run and is not trained. All bounds are on costs
after a fixed number of sequences; the paper shows curves and prints no numbers.
"""

from attention_jax.config import Claim, Config, Grid, replace
from experiments import ntm_copy

SEEDS = 5
SOURCE = "Collier & Beel 2018, figure 3"


def config() -> Config:
    return replace(ntm_copy.config(), **{"name": "ntm_init", "train.seed": 0})


def variants() -> dict[str, Config]:
    return {init: replace(config(), **{"model.memory_init": init}) for init in ("constant", "learned", "random")}


def smoke() -> Config:
    return replace(ntm_copy.smoke(), **{"name": "ntm_init", "model.memory_init": "learned"})


def sweep() -> dict[str, str]:
    return {"model.memory_init": "constant,learned,random"}


def bits(text: str, sequences: int, variant: str, minus: str | None = None, **more) -> Claim:
    """The validation cost after so many sequences."""
    where = {"variant": variant, "minus": minus, "epoch": sequences // 2_500}
    name = f"bits after {sequences:,} sequences: {text}"
    return Claim(name, "valid.bits_per_sequence", None, f"{SOURCE}: constant is fastest", **where, **more)


ALL = "all runs of five seeds"
CLAIMS = (
    bits("constant", 10_000, "constant", kind="aim", at_most=0.05, since="2026-11-20"),
    *(
        bits(f"constant - {other}", 2_500, "constant", other, kind="order", at_most=0.0, since="2026-11-22", after=ALL)
        for other in ("learned", "random")
    ),
    bits("constant - random", 10_000, "constant", "random", kind="order", at_most=0.0, since="2026-11-23", after=ALL),
)
GRIDS = (
    Grid(
        "Bits per sequence of the best epoch",
        {"validation": "valid.bits_per_sequence", "test": "test.bits_per_sequence"},
        variants=("constant", "learned", "random"),
    ),
    Grid(
        "Wrong bits in 20 sequences of each length",
        {f"length {n}": f"test.wrong_bits_length_{n}" for n in (10, 20, 30, 50, 120)},
        variants=("constant", "learned", "random"),
    ),
)
