"""Multi30k German to English without attention: two LSTM layers pass on their last states (Sutskever et al. 2014).

Chapter: recurrent attention
Source: bentrevett/pytorch-seq2seq, tutorial 1 (Ben Trevett), BLEU of its own run
Data: Multi30k raw text, spaCy's tokens lower-cased (extra: pip install spacy), words seen at least twice;
  `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_deen_lstm
Cost: 32 minutes

One rung of the ladder "no attention, Cho, Bahdanau, convolution". Sizes and optimizer are the tutorial's: width 512,
embeddings of 256, Adam 0.001, batch 128, 10 epochs, the epoch of the best validation loss, greedy decoding.

The training is not the tutorial's. There the decoder reads its own last word instead of the reference's at half of
the steps (a teacher forcing ratio of 0.5) and at all of them in the validation loss that chooses the epoch, the weights
start at U(-0.08, 0.08), translations have at most 24 words, and the source is read forwards. Here every training step
reads the reference, the weights have other initial values, translations may be longer, and the source is reversed, as
in the paper. A higher BLEU is therefore no better implementation of the same experiment. (Editions before 2023 reverse
the source, too, and have no BLEU; two later ones, which read it forwards, have 12.71 and 13.02.) The original run has
17.8 BLEU, the replication 17.5 (16.4 to 18.5 over test sentences).
"""

from attention_jax.config import Config, Decode, Grid, Multi30k, Optim, Train
from experiments.papers.options import SutskeverConfig

SEEDS = 1
GRIDS = (Grid("After training", {"BLEU on test2016": "test.bleu"}, ("",)),)


def config() -> Config:
    return Config(
        "multi30k_deen_lstm",
        Multi30k(
            source="de",
            target="en",
            form="raw",
            tokenizer="spacy",
            lowercase=True,
            min_frequency=2,
            reverse_source=True,
        ),
        SutskeverConfig(
            512,
            256,
            "lstm",
            num_layers=2,
            bidirectional="none",
            decoder_init="pass",
            readout="state",
            embed_dropout=0.5,
            layer_dropout=0.5,
        ),
        Optim(learning_rate=1e-3, clip_norm=1.0),
        Train(total_epochs=10, use_best=True),
        Decode(batch_size=500),
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log"}
