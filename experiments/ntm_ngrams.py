"""Dynamic N-grams: how near a Neural Turing Machine comes to the optimal Bayesian estimator of a random 6-gram table.

Chapter: memory
Source: Graves, Wayne, Danihelka 2014 (arXiv 1410.5401), section 4.4, figures 13 to 15
Data: 200 bits from a table of 32 probabilities drawn anew for each sequence, generated
Command: python launch.py reproduce ntm_ngrams
Cost: 7 minutes a model and seed on one core, other work beside it

The optimum (equation 10), 131.93 bits a sequence, is computed for the very sequences that validate; reported is the
cost above it. That the LSTM's is larger became a claim after the runs (2026-11-20). LSTM controller of 100 units; the
baseline has three LSTM layers of 128 (table 3).
"""

from attention_jax.config import NTM, Algorithmic, Claim, Config, Optim, StackedLSTM, Train, replace

SOURCE = "Graves et al. 2014, figure 13"


def config() -> Config:
    return Config(
        "ntm_ngrams",
        Algorithmic("ngrams", sequences=50_000, epoch_sequences=2_500, valid_sequences=400),
        NTM(memory_init="learned"),
        Optim("rmsprop", learning_rate=3e-4, schedule="warmup_cosine", momentum=0.9, b2=0.95, eps=1e-4, clip_norm=10.0),
        Train(batch_size=1, total_epochs=20, steps_per_call=250, best_metric="valid.bits_per_sequence", use_best=True),
    )


def variants() -> dict[str, Config]:
    return {"ntm": config(), "lstm": replace(config(), model=StackedLSTM(3, 128))}


def smoke() -> Config:
    data = {"data.sequences": 20, "data.epoch_sequences": 20, "data.valid_sequences": 4}
    return replace(config(), **data | {"model.hidden_size": 8, "train.total_epochs": 1})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-5..1e-3:log", "model.read_heads": "1,2"}


CLAIMS = (
    Claim(
        "NTM: bits above the optimum",
        "valid.bits_over_optimum",
        None,
        f"{SOURCE}: a few",
        variant="ntm",
        at_most=3.0,
        beaten=1.0,
    ),
    Claim("LSTM: bits above the optimum", "valid.bits_over_optimum", None, SOURCE, variant="lstm", at_least=1.0),
    Claim("LSTM less NTM", "valid.bits_over_optimum", None, SOURCE, variant="lstm", minus="ntm", at_least=0.0),
)
