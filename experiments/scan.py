"""Length generalization on SCAN: relative positions and shared layers on commands longer than any in training.

Chapter: Transformer
Source: Csordas, Irie, Schmidhuber 2021, "The Devil is in the Detail" (EMNLP, arXiv 2108.12284), abstract: 100 % of
  SCAN's commands longer than a cutoff of 26; section 3
Data: SCAN's 20,910 commands (Lake & Baroni 2018, arXiv 1711.00350), generated; those of at most 26 actions train
Command: python launch.py reproduce scan
Cost: 320 minutes, without "universal, longer", which is not run

"universal" is their best model: three times the same layer of width 128 with eight heads (`--model.shared-layers`),
Transformer-XL's relative positions (`ops.biases:TransformerXLBias`), dropout wherever they have it, and of the
embeddings; 10,880 steps of 64 commands where they take 50,000 of 256. With the initial weights of their code it has
their logits. "relative" has three layers of its own and Shaw's relative positions; "absolute" adds sinusoids to its
word embeddings; both train for 5,440 steps. They are not the paper's models of these names: they have sqrt(128) times
their embeddings, an output layer of its own, and no dropout inside of the sub-layers. Nothing chooses the epoch: it is
the last one.

Protocol since 2026-11-23, as their conclusion demands a generalization validation set: the 1,472 commands of 27, 28
and 30 actions ("valid_longer") choose among the models, the 1,152 of 32 to 48 ("test_longer") judge. The paper judges
on all 2,624, which are easier.

The first run under this protocol (seed 1001, AMD EPYC, 2026-11-24) misses the bound of 0.9: "universal" carries out
60 % of the longest commands, "relative" 29 %, "absolute" 11 %. By the number of actions, "universal" has 100 % of those
with 27, 98 with 28, 93 with 30, 92 with 32, 83 with 33, 100 with 36, but 1 of 256 with 40 and none of 128 with 48. Of
its 512 errors on all commands longer than 26, 482 are a beginning of the right answer that ends too early: the model
continues correctly, and has not learned when to stop at positions so far beyond training. The bound was taken from a
score on all longer commands, of which those with 27 to 30 are more than half and nearly all right. The run on which it
rested would have missed it, too: its 252 errors were all among the longest commands, of which it had 78 %.

That run was one of four models that were compared on those 2,624 themselves, one seed each (AMD EPYC, 2026-11-22):
"absolute" had 37 %, "relative" 49 %, Transformer-XL's positions in three layers with less dropout 42 %, "universal"
82 % after 20 epochs and 90 % after 40. The last was right up to 36 actions, had half of those with 40 and one in twenty
of those with 48, and 229 of its 252 errors ended too early. A position that was never seen tells the model nothing.
Shaw's distances are clipped at 16, so all of them were seen; Transformer-XL's distances beyond 26 were not.

"universal, 40,000 steps" comes closer to the paper's code: 147 epochs (39,984 steps) of 64 commands, a constant rate of
1e-3, gradients clipped to norm 5, a source that begins with bos, a score on all commands longer than 26, and its
dropout and initial values: embeddings are not dropped, self-attention and positions begin uniform within 1 / sqrt(128),
Xavier's range of the first feed-forward matrix is times sqrt(2), and the feed-forward biases are not 0. It was
registered before its run (2026-11-26) and replaces "universal, longer", which has Xavier's ranges and was never run;
the others are the former protocol.

Its three seeds have 0.680, 0.902 and 0.939 (AMD EPYC, 2026-11-26), short of the paper's 1. No seed carries out one of
the 128 commands of 48 actions: nearly all of these answers end too early. Of the shorter ones, 27 to 40 actions, the
best seed has 98.8 %. The worst seed errs from 28 actions on, and a third of its errors are no early ends. Held-out
commands of at most 26 actions are right (1.000, 1.000, 0.999).

Besides the budget, batches may matter. The ends of the longest trained answers are in one of our length buckets, 43 of
272 steps, and each step is a mean of its own; in the source's code they are in every batch, and weigh as much as other
tokens. This was found by reading (2026-11-26), and has not been tried.

"relative" and "absolute" are measured without a bound: the paper's numbers for such models could not be confirmed, and
they are scores on all commands longer than 26.
"""

from attention_jax.config import Config, Decode, Grid, Optim, Scan, Train, TransformerConfig, replace

SEEDS = 3


def config() -> Config:
    return Config(
        "scan",
        Scan(cutoff=26, second_cutoff=30),
        TransformerConfig(
            3,
            3,
            hidden_size=128,
            num_heads=8,
            mlp_dim=256,
            position_embedding="transformer_xl",
            shared_layers=True,
            attention_dropout=0.1,
            mlp_dropout=0.1,
            tied_embeddings="output",
            output_bias=False,
            scale_embeddings=False,
            embedding_init="xavier",
        ),
        Optim(learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=200, clip_norm=1.0),
        Train(batch_size=64, total_epochs=40),
        Decode(batch_size=500, max_length=50),
    )


def smoke() -> Config:
    small = {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.hidden_size": 16,
        "model.num_heads": 2,
        "model.mlp_dim": 16,
    }
    return replace(config(), **small, **{"train.max_steps": 2, "train.total_epochs": 1, "decode.max_length": 4})


def variants() -> dict[str, Config]:
    layers = TransformerConfig(3, 3, hidden_size=128, num_heads=8, mlp_dim=256, position_embedding="shaw")
    relative = replace(config(), **{"model": layers, "train.total_epochs": 20})
    absolute = replace(relative, **{"model.position_embedding": "sinusoidal"})
    longer = {
        "data.second_cutoff": 0,
        "data.source_bos": True,
        "optim": Optim(learning_rate=1e-3, clip_norm=5.0),
        "train.total_epochs": 147,
    }
    initial = {"model.self_attention_init": "fan_in", "model.mlp_init": "relu", "model.dropout_embeddings": False}
    return {
        "universal": config(),
        "relative": relative,
        "absolute": absolute,
        "universal, longer": replace(config(), **longer),
        "universal, 40,000 steps": replace(config(), **longer, **initial),
    }


def sweep() -> dict[str, str]:
    return {"model.position_embedding": "sinusoidal,shaw,transformer_xl,t5,alibi,rotary", "data.cutoff": "22,24,26"}


GRIDS = (
    Grid(
        "Exact match by the number of actions; the record before 2026-11-23 has all of more than 26 together",
        {
            "at most 26": "valid.exact_match",
            "27 to 30": "valid_longer.exact_match",
            "more than 30": "test_longer.exact_match",
            "more than 26": "test.exact_match",
        },
        variants=("universal", "relative", "absolute"),
    ),
)
