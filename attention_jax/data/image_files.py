"""Reads image files, whole or cropped, and folders of them, with one sub-directory for each class.

A file that cannot be used is an InputError of one line with its name. `ops/images/augment.py` crops square images on
the devices.
"""

import os
import sys
from collections import Counter

import numpy as np

from attention_jax.errors import InputError
from attention_jax.files import is_utf8
from attention_jax.ops.images.boxes import ASPECT, TRIES, box_size

EXTENSIONS = (
    ".png", ".jpg", ".jpeg", ".jfif", ".jpe", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff",
)  # fmt: skip


def decode(
    path: str, size: int = 0, mode: str | None = None, content=None, box=None, by_area: bool = False
) -> np.ndarray:
    """Read an image as uint8 [H, W, C], gray or RGB, rotated as its EXIF requires; with `size`, its shorter side is
    resized to that (bilinear with an antialiasing filter, or `by_area`) and the center cropped.

    `content` is an open file to read instead of the one at `path`. With `box`, a function of the image's (width,
    height), the returned box (left, top, right, bottom) is resized to `size` instead (`resize_box`).
    """
    from PIL import Image, ImageOps

    if content is None and os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} must be an image file; it is a directory, a pipe or a device")
    try:
        with Image.open(path if content is None else content) as image:
            if (frames := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # a camera's JPEG with previews
                raise ValueError(f"it has {frames} frames, which are {frames} images: save one of them")
            ImageOps.exif_transpose(image, in_place=True)
            image = to_eight_bits(image)
            image = image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
            if box:
                image = resize_box(image, box(image.size), size)
            elif size and (by_area or image.size != (size, size)):
                image = center_crop(image, size, by_area)
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


def center_crop(image, size: int, by_area: bool = True):
    """Resize the shorter side of a Pillow image to `size`, by area or bilinearly with an antialiasing filter, and crop
    the central size x size pixels."""
    from PIL import Image

    width, height = (max(size, round(side * (size / min(image.size)))) for side in image.size)
    if by_area:
        image = Image.fromarray(resize_by_area(np.asarray(image), height, width))
    else:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = ((side - size) // 2 for side in image.size)
    return image.crop((left, top, left + size, top + size))


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


def bit_depth(image) -> int:
    """Return the bits per value of a PIL image of more than 8, as the format of its file says.

    A format of 32 bits says nothing about the values: up to 255 they are bytes.
    """
    if image.mode != "I":
        return image.tag_v2.get(258, (16,))[0] if image.format == "TIFF" else 16  # BitsPerSample
    if image.format in ("PNG", "PPM"):  # of these Pillow reads 16 bits as "I"
        return 16
    low, high = image.getextrema()
    if low < 0 or high >= 2**16:
        raise ValueError("its values are of more than 16 bits: save it with 8 or 16")
    return 16 if high > 255 else 8


def to_eight_bits(image):
    """Convert a PIL image to 8 bits per channel: the upper eight of more; transparency is blended with white."""
    from PIL import Image

    if image.mode == "I" or image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> (bit_depth(image) - 8)).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its values are fractions: save it with 8 or 16 bits")
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    composite = image.convert("RGBA")
    composite = Image.alpha_composite(Image.new("RGBA", image.size, "white"), composite)
    return composite.convert("L" if image.mode == "LA" else "RGB")


def opaque(path: str, mode: str):
    """Open an image with Pillow as the libraries of pretrained models do: rotated as its EXIF requires, and without its
    transparency, so that the colors of transparent pixels count."""
    from PIL import Image, ImageOps

    pixels = decode(path)  # what cannot be used is found and named
    with Image.open(path) as image:
        if image.mode == "F" or image.mode.startswith("I"):
            return Image.fromarray(pixels[..., 0]).convert(mode)
        return ImageOps.exif_transpose(image).convert(mode)


SKIP = "or leave out all such images: --data.on-bad-record skip"


def subdirectories(directory: str) -> list[str]:
    """Return the sorted names of directories in a directory, without hidden ones and what a Mac adds to a zip file."""
    return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir() and is_visible(entry.name))


def is_visible(name: str) -> bool:
    """Whether the name of a file or directory is not one that an operating system hides."""
    return not name.startswith(".") and name != "__MACOSX"


def images_below(directory: str) -> tuple[list[bytes], Counter]:
    """Return the names of the images in a directory and in those below it, relative to it, in the order of
    torchvision's ImageFolder: by directory, then by name; and what else is there (`kind_of_file`). A directory to which
    several links lead is read once. Raises InputError for one that cannot be read."""
    images, left_out, visited = [], Counter(), set()
    for folder, inner, files in os.walk(directory, followlinks=True, onerror=refuse_directory):
        left_out.update("hidden" for name in inner if not is_visible(name))
        inner[:] = sorted(filter(is_visible, inner))
        if (real := os.path.realpath(folder)) in visited:
            inner.clear()
            continue
        visited.add(real)
        images += [(folder, file) for file in files if kind_of_file(file) == "image"]
        left_out.update(kind for kind in map(kind_of_file, files) if kind != "image")
    return [os.fsencode(os.path.relpath(os.path.join(*names), directory)) for names in sorted(images)], left_out


def refuse_directory(error: OSError):
    """Raise InputError for a directory that cannot be read: its images would be missing."""
    raise InputError(f"cannot read the directory {error.filename} ({error.strerror}): make it readable, or remove it")


