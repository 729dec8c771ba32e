"""A Neural Turing Machine learns to copy, and goes on copying sequences six times as long as any it ever saw.

Chapter: memory
Source: Graves, Wayne, Danihelka 2014 (arXiv 1410.5401), section 4.1, figures 3 to 6
Data: sequences of 1 to 20 random 8-bit vectors, generated
Command: python launch.py reproduce ntm_copy
Cost: about 30 seconds a seed on 2 cores

LSTM controller of 100 units, one read and one write head, memory of 128 locations of 20 numbers, one sequence at a
time; centred RMSProp with momentum 0.9 as in the paper. An epoch is 2,500 sequences, all of them new: epoch 2 ends
after 5,000. Costs are bits per sequence; wrong bits are counted over 20 sequences of each length. The initial memory is
learned, which `ntm_init` found the most reliable on other seeds (0 to 4).
"""

from attention_jax.config import NTM, Algorithmic, Claim, Config, Optim, Train, replace

SEEDS = 5
BITS = "valid.bits_per_sequence"
SOURCE = "Graves et al. 2014, figure 3: near 0 within tens of thousands"


def config() -> Config:
    return Config(
        "ntm_copy",
        Algorithmic("copy", sequences=10_000, epoch_sequences=2_500),
        NTM(memory_init="learned"),
        Optim("rmsprop", learning_rate=3e-4, schedule="warmup_cosine", momentum=0.9, b2=0.95, eps=1e-4, clip_norm=10.0),
        Train(
            batch_size=1,
            total_epochs=4,
            steps_per_call=500,
            best_metric="valid.bits_per_sequence",
            use_best=True,
            seed=5,
        ),
    )


def smoke() -> Config:
    data = {"data.sequences": 40, "data.epoch_sequences": 40, "data.valid_sequences": 4}
    return replace(config(), **data | {"model.hidden_size": 8, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-4..1e-3:log", "optim.clip_norm": "1,10,50"}


CLAIMS = (
    Claim(
        "bits per sequence after 10,000 sequences (wanted: before 50,000), 4 of 5 seeds",
        BITS,
        0.0,
        SOURCE,
        at_most=0.05,
        seeds_needed=4,
    ),
    Claim(
        "no wrong bit at lengths 10, 20, 30 and 50, 4 of 5 seeds",
        "test.wrong_bits_to_50",
        0.0,
        "figure 4",
        at_most=0.0,
        seeds_needed=4,
    ),
    Claim(
        "bits per sequence after 5,000 sequences, the median seed",
        BITS,
        None,
        "aim: half the seeds are done by then",
        epoch=2,
        at_most=0.05,
    ),
    Claim(
        "no wrong bit at length 120, 4 of 5 seeds",
        "test.wrong_bits_length_120",
        None,
        "aim",
        at_most=0.0,
        seeds_needed=4,
    ),
)
