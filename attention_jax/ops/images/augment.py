"""Random variations of a batch of images, as pure functions of (rng, images) that run on the device.

Images are [B, S, S, C]. `crop` and `flip` only move pixels, so they also take uint8; the others take floats.
Randomness is sampled per image.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Num, UInt8

from attention_jax.ops.images.boxes import ASPECT, TRIES, box_size

Images = Float[Array, "B S S C"]


def to_unit_range(images: UInt8[Array, "B S S C"]) -> Images:
    """Convert uint8 images to floats from 0 to 1.

    >>> to_unit_range(jnp.array([0, 255], jnp.uint8).reshape(1, 1, 2, 1)).ravel().tolist()
    [0.0, 1.0]
    """
    return images.astype(jnp.float32) / 255.0


def standardize(images: Images, mean: Float[Array, "C"], deviation: Float[Array, "C"]) -> Images:
    """(x - mean) / deviation, channel by channel."""
    return (images - mean[None, None, None, :]) / deviation[None, None, None, :]


def resize(images: Images, size: int) -> Float[Array, "B R R C"]:
    """Bilinear interpolation to size x size, with pixel centers at half-integers, as two matrix products R X R^T.

    Shrinking averages over the pixels that fall together (a triangle as wide as the scale), as `jax.image.resize` does.

    >>> resize(jnp.array([0.0, 1.0, 0.0, 1.0]).reshape(1, 2, 2, 1), 4)[0, 0, :, 0].tolist()
    [0.0, 0.25, 0.75, 1.0]
    """
    if images.shape[1] == images.shape[2] == size:
        return images
    rows, columns = (interpolation(old, size).astype(images.dtype) for old in images.shape[1:3])
    x = jnp.einsum("rh,bhwc->brwc", rows, images)  # [B, R, S, C]
    return jnp.einsum("sw,brwc->brsc", columns, x)  # [B, R, R, C]


def interpolation(old: int, new: int) -> Float[Array, "new old"]:
    """Return the [new, old] matrix of bilinear interpolation at `new` positions; its rows sum to 1.

    >>> interpolation(2, 3).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    scale = old / new
    place = (jnp.arange(new, dtype=jnp.float32) + 0.5) * scale - 0.5
    distance = jnp.abs(place[:, None] - jnp.arange(old, dtype=jnp.float32)[None, :]) / max(scale, 1.0)
    weight = jnp.maximum(1.0 - distance, 0.0)
    return weight / weight.sum(axis=1, keepdims=True)


def crop(rng: Key[Array, ""], images: Num[Array, "B S S C"], padding: int) -> Num[Array, "B S S C"]:
    """Pad all sides with `padding` zeros and crop to the original size at a uniformly random offset.

    >>> crop(jax.random.key(0), jnp.ones((2, 4, 4, 1)), 1).shape
    (2, 4, 4, 1)
    """
    if padding == 0:
        return images
    batch, height, width, channels = images.shape
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    corner = jax.random.randint(rng, (batch, 2), 0, 2 * padding + 1)
    cut = lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), (height, width, channels))
    return jax.vmap(cut)(padded, corner)  # [B, S, S, C]


def center_crop(images: Num[Array, "B S S C"], size: int) -> Num[Array, "B R R C"]:
    """Crop the central size x size pixels.

    >>> center_crop(jnp.arange(16).reshape(1, 4, 4, 1), 2).ravel().tolist()
    [5, 6, 9, 10]
    """
    at = (images.shape[1] - size) // 2
    return images[:, at : at + size, at : at + size]


def inception_crop(rng: Key[Array, ""], images: UInt8[Array, "B S S C"], size: int) -> UInt8[Array, "B R R C"]:
    """A random box of 5 to 100 % of an image's area, as `inception_boxes` draws it, at size x size.

    Bilinear between pixel centers without averaging over what falls together, and fractions of a level are cut off, as
    the image operations of TensorFlow do.
    """
    side, x = images.shape[1], images.astype(jnp.float32)
    boxes = inception_boxes(rng, len(images), side).astype(jnp.float32)
    look = jax.vmap(bilinear, in_axes=(0, 0, None, None))
    rows, columns = look(boxes[:, 0], boxes[:, 2], side, size), look(boxes[:, 1], boxes[:, 3], side, size)  # [B, R, S]
    exact = {"precision": jax.lax.Precision.HIGHEST}  # a level is 1/256 of the range
    x = jnp.einsum("brh,bhwc->brwc", rows, x, **exact)  # [B, R, S, C]
    x = jnp.einsum("bsw,brwc->brsc", columns, x, **exact)  # [B, R, R, C]
    return jnp.floor(x + 1e-3).astype(jnp.uint8)  # no level is lost to rounding


def bilinear(start: Float[Array, ""], length: Float[Array, ""], old: int, new: int) -> Float[Array, "new old"]:
    """Interpolation matrix [new, old] for `new` positions spread evenly over `length` from `start` on."""
    place = (jnp.arange(new, dtype=jnp.float32) + 0.5) * (length / new) - 0.5
    place = start + jnp.clip(place, 0.0, length - 1.0)
    return jnp.maximum(1.0 - jnp.abs(place[:, None] - jnp.arange(old, dtype=jnp.float32)[None, :]), 0.0)


