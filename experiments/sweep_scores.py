"""Dot, general, concat and additive scores at three widths, by how many dates they convert after two epochs.

Chapter: sweeps
Source: Luong et al. 2015 (arXiv:1508.04025), section 5.3 and table 4, on WMT; the additive score
  is that of Bahdanau et al. 2015
Data: 50,000 date conversions, generated: 40,000 train, 5,000 validate, 5,000 test
Command: python launch.py sweep sweep_scores --seeds 3 --record
Cost: 8.7 minutes

Luong et al. report that dot works well with global attention and concat does not. Their numbers are of another task, so
none is held against ours, and every combination is only measured. The settings are those of `date_luong`, with half its
epochs, a rate of 0.003 instead of 0.002, widths of 16 to 64 instead of 128, and validation dates. The sweep selects on
the validation dates. The runs of 2026-11-20 trained on the 5,000 of these, too, and have test metrics alone.
"""

from attention_jax.config import Config, Dates, Decode, Grid, LuongSeq2seqConfig, Optim, Train, replace

SEEDS = 3
SCORES = ("dot", "general", "concat", "additive")
SIZES = (16, 32, 64)


def config() -> Config:
    return Config(
        "sweep_scores",
        Dates(reverse_source=True, validation=5_000),
        LuongSeq2seqConfig(hidden_size=64, score="general"),
        Optim(learning_rate=3e-3, schedule="warmup_cosine", warmup_steps=100, clip_norm=5.0),
        Train(batch_size=32, total_epochs=2, steps_per_call=128, best_metric="valid.exact_match"),
        Decode(),
    )


def smoke() -> Config:
    return replace(
        config(), **{"data.examples": 1000, "data.validation": 100, "model.hidden_size": 16, "train.total_epochs": 1}
    )


def sweep() -> dict[str, str]:
    return {"model.score": ",".join(SCORES), "model.hidden_size": ",".join(map(str, SIZES))}


def variants() -> dict[str, Config]:
    """The sweep's points, under the names it records them by."""
    return {
        f"score={s} hidden_size={n}": replace(config(), **{"model.score": s, "model.hidden_size": n})
        for s in SCORES
        for n in SIZES
    }


GRIDS = (
    Grid(
        "Exact match after 2 epochs, from before there was a validation split",
        {"validation": "valid.exact_match", "test": "test.exact_match"},
        tuple(variants()),
    ),
)
