"""How a vision model's images are prepared: preprocessing as its preprocessor_config.json, or timm's config.json, says.

The steps are those of transformers' image processors for ViT and DeiT with Pillow: resize, cut out the middle, rescale,
normalize. The last two are one affine map of the bytes.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_jax.errors import InputError

FILE = "preprocessor_config.json"
BICUBIC, BILINEAR = 3, 2
"""Pillow's numbers of filters."""
VIT = {
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": BILINEAR,
    "do_center_crop": False,
    "crop_size": None,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": 0.5,
    "image_std": 0.5,
    "do_pad": False,
}
"""What an entry means that is not there, as in the library's processor for ViT. Null is false for those that begin
with `do_`, and is refused for the others where they are needed."""
DEIT = VIT | {
    "size": {"height": 256, "width": 256},
    "resample": BICUBIC,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
}
PROCESSORS = {"vit": VIT, "deit": DEIT}
HARMLESS = (
    "feature_extractor_type|processor_class|auto_map|_valid_processor_keys|model_input_names|"  # names
    "return_tensors|data_format|input_data_format|device|disable_grouping|"  # in which form it returns arrays
    "do_convert_rgb|pad_size"  # images are RGB when it gets them; it does not pad
)


class Recipe(NamedTuple):
    """The steps from an image to a model's input."""

    resize: tuple[int, ...] | None
    """(height, width), (length of the shorter side,), or None."""
    resample: int
    """Pillow's number of the filter."""
    crop: tuple[int, int] | None
    """(height, width) of the middle, filled up with black; None for the whole image."""
    mean: np.ndarray
    """The mean that is subtracted from bytes / 255, a number or one for each channel."""
    deviation: np.ndarray

    def pixels(self, image) -> np.ndarray:
        """Resize and crop an image of Pillow: uint8 [H, W, C]."""
        width, height = image.size
        if self.resize is not None:
            if len(self.resize) == 1:
                (short,), least = self.resize, min(image.size)
                height, width = (short if side == least else int(short * side / least) for side in (height, width))
            else:
                height, width = self.resize
            image = image.resize((width, height), self.resample)
        if self.crop is not None:
            top, left = ((length - side) // 2 for length, side in zip((height, width), self.crop))
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        pixels = np.asarray(image)
        return pixels.reshape(*pixels.shape[:2], -1)


def recipe_of(settings: Mapping[str, Any], model_type: str) -> tuple[Recipe, list[str]]:
    """The recipe in a preprocessor_config.json, and the entries that were not read.

    Raises InputError for the processor of another model, and for an entry whose value is not supported.
    """
    name = settings.get("image_processor_type") or settings.get("feature_extractor_type") or model_type
    kind = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(name)).lower()
    if kind not in PROCESSORS:
        raise InputError(f"image_processor_type in {FILE} must be ViTImageProcessor or DeiTImageProcessor, is {name!r}")
    usual = PROCESSORS[kind]
    entries = {**usual, **{name: settings[name] for name in usual if name in settings}}
    if entries["do_pad"]:
        raise InputError(f"do_pad in {FILE} must be false: images are not padded")
    unread = [
        entry
        for entry in settings
        if entry not in usual and not re.fullmatch(f"image_processor_type|{HARMLESS}", entry)
    ]
    resize = sides(entries, "size") if entries["do_resize"] else None
    crop = sides(entries, "crop_size") if entries["do_center_crop"] else None
    if crop is not None and len(crop) == 1:
        raise InputError(f"crop_size in {FILE} must have a height and a width, is {entries['crop_size']!r}")
    if resize is not None and (type(entries["resample"]) is not int or not 0 <= entries["resample"] <= 5):
        raise InputError(
            f"resample in {FILE} must be the number of one of Pillow's filters, is {entries['resample']!r}"
        )
    whole = 255 * (float(numbers(entries, "rescale_factor")) if entries["do_rescale"] else 1.0)
    mean, deviation = np.float64(0), np.float64(1)
    if entries["do_normalize"]:
        mean, deviation = numbers(entries, "image_mean"), numbers(entries, "image_std")
    return Recipe(resize, entries["resample"], crop, mean / whole, deviation / whole), unread


def numbers(entries: Mapping[str, Any], name: str) -> np.ndarray:
    """The number or numbers of an entry; InputError for anything else."""
    try:
        values = np.array(entries[name], np.float64)[()]
    except (TypeError, ValueError):
        values = np.float64("nan")
    if not np.isfinite(values).all() or (name != "image_mean" and not np.all(values > 0)):
        raise InputError(f"{name} in {FILE} must be a number, or one for each channel; is {entries[name]!r}")
    return values


def sides(entries: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """(height, width), or (shorter side,), of a size in the forms that the library reads; InputError for another."""
    size = entries[name]
    size = (size, size) if type(size) is int else size
    if isinstance(size, Mapping):
        size = {side: length for side, length in size.items() if length is not None}
        forms = [("height", "width"), ("shortest_edge",)]
        size = next((tuple(size[side] for side in form) for form in forms if size.keys() == {*form}), None)
    if not isinstance(size, tuple | list) or len(size) > 2 or any(type(n) is not int or n < 1 for n in size):
        raise InputError(f"{name} in {FILE} must have height and width, or shortest_edge; is {entries[name]!r}")
    return tuple(size)


def timm_recipe(about: Mapping[str, Any], size: int) -> Recipe:
    """The recipe in timm's config.json, its `pretrained_cfg`: the shorter side is the model's over `crop_pct`, and the
    middle is cut out. InputError for another way of cropping."""
    filters = {"bilinear": BILINEAR, "bicubic": BICUBIC}
    name, mode = about.get("interpolation") or "bicubic", about.get("crop_mode") or "center"
    if name not in filters or mode != "center":
        raise InputError(
            f"timm's pretrained_cfg must have crop_mode center and bilinear or bicubic, has {mode}, {name}"
        )
    settings = {"image_mean": about.get("mean", 0.5), "image_std": about.get("std", 0.5), "resample": filters[name]}
    shorter = math.floor(size / float(about.get("crop_pct") or 0.875))
    return recipe_of(
        {"size": {"shortest_edge": shorter}, "do_center_crop": True, "crop_size": size, **settings}, "vit"
    )[0]