def inception_boxes(rng: Key[Array, ""], batch: int, side: int) -> Int[Array, "B 4"]:
    """Boxes (top, left, height, width) in squares of `side` pixels: the first of 100 tries that fits, else all of it.

    A try draws width / height from 0.75 to 1.33, then the height from what the area allows (`boxes.box_size`).
    """
    ratios, heights, places = jax.random.split(rng, 3)
    aspect = jax.random.uniform(ratios, (batch, TRIES), minval=ASPECT[0], maxval=ASPECT[1])
    width, height, fits = box_size(jnp, (side, side), aspect, jax.random.uniform(heights, (batch, TRIES)))
    width, height = width.astype(jnp.int32), height.astype(jnp.int32)
    pick = lambda x: jnp.take_along_axis(x, jnp.argmax(fits, axis=1)[:, None], axis=1)
    sides = jnp.where(fits.any(axis=1)[:, None], jnp.concatenate([pick(height), pick(width)], axis=1), side)
    room = jnp.maximum(side - sides, 1).astype(jnp.float32)  # the last position is never sampled, as in TensorFlow
    corner = jnp.floor(jax.random.uniform(places, (batch, 2)) * room).astype(jnp.int32)
    return jnp.concatenate([corner, sides], axis=1)


def flip(rng: Key[Array, ""], images: Num[Array, "B S S C"]) -> Num[Array, "B S S C"]:
    """Flip horizontally with probability 1/2."""
    mirrored = jax.random.bernoulli(rng, 0.5, (images.shape[0],))
    return jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)


def box_mask(rng: Key[Array, ""], size: int, side: Float[Array, "B 2"]) -> Bool[Array, "B S S"]:
    """True inside a box of the given height and width (pixels) around a uniformly random center, cut at the border."""
    center = jax.random.uniform(rng, side.shape) * size
    low, high = jnp.round(center - side / 2), jnp.round(center + side / 2)
    at = jnp.arange(size, dtype=jnp.float32)[None, :]
    inside = lambda axis: (at >= low[:, axis, None]) & (at < high[:, axis, None])
    return inside(0)[:, :, None] & inside(1)[:, None, :]


def erase(rng: Key[Array, ""], images: Images, probability: float, area=(0.02, 0.33), aspect: float = 0.3) -> Images:
    """Random erasing (Zhong et al. 2020): with `probability`, a box of 2 to 33 % of the area is replaced by noise.

    Height to width is from `aspect` to 1 / `aspect`; the noise is normal with the images' own mean and deviation.
    """
    batch, size = images.shape[:2]
    which, how_much, shape, where, noise = jax.random.split(rng, 5)
    share = jax.random.uniform(how_much, (batch,), minval=area[0], maxval=area[1])
    ratio = jnp.exp(jax.random.uniform(shape, (batch,), minval=jnp.log(aspect), maxval=-jnp.log(aspect)))
    side = jnp.stack([jnp.sqrt(share * ratio), jnp.sqrt(share / ratio)], axis=1) * size
    erased = box_mask(where, size, side) & jax.random.bernoulli(which, probability, (batch,))[:, None, None]
    filling = images.mean() + images.std() * jax.random.normal(noise, images.shape, images.dtype)
    return jnp.where(erased[..., None], filling, images)


def mixup(rng: Key[Array, ""], images: Images, alpha: float) -> tuple[Images, Int[Array, "B"], Float[Array, "B"]]:
    """x_i = t_i x_i + (1 - t_i) x_j with t ~ Beta(alpha, alpha) (Zhang et al. 2018, eq. 1).

    Returns the images, the partners j and the shares t: the loss of row i is t_i loss(y_i) + (1 - t_i) loss(y_j).
    """
    partners, shares = jax.random.split(rng)
    partner = jax.random.permutation(partners, images.shape[0])
    share = jax.random.beta(shares, alpha, alpha, (images.shape[0],)).astype(images.dtype)
    t = share[:, None, None, None]
    return t * images + (1 - t) * images[partner], partner, share


def mixup_rolled(
    rng: Key[Array, ""], images: Images, alpha: float
) -> tuple[Images, Int[Array, "B"], Float[Array, "B"]]:
    """Mixup as in big_vision: one share t >= 1/2 for the whole batch, max(t, 1 - t) with t ~ Beta(alpha, alpha), and
    the partner of an image is the one before it. Returns what `mixup` returns.
    """
    batch = images.shape[0]
    share = jax.random.beta(rng, alpha, alpha).astype(images.dtype)
    share = jnp.maximum(share, 1 - share)
    partner = jnp.roll(jnp.arange(batch), 1)
    return share * images + (1 - share) * jnp.roll(images, 1, axis=0), partner, jnp.broadcast_to(share, (batch,))


def cutmix(rng: Key[Array, ""], images: Images, alpha: float) -> tuple[Images, Int[Array, "B"], Float[Array, "B"]]:
    """Paste into x_i a box of x_j whose area is 1 - t of the image, t ~ Beta(alpha, alpha) (Yun et al. 2019, eq. 1-2).

    Returns what `mixup` returns; the share is what is left of x_i after the box was cut at the border.
    """
    partners, shares, where = jax.random.split(rng, 3)
    batch, size = images.shape[:2]
    partner = jax.random.permutation(partners, batch)
    left = jax.random.beta(shares, alpha, alpha, (batch, 1))
    pasted = box_mask(where, size, jnp.broadcast_to(jnp.sqrt(1 - left) * size, (batch, 2)))
    mixed = jnp.where(pasted[..., None], images[partner], images)  # [B, S, S, C]
    return mixed, partner, 1 - pasted.mean(axis=(1, 2), dtype=images.dtype)
