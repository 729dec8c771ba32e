"""Date conversion with Luong's attentional vector: the main job.

Chapter: recurrent attention
Claim: every one of the held-out dates is converted exactly within 4 epochs.
Source: Luong et al. 2015 (arXiv:1508.04025), eq. 5-6, on the data of "Deep Learning from Scratch 2", chapter 8; the
  book's own attention model is `date_attention`.
Data: 50,000 date conversions, generated; `--data.path date.txt.gz` reads the published file
Command: python launch.py
Cost: about 1 minute on 2 cores

Half the book's width learns it when the general score can choose what to look for, batches are small, and the learning
rate warms up to 0.002 and falls to zero.
"""

from attention_jax.config import Claim, Config, Dates, Decode, LuongSeq2seq, Optim, Train, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "date_luong",
        Dates(reverse_source=True),
        LuongSeq2seq(hidden_size=128, score="general"),
        Optim(learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=100, clip_norm=5.0),
        Train(batch_size=32, total_epochs=4, steps_per_call=128, best_metric="test.loss"),
        Decode(),
    )


def smoke() -> Config:
    return replace(config(), **{"data.examples": 1000, "model.hidden_size": 16, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-3..1e-2:log", "model.hidden_size": "64,128"}


CLAIMS = (
    Claim(
        "exact match on 5,000 held-out dates after 4 epochs",
        "test.exact_match",
        published=None,
        source="our aim: 5000 of 5000",
        at_least=0.995,
        beaten=1.0,
    ),
    Claim(
        "exact match on held-out dates whose text does not occur in training",
        "test.exact_match_unseen",
        published=None,
        source="our aim",
        at_least=0.995,
    ),
)
