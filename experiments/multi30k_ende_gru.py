"""Multi30k English to German with the conditional GRU of LIUM-CVC's WMT17 submission.

Chapter: recurrent attention
Source: Caglayan et al. 2017 (WMT17): README of its code, lium-lst/wmt17-mmt, a single run of monomodal-en-de (the paper
  has means of several runs)
Data: Multi30k, lower-cased Moses tokens, joint BPE of 10,000 merges; `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_ende_gru
Cost: 45 minutes on one CPU core: one seed

Two GRU transitions around the attention at every step, bidirectional encoder of width 256 with layer normalisation of
its annotations, embeddings of 128, target embeddings tied to the output layer, dropout 0.3 on embeddings and 0.5 on
annotations and before the output, Adam 0.0004, batch 32, beam 12. BLEU is of lower-cased tokens with BPE undone.
"""

from attention_jax.config import Claim, ConditionalGru, Config, Decode, Multi30k, Optim, Train

SOURCE = "Caglayan et al. 2017, README of the code: one run"


def config() -> Config:
    return Config(
        "multi30k_ende_gru",
        Multi30k(source="en", target="de", form="bpe", tokenizer="bpe"),
        ConditionalGru(
            256,
            128,
            layer_norm=True,
            start_from="mean",
            readout="tanh",
            readout_size=128,
            tied=True,
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


CLAIMS = (
    Claim("BLEU on test2016", "test.bleu", 39.00, SOURCE, at_least=38.0, beaten=39.5),
    Claim("BLEU on test2017", "test_2017.bleu", 31.25, SOURCE, at_least=30.25, beaten=31.75),
)
