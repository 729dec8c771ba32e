"""Crops of image files on the host, where files are read; `ops/images/augment.py` crops square images on the
devices."""

import numpy as np

from attention_jax.ops.images.boxes import ASPECT, TRIES, box_size


def inception_box(size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Sample a box (left, top, right, bottom) with 5 to 100 % of the area of an image of `size` (width, height): the
    first of 100 attempts that fits, else the whole image.

    An attempt samples the aspect ratio from 0.75 to 1.33, then the height that the area allows (`boxes.box_size`), then
    the position, whose largest value is never sampled, as in TensorFlow.
    """
    width, height = size
    for _ in range(TRIES):
        *sides, fits = box_size(np, size, rng.uniform(*ASPECT), rng.random())
        if fits:
            across, down = map(int, sides)
            left, top = (int(rng.integers(max(space, 1))) for space in (width - across, height - down))
            return left, top, left + across, top + down
    return 0, 0, width, height


def resize_box(image, box: tuple[int, int, int, int], size: int):
    """Resize the `box` (left, top, right, bottom) of a Pillow image to size x size: bilinear between pixel centers,
    without antialiasing (Pillow's `resize` averages)."""
    from PIL import Image

    scale = [(high - low) / size for low, high in zip(box[:2], box[2:])]
    affine = (scale[0], 0, 0, 0, scale[1], 0)
    return image.crop(box).transform((size, size), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)


def center_crop(image, size: int):
    """Resize the shorter side of a Pillow image to `size`, by area, and crop the central size x size pixels."""
    from PIL import Image

    scale = size / min(image.size)
    pixels = resize_by_area(np.asarray(image), *(max(size, round(side * scale)) for side in reversed(image.size)))
    top, left = ((side - size) // 2 for side in pixels.shape[:2])
    return Image.fromarray(pixels[top : top + size, left : left + size])


def resize_by_area(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [H, W] or [H, W, C] -> [height, width] or [height, width, C]: each new pixel is the mean of the old ones
    that it covers, parts of them by their share; fractions of a level are cut off.

    >>> resize_by_area(np.array([[0, 30, 60]], np.uint8), 1, 2).tolist()
    [[10, 50]]
    """
    pixels = interval_means(interval_means(image, height).swapaxes(0, 1), width).swapaxes(0, 1)
    return (pixels + 1e-3).astype(np.uint8)  # no level is lost to rounding


def interval_means(values: np.ndarray, count: int) -> np.ndarray:
    """Average [N, ...] -> [count, ...]: the means over `count` equal lengths of the first axis.

    >>> interval_means(np.array([0, 30, 60]), 2).tolist()
    [10.0, 50.0]
    """
    length = len(values)
    total = np.zeros((length + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, out=total[1:])
    edges = np.arange(count + 1) * (length / count)
    whole = np.minimum(edges.astype(int), length - 1)
    fraction = (edges - whole).reshape(-1, *[1] * (values.ndim - 1))
    return np.diff(total[whole] + fraction * values[whole], axis=0) * (count / length)
