"""English to French on 512 sentence pairs: the Transformer of "Dive into Deep Learning", chapter 11.7.

Chapter: Transformer
Source: Dive into Deep Learning 11.7; best validation loss 1.73 in its PyTorch edition's own
  run (2.66 in the JAX edition's)
Data: the first 640 pairs of tatoeba.org's English-French file, 512 train and 128 validate;
  `--data.path fra-eng.zip` reads the published file
Command: python launch.py reproduce fra_eng_transformer
Cost: about half a minute on 2 cores

Hidden 256, feed-forward 64, 4 heads, 2+2 layers, dropout 0.2, Adam 0.0015, batch 128, clip 1, 30 epochs, sentences
of at most 9 tokens. As in the book the vocabularies count the validation sentences too, and 3 of its 4
demonstration sentences are training rows. The loss is a mean over all 9 positions, padding included, as the book's
own (its library has no mask there).
"""

from attention_jax.config import Claim, Config, Decode, FraEng, Optim, Train, Transformer, replace

SEEDS = 3
SOURCE = "d2l 11.7"


def config() -> Config:
    return Config(
        "fra_eng_transformer",
        FraEng(split="d2l", max_length=9, max_buckets=1, predict_padding=True),
        Transformer(2, 2, width=256, heads=4, ffn=64, use_bias=False, dropout=0.2, attention_dropout=0.2),
        Optim(learning_rate=1.5e-3, clip_norm=1.0),
        Train(batch_size=128, total_epochs=30),
        Decode(max_length=9),
    )


def smoke() -> Config:
    return replace(config(), **{"model.width": 16, "model.ffn": 16, "model.heads": 2, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "5e-4..5e-3:log", "model.dropout": "0.1..0.5"}


CLAIMS = (
    Claim(
        "validation loss, best epoch, PyTorch edition", "valid.loss", 1.73, SOURCE, best=True, at_most=1.73, beaten=1.6
    ),
    Claim("validation loss, best epoch, JAX edition", "valid.loss", 2.66, SOURCE, best=True, at_most=2.66, beaten=2.0),
)
