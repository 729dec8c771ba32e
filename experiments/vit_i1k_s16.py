"""ViT-S/16 on ImageNet-1k, the plain baseline of big_vision: configuration and parameter count, not run.

Chapter: vision
Source: Beyer, Zhai and Kolesnikov 2022, "Better plain ViT baselines for ImageNet-1k", table 1: 76.5 % top-1 on the
  validation set after 90 epochs, with 22 million parameters
Data: ImageNet-1k as class directories, DIR/train and DIR/test, read while training (docs/streaming.md)
Command: python launch.py train vit_i1k_s16 --data.path DIR --data.workers 16
Cost: not run here; the authors report 6.5 hours on 8 TPU v3 cores

The recipe is configs/vit_s16_i1k.py of big_vision, line by line:

* as published: 99 % of the training images train, 1 % validate; batches of 1,024; 90 epochs; inception crops of 5 to
  100 % of the area, flips, RandAugment(2, 10), pixels from -1 to 1; evaluation of the middle 224 pixels, the smaller
  side resized to 256 by area; mixup 0.2 with one share of at least 1/2 per step, and the previous image as partner.
* as published, oddities included (ops/images/randaugment.py): Solarize has threshold 256 and so does nothing; Contrast
  blends with level 196 whatever the image; shears keep a corner in place.
* as published: ViT-S/16 with fixed 2-D sinusoids, mean pooling, a linear map of 384 with tanh before the classifier
  (`rep_size`), whose weights start as zeros, no dropout. Adam at 1e-3 with its first moment in bfloat16, 10,000 steps
  of warm-up, cosine to 0, gradients clipped to norm 1, decay of 1e-4 of the kernels alone (decoupled, not multiplied by
  the peak of the learning rate: 0.1 here).
* not as published: where the images fit into memory they are 256 x 256 there, and crops are taken from that square
  instead of the whole file (`--data.stream always` takes them from the file). The 1 % is chosen at random, and is not
  the last 1 %. The last batch of an epoch is smaller instead of part of the next. On N devices mixup samples N shares a
  step. Sinusoids have 96 wavelengths an axis as published, the longest 9 % shorter. GELU is exact instead of its tanh
  approximation, LayerNorm's epsilon is 1e-5 instead of 1e-6, linear maps start Glorot-uniform with zero biases (there:
  Lecun-normal before and after the layers, and 1e-6 of noise in the biases of the feed-forward nets). The layers
  compute in bfloat16; there they are float32, which a TPU multiplies in bfloat16.
"""

from attention_jax.config import VIT_SIZES, Config, Images, Optim, Train, ViTConfig, replace


def config() -> Config:
    return Config(
        "vit_i1k_s16",
        Images(
            "folder",
            pixels=224,
            resize_pixels=256,
            signed=True,
            validation=12_812,
            inception_crop=True,
            flip=True,
            rand_augment=2,
            mixup=0.2,
            mixup_rolled=True,
        ),
        ViTConfig(
            patch_size=16,
            pool="mean",
            position_embedding="sinusoidal",
            dtype="bfloat16",
            pre_logits_dim=384,
            zero_head=True,
            **VIT_SIZES["S"],
        ),
        Optim(
            "adamw",
            learning_rate=1e-3,
            schedule="warmup_cosine",
            warmup_steps=10_000,
            weight_decay=0.1,
            decayed="kernels",
            clip_norm=1.0,
            moment_dtype="bfloat16",
        ),
        Train(batch_size=1024, total_epochs=90),
    )


def smoke() -> Config:
    data = {"data.dataset": "digits", "data.pixels": 16, "data.resize_pixels": 18}
    data |= {"data.examples": 64, "data.validation": 32}
    model = {
        "model.hidden_size": 32,
        "model.mlp_dim": 64,
        "model.num_layers": 1,
        "model.num_heads": 2,
        "model.patch_size": 4,
    }
    return replace(
        config(), **data, **model, **{"model.pre_logits_dim": 32, "train.batch_size": 32, "train.total_epochs": 1}
    )


def sweep() -> dict[str, str]:
    return {"optim.learning_rate": "3e-4..3e-3:log", "optim.weight_decay": "0.03..0.3:log"}
