"""A decoder-only Transformer writes The Time Machine, character by character, on d2l's windows.

Chapter: Transformer
Source: the windows and the text of Dive into Deep Learning 9.5 to 10.2, whose recurrent models
  reach perplexities of 6.7 to 7.5
Data: The Time Machine; `--data.path timemachine.txt.gz` reads the published file
Command: python launch.py reproduce time_machine_transformer
Cost: about 3 minutes on 2 cores

The same 10,000 training and 5,000 validation windows of 32 characters as `time_machine_rnn`, and a small
pre-norm Transformer with rotary positions. The windows hold only 10,000 different characters, so a model can
learn them by heart: dropout matters most.
"""

from attention_jax.config import Claim, Config, LanguageModel, Optim, TimeMachine, Train, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "time_machine_transformer",
        TimeMachine(),
        LanguageModel(layers=2, width=64, heads=4, ffn=128, dropout=0.3, attention_dropout=0.1),
        Optim(
            "adamw",
            learning_rate=3e-3,
            schedule="warmup_cosine",
            warmup_steps=50,
            weight_decay=0.01,
            b2=0.98,
            clip_norm=1.0,
        ),
        Train(batch_size=256, total_epochs=12, use_best=True),
    )


def smoke() -> Config:
    return replace(
        config(),
        **{
            "model.width": 16,
            "model.ffn": 16,
            "data.train_windows": 512,
            "data.valid_windows": 100,
            "train.total_epochs": 1,
        },
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-3..1e-2:log", "model.dropout": "0.1..0.5", "model.layers": "1,2,3"}


CLAIMS = (
    Claim(
        "validation perplexity, best epoch; the best of d2l's recurrent models",
        "valid.perplexity",
        6.68,
        "d2l 10.2, GRU",
        best=True,
        at_most=6.68,
        beaten=6.0,
    ),
)
