"""Why input feeding hurts in `multi30k_scores`: the score saturates before the model can translate.

Chapter: recurrent attention
Source: Luong et al. 2015, section 3.3; the decoders of OpenNMT-py on the same batches
  (`python experiments/peers/opennmt_feeding.py DIR`: input_feeding_peer.json beside the results)
Data: Multi30k German to English, pairs of at most 13 tokens a side; `--data.path DIR` reads the published files
Command: python launch.py reproduce input_feeding
Cost: a minute on one CPU core for each of the six models
"""

import json
from pathlib import Path

from attention_jax import runs
from attention_jax.config import Claim, Config, Decode, Luong, Multi30k, Optim, Train, replace

SIZES = {
    "hidden_size": 128,
    "embed_size": 128,
    "readout_size": 128,
    "cell": "gru",
    "bidirectional": "none",
    "embed_dropout": 0.3,
    "output_dropout": 0.3,
}
SCALED = "attention_jax.models.named_scores:ScaledGeneral"


def config() -> Config:
    return Config(
        "input_feeding",
        Multi30k(source="de", target="en", min_frequency=10, max_length=13, overlong="drop", max_buckets=1),
        Luong(**SIZES, input_feeding=False, score="general"),
        Optim(learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=200, clip_norm=1.0),
        Train(total_epochs=6, label_smoothing=0.1, matmul_precision="bfloat16"),
        Decode(batch_size=500),
    )


def variants() -> dict[str, Config]:
    """Global and local-p attention, with the score of `multi30k_scores` and divided by sqrt(128), with feeding and
    without."""
    looking = {
        f"{window}{name}": replace(config(), **{"model.score": score, "model.window": kind})
        for window, kind in (("", "all"), ("local-p-", "predictive"))
        for name, score in (("general", "general"), ("scaled", SCALED))
    }
    feeding = {f"{name}-feeding": replace(c, **{"model.input_feeding": True}) for name, c in looking.items()}
    return looking | feeding


def figure(directories: dict[str, Path], path: Path) -> Path:
    """Validation losses by epoch; theirs beside ours."""
    from attention_jax.report.figures import lines

    ours = {name: runs.read_result(directory)["history"] for name, directory in directories.items()}
    peer = json.loads((Path(__file__).parent / "results" / "input_feeding_peer.json").read_text(encoding="utf-8"))
    theirs = {f"OpenNMT-py {name}": history for name, history in peer["histories"].items()}
    series = {
        name: ([row["epoch"] for row in history], [row["valid.loss"] for row in history])
        for name, history in (ours | theirs).items()
    }
    return lines(series, path, xlabel="epoch", ylabel="validation loss, nats a token")


CLAIMS = ()
