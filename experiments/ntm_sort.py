"""Priority sort: a Neural Turing Machine writes vectors to the place of their priority, then reads them in order.

Chapter: memory
Source: Graves, Wayne, Danihelka 2014 (arXiv 1410.5401), section 4.5, figures 16 to 18
Data: 20 random 8-bit vectors with priorities in [-1, 1]; the 16 highest are wanted in order; generated
Command: python launch.py reproduce ntm_sort
Cost: 87 minutes

This is the paper's best machine: a feed-forward controller of 512 units, 8 read and 8 write heads, RMSProp at 3e-5
(table 1). The paper trains on hundreds of thousands of sequences and its curve ends near 0 bits (it prints no number);
here the best of 80 epochs, after 187,500 sequences, has 38 of 128 bits on the sequences that chose it, and the last 56,
which is not a reproduction. A run at 1e-4 was stopped after 35,000 sequences on a plateau of 115.8 bits. The one at
3e-5 was on the same plateau then, left it after 40,000, and is at 50 after 67,500; whether the rate matters is not
known. From there it falls slowly and unsteadily, and was lost once for 15,000 sequences. The validation sequences
choose the epoch, other ones test it.

Three registered seeds differ as much. 1003 ends at 31 of 128 bits on test sequences, 1001 at 84. 1002 had 74 bits on
the validation sequences, fell back to 97 and diverged at step 165,402. Repeated on one core from its last checkpoint,
it diverges at the same step. The gradient through the 37 time steps explodes: a `jax.debug.callback` in
`train/step.py:updated` shows a norm of 100 to 3,000 in 15 of the last 20 steps and of 4e6 to 6e15 in the other five,
and then entries that are NaN, while no parameter is above 2.1 and the loss is near that of guessing. Clipping by the
norm, as here, does not mend a NaN. The paper clips every entry to [-10, 10] in the backward pass. With another rounding
(on two cores) the same run passed this step and was still training at step 192,750.

"entrywise clip" clips every entry of the gradient to [-10, 10]; it was registered before its run (2026-11-25), and the
first variant is the former protocol. The paper clips inside of the backward pass, here the sums over time are clipped,
and that does not help: seeds 2001 and 2002 diverge at steps 171,045 and 145,011, soon after a loss that had risen to 84
and 125 bits, and 2003 ends at 49 bits on test sequences. A sum that is NaN stays NaN when it is clipped.
The memory begins at 1e-6 everywhere; what else the paper leaves open is described in `ntm_copy`.
"""

from attention_jax.config import Algorithmic, Config, NTMConfig, Optim, Train, replace


def config() -> Config:
    return Config(
        "ntm_sort",
        Algorithmic("priority_sort", sequences=200_000, epoch_sequences=2_500),
        NTMConfig("feedforward", hidden_size=512, num_read_heads=8, num_write_heads=8),
        Optim("rmsprop", learning_rate=3e-5, momentum=0.9, b2=0.95, eps=1e-4, clip_norm=50.0),
        Train(batch_size=1, total_epochs=80, steps_per_call=250, best_metric="valid.bits_per_sequence", use_best=True),
    )


def smoke() -> Config:
    small = {"model.hidden_size": 8, "model.num_read_heads": 1, "model.num_write_heads": 1, "train.total_epochs": 1}
    return replace(config(), **{"data.sequences": 40, "data.epoch_sequences": 40, "data.valid_sequences": 4} | small)


def variants() -> dict[str, Config]:
    return {"": config(), "entrywise clip": replace(config(), **{"optim.clip_norm": 0.0, "optim.clip_value": 10.0})}


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-5..3e-4:log", "model.hidden_size": "100,512"}
