"""The boxes of inception crops (Szegedy et al. 2015), for arrays of NumPy in readers and of JAX on devices."""

AREA, ASPECT, TRIES = (0.05, 1.0), (0.75, 1.33), 100
"""Range of area fractions, range of width / height, and attempts before the whole image is used."""


def box_size(xp, size: tuple[int, int], aspect, draw):
    """Return (width, height, whether that is a box) in an image of `size` (width, height), by the rule of TensorFlow's
    `sample_distorted_bounding_box`; `xp` is the module `numpy` or `jax.numpy`.

    `aspect` is the ratio of width to height. `draw` in [0, 1) chooses among the heights that give the least to the most
    area; rounding may cost one pixel.

    >>> import numpy as np
    >>> width, height, fits = box_size(np, (100, 100), np.array([1.0, 1.0, 9.0]), np.array([0.0, 0.999, 0.5]))
    >>> width[:2].tolist(), height[:2].tolist(), fits.tolist()
    ([23.0, 100.0], [23.0, 100.0], [True, True, True])
    """
    width, height = size
    least_area, most_area = (share * width * height for share in AREA)
    least, most = (xp.round(xp.sqrt(area / aspect)) for area in (least_area, most_area))
    most = xp.where(xp.round(most * aspect) > width, xp.floor((width + 0.5) / aspect), most)
    most = xp.minimum(xp.where(xp.round(most * aspect) > width, most - 1, most), height)
    down = xp.minimum(least, most)
    down = down + xp.floor(draw * (most - down + 1))
    down = xp.where(down * xp.round(down * aspect) < least_area, down + 1, down)
    down = xp.where(down * xp.round(down * aspect) > most_area, down - 1, down)
    across = xp.round(down * aspect)
    fits = (down * across >= least_area) & (down * across <= most_area) & (down <= height) & (across <= width)
    return across, down, fits & (down * across > 0)
