"""Preprocessing of image files for an exported classifier. Needs only Pillow and NumPy.

`launch.py export RUN --to stablehlo` copies this file beside the programs; `recipe` is "preprocessing" in
manifest.json. The same images go through `attention_jax.data.image_files.decode` when a run predicts.
"""

import numpy as np
from PIL import Image, ImageOps


def prepare(path, recipe: dict) -> np.ndarray:
    """Decode an image to uint8 [side, side, channels]: EXIF rotation, white background, resize, center crop."""
    image, side = ImageOps.exif_transpose(Image.open(path)), recipe["side"]
    if image.mode == "I" or image.mode.startswith("I;16"):  # 16-bit images: keep the high byte
        values = np.asarray(image)
        deep = image.mode != "I" or values.max() > 255
        image = Image.fromarray((values >> 8 if deep else values).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        grey, image = image.mode == "LA", image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("L" if grey else "RGB")
    image = image.convert(recipe["mode"])
    scale = side / min(image.size)
    width, height = (max(side, round(length * scale)) for length in image.size)
    if recipe["filter"] == "area":
        pixels = area(area(np.asarray(image, np.float64), height).swapaxes(0, 1), width).swapaxes(0, 1)
        pixels = (pixels + 1e-3).astype(np.uint8)
    else:
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side].reshape(side, side, -1)


def area(values: np.ndarray, count: int) -> np.ndarray:
    """Area-resample the first axis: [N, ...] -> [count, ...], the means over `count` equal intervals."""
    edges = np.arange(count + 1) * (len(values) / count)
    total = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    whole = np.minimum(edges.astype(int), len(values) - 1)
    part = (edges - whole).reshape(-1, *[1] * (values.ndim - 1))
    return np.diff(total[whole] + part * values[whole], axis=0) * (count / len(values))
