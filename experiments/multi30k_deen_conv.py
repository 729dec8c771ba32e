"""Multi30k German to English, convolutional sequence to sequence (Gehring et al. 2017).

Chapter: Transformer
Source: bentrevett/pytorch-seq2seq, tutorial 5 (Ben Trevett), BLEU of its own run
Data: Multi30k raw text, spaCy's tokens lower-cased (extra: pip install spacy), words seen at least twice;
  `--data.path DIR` reads the published files
Command: python launch.py reproduce multi30k_deen_conv
Cost: 83 minutes

One rung of the ladder "no attention, Cho, Bahdanau, convolution". Sizes and optimizer are the tutorial's: width 512,
embeddings of 256, 10 layers, Adam 0.001, batch 128, 10 epochs, the epoch of the best validation loss, greedy decoding.

The model is not the tutorial's. As in the paper, each decoder layer has its own projections around its attention, the
weights start as Gehring et al. draw them without dropout, and padding is set to zero before every convolution; the
tutorial shares one pair of projections among the layers, has PyTorch's initial values, and its convolutions and its
attention read padding. In the tutorial's decoder the residual connections carry the input after dropout, here before
it, and ones come before a sentence, the number of the padding token, here zeros.
Ours has 39,730,692 parameters, the tutorial's 37,351,173, and multiplies weights in bfloat16. The test loss is 1.63
here, a mean over tokens, and 1.834 there, a mean over batches sorted by length, which is lower than one over tokens; a
higher BLEU is no better implementation of the same model. (Two runs in the tutorial's history have 33.3 and 33.7.)
"""

from attention_jax.config import Config, Decode, Grid, Multi30k, Optim, Train, replace
from experiments.papers.options import ConvolutionalConfig

SEEDS = 1
GRIDS = (Grid("After training", {"BLEU on test2016": "test.bleu"}, ("",)),)


def config() -> Config:
    return Config(
        "multi30k_deen_conv",
        Multi30k(source="de", target="en", form="raw", tokenizer="spacy", lowercase=True, min_frequency=2),
        ConvolutionalConfig(512, 256, num_layers=10, kernel_size=3, dropout=0.25),
        Optim(learning_rate=1e-3, clip_norm=0.1),
        Train(total_epochs=10, use_best=True, matmul_precision="bfloat16"),
        Decode(batch_size=500),
    )


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.embed_size": 8, "model.num_layers": 2}
    return replace(config(), **small, **{"train.max_steps": 2, "train.total_epochs": 1, "decode.max_length": 4})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log"}
