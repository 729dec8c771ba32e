"""ViT-S/16 on ImageNet-1k, the plain baseline of big_vision: configuration and parameter count, not run.

Chapter: vision
Claim: 76.5 % top-1 on the validation set after 90 epochs; 22 M parameters.
Source: Beyer, Zhai and Kolesnikov 2022, "Better plain ViT baselines for ImageNet-1k", table 1.
Data: ImageNet-1k as class directories, DIR/train and DIR/test, read while training (docs/streaming.md).
Command: python launch.py train vit_i1k_s16 --data.path DIR --data.workers 16
Cost: not run here. The authors: 6.5 hours on 8 TPU v3 cores.

As published: fixed 2-D sinusoidal positions, mean pooling, batches of 1,024, Adam at 1e-3 with 10,000 steps of warm-up
and cosine decay, weight decay 1e-4 (decoupled, not multiplied by the learning rate: 0.1 here), gradients clipped to
norm 1, mixup 0.2. Not as published: random crops and flips stand for inception crops and RandAugment.
"""

from attention_jax.config import VIT_SIZES, Claim, Config, Images, Optim, Train, Vit, replace


def config() -> Config:
    return Config(
        "vit_i1k_s16",
        Images("folder", pixels=224, standardize=True, crop_padding=28, flip=True, mixup=0.2),
        Vit(patch_size=16, pool="mean", position="sinusoidal", dtype="bfloat16", **VIT_SIZES["S"]),
        Optim(
            "adamw", learning_rate=1e-3, schedule="warmup_cosine", warmup_steps=10_000, weight_decay=0.1, clip_norm=1.0
        ),
        Train(batch_size=1024, total_epochs=90, best_metric="test.loss"),
    )


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.pixels": 16, "data.crop_padding": 1, "data.examples": 64}
    model = {"model.hidden_size": 32, "model.mlp_size": 64, "model.layers": 1, "model.heads": 2, "model.patch_size": 4}
    return replace(config(), **data, **model, **{"train.batch_size": 32, "train.total_epochs": 1})


FACTS = {"train_images": 1_281_167, "test_images": 50_000, "classes": 1000, "channels": 3}


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "optim.weight_decay": "0.03..0.3:log"}


CLAIMS = (
    Claim("ViT-S/16, 90 epochs", "test.accuracy", 0.765, "Beyer et al. 2022, table 1", at_least=0.76, beaten=0.77),
)
