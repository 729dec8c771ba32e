"""Attention weights as the output: a Pointer Network writes the convex hull of points by pointing at them.

Chapter: recurrent attention
Source: Vinyals, Fortunato, Jaitly 2015, "Pointer Networks" (arXiv 1506.03134), section 3.1 and table 1
Data: generated; 5 to 10 points uniform in the unit square
Command: python launch.py reproduce pointer_networks
Cost: 64 minutes on one CPU core, much other work beside it

Each of as many classes as there are points: no output layer can have them, but the weights of attention do. The paper
trains on 5 to 50 points and gives the accuracy for 5 and 10; here training has 5 to 10 points only, a million sets as
there, nine times each, an LSTM of 128 units instead of 256 or 512, and Adam instead of SGD. A hull is right if it is
the same polygon, as in the paper: from whichever corner, the first one repeated or not, but counterclockwise and ended.
Nothing is masked but padding, and the most probable place is taken at each step.

It is a matter of training. By the epochs of a million sets that the schedule had, accuracy on 5 and 10 points: 1.4 (of
200,000 sets) 0.880 and 0.729, a polygon from another corner counted as wrong; 6 0.935 and 0.841; 9 as recorded.
"""

from attention_jax.config import Claim, Config, ConvexHulls, Optim, PointerNetwork, Train, replace

SOURCE = "Vinyals et al. 2015, table 1, Ptr-Net trained on 5 to 50 points"


def config() -> Config:
    return Config(
        "pointer_networks",
        ConvexHulls(fewest=5, most=10, examples=1_000_000),
        PointerNetwork(hidden_size=128),
        Optim(learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=200, clip_norm=2.0),
        Train(batch_size=128, total_epochs=9, steps_per_call=100),
    )


def smoke() -> Config:
    small = {"data.examples": 200, "data.held_out": 20, "model.hidden_size": 8, "train.total_epochs": 1}
    return replace(config(), **small, **{"train.batch_size": 32})


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "5e-4..5e-3:log", "model.hidden_size": "64,128,256"}


CLAIMS = (
    Claim("accuracy on 5 points", "test.accuracy_5", 0.920, SOURCE, at_least=0.90, beaten=0.94),
    Claim("accuracy on 10 points", "test.accuracy_10", 0.870, SOURCE, at_least=0.85, beaten=0.89),
)
