"""Priority sort: a Neural Turing Machine writes vectors where their priority says, then reads them in order.

Chapter: memory
Source: Graves, Wayne, Danihelka 2014 (arXiv 1410.5401), section 4.5, figures 16 to 18
Data: 20 random 8-bit vectors with priorities in [-1, 1]; wanted are the 16 highest in order; generated
Command: python launch.py reproduce ntm_sort
Cost: 57 minutes on one CPU core, much other work beside it

The paper's best machine: feed-forward controller of 512 units, 8 read and 8 write heads, RMSprop at 3e-5 (table 1),
hundreds of thousands of sequences; here 200,000. The rate decides: at 1e-4 the loss stays above 115 bits (35,000
sequences tried), at 3e-5 it leaves 115 after 40,000 and is at 50 after 65,000. From there it falls on slowly
and unsteadily, and was lost once for 15,000 sequences; the best evaluation counts. The claim is that it learns to sort
at all; the paper's curve (no numbers are given) ends near 0 bits, which is not
reached here.
"""

from attention_jax.config import NTM, Algorithmic, Claim, Config, Optim, Train, replace

SOURCE = "Graves et al. 2014, figure 18"


def config() -> Config:
    return Config(
        "ntm_sort",
        Algorithmic("priority_sort", sequences=200_000, epoch_sequences=2_500),
        NTM("feedforward", hidden_size=512, read_heads=8, write_heads=8),
        Optim("rmsprop", learning_rate=3e-5, momentum=0.9, b2=0.95, eps=1e-4, clip_norm=50.0),
        Train(batch_size=1, total_epochs=80, steps_per_call=250, best_metric="valid.bits_per_sequence", use_best=True),
    )


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.read_heads": 1, "model.write_heads": 1, "train.total_epochs": 1}
    return replace(config(), **{"data.sequences": 40, "data.epoch_sequences": 40, "data.valid_sequences": 4} | small)


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-5..3e-4:log", "model.hidden_size": "100,512"}


CLAIMS = (
    Claim(
        "bits per sequence, of 128: off the plateau of 115",
        "valid.bits_per_sequence",
        None,
        SOURCE,
        at_most=115.0,
    ),
)
