"""Multi30k German to English, the encoder's last state given to every decoder step (Cho et al. 2014).

Chapter: recurrent attention
Source: bentrevett/pytorch-seq2seq, tutorial 2 (Ben Trevett), BLEU of its own run
Data: Multi30k raw text, spaCy's tokens lower-cased (extra: pip install spacy), words seen at least twice;
  `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_deen_gru_context
Cost: "published": 35 minutes on one CPU core, other work beside it; "better" has twice the epochs. One seed, as the
  four rungs take over an hour

One rung of the ladder "no attention - Cho - Bahdanau - convolution". The variant "published" has the tutorial's
settings: width 512, embeddings of 256, Adam 0.001, batch 128, 10 epochs, the epoch of the best validation loss, greedy
decoding. "better" is the same model trained longer with label smoothing, a cosine schedule and beam 5.
"""

from attention_jax.config import Claim, Config, Decode, Multi30k, Optim, Sutskever, Train, replace

SEEDS = 1
SOURCE = "bentrevett/pytorch-seq2seq, tutorial 2"


def config() -> Config:
    return Config(
        "multi30k_deen_gru_context",
        Multi30k(source="de", target="en", form="raw", tokenizer="spacy", lowercase=True, min_frequency=2),
        Sutskever(
            512,
            256,
            "gru",
            bidirectional="none",
            start_from="pass",
            handover="every_step",
            readout="linear",
            embed_dropout=0.5,
        ),
        Optim(learning_rate=1e-3, clip_norm=1.0),
        Train(total_epochs=10, use_best=True),
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
        "model.embed_dropout": 0.4,
        "model.output_dropout": 0.3,
        "train.matmul_precision": "bfloat16",
    }
    return {"published": config(), "better": replace(config(), **better)}


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log"}


CLAIMS = (
    Claim(
        "BLEU on test2016, the tutorial's settings",
        "test.bleu",
        20.61,
        SOURCE,
        variant="published",
        at_least=18.61,
        beaten=22.61,
    ),
    Claim(
        "BLEU on test2016, better settings", "test.bleu", 20.61, SOURCE, variant="better", at_least=18.61, beaten=20.61
    ),
)
