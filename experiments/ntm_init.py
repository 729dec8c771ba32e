"""What a Neural Turing Machine's memory should hold at first: a constant, something learned, or something random?

Chapter: memory
Source: Collier & Beel 2018 (arXiv 1807.08518), section 4: the constant 1e-6 learns to copy fastest and most reliably
Data: sequences of 1 to 20 random 8-bit vectors, generated
Command: python launch.py reproduce ntm_init
Cost: about 8 minutes for 3 x 5 seeds on 2 cores

`ntm_copy` with each of the three. The random memory is drawn once a run and not trained. The two orders, constant less
learned and less random, became claims after the runs (2026-11-22).
"""

from attention_jax.config import Claim, Config, replace
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


CLAIMS = tuple(
    Claim(
        f"{init}: bits after {2_500 * epoch:,} sequences",
        "valid.bits_per_sequence",
        None,
        SOURCE,
        variant=init,
        epoch=epoch,
        **bound,
    )
    for init in ("constant", "learned", "random")
    for epoch, bound in ((1, {}), (2, {}), (4, {"at_most": 0.05} if init == "constant" else {}))
)
CLAIMS += tuple(
    Claim(
        f"bits after 2,500 sequences: constant less {other}",
        "valid.bits_per_sequence",
        None,
        f"{SOURCE}: constant is fastest",
        variant="constant",
        minus=other,
        epoch=1,
        at_most=0.0,
    )
    for other in ("learned", "random")
)
