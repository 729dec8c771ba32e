"""Associative recall: a Neural Turing Machine with a feed-forward controller solves it, a far larger LSTM does not.

Chapter: memory
Source: Graves, Wayne, Danihelka 2014 (arXiv 1410.5401), section 4.3, figures 10 to 12
Data: 2 to 6 items of three random 6-bit vectors, one of them queried, generated
Command: python launch.py reproduce ntm_recall
Cost: 29 minutes

"feedforward" has the sizes of table 1: a feed-forward controller of 256 units and four heads, so that all it remembers
lies in memory. "ntm" is that of table 2 and of `ntm_copy`: an LSTM controller of 100 units and one head. The baseline
has three LSTM layers of 256 (table 3). An epoch has 2,500 episodes; the validation sequences choose the epoch, other
ones test it. The paper shows curves that end near 0 of 18 bits for both machines, one run each; all bounds are our own.
Rates are the paper's. It clips every entry of the gradient to [-10, 10] inside of the backward pass and trains for
longer; here the norm is clipped to 50, for 40,000 episodes. The memory begins at 1e-6 everywhere; what else the paper
leaves open is described in `ntm_copy`.

What we found (AMD EPYC, 2026-11-22): four of five seeds learn with the machine of table 1, to 0.001 bits; with 15 items
the median seed has 0.5 bits. In the replication all of five seeds learn with it (0.0002 to 0.5 bits), and with 15 items
the median seed has 0.2 bits (0.0 to 6.9). With the machine of table 2 seed 0 learns, within 12,500 episodes, and the
other four stay at 10 bits (in the replication, too, one seed of five learns, to 0.001 bits), so that the paper's curve
is not what a seed of ours can be expected to give. Rounding decides it, too: that seed, 1001, learns on an AMD EPYC,
while on an Intel Xeon with amx_bf16 the same seed stays at 11 bits, so that none may learn there. (Its controller may
keep items itself, which is learned first and does not scale. One head and 100 units under a feed-forward controller
were enough for seed 1.) Which seed learns is chance: with `--data.sequences 120000` they begin with the same parameters
and get other episodes of the same kind, and then 1 and 2 learn and 0, 3 and 4 do not (runs that are not on record),
which makes four of fifteen with the replication; after 120,000 episodes the best epochs of 0 and 3 have 6.0 and 9.1
bits. No change of the training helped seeds 1 and 2 on the first episodes (bits after 40,000): a learning rate of 3e-4
gave 9.7 and 10.6, with batches of 4 10.0 and 10.9, Adam at 1e-3 10.1 and 11.3, a controller of 256 units 9.5 and 10.7.
"feedforward" was added after the median of "ntm" had not come near 0.
"""

from attention_jax.config import (
    Algorithmic,
    Config,
    NTMConfig,
    Optim,
    StackedLSTMConfig,
    Train,
    replace,
)

SEEDS = 5


def config() -> Config:
    return Config(
        "ntm_recall",
        Algorithmic("associative_recall", sequences=40_000, epoch_sequences=2_500),
        NTMConfig(),
        Optim("rmsprop", learning_rate=1e-4, momentum=0.9, b2=0.95, eps=1e-4, clip_norm=50.0),
        Train(batch_size=1, total_epochs=16, steps_per_call=500, best_metric="valid.bits_per_sequence", use_best=True),
    )


def variants() -> dict[str, Config]:
    table_1 = {"controller": "feedforward", "hidden_size": 256, "num_read_heads": 4, "num_write_heads": 4}
    feedforward = replace(config(), **{f"model.{name}": value for name, value in table_1.items()})
    lstm = replace(config(), **{"model": StackedLSTMConfig(3, 256), "optim.learning_rate": 3e-5})
    return {"feedforward": feedforward, "ntm": config(), "lstm": lstm}


def smoke() -> Config:
    data = {"data.sequences": 40, "data.epoch_sequences": 40, "data.valid_sequences": 4}
    return replace(config(), **data | {"model.hidden_size": 8, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "1e-4..1e-3:log", "model.num_read_heads": "1,2,4"}
