"""Preprocessing of image files for an exported classifier. Needs only Pillow and NumPy.

`launch.py export RUN --to stablehlo` copies this file beside the programs; `recipe` is "preprocessing" in
manifest.json. The same images go through `attention_jax.data.image_files.decode` when a run predicts.
"""

import numpy as np
from PIL import Image, ImageOps


def prepare(path, recipe: dict) -> np.ndarray:
    """Decode an image to uint8 [side, side, channels]: EXIF rotation, white background, resize, center crop."""
    with Image.open(path) as file:
        if getattr(file, "n_frames", 1) > 1 and file.format != "MPO":
            raise ValueError(f"{path} has {file.n_frames} frames: save one of them")
        image, side = ImageOps.exif_transpose(file), recipe["side"]
        if image.mode == "I" or image.mode.startswith("I;16"):  # 16-bit images: keep the high byte
            image = Image.fromarray((np.asarray(image) >> (depth(file) - 8)).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        gray, image = image.mode == "LA", image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("L" if gray else "RGB")
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


def depth(file) -> int:
    """Return the bits per value of an open file of more than 8, as its format says; of 32, as its values say."""
    if file.mode != "I":
        return file.tag_v2.get(258, (16,))[0] if file.format == "TIFF" else 16  # BitsPerSample
    return 16 if file.format in ("PNG", "PPM") or file.getextrema()[1] > 255 else 8


def area(values: np.ndarray, count: int) -> np.ndarray:
    """Area-resample the first axis: [N, ...] -> [count, ...], the means over `count` equal intervals."""
    edges = np.arange(count + 1) * (len(values) / count)
    total = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    whole = np.minimum(edges.astype(int), len(values) - 1)
    fraction = (edges - whole).reshape(-1, *[1] * (values.ndim - 1))
    return np.diff(total[whole] + fraction * values[whole], axis=0) * (count / len(values))