def kind_of_file(name: str) -> str:
    """Return "image", or why a file is none: "hidden", or its ending.

    >>> [kind_of_file(name) for name in ("a.JPG", "._a.jpg", "b.heic", "README")]
    ['image', 'hidden', '.heic', 'without ending']
    """
    if not is_visible(name):
        return "hidden"
    return "image" if name.lower().endswith(EXTENSIONS) else os.path.splitext(name)[1].lower() or "without ending"


def list_folder(
    directory: str, damaged: str = "error", quiet: bool = False
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """List labels [N], file names [N] as bytes, and class names of a directory with one sub-directory per class; a file
    name may contain directories, relative to the class directory.

    A class without images is an error, or is left out if `damaged` is "skip". A note counts what is left out, unless
    `quiet`.
    """
    if not os.path.isdir(directory):
        raise InputError(
            f"--data.path {directory or '(empty)'} is not a directory; "
            "it should hold one sub-directory of images per class"
        )
    top_level = [kind_of_file(entry.name) for entry in os.scandir(directory) if entry.is_file()]
    files, left_out = {}, Counter(kind.replace("image", "image beside the classes") for kind in top_level)
    for name in subdirectories(directory):
        if not is_utf8(name):
            raise InputError(
                f"the name of the class {os.fsencode(name)!r} in {directory} is not UTF-8: rename the directory"
            )
        files[name], count = images_below(os.path.join(directory, name))
        left_out += count
    empty = [name for name in files if not files[name]]
    notes = []
    if left_out:
        listed = ", ".join(f"{count} {kind}" for kind, count in left_out.most_common(6))
        notes.append(f"left out: {left_out.total()} files in {directory}: {listed}")
    if empty and damaged == "skip":
        notes.append(f"left out: {len(empty)} classes in {directory} have no images ({', '.join(empty)})")
        files = {name: of_class for name, of_class in files.items() if of_class}
    if notes and not quiet:
        print(*notes, sep="\n", file=sys.stderr)
    if len(files) < 2:
        raise InputError(f"{directory} has {len(files)} classes (sub-directories of images); at least 2 are needed")
    if empty and damaged != "skip":
        raise InputError(
            f"the class {empty[0]} in {directory} has no images (known: {' '.join(EXTENSIONS)}); "
            "or leave it out: --data.on-bad-record skip"
        )
    label = np.repeat(np.arange(len(files), dtype=np.int32), [*map(len, files.values())])
    return label, np.concatenate([*map(np.array, files.values())]), tuple(files)


SPLITS = {"train": ("train", "training"), "test": ("test", "testing"), "valid": ("val", "valid", "validation", "dev")}
"""The names of the directory of each split, in any case."""


def split_directories(path: str) -> dict[str, str]:
    """Return the directories of the splits in a directory, {"train": ..., "test": ..., "valid": if there is one}; {} if
    it has classes. One of these may be called "train".

    Raises InputError for a split without the others that it needs. What else is there is named in a note.
    """
    inside = subdirectories(path) if os.path.isdir(path) else []
    inside_of = lambda names: [name for name in inside if name.lower() in names]
    matches = {split: inside_of(names) for split, names in SPLITS.items() if inside_of(names)}
    dirs = [name for names in matches.values() for name in names]
    if len(matches) < 2 or not ("train" in matches or len(dirs) == len(inside)):
        return {}
    if len(dirs) > len(matches) or not {"train", "test"} <= matches.keys():
        raise InputError(
            f"{path} has {', '.join(dirs)}: the images of a dataset in parts are in one directory train, one test and "
            "optionally one val; add or rename the directories, or give one that has the classes"
        )
    if ignored := [name for name in inside if name not in dirs]:
        print(f"left out: {', '.join(ignored)} in {path}, which are no splits", file=sys.stderr)
    return {split: os.path.join(path, name) for split, (name,) in matches.items()}


def read_folder(
    directory: str, size: int = 0, damaged: str = "error", by_area: bool = False
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Read images [N, S, S, C], labels [N] and class names of a directory with one sub-directory per class.

    Gray only if every file is gray. `size` crops and resizes them all; without it they must
    be squares of one size already. What is damaged is an error, or is left out and counted.
    """
    label, file_names, names = list_folder(directory, damaged)
    files = [os.path.join(directory, names[number], os.fsdecode(file)) for number, file in zip(label, file_names)]
    images, bad = {}, []
    for row, path in enumerate(files):
        try:
            images[row] = decode(path, size, by_area=by_area)
        except InputError as error:
            if damaged == "error":
                raise InputError(f"{error}; {SKIP}") from None
            bad.append(path)
            print(f"left out: {error}", file=sys.stderr) if len(bad) == 1 else None
    if bad:
        print(f"{len(bad)} of {len(files)} images in {directory} were left out", file=sys.stderr)
    if not images:
        raise InputError(f"none of the {len(bad)} images in {directory} can be read, the first is {bad[0]}")
    label, shapes = label[[*images]], {image.shape[:2]: files[row] for row, image in images.items()}
    if len(shapes) > 1 or len(set(next(iter(shapes)))) > 1:
        sizes = ", ".join(
            f"{width} x {height} ({os.path.basename(path)})" for (height, width), path in list(shapes.items())[:2]
        )
        raise InputError(f"the images in {directory} are not squares of one size: {sizes}; give one with --data.pixels")
    channels = max(image.shape[2] for image in images.values())
    return np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in images.values()]), label, names
