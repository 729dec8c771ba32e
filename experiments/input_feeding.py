"""Input feeding compared with OpenNMT-py, and one cause of its loss: the general score saturates early in training.

Chapter: recurrent attention
Source: Luong et al. 2015, section 3.3; the decoders of OpenNMT-py on the same batches
  (`python experiments/peers/opennmt_feeding.py DIR`: input_feeding_peer.json beside the results)
Data: Multi30k German to English, trained on pairs of at most 13 tokens a side; `--data.path DIR` reads the published
  files
Command: python launch.py reproduce input_feeding
Cost: 15 minutes; those of OpenNMT-py are not counted, about 3 minutes a decoder
Figure: validation loss of a small model with and without input feeding, with the score unscaled and divided by
  sqrt(128), and of OpenNMT-py's two decoders on the same batches

The model is small (width 128, 1,900 words a side, 630 steps of 128 short pairs), so that the difference shows within
minutes. Numbers below are of seed 0 on an AMD EPYC, 2026-11-22, where no other seed is named. After six epochs feeding
costs OpenNMT-py 0.08 nats a token (one seed: 3.61 without, 3.69 with) and our model 0.12 to 0.50 (six seeds: 0.12,
0.14, 0.31, and in the replication 0.50, 0.35, 0.16). The sign is the same in every epoch but the first. OpenNMT-py is
behind ours in both; it initializes uniformly within 0.1, and whether that is the cause was not studied. Whether feeding
pays in a longer training, as in the paper, is not shown here.

What makes it worse was found by one change at a time, with the schedule of `multi30k_scores`, 2,000 words and 420
steps. Losses are on short pairs; the baseline has 2.63 with feeding and 2.51 without.

First, the score saturates. After 70 steps q^T W k is so large that one word has all the weight, with feeding and
without (entropy 0.00; after 35 steps 1.9 and 2.3), and with feeding it takes longer to recover. Divided by sqrt(D) the
weights stay soft: 2.46 with feeding and 2.27 without, so both gain, and feeding gains less. In the recorded runs both
gain with each of three seeds as well, but feeding costs no less: 0.16 to 0.23 nats, and 0.12 to 0.31 with undivided
scores. At the size and length of `multi30k_scores` division removes most of the cost: validation loss 1.78 with feeding
and 1.72 without, where it was 2.02 and 1.78; BLEU 36.6 and 36.6, where it was 31.8 and 36.2 ("scaled_general" and
"general" there; one seed each).

Second, the fed vector is large. With divided scores and `0.25 * state.fed` in `models/luong.py:feeding_step`, 2.46
becomes 2.31: most of the remaining difference between with and without. Dropout on the fed vector, as in OpenNMT-py,
has no effect (2.64).

Local-p also gains from divided scores: 2.96 to 2.99 here instead of 3.21 to 3.28 (three seeds). At the full size one
run with divided scores has 33.8 BLEU with feeding (`train multi30k_scores --model.score
attention_jax.models.named_scores:ScaledGeneral --model.window predictive --model.input-feeding`), but the same seed
with `--train.matmul-precision default`, on an AMD EPYC without bfloat16, ends at 28.3. With undivided scores five seeds
have 16.6 to 30.0 BLEU with feeding, and four have 34.2 to 36.2 without it, so the gain is not certain there. The
predicted position does not saturate: p_t / S at the words 0, 3, 6, 9 is 0.05, 0.45, 0.73, 0.90 in the mean of 64
sentences.
"""

import json
from pathlib import Path

from attention_jax.config import Config, Decode, Grid, LuongConfig, Multi30k, Optim, Train, replace

SIZES = {
    "hidden_size": 128,
    "embed_size": 128,
    "readout_size": 128,
    "cell": "gru",
    "bidirectional": "none",
    "embed_dropout": 0.3,
    "output_dropout": 0.3,
}
SEEDS = 3
GLOBAL = ("general", "general-feeding", "scaled", "scaled-feeding")
SCALED = "attention_jax.models.named_scores:ScaledGeneral"


def config() -> Config:
    return Config(
        "input_feeding",
        Multi30k(source="de", target="en", min_frequency=10, max_length=13, overlong="drop", max_buckets=1),
        LuongConfig(**SIZES, input_feeding=False, score="general"),
        Optim(learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=200, clip_norm=1.0),
        Train(total_epochs=6, label_smoothing=0.1, matmul_precision="bfloat16"),
        Decode(batch_size=500),
    )


def variants() -> dict[str, Config]:
    """The score of `multi30k_scores`, and divided by sqrt(128): without feeding, with it, and with it in local-p."""
    general = config()
    scaled = replace(general, **{"model.score": SCALED})
    feeding = {
        f"{name}-feeding": replace(c, **{"model.input_feeding": True})
        for name, c in {"general": general, "scaled": scaled}.items()
    }
    local = {f"local-p-{name}": replace(c, **{"model.window": "predictive"}) for name, c in feeding.items()}
    return {"general": general, "scaled": scaled} | feeding | local


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """Validation losses by epoch of the models with global attention, OpenNMT-py's beside ours."""
    from attention_jax.report.curves import lines

    peer = json.loads((Path(__file__).parent / "results" / "input_feeding_peer.json").read_text(encoding="utf-8"))
    histories = {name: [run["history"] for run in recorded[name]] for name in GLOBAL if name in recorded}
    histories |= {f"OpenNMT-py {name}": [history] for name, history in peer["histories"].items()}
    series = {
        name: ([row["epoch"] for row in seeds[0]], [[row["valid.loss"] for row in history] for history in seeds])
        for name, seeds in histories.items()
    }
    return lines(series, path, xlabel="epoch", ylabel="validation loss, nats per token", inputs=series)


GRIDS = (
    Grid(
        "Validation loss in nats a token, and BLEU on test2016, after six epochs",
        {"validation loss": "valid.loss", "BLEU": "test.bleu"},
        variants=(*GLOBAL, "local-p-general-feeding", "local-p-scaled-feeding"),
    ),
)
