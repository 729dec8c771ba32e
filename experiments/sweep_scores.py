"""Dot, general, concat and additive scores at three widths, by how many dates they convert after two epochs.

Chapter: sweeps
Source: Luong et al. 2015 (arXiv:1508.04025), section 5.3 and table 4, on WMT; the additive score
  is that of Bahdanau et al. 2015
Data: 50,000 date conversions, generated
Command: python launch.py sweep sweep_scores --seeds 3 --record
Cost: see results/sweep_scores.json

Luong et al. report that dot works well with global attention and concat does not. Their numbers are of another task, so
none is held against ours; every combination is reported. The settings are those of `date_luong`, with half its epochs.
"""

from attention_jax.config import Claim, Config, Dates, Decode, LuongSeq2seq, Optim, Train, replace

SEEDS = 3
SCORES = ("dot", "general", "concat", "additive")
SIZES = (16, 32, 64)


def config() -> Config:
    return Config(
        "sweep_scores",
        Dates(reverse_source=True),
        LuongSeq2seq(hidden_size=64, score="general"),
        Optim(learning_rate=3e-3, schedule="warmup_cosine", warmup_steps=100, clip_norm=5.0),
        Train(batch_size=32, total_epochs=2, steps_per_call=128, best_metric="test.exact_match"),
        Decode(),
    )


def smoke() -> Config:
    return replace(config(), **{"data.examples": 1000, "model.hidden_size": 16, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"model.score": ",".join(SCORES), "model.hidden_size": ",".join(map(str, SIZES))}


def variants() -> dict[str, Config]:
    """The sweep's points, under the names it records them by."""
    return {
        f"score={s} hidden_size={n}": replace(config(), **{"model.score": s, "model.hidden_size": n})
        for s in SCORES
        for n in SIZES
    }


CLAIMS = tuple(
    Claim(f"exact match after 2 epochs: {variant}", "test.exact_match", None, "ours", variant=variant)
    for variant in variants()
)
