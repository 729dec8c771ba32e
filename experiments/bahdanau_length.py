"""BLEU by sentence length, with and without attention.

Chapter: recurrent attention
Source: Bahdanau et al. 2015, figure 2 and table 1 (WMT English-French: other data, so only shape and sign are compared)
Data: Multi30k German to English, lower-cased Moses tokens; every pair occurs once by itself and once concatenated with
  1 to 3 others, since the corpus has few long sentences
Command: python launch.py reproduce bahdanau_length
Cost: 74 minutes
Figure: BLEU by source length, for a fixed-size context vector and for additive attention; long sources are
  concatenated captions

Two models of equal width train on the same pairs: an encoder-decoder whose encoder passes one vector, and the same with
additive attention. The bounds on the share of BLEU that is kept beyond 30 tokens are our own, read off the shape of the
paper's figure.

With attention the registered seed has 37.7 BLEU and keeps 104 % of it beyond 30 tokens, without it 18.2 and 53 % (the
original runs, of an earlier date: 37.2 and 102 %, 18.9 and 54 %).
"""

from pathlib import Path

from attention_jax.config import BahdanauConfig, Config, Decode, Grid, Multi30k, Optim, Train, replace
from experiments.papers.options import SutskeverConfig

SIZES = {"hidden_size": 384, "embed_size": 256, "readout": "linear", "embed_dropout": 0.3, "output_dropout": 0.3}


def config() -> Config:
    return Config(
        "bahdanau_length",
        Multi30k(source="de", target="en", form="tok", min_frequency=2, concatenated_pairs=4, max_length=100),
        BahdanauConfig(**SIZES),
        Optim(learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=300, clip_norm=1.0),
        Train(total_epochs=6, label_smoothing=0.1, matmul_precision="bfloat16"),
        Decode(batch_size=250),
    )


def variants() -> dict[str, Config]:
    return {
        "attention": config(),
        "no-attention": replace(config(), model=SutskeverConfig(context_input="every_step", **SIZES)),
    }


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.hidden_size": "256,512"}


def figure(recorded: dict[str, list[dict]], path: Path) -> Path | None:
    """BLEU by length on the test sentences, the first seed of each variant of which it is stored (since 2026-11-23);
    None without one."""
    from attention_jax.report.bleu import LengthBin, length_figure

    bins_of_runs = lambda runs: (run["bleu_by_length"]["test"] for run in runs if "bleu_by_length" in run)
    bins = {variant: next(bins_of_runs(runs), None) for variant, runs in recorded.items()}
    if not bins or None in bins.values():
        return None
    series = {variant: [LengthBin(**fields) for fields in length_bins] for variant, length_bins in bins.items()}
    return length_figure(series, path, inputs=bins)


GRIDS = (
    Grid(
        "BLEU on test2016, all lengths, and the share kept beyond 30 tokens",
        {"BLEU": "test.bleu", "kept": "test.bleu_kept_beyond_30"},
        variants=("attention", "no-attention"),
    ),
)
