"""WMT 2014 English to German, the paper's base and big Transformers: configuration only, not run here.

Chapter: Transformer
Source: Vaswani et al. 2017, table 2 (27.3 and 28.4 BLEU on newstest2014) and table 3 (65 M and 213 M parameters)
Data: your own copy of WMT 2014 English-German: `--data.source-file train.en --data.target-file train.de` (4.5 M pairs),
      read while training (docs/streaming.md)
Command: python launch.py train transformer_wmt14 --data.source-file train.en --data.target-file train.de
Cost: not run; the paper needed 12 hours (base) and 3.5 days (big) on 8 P100

Two things are checked without running it: the parameter counts (`table3_parameters`,
tests/experiments/test_transformers.py) and the schedule, whose peak is d^-0.5 4000^-0.5 at update 4,000 (equation 3).
Batches hold about 25,000 tokens a side, in rows of 256 tokens that hold several pairs each (docs/streaming.md;
`--data.packing 0` is the paper's way, one pair a row). Vocabularies are SentencePiece's, of 37,000 pieces, where the
paper has byte-pair encoding. The paper averages the last 5 (base) or 20 (big) checkpoints, written every 10 minutes;
here they are the last epochs'.
"""

from attention_jax.config import (
    Config,
    Corpus,
    Decode,
    Optim,
    Reverse,
    Train,
    TransformerConfig,
    replace,
)

WARMUP = 4000


def config() -> Config:
    return Config(
        "transformer_wmt14",
        Corpus(
            tokenizer="sentencepiece",
            vocabulary_size=37_000,
            joint_vocabulary=True,
            overlong="drop",
            batch_tokens=25_000,
            packing=256,
            languages=("en", "de"),
        ),
        TransformerConfig(
            6, 6, hidden_size=512, num_heads=8, mlp_dim=2048, dropout=0.1, tied_embeddings="all", output_bias=False
        ),
        Optim(learning_rate=512**-0.5 * WARMUP**-0.5, schedule="inverse_sqrt", warmup_steps=WARMUP, b2=0.98, eps=1e-9),
        Train(total_epochs=20, max_steps=100_000, average_last=5, label_smoothing=0.1),
        Decode(beam_size=4, alpha=0.6),
    )


def smoke() -> Config:
    small = {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.hidden_size": 16,
        "model.num_heads": 2,
        "model.mlp_dim": 16,
    }
    numbers = Reverse(examples=64, joint_vocabulary=True)  # generated: WMT is not available
    return replace(
        config(), data=numbers, **small, **{"train.max_steps": 2, "train.total_epochs": 1, "decode.max_length": 4}
    )


def variants() -> dict[str, Config]:
    big = {
        "model.hidden_size": 1024,
        "model.num_heads": 16,
        "model.mlp_dim": 4096,
        "model.dropout": 0.3,
        "train.max_steps": 300_000,
        "optim.learning_rate": 1024**-0.5 * WARMUP**-0.5,
        "train.average_last": 20,
    }
    return {"base": config(), "big": replace(config(), **big)}


def sweep() -> dict[str, str]:
    return {"model.dropout": "0.1,0.2,0.3"}
