"""d2l's Bahdanau attention: additive scores, asked by the previous decoder state.

Chapter: recurrent attention
Source: "Dive into Deep Learning" (Zhang et al.), section 11.4, runs of the published PyTorch and JAX editions
Data: English-French sentences of tatoeba.org; `--data.path fra-eng.zip` reads the published file; d2l trains on its
  first 512 pairs and validates on the next 128
Command: python launch.py reproduce fra_eng_bahdanau
Cost: under a minute a seed

d2l's settings: 512 training pairs cut to 9 tokens, words seen at least twice, embeddings and two GRU layers of width
256, dropout 0.2 between them, Adam 0.005, batch 128, gradients clipped to norm 1, 30 epochs; the best epoch's
validation loss is the claim. Three of the four sentences that d2l's chapter translates as a demonstration are rows
it was trained on, so its BLEU of them says little and is not claimed here. The loss of section 11.4 is a mean over
all 9 positions, padding included (the masked loss of section 10.7 is not saved in d2l's library):
`--data.predict-padding` does the same. In the book's plots one pair more weighs as much as the 128 together
(`fra_eng_seq2seq`), so that the two losses are not of quite the same pairs.
"""

from attention_jax.config import Bahdanau, Claim, Config, Decode, FraEng, Optim, Train

SEEDS = 3


def config() -> Config:
    return Config(
        "fra_eng_bahdanau",
        FraEng(split="d2l", max_length=9, max_buckets=1, predict_padding=True),
        Bahdanau(
            256,
            256,
            "gru",
            layers=2,
            bidirectional="none",
            start_from="pass",
            readout="state",
            embed_scale=1.0,
            layer_dropout=0.2,
        ),
        Optim(learning_rate=5e-3, clip_norm=1.0),
        Train(total_epochs=30, use_best=True),
        Decode(),
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.hidden_size": "256,512"}


CLAIMS = (
    Claim(
        "validation loss per token, best epoch (1.39-1.55 in the editions)",
        "valid.loss",
        1.47,
        "d2l 11.4, PyTorch and JAX editions",
        best=True,
        at_most=1.6,
        beaten=1.39,
    ),
)
