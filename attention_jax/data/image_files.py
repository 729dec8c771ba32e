"""Reads image files and folders of them, with one sub-directory for each class.

A file that cannot be used is an InputError of one line with its name.
"""

import os
import sys

import numpy as np

from attention_jax import InputError
from attention_jax.data import crops

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def decode(
    path: str, size: int = 0, mode: str | None = None, content=None, box=None, by_area: bool = False
) -> np.ndarray:
    """Read an image as uint8 [H, W, C], gray or RGB, rotated as its EXIF requires; with `size`, its shorter side is
    resized to that (bilinear with an antialiasing filter, or `by_area`) and the center cropped.

    `content` is an open file to read instead of the one at `path`. With `box`, a function of the image's (width,
    height), the returned box (left, top, right, bottom) is resized to `size` instead (`crops.resized`).
    """
    from PIL import Image, ImageOps

    if content is None and os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} must be an image file; it is a directory, a pipe or a device")
    try:
        with Image.open(path if content is None else content) as image:
            ImageOps.exif_transpose(image, in_place=True)
            image = plain(image)
            image = image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
            if box:
                image = crops.resized(image, box(image.size), size)
            elif by_area and size:
                image = crops.middle(image, size)
            elif size and image.size != (size, size):
                scale = size / min(image.size)
                image = image.resize([max(size, round(side * scale)) for side in image.size], Image.Resampling.BILINEAR)
                left, top = ((side - size) // 2 for side in image.size)
                image = image.crop((left, top, left + size, top + size))
            pixels = np.asarray(image)
    except FileNotFoundError:
        raise InputError(f"no image file {path}") from None
    except InputError:
        raise
    except Exception as error:  # Pillow's formats each raise their own kinds
        raise InputError(
            f"cannot read the image {path}: {' '.join(str(error).split())[:120]}; repair or remove it"
        ) from error
    return pixels if pixels.ndim == 3 else pixels[..., None]


def plain(image):
    """Convert a PIL image to 8 bits per channel: the upper eight of 16 bits; transparency is blended with white."""
    from PIL import Image

    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() >= 2**16:
            raise ValueError("its values are of more than 16 bits: save it with 8 or 16")
        deep = image.mode != "I" or values.max() > 255  # Pillow reads 16 bits as "I", too
        return Image.fromarray((values >> 8 if deep else values).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its values are fractions: save it with 8 or 16 bits")
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    seen = image.convert("RGBA")
    seen = Image.alpha_composite(Image.new("RGBA", image.size, "white"), seen)
    return seen.convert("L" if image.mode == "LA" else "RGB")


SKIP = "or leave out all such images: --data.on-bad-record skip"


def list_folder(directory: str, damaged: str = "error") -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """List labels [N], file names [N] as bytes and class names of a directory with one sub-directory per class.

    A class without images is an error, or is left out with a note if `damaged` is "skip".
    """
    if not os.path.isdir(directory):
        raise InputError(
            f"--data.path {directory or '(empty)'} is not a directory; "
            "it should hold one sub-directory of images per class"
        )
    names = tuple(
        sorted(entry.name for entry in os.scandir(directory) if entry.is_dir() and not entry.name.startswith("."))
    )
    files = [
        [os.fsencode(file) for file in sorted(os.listdir(os.path.join(directory, name))) if is_image(file)]
        for name in names
    ]
    if damaged == "skip" and not all(files):
        empty = [name for name, of_class in zip(names, files) if not of_class]
        print(f"left out: {len(empty)} classes in {directory} have no images ({', '.join(empty)})", file=sys.stderr)
        names, files = tuple(name for name in names if name not in empty), [of_class for of_class in files if of_class]
    counts = [len(of_class) for of_class in files]
    if len(names) < 2:
        raise InputError(f"{directory} has {len(names)} classes (sub-directories of images); at least 2 are needed")
    if 0 in counts:
        raise InputError(
            f"the class {names[counts.index(0)]} in {directory} has no images (known: {' '.join(EXTENSIONS)}); "
            "or leave it out: --data.on-bad-record skip"
        )
    return np.repeat(np.arange(len(names), dtype=np.int32), counts), np.concatenate([*map(np.array, files)]), names


def is_image(file: str) -> bool:
    """Whether a file has the suffix of an image."""
    return file.lower().endswith(EXTENSIONS)


def read_folder(
    directory: str, size: int = 0, damaged: str = "error", by_area: bool = False
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Read images [N, S, S, C], labels [N] and class names of a directory with one sub-directory per class.

    Grey only if every file is grey. `size` crops and resizes them all; without it they must
    be squares of one size already. What is damaged is an error, or is left out and counted.
    """
    label, file_names, names = list_folder(directory, damaged)
    files = [os.path.join(directory, names[number], os.fsdecode(file)) for number, file in zip(label, file_names)]
    images, bad = [], []
    for path in files:
        try:
            images.append(decode(path, size, by_area=by_area))
        except InputError as error:
            if damaged == "error":
                raise InputError(f"{error}; {SKIP}") from None
            bad.append(path)
            print(f"left out: {error}", file=sys.stderr) if len(bad) == 1 else None
    if bad:
        print(f"{len(bad)} of {len(files)} images in {directory} were left out", file=sys.stderr)
        label = label[[path not in bad for path in files]]
        files = [path for path in files if path not in bad]
    if not images:
        raise InputError(f"none of the {len(bad)} images in {directory} can be read, the first is {bad[0]}")
    shapes = {image.shape[:2]: path for image, path in zip(images, files)}
    if len(shapes) > 1 or len(set(next(iter(shapes)))) > 1:
        said = ", ".join(
            f"{width} x {height} ({os.path.basename(path)})" for (height, width), path in list(shapes.items())[:2]
        )
        raise InputError(f"the images in {directory} are not squares of one size: {said}; give one with --data.pixels")
    if len({image.shape[2] for image in images}) > 1:
        images = [np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image for image in images]
    return np.stack(images), label, names
