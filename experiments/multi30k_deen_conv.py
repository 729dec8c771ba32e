"""Multi30k German to English, convolutional sequence to sequence (Gehring et al. 2017).

Chapter: Transformer
Source: bentrevett/pytorch-seq2seq, tutorial 5 (Ben Trevett), BLEU of its own run
Data: Multi30k raw text, spaCy's tokens lower-cased (extra: pip install spacy), words seen at least twice;
  `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_deen_conv
Cost: 86 minutes on one CPU core, other work beside it. One seed, as the four rungs take over three hours

One rung of the ladder "no attention - Cho - Bahdanau - convolution". The settings are the tutorial's: width
512, embeddings of 256, Adam 0.001, batch 128, 10 epochs, the epoch of the best validation loss, greedy decoding.
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


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.embed_size": 8, "model.layers": 2}
    return replace(config(), **small, **{"train.max_steps": 2, "train.total_epochs": 1, "decode.max_length": 4})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log"}


CLAIMS = (Claim("BLEU on test2016, the tutorial's settings", "test.bleu", 34.14, SOURCE, at_least=32.14, beaten=36.14),)
