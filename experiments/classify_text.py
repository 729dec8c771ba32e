"""Your own labeled texts, classified by a Transformer encoder whose attention pooling shows the words that it weighs.

Chapter: your own data
Source: attention pooling of Yang et al. 2016, section 2.2, over a Transformer's encoder
Data: yours, --data.tsv-file FILE (`label TAB text` a line); without one 2,000 generated dates in six languages
Command: python launch.py train classify_text --data.tsv-file FILE
Cost: 0.7 minutes for 5,100 short texts; at most 2,000 steps (docs/own_data.md)

A tenth of the texts of each class is held out for validation, which selects the checkpoint, and a tenth for the test.
"""

from attention_jax.config import Config, LabeledFile, Optim, TextClassifierConfig, Train, replace


def config() -> Config:
    return Config(
        "classify_text",
        LabeledFile(max_buckets=3),
        TextClassifierConfig(num_layers=1, dropout=0.3),
        Optim("adamw", learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=50, weight_decay=0.01, clip_norm=1.0),
        Train(batch_size=32, total_epochs=10, max_steps=2_000, best_metric="valid.accuracy", use_best=True),
    )


def smoke() -> Config:
    small = {"model.hidden_size": 16, "model.num_heads": 2, "model.mlp_dim": 16}
    return replace(config(), **small, **{"data.examples": 200, "data.max_buckets": 1, "train.max_steps": 2})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.num_layers": "0,1,2", "model.dropout": "0.1..0.5"}
