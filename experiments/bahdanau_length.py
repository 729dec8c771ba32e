"""Without attention BLEU falls with the length of the sentence; with it, it stays.

Chapter: recurrent attention
Source: Bahdanau et al. 2015, figure 2 (WMT English-French, other data: the shape of the curve is compared)
Data: Multi30k German to English, lower-cased Moses tokens; every pair occurs once alone and once in a row of 2 to 4
  captions written one after another, since the corpus has few long sentences
Command: python launch.py reproduce bahdanau_length
Cost: 75 minutes on one CPU core for the two models: one seed

Two models of equal width on the same rows: an encoder-decoder that hands over one vector, and the same with additive
attention. experiments/results/bahdanau_length.png has both curves. That attention gains BLEU became a claim after the
runs (2026-11-22).
"""

import json
from pathlib import Path

from attention_jax.config import Bahdanau, Claim, Config, Decode, Multi30k, Optim, Sutskever, Train, replace

SIZES = {"hidden_size": 384, "embed_size": 256, "readout": "linear", "embed_dropout": 0.3, "output_dropout": 0.3}


def config() -> Config:
    return Config(
        "bahdanau_length",
        Multi30k(source="de", target="en", form="tok", min_frequency=2, rows_of=4, max_length=100),
        Bahdanau(**SIZES),
        Optim(learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=300, clip_norm=1.0),
        Train(total_epochs=6, label_smoothing=0.1, matmul_precision="bfloat16"),
        Decode(batch_size=250),
    )


def variants() -> dict[str, Config]:
    return {"attention": config(), "no-attention": replace(config(), model=Sutskever(handover="every_step", **SIZES))}


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.hidden_size": "256,512"}


def figure(directories: dict[str, Path], path: Path) -> Path:
    from attention_jax.report.bleu import LengthBin, length_figure

    read = lambda directory: json.loads((directory / "test.bleu.json").read_text(encoding="utf-8"))["by_length"]
    return length_figure({variant: [LengthBin(**part) for part in read(d)] for variant, d in directories.items()}, path)


FIGURE = "Bahdanau et al. 2015, figure 2: shape only"
KEPT = "test.bleu_kept_beyond_30"
CLAIMS = (
    Claim("BLEU, all lengths, with attention", "test.bleu", None, FIGURE, variant="attention"),
    Claim("BLEU, all lengths, without attention", "test.bleu", None, FIGURE, variant="no-attention"),
    Claim(
        "BLEU of with attention less without",
        "test.bleu",
        8.93,
        "Bahdanau et al. 2015, table 1: RNNsearch-50 less RNNencdec-50",
        variant="attention",
        minus="no-attention",
        at_least=0.0,
    ),
    Claim(
        "BLEU beyond 30 tokens over BLEU up to 30, with attention",
        KEPT,
        None,
        FIGURE,
        variant="attention",
        at_least=0.9,
    ),
    Claim(
        "BLEU beyond 30 tokens over BLEU up to 30, without attention",
        KEPT,
        None,
        FIGURE,
        variant="no-attention",
        at_most=0.7,
    ),
)
