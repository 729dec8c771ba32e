"""AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019, table 7) as a function of (rng, images) on the device.

For each image one of 25 pairs of distortions is sampled; each of the two is done with its own probability and
strength (table 6 has the ranges). As in torchvision, strengths of color, contrast, sharpness and brightness are
distances from 1, up to 0.9 at level 9, of a random sign; those of the paper go from 0.1 to 1.9. Every distortion is
computed and one is selected: thirty-odd cheap operations on a small image, without a branch.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt8

OPS = (
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "color",
    "contrast",
    "sharpness",
    "brightness",
    "posterize",
    "solarize",
    "invert",
    "auto_contrast",
    "equalize",
)
MOST = {
    "shear_x": 0.3,
    "shear_y": 0.3,
    "translate_x": 150 / 331,
    "translate_y": 150 / 331,
    "rotate": np.pi / 6,
    "color": 0.9,
    "contrast": 0.9,
    "sharpness": 0.9,
    "brightness": 0.9,
    "posterize": 4.0,
    "solarize": 256.0,
}
"""The magnitude at strength 9 of 0 to 9: a slope, a fraction of the image, radians, a blending weight,
bits removed, levels inverted."""
POLICY = (
    "invert .1 7 contrast .2 6, rotate .7 2 translate_x .3 9, sharpness .8 1 sharpness .9 3, "
    "shear_y .5 8 translate_y .7 9, auto_contrast .5 8 equalize .9 2, shear_y .2 7 posterize .3 7, "
    "color .4 3 brightness .6 7, sharpness .3 9 brightness .7 9, equalize .6 5 equalize .5 1, "
    "contrast .6 7 sharpness .6 5, color .7 7 translate_x .5 8, equalize .3 7 auto_contrast .4 8, "
    "translate_y .4 3 sharpness .2 6, brightness .9 6 color .2 8, solarize .5 2 invert .0 3, "
    "equalize .2 0 auto_contrast .6 0, equalize .2 8 equalize .6 4, color .9 9 equalize .6 6, "
    "auto_contrast .8 4 solarize .2 8, brightness .1 3 color .7 0, solarize .4 5 auto_contrast .9 3, "
    "translate_y .9 9 translate_y .7 9, auto_contrast .9 2 solarize .8 3, equalize .8 8 invert .1 3, "
    "translate_y .7 9 auto_contrast .9 1"
)
GRAY = 128.0
"""Fill value outside the image."""

Image = Float[Array, "S S C"]  # values 0 to 255


def policy_arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The policy as arrays [25, 2]: the distortion's number in `OPS`, its probability, its
    strength in the units of `MOST`."""
    words = np.array([pair.split() for pair in POLICY.split(", ")]).reshape(25, 2, 3)  # name, probability, strength
    op = np.vectorize(OPS.index)(words[..., 0])
    most = np.array([MOST.get(name, 0.0) for name in OPS])[op]
    return (
        op.astype(np.int32),
        words[..., 1].astype(np.float32),
        (words[..., 2].astype(np.float32) / 9 * most).astype(np.float32),
    )


def auto_augment(rng: Key[Array, ""], images: UInt8[Array, "B S S C"]) -> UInt8[Array, "B S S C"]:
    """Apply a random pair of the policy's distortions to each image.

    >>> jax.jit(auto_augment)(jax.random.key(0), jnp.zeros((2, 4, 4, 3), jnp.uint8)).shape
    (2, 4, 4, 3)
    """
    ops, probabilities, strengths = map(jnp.asarray, policy_arrays())
    pairs, happens, signs = jax.random.split(rng, 3)
    batch = images.shape[0]
    pair = jax.random.randint(pairs, (batch,), 0, ops.shape[0])
    is_applied = jax.random.uniform(happens, (batch, 2)) < probabilities[pair]
    sign = jnp.where(jax.random.bernoulli(signs, 0.5, (batch, 2)), 1.0, -1.0)
    x = images.astype(jnp.float32)
    for k in range(2):
        changed = jax.vmap(distort)(x, ops[pair, k], strengths[pair, k], sign[:, k])  # [B, S, S, C]
        x = jnp.where(is_applied[:, k, None, None, None], changed, x)
    return x.astype(jnp.uint8)


