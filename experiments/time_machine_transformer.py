"""A decoder-only Transformer writes The Time Machine, character by character, on d2l's windows.

Chapter: Transformer
Source: the windows and the text of Dive into Deep Learning 9.5 to 10.2, whose recurrent models
  reach validation perplexities of 6.55 to 7.51 (one of their GRUs 9.74)
Data: The Time Machine; `--data.path timemachine.txt.gz` reads the published file
Command: python launch.py reproduce time_machine_transformer
Cost: 3.2 minutes

The same 10,000 training and 5,000 validation windows of 32 characters as in `time_machine_rnn`, and a small pre-norm
Transformer with rotary positions. The windows come from a stretch of about 10,000 characters, which a model can
memorize, so it has a dropout of 0.3. The bound is the best GRU from scratch of section 10.2, 6.68; the best model of
these chapters is its GRU with the library's layer in PyTorch, 6.55. The epoch is chosen on the validation windows that
are reported, where the book reports the last epoch.
"""

from attention_jax.config import Config, LanguageModelConfig, Optim, TimeMachine, Train, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "time_machine_transformer",
        TimeMachine(),
        LanguageModelConfig(num_layers=2, hidden_size=64, num_heads=4, mlp_dim=128, dropout=0.3, attention_dropout=0.1),
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
            "model.hidden_size": 16,
            "model.mlp_dim": 16,
            "data.train_windows": 512,
            "data.valid_windows": 100,
            "train.total_epochs": 1,
        },
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-3..1e-2:log", "model.dropout": "0.1..0.5", "model.num_layers": "1,2,3"}
