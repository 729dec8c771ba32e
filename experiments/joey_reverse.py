"""Joey NMT's toy task: write a row of numbers backwards, longer rows than in training included.

Chapter: recurrent attention
Source: Kreutzer et al. 2019 (Joey NMT), its documented `reverse` tutorial: 95.19 BLEU with an RNN
Data: generated as Joey NMT's script does: 50,000 rows of 1 to 25 numbers below 50, test rows of 1 to 30
Command: python launch.py reproduce joey_reverse
Cost: 5 minutes a seed on one CPU core

Half of the question is whether attention goes on working at lengths 26-30, which training never shows; BLEU
by length is among the figures.
"""

from attention_jax.config import Claim, Config, Decode, Luong, Optim, Reverse, Train, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "joey_reverse",
        Reverse(),
        Luong(hidden_size=128, embed_size=64, cell="lstm", score="general", readout_size=128),
        Optim(learning_rate=3e-3, schedule="warmup_cosine", warmup_steps=200, clip_norm=1.0),
        Train(batch_size=128, total_epochs=12),
        Decode(batch_size=500, max_length=40),
    )


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.embed_size": 8, "model.readout_size": 8}
    return replace(config(), **small, **{"train.max_steps": 2, "train.total_epochs": 1, "decode.max_length": 4})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.hidden_size": "256,512"}


CLAIMS = (
    Claim(
        "BLEU on the test rows, lengths 26-30 included",
        "test.bleu",
        95.19,
        "Joey NMT documentation, tutorial",
        at_least=95.19,
        beaten=99.5,
    ),
)
