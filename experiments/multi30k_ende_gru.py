"""Multi30k English to German with the conditional GRU of LIUM-CVC's WMT17 submission.

Chapter: recurrent attention
Source: Caglayan et al. 2017 (WMT17): README of its code, lium-lst/wmt17-mmt, a single run of monomodal-en-de (the paper
  has means of several runs)
Data: Multi30k, lower-cased Moses tokens, joint BPE of 10,000 merges; `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_ende_gru
Cost: 43 minutes

The decoder has two GRU transitions around the attention at every step. The encoder is bidirectional, of width 256, with
layer normalization of its annotations; embeddings have 128; dropout is 0.3 on embeddings and 0.5 on annotations and
before the output; Adam 0.0004, batch 32, beam 12. BLEU is of lower-cased tokens with BPE undone.

The published numbers are of a configuration (config/monomodal-en-de.conf, for the Theano program lium-lst/nmtpy) that
differs: its output embeddings are not tied, gradients are clipped at 5, an L2 penalty of 1e-5 is added, and METEOR on
the validation set, every 1,000 updates with a patience of 10, chooses the checkpoint. Ours ties the target embeddings
to the output layer, clips at 1, has no penalty and takes the epoch of the best validation loss, with a patience of 5
epochs; weights are multiplied in bfloat16 (`--train.matmul-precision`). The published configuration normalizes inside
the encoder's GRUs, ours normalizes their annotations.
"""

from attention_jax.config import Config, Decode, Multi30k, Optim, Train
from experiments.papers.options import ConditionalGRUConfig


def config() -> Config:
    return Config(
        "multi30k_ende_gru",
        Multi30k(source="en", target="de", form="bpe", tokenizer="bpe"),
        ConditionalGRUConfig(
            256,
            128,
            layer_norm=True,
            decoder_init="mean",
            readout="tanh",
            readout_size=128,
            tied_embeddings=True,
            embed_dropout=0.3,
            memory_dropout=0.5,
            output_dropout=0.5,
        ),
        Optim(learning_rate=4e-4, clip_norm=1.0),
        Train(batch_size=32, total_epochs=40, patience=5, use_best=True, matmul_precision="bfloat16"),
        Decode(beam_size=12, length_penalty="simple", alpha=1.0, batch_size=250),
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "model.hidden_size": "256,512"}
