"""d2l's GRU encoder-decoder: the encoder's last state is all the decoder ever sees.

Chapter: recurrent attention
Source: "Dive into Deep Learning" (Zhang et al.), section 10.7; its code in PyTorch, run on the same pairs
  (`python experiments/peers/d2l_seq2seq.py fra-eng.zip`: fra_eng_seq2seq_peer.json beside the results)
Data: English-French sentences of tatoeba.org; `--data.path fra-eng.zip` reads the published file; d2l trains on its
  first 512 pairs and validates on the next 128
Command: python launch.py reproduce fra_eng_seq2seq
Cost: under a minute a seed

d2l's settings: 512 training pairs cut to 9 tokens, words seen at least twice, embeddings and two GRU layers of width
256, dropout 0.2 between them, Adam 0.005, batch 128, gradients clipped to norm 1, 30 epochs; the best epoch's
validation loss is the claim. The book's plots end at 2.54 (PyTorch) and 2.57 (JAX), which no model here reaches, nor
does the book's own code on these 128 pairs: 2.86 (2.78 to 2.90, 5 seeds). Its reader of the file takes one pair more,
which becomes a validation batch of its own, and the plot is the mean of the two batches: 2.51 (2.39 to 2.52) so
counted. So ours is held against its code's loss of the same 128 pairs; until 2026-11-22 it was held against 2.54 and
missed (the same runs, 2.66). Three of the four sentences that d2l's chapter
translates as a demonstration are rows it was trained on, so its BLEU of them says little and is not claimed here.
Section 10.7 masks padding in its loss, section 11.4 does not: the two published numbers do not compare.
"""

from attention_jax.config import Claim, Config, Decode, FraEng, Optim, Sutskever, Train

SEEDS = 3


def config() -> Config:
    return Config(
        "fra_eng_seq2seq",
        FraEng(split="d2l", max_length=9, max_buckets=1),
        Sutskever(
            256,
            256,
            "gru",
            layers=2,
            bidirectional="none",
            start_from="pass",
            handover="every_step",
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
        "validation loss per token of the 128 pairs, best epoch",
        "valid.loss",
        2.863,
        "d2l 10.7, its code in PyTorch on the same pairs, 5 seeds",
        best=True,
        at_most=2.898,
        beaten=2.776,
    ),
)
