"""Your own text, continued by a small causal Transformer, in characters or in subwords.

Chapter: your own data
Source: a decoder-only Transformer (Radford et al. 2018) whose positions are biases (Press et al. 2022), so that it can
  generate more than its training window
Data: yours, --data.text-file FILE; without one the manual that comes with Python
Command: python launch.py train language_model --data.text-file FILE
Cost: 3.6 minutes for a million characters; at most 4,000 steps (docs/own_data.md)

The last tenth of the text is held out: its first half for validation, which selects the checkpoint, and its second half
for the test.
"""

from attention_jax.config import Config, LanguageModelConfig, Optim, Sampling, TextFile, Train, replace


def config() -> Config:
    return Config(
        "language_model",
        TextFile(),
        LanguageModelConfig(
            num_layers=2,
            hidden_size=128,
            num_heads=4,
            mlp_dim=256,
            position_embedding="alibi",
            dropout=0.1,
            attention_dropout=0.0,
        ),
        Optim("adamw", learning_rate=3e-3, schedule="warmup_cosine", warmup_steps=100, weight_decay=0.1, clip_norm=1.0),
        Train(batch_size=16, total_epochs=20, max_steps=4_000, use_best=True),
        Sampling(),
    )


def smoke() -> Config:
    small = {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.mlp_dim": 16}
    return replace(config(), **small, **{"data.sequence_length": 32, "decode.length": 8, "train.max_steps": 2})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-3..6e-3:log", "model.dropout": "0..0.3", "data.sequence_length": "64,128,256"}
