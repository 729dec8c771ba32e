"""Multi30k German to English with Bahdanau attention.

Chapter: recurrent attention
Source: bentrevett/pytorch-seq2seq, tutorial 3 (Ben Trevett), BLEU of its own run
Data: Multi30k raw text, spaCy's tokens lower-cased (extra: pip install spacy), words seen at least twice;
  `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_deen_bahdanau
Cost: 35 minutes

One rung of the ladder "no attention, Cho, Bahdanau, convolution". Sizes and optimizer are the tutorial's: width 512,
embeddings of 256, Adam 0.001, batch 128, 10 epochs, the epoch of the best validation loss, greedy decoding.

The training is not the tutorial's. There the decoder reads its own last word instead of the reference's at half of
the steps (a teacher forcing ratio of 0.5) and at all of them in the validation loss that chooses the epoch, the weights
start at N(0, 0.01^2), and translations have at most 24 words. Here every training step reads the reference, the weights
have other initial values, weights are multiplied in bfloat16, and translations may be longer. A higher BLEU is
therefore no better implementation of the same experiment.
"""

from attention_jax.config import BahdanauConfig, Config, Decode, Grid, Multi30k, Optim, Train

SEEDS = 1
GRIDS = (Grid("After training", {"BLEU on test2016": "test.bleu"}, ("",)),)


def config() -> Config:
    return Config(
        "multi30k_deen_bahdanau",
        Multi30k(source="de", target="en", form="raw", tokenizer="spacy", lowercase=True, min_frequency=2),
        BahdanauConfig(512, 256, "gru", readout="linear", embed_dropout=0.5),
        Optim(learning_rate=1e-3, clip_norm=1.0),
        Train(total_epochs=10, use_best=True, matmul_precision="bfloat16"),
        Decode(batch_size=500),
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log"}
