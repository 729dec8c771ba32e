"""Patch size against depth of a Vision Transformer on 8 x 8 digits at a small budget: finer patches or more layers?

Chapter: sweeps
Source: Dosovitskiy et al. 2021 (arXiv:2010.11929), appendix D.2, which scales depth, width and patches one at a time
Data: scikit-learn's digits: 1,238 images train, 200 validate, 359 test
Command: python launch.py sweep sweep_vit --seeds 3 --record
Cost: 4.6 minutes

Every run has 20 epochs whatever a step costs, so that the sweep's summary shows accuracy beside seconds. The published
numbers are of large models on large data, and every combination is only measured. The sweep selects on the validation
images. The runs of 2026-11-20 trained on these, too, and have test metrics alone.
"""

from attention_jax.config import Config, Grid, Images, Optim, Train, ViTConfig, replace

SEEDS = 3
PATCHES = (1, 2, 4)
DEPTHS = (1, 2, 4)


def config() -> Config:
    return Config(
        "sweep_vit",
        Images(validation=200, crop_padding=1),
        ViTConfig(patch_size=2, hidden_size=64, mlp_dim=128, num_layers=2, num_heads=4, dropout=0.1),
        Optim("adamw", learning_rate=2e-3, schedule="warmup_cosine", warmup_steps=60, weight_decay=0.05),
        Train(batch_size=64, total_epochs=20, best_metric="valid.accuracy"),
    )


def smoke() -> Config:
    return replace(config(), **{"train.total_epochs": 2, "data.examples": 256, "model.num_layers": 1})


def sweep() -> dict[str, str]:
    return {"model.patch_size": ",".join(map(str, PATCHES)), "model.num_layers": ",".join(map(str, DEPTHS))}


def variants() -> dict[str, Config]:
    """The sweep's points, under the names it records them by."""
    return {
        f"patch_size={p} layers={n}": replace(config(), **{"model.patch_size": p, "model.num_layers": n})
        for p in PATCHES
        for n in DEPTHS
    }


GRIDS = (
    Grid(
        "Accuracy after 20 epochs, from before there was a validation split",
        {"validation": "valid.accuracy", "test": "test.accuracy"},
        tuple(variants()),
    ),
)
