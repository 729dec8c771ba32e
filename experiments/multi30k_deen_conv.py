"""Multi30k German to English, convolutional sequence to sequence (Gehring et al. 2017).

Chapter: Transformer
Source: bentrevett/pytorch-seq2seq, tutorial 5 (Ben Trevett), BLEU of its own run
Data: Multi30k raw text, spaCy's tokens lower-cased (extra: pip install spacy), words seen at least twice;
  `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_deen_conv
Cost: "published": 86 minutes on one CPU core, other work beside it; "better" has twice the epochs. One seed, as the
  four rungs take over an hour

One rung of the ladder "no attention - Cho - Bahdanau - convolution". The variant "published" has the tutorial's
settings: width 512, embeddings of 256, Adam 0.001, batch 128, 10 epochs, the epoch of the best validation loss, greedy
decoding. "better" is the same model trained longer with label smoothing, a cosine schedule and beam 5.
"""

from attention_jax.config import Claim, Config, Convolutional, Decode, Multi30k, Optim, Train, replace

SEEDS = 1
SOURCE = "bentrevett/pytorch-seq2seq, tutorial 5"


def config() -> Config:
    return Config(
        "multi30k_deen_conv",
        Multi30k(source="de", target="en", form="raw", tokenizer="spacy", lowercase=True, min_frequency=2),
        Convolutional(512, 256, layers=10, kernel_size=3, dropout=0.25),
        Optim(learning_rate=1e-3, clip_norm=0.1),
        Train(total_epochs=10, use_best=True, matmul_precision="bfloat16"),
        Decode(batch_size=500),
    )


def variants() -> dict[str, Config]:
    better = {
        "optim.schedule": "warmup_cosine",
        "optim.warmup_steps": 400,
        "train.label_smoothing": 0.1,
        "train.total_epochs": 20,
        "train.use_best": False,
        "train.average_last": 3,
        "decode.beam_size": 5,
        "model.dropout": 0.3,
    }
    return {"published": config(), "better": replace(config(), **better)}


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.embed_size": 8, "model.layers": 2}
    return replace(config(), **small, **{"train.max_steps": 2, "train.total_epochs": 1, "decode.max_length": 4})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log"}


CLAIMS = (
    Claim(
        "BLEU on test2016, the tutorial's settings",
        "test.bleu",
        34.14,
        SOURCE,
        variant="published",
        at_least=32.14,
        beaten=36.14,
    ),
    Claim(
        "BLEU on test2016, better settings", "test.bleu", 34.14, SOURCE, variant="better", at_least=32.14, beaten=34.14
    ),
)
