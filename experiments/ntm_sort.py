"""Priority sort: a Neural Turing Machine writes vectors where their priority says, then reads them in order.

Chapter: memory
Source: Graves, Wayne, Danihelka 2014 (arXiv 1410.5401), section 4.5, figures 16 to 18
Data: 20 random 8-bit vectors with priorities in [-1, 1]; wanted are the 16 highest in order; generated
Command: python launch.py reproduce ntm_sort
Cost: about 4 minutes on 2 cores

The paper's best machine: feed-forward controller of 512 units, 8 read and 8 write heads (table 1). It trains on
hundreds of thousands of sequences there; here on 20,000, which shows the descent and not its end.
"""

from attention_jax.config import NTM, Algorithmic, Claim, Config, Optim, Train, replace

SOURCE = "Graves et al. 2014, figure 18"


def config() -> Config:
    return Config(
        "ntm_sort",
        Algorithmic("priority_sort", sequences=20_000, epoch_sequences=2_500),
        NTM("feedforward", hidden_size=512, read_heads=8, write_heads=8),
        Optim("rmsprop", learning_rate=1e-4, momentum=0.9, b2=0.95, eps=1e-4, clip_norm=50.0),
        Train(batch_size=1, total_epochs=8, steps_per_call=250, best_metric="valid.bits_per_sequence", use_best=True),
    )


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.read_heads": 1, "model.write_heads": 1, "train.total_epochs": 1}
    return replace(config(), **{"data.sequences": 40, "data.epoch_sequences": 40, "data.valid_sequences": 4} | small)


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-5..3e-4:log", "model.hidden_size": "100,512"}


CLAIMS = (
    Claim(
        "bits per sequence, of 128 (the paper's ends near 0)",
        "valid.bits_per_sequence",
        None,
        SOURCE,
        at_most=115.0,
        beaten=20.0,
    ),
)
