"""The whole of fra-eng with Bahdanau attention, scored on sentences whose source never occurs in training.

Chapter: recurrent attention
Source: this project; there is no published number for this split
Data: English-French sentences of tatoeba.org; `--data.path fra-eng.zip` reads the published file
Command: python launch.py reproduce fra_eng_full
Cost: 25 minutes

d2l trains on 512 of 167,130 pairs. This is what the same data gives when it is used: bidirectional GRU, additive
attention, maxout output, greedy. The split is seeded, and no English sentence is in two of its parts.
"""

from attention_jax.config import BahdanauConfig, Config, Decode, FraEng, Optim, Train


def config() -> Config:
    return Config(
        "fra_eng_full",
        FraEng(split="full"),
        BahdanauConfig(384, 256, readout_size=256, embed_dropout=0.2, output_dropout=0.2),
        Optim(learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=500, clip_norm=1.0),
        Train(batch_size=256, total_epochs=4, label_smoothing=0.1, matmul_precision="bfloat16"),
        Decode(batch_size=500),
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.hidden_size": "256,512"}