def distort(image: Image, op: Int[Array, ""], strength: Float[Array, ""], sign: Float[Array, ""]) -> Image:
    """The distortion number `op` of `OPS`; `sign` (1 or -1) is the direction of those that
    have one. Whole numbers 0 to 255."""
    size, signed = image.shape[0], strength * sign
    number = {name: i for i, name in enumerate(OPS)}
    on = lambda name, value: jnp.where(op == number[name], value, 0.0)
    moved = affine(
        image,
        jnp.where(op == number["rotate"], jnp.cos(signed), 1.0),
        on("shear_x", signed) - on("rotate", jnp.sin(signed)),
        on("shear_y", signed) + on("rotate", jnp.sin(signed)),
        on("translate_x", signed * size),
        on("translate_y", signed * size),
    )
    gray = jnp.broadcast_to(luminance(image)[..., None], image.shape)  # [S, S, C]
    flat = jnp.broadcast_to(jnp.round(gray.mean()), image.shape)  # [S, S, C]
    blend = lambda plain: jnp.clip(plain + (1.0 + signed) * (image - plain), 0.0, 255.0)
    step = 2.0 ** jnp.round(strength)  # posterize keeps 8 - strength bits
    results = [moved] * 5 + [
        blend(gray),
        blend(flat),
        blend(smooth(image)),
        blend(jnp.zeros_like(image)),
        jnp.floor(image / step) * step,
        jnp.where(image >= 256.0 - strength, 255.0 - image, image),
        255.0 - image,
        auto_contrast(image),
        equalize(image),
    ]
    return jnp.floor(jax.lax.select_n(op, *results))


def luminance(image: Image) -> Float[Array, "S S"]:
    """The gray level of a color (ITU-R 601); a gray image is its own."""
    weight = jnp.array([0.299, 0.587, 0.114]) if image.shape[-1] == 3 else jnp.ones(image.shape[-1]) / image.shape[-1]
    return jnp.round(image @ weight)


def affine(image: Image, scale, shear_x, shear_y, shift_x, shift_y) -> Image:
    """The pixel at (x, y) comes from (scale x + shear_x y + shift_x, shear_y x + scale y + shift_y),
    rounded; the center is (0, 0).

    What comes from outside is gray.
    """
    size = image.shape[0]
    center = (size - 1) / 2
    y, x = jnp.meshgrid(*[jnp.arange(size, dtype=jnp.float32) - center] * 2, indexing="ij")
    column = jnp.round(scale * x + shear_x * y + shift_x + center).astype(jnp.int32)
    row = jnp.round(shear_y * x + scale * y + shift_y + center).astype(jnp.int32)
    inside = (column >= 0) & (column < size) & (row >= 0) & (row < size)
    return jnp.where(inside[..., None], image[jnp.clip(row, 0, size - 1), jnp.clip(column, 0, size - 1)], GRAY)


def smooth(image: Image) -> Image:
    """3 x 3 average with weight 5 of 13 on the center; the border stays."""
    size = image.shape[0]
    neighbors = sum(image[i : size - 2 + i, j : size - 2 + j] for i in range(3) for j in range(3))
    inner = jnp.round((neighbors + 4 * image[1:-1, 1:-1]) / 13)
    return image.at[1:-1, 1:-1].set(inner)


def auto_contrast(image: Image) -> Image:
    """Stretch each channel to 0..255; a constant channel stays."""
    low, high = image.min(axis=(0, 1)), image.max(axis=(0, 1))
    stretched = (image - low[None, None, :]) * (255.0 / jnp.maximum(high - low, 1.0))[None, None, :]
    return jnp.where((high > low)[None, None, :], stretched, image)


def equalize(image: Image) -> Image:
    """Map each channel's levels so that their histogram becomes flat: the rule of Pillow's ImageOps.equalize."""

    def channel(pixels):
        levels = pixels.astype(jnp.int32)
        histogram = jnp.zeros(256, jnp.int32).at[levels].add(1)
        last = histogram[255 - jnp.argmax(histogram[::-1] > 0)]
        step = (levels.size - last) // 255
        lut = jnp.clip((jnp.cumsum(histogram) - histogram + step // 2) // jnp.maximum(step, 1), 0, 255)
        return jnp.where(step == 0, pixels, lut[levels].astype(jnp.float32))

    return jax.vmap(channel, in_axes=2, out_axes=2)(image)  # [S, S, C]
