"""What matters in a Transformer: the directions of the paper's ablations, on Multi30k instead of WMT.

Chapter: Transformer
Source: Vaswani et al. 2017, table 3, rows A to E (development set of WMT 2014 English-German)
Data: Multi30k English to German, as in `multi30k_ende_tiny`; `--data.path DIR` reads the published files
Command: python launch.py reproduce table3_directions
Cost: 7 trainings of 4,000 updates, 80 minutes each on one CPU core

The base model here is Transformer-tiny, trained for 4,000 updates. The paper's numbers are of another corpus and
another size, so only the signs of the differences to the base row are compared: BLEU and perplexity on the
validation set, as in the paper.
"""

from attention_jax.config import Claim, Config, replace
from experiments import multi30k_ende_tiny

SOURCE = "Vaswani et al. 2017, table 3: difference to the base row"


def config() -> Config:
    short = {
        "name": "table3_directions",
        "train.max_steps": 4000,
        "train.patience": 0,
        "train.average_last": 5,
        "train.matmul_precision": "bfloat16",
    }
    return replace(multi30k_ende_tiny.config(), **short)


def smoke() -> Config:
    return replace(multi30k_ende_tiny.smoke(), name="table3_directions")


def variants() -> dict[str, Config]:
    def change(**fields):
        """The base with the options `model__heads=...` for `model.heads`."""
        return replace(config(), **{name.replace("__", "."): value for name, value in fields.items()})

    return {
        "base": config(),
        "one head": change(model__heads=1),
        "d_k / 4": change(model__key_width=8),
        "small ffn": change(model__ffn=64),
        "no dropout": change(model__dropout=0.0),
        "learned positions": change(model__positions="learned"),
        "no smoothing": change(train__label_smoothing=0.0),
    }


def sweep() -> dict[str, str]:
    return {"model.heads": "1,2,4,8,16", "model.key_width": "4,8,16,32"}


# what the paper's row has more than its base: BLEU, perplexity
PUBLISHED = {
    "one head": (-0.9, 0.37),
    "d_k / 4": (-0.7, 0.24),
    "small ffn": (-0.4, 0.20),
    "no dropout": (-1.2, 0.85),
    "learned positions": (-0.1, 0.0),
    "no smoothing": (-0.5, -0.25),
}


def claims(variant: str, bleu: float, perplexity: float):
    """The row's two differences to the base row; the one that the paper reports as nearly none has no bound."""
    for name, metric, published in (("BLEU", "valid.bleu", bleu), ("perplexity", "valid.perplexity", perplexity)):
        bound = {} if variant == "learned positions" else {"at_least": 0.0} if published > 0 else {"at_most": 0.0}
        yield Claim(
            f"{variant} less base: {name}, validation set",
            metric,
            published,
            SOURCE,
            variant=variant,
            minus="base",
            **bound,
        )


CLAIMS = (
    Claim("base: BLEU, validation set", "valid.bleu", None, "no published number", variant="base"),
    Claim("base: perplexity, validation set", "valid.perplexity", None, "no published number", variant="base"),
    *(claim for variant, published in PUBLISHED.items() for claim in claims(variant, *published)),
)
