"""Your own text, continued by a small causal Transformer, in characters or in subwords.

Chapter: your own data
Source: a decoder-only Transformer (Radford et al. 2018) whose positions are biases (Press et al. 2022), so that it can
  generate more than its training window
Data: yours, --data.text-file FILE; without one the manual that comes with Python
Command: python launch.py train language_model --data.text-file FILE
Cost: 3.6 minutes for a million characters; at most 4,000 steps (docs/own_data.md)

The last tenth of the text is held out: its first half for validation, which selects the checkpoint, and its second half
for the test. The preset gpt2 has the size of GPT-2 small, 124M parameters with that tokenizer's 50,257 tokens, for one
GPU: half a million tokens a step, as Brown et al. 2020 (table 2.1), and 20 tokens a parameter; nobody has run it here.
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


def presets() -> dict[str, Config]:
    data = {"sequence_length": 1024, "overlap": 1, "held_out_fraction": 0.002, "stream": "always"}
    data |= {"tokenizer": "sentencepiece", "vocabulary_size": 50_257}
    model = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "mlp_dim": 3072}
    model |= {"position_embedding": "rotary", "dropout": 0.0, "dtype": "bfloat16"}
    optim = {"learning_rate": 6e-4, "warmup_steps": 700, "b2": 0.95, "decayed": "kernels"}
    train = {"batch_size": 512, "accumulation_steps": 16, "total_epochs": 1, "max_steps": 4_768, "use_best": False}
    sections = {"data": data, "model": model, "optim": optim, "train": train}
    changes = {f"{section}.{name}": x for section, options in sections.items() for name, x in options.items()}
    return {"gpt2": replace(config(), **changes)}


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-3..6e-3:log", "model.dropout": "0..0.3", "data.sequence_length": "64,128,256"}
