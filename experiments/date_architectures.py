"""Three changes to the book's date model, each alone: both directions, attention before the LSTM, skip connections.

Chapter: recurrent attention
Source: "Deep Learning from Scratch 2" (Saito 2018), section 8.4, which proposes the three and measures none of them
Data: 50,000 date conversions, generated, as in the recorded runs; `--data.path date.txt.gz` reads the published file
Command: python launch.py reproduce date_architectures
Cost: 98 minutes

"book" is the model and the training of `date_attention`. What the book says about the changes, in our words:

8.4.1, "bidirectional": an encoder of both directions gives each character a state that depends on what is on either
side of it, in balance. The book concatenates the two states and names their sum and mean as alternatives; here it is
the sum, which leaves the rest of the model as it is. That it helps is what the claim tests.
8.4.2, "before": the context is an input of the decoder's next LSTM step, as in Bahdanau et al. 2015, where "book" gives
it to the output layer. Which of the two is more accurate depends on the data and has to be tried: no bound.
8.4.3, "deep" and "skip": three LSTM layers in encoder and decoder, the context given to all layers and to the output
layer, and the same with a layer's input added to its output from the second layer on. The sum passes the gradient on
unchanged, so that deep models learn well. These two have half the book's width and eight epochs.

The loss on the held-out dates, in nats a character, is judged as the mean over all epochs. Exact match stays near 0
until a model has learned most of a date, and when it rises differs from seed to seed.

What three seeds found: the first two proposals slow learning down within four epochs. Test losses of the last epoch are
0.003 to 0.004 with "book", 0.002 to 0.27 with "bidirectional", and 0.28 to 0.98 with "before", which begins to learn
later. With skip connections the deep model learns earlier than without (0.02 to 0.38 against 0.38 to 0.98 after eight
epochs), as the book says.
"""

from attention_jax.config import (
    AttentionSeq2seqConfig,
    BahdanauConfig,
    Config,
    Dates,
    Decode,
    GNMTConfig,
    Grid,
    Optim,
    Train,
    replace,
)

SEEDS = 3
EPOCHS, DEEP_EPOCHS = 4, 8
BOOK = {"cell": "lstm", "score": "dot", "bidirectional": "none", "decoder_init": "hidden", "embed_scale": 0.01}
"""Options with which a model of translator.py has the encoder, score, start and embeddings of the book's model."""


def config() -> Config:
    return Config(
        "date_architectures",
        Dates(reverse_source=True),
        AttentionSeq2seqConfig(hidden_size=256, embed_size=16),
        Optim(learning_rate=1e-3, clip_norm=5.0),
        Train(total_epochs=EPOCHS, best_metric="train.loss"),
        Decode(),
    )


def variants() -> dict[str, Config]:
    """The book's model, one change to it at a time, and a deep model with and without skip connections."""
    book = config()
    context_to_cell = BahdanauConfig(hidden_size=256, embed_size=16, readout="state", **BOOK)
    stack = GNMTConfig(hidden_size=128, embed_size=16, num_layers=3, readout="linear", readout_embedding=False, **BOOK)
    skip = replace(book, model=stack, **{"train.total_epochs": DEEP_EPOCHS})
    return {
        "book": book,
        "bidirectional": replace(book, **{"model.bidirectional": True}),
        "before": replace(book, model=context_to_cell),
        "deep": replace(skip, **{"model.residual": False}),
        "skip": skip,
    }


def smoke() -> Config:
    return replace(config(), **{"data.examples": 1000, "model.hidden_size": 16, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "5e-4..5e-3:log", "model.hidden_size": "128,256"}


GRIDS = (
    Grid(
        "Held-out dates after the last epoch (the eighth for deep and skip, otherwise the fourth)",
        {"exact match": "test.exact_match", "on unseen texts": "test.exact_match_unseen", "loss": "test.loss"},
        variants=("book", "bidirectional", "before", "deep", "skip"),
    ),
)
