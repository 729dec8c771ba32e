"""RandAugment (Cubuk et al. 2020) as in big_vision: random distortions of 16 types per image, all of one strength.

The plain ViT-S/16 of Beyer et al. 2022 trains with two distortions at strength 10 of 10, sampled uniformly and always
applied. Strengths are those of big_vision's `pp/autoaugment.py`, including its peculiarities, with which its 76.5 %
were reached:

* Solarize inverts from level 256 on, which no pixel reaches: one of the 16 types leaves an image unchanged.
* Contrast blends with one gray for all images, (number of pixels) / 256 and at most 255: 196 at 224 x 224. (Pillow
  blends with the image's own mean.)
* Shears keep the corner at the top left in place, not the center.

As in autoaugment.py every distortion is computed and one is selected, without a branch.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt8

from attention_jax.ops.images.autoaugment import GRAY, Image, affine, auto_contrast, equalize, luminance, smooth

OPS = (
    "auto_contrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "cutout",
    "solarize_add",
)
ROTATION = np.pi / 6
SHEAR = 0.3
SHIFT = 100.0
"""Pixels, whatever the size of the image."""
CUTOUT = 80
"""Pixels of a side of what is cut out."""
BLEND = 1.9
"""Color, contrast, brightness and sharpness: 0 is the plain image, 1 the image as it is."""
BITS = 4
"""What posterize keeps."""
ADDED = 110.0
"""To levels below 128, by solarize_add."""
CHUNK = 64
"""Images that are distorted at a time: all distortions of each are in memory, 12 MB of 224 x 224 pixels in color."""


def rand_augment(rng: Key[Array, ""], images: UInt8[Array, "B S S C"], count: int = 2) -> UInt8[Array, "B S S C"]:
    """Apply `count` random distortions to each image, one after another; `CHUNK` images at a time."""
    batch, size = images.shape[:2]
    ops, signs, places = jax.random.split(rng, 3)
    op = jax.random.randint(ops, (batch, count), 0, len(OPS))
    sign = jnp.where(jax.random.bernoulli(signs, 0.5, (batch, count)), 1.0, -1.0)
    center = jax.random.randint(places, (batch, count, 2), 0, size)

    def augment_image(sample):
        image, *each = sample
        x = image.astype(jnp.float32)
        for k in range(count):
            x = distort(x, *(number[k] for number in each))
        return x.astype(jnp.uint8)

    return jax.lax.map(augment_image, (images, op, sign, center), batch_size=min(batch, CHUNK))


def distort(image: Image, op: Int[Array, ""], sign: Float[Array, ""], center: Int[Array, "2"]) -> Image:
    """Apply distortion number `op` of `OPS` to an image with integer values from 0 to 255.

    `sign` (1 or -1) is the direction of those that have one, `center` (row, column) is where cutout cuts.
    """
    gray = jnp.broadcast_to(luminance(image)[..., None], image.shape)  # [S, S, C]
    blend = lambda plain: jnp.clip(plain + BLEND * (image - plain), 0.0, 255.0)
    moved, step = move(image, op, sign), 2.0 ** (8 - BITS)
    results = {
        "auto_contrast": auto_contrast(image),
        "equalize": equalize(image),
        "invert": 255.0 - image,
        "posterize": jnp.floor(image / step) * step,
        "solarize": image,
        "color": blend(gray),
        "contrast": blend(contrast_gray(image)),
        "brightness": blend(jnp.zeros_like(image)),
        "sharpness": blend(smooth(image)),
        "cutout": cutout(image, center),
        "solarize_add": jnp.where(image < 128.0, jnp.minimum(image + ADDED, 255.0), image),
    }
    return jnp.floor(jax.lax.select_n(op, *(results.get(name, moved) for name in OPS)))


def move(image: Image, op: Int[Array, ""], sign: Float[Array, ""]) -> Image:
    """Rotate, shear or translate an image, by `op`; the outside is filled with gray."""
    corner = (image.shape[0] - 1) / 2  # `affine` counts from the center
    on = lambda name, most: jnp.where(op == OPS.index(name), sign * most, 0.0)
    angle, shear_x, shear_y = on("rotate", ROTATION), on("shear_x", SHEAR), on("shear_y", SHEAR)
    return affine(
        image,
        jnp.cos(angle),
        shear_x - jnp.sin(angle),
        shear_y + jnp.sin(angle),
        corner * shear_x + on("translate_x", SHIFT),
        corner * shear_y + on("translate_y", SHIFT),
    )


def contrast_gray(image: Image) -> Image:
    """Return the gray value that contrast blends with (see the module's docstring)."""
    return jnp.full_like(image, min(image.shape[0] * image.shape[1] // 256, 255))


def cutout(image: Image, center: Int[Array, "2"]) -> Image:
    """Paint a gray square with a side of `CUTOUT` pixels around `center`, cut at the border (DeVries & Taylor 2017)."""
    at = jnp.arange(image.shape[0])
    rows, columns = ((at >= middle - CUTOUT // 2) & (at < middle + CUTOUT // 2) for middle in (center[0], center[1]))
    return jnp.where((rows[:, None] & columns[None, :])[..., None], GRAY, image)
