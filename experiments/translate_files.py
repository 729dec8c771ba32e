"""Your own sentence pairs, from two files or one of two columns, translated by a Transformer that trains on a laptop.

Chapter: your own data
Source: the model of Vaswani et al. 2017 in pre-norm; the sizes for few pairs are ours
Data: yours, --data.tsv-file pairs.tsv (`source TAB target` a line) or --data.source-file a.en --data.target-file a.de;
  without a file 2,000 generated dates, English to German
Command: python launch.py train translate_files --data.tsv-file pairs.tsv
Cost: 4.9 minutes for 5,000 short pairs; at most 2,500 steps (docs/own_data.md)

A tenth of the sources is held out for validation, which selects the checkpoint, and a tenth for the test (at most 2,000
each). The presets base and big have the paper's sizes, for millions of pairs and a GPU or TPU: --preset base.
"""

from attention_jax.config import Config, Corpus, Decode, Optim, Train, TransformerConfig, replace


def config() -> Config:
    return Config(
        "translate_files",
        Corpus(
            examples=2_000, tokenizer="sentencepiece", vocabulary_size=2_000, overlong="drop", held_out_fraction=0.1
        ),
        TransformerConfig(
            2, 2, hidden_size=128, num_heads=4, mlp_dim=256, norm="pre", dropout=0.2, tied_embeddings="output"
        ),
        Optim(learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=200, clip_norm=1.0, b2=0.98),
        Train(batch_size=64, total_epochs=40, max_steps=2_500, label_smoothing=0.1, use_best=True),
        Decode(beam_size=4),
    )


def presets() -> dict[str, Config]:
    base = {
        "data.vocabulary_size": 16_000,
        "data.batch_tokens": 8_000,
        "model.num_encoder_layers": 6,
        "model.num_decoder_layers": 6,
        "model.hidden_size": 512,
        "model.num_heads": 8,
        "model.mlp_dim": 2048,
        "model.dropout": 0.1,
        "optim.learning_rate": 7e-4,
        "optim.warmup_steps": 4_000,
        "train.max_steps": 100_000,
    }
    big = base | {
        "data.vocabulary_size": 32_000,
        "data.batch_tokens": 25_000,
        "model.hidden_size": 1024,
        "model.num_heads": 16,
        "model.mlp_dim": 4096,
        "model.dropout": 0.3,
        "optim.learning_rate": 5e-4,
        "train.max_steps": 300_000,
    }
    return {"small": config(), "base": replace(config(), **base), "big": replace(config(), **big)}


def smoke() -> Config:
    small = {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.hidden_size": 16,
        "model.num_heads": 2,
        "model.mlp_dim": 16,
    }
    short = {"data.examples": 200, "data.vocabulary_size": 200, "data.max_buckets": 1, "decode.max_length": 8}
    return replace(config(), **small, **short, **{"train.max_steps": 2, "decode.beam_size": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "5e-4..5e-3:log", "model.dropout": "0.1..0.4", "data.vocabulary_size": "500,2000"}
