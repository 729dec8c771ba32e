"""RandAugment's distortions against Pillow's, at the constants of big_vision; what is drawn, and how often."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from attention_jax.ops.images.randaugment import OPS, distort, rand_augment

SIDE = 120  # a shift by 100 leaves something
GRAY = (128, 128, 128)
compiled = jax.jit(distort)  # one program does them all


@pytest.fixture(scope="module")
def image():
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(30, 170, (12, 12, 3)).astype(np.uint8))
    smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return smooth + rng.integers(0, 80, smooth.shape).astype(np.uint8)


def pillow(name, picture, sign, center):
    moves = {  # Pillow's places are corners of pixels, half a pixel from their middles
        "shear_x": (1, sign * 0.3, sign * -0.15, 0, 1, 0),
        "shear_y": (1, 0, 0, sign * 0.3, 1, sign * -0.15),
        "translate_x": (1, 0, sign * 100, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, sign * 100),
    }
    if name in moves:
        return picture.transform(picture.size, Image.Transform.AFFINE, moves[name], fillcolor=GRAY)
    row, column = center
    square = [column - 40, row - 40, column + 39, row + 39]
    cut = picture.copy()
    ImageDraw.Draw(cut).rectangle(square, fill=GRAY)
    return {
        "auto_contrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
        "rotate": lambda: picture.rotate(sign * 30, fillcolor=GRAY),
        "posterize": lambda: ImageOps.posterize(picture, 4),
        "solarize": lambda: ImageOps.solarize(picture, 256),
        "color": lambda: ImageEnhance.Color(picture).enhance(1.9),
        # not ImageEnhance.Contrast: one gray for all images, a 256th of the number of pixels
        "contrast": lambda: Image.blend(Image.new("RGB", picture.size, (SIDE * SIDE // 256,) * 3), picture, 1.9),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(1.9),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(1.9),
        "cutout": lambda: cut,
        "solarize_add": lambda: picture.point(lambda level: min(level + 110, 255) if level < 128 else level),
    }[name]()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", OPS)
def test_distortions_are_pillows(name, sign, image):
    center = np.array([30, 100])
    number = jnp.int32(OPS.index(name))
    actual = np.asarray(compiled(jnp.asarray(image, jnp.float32), number, jnp.float32(sign), jnp.asarray(center)))
    expected = np.asarray(pillow(name, Image.fromarray(image), sign, center), np.float32)
    exact = name in ("invert", "posterize", "solarize", "solarize_add", "cutout", "translate_x", "translate_y")
    geometric = name.startswith(("shear", "translate", "rotate"))
    wrong = np.abs(actual - expected) > (0 if exact else 0.5 if geometric else 1.5)  # Pillow rounds in several places
    if name.startswith("shear"):
        tie = np.abs(np.arange(SIDE) * 0.3 % 1 - 0.5) < 1e-3  # lines that move by half a pixel go either way
        wrong = wrong[~tie] if name == "shear_x" else wrong[:, ~tie]
        exact = True
    assert wrong.any(-1).mean() <= (0 if exact else 0.01)
    assert actual.min() >= 0 and actual.max() <= 255 and (actual == np.floor(actual)).all()
    if name != "solarize":
        assert (actual != image).any()


def test_solarize_does_nothing(image):
    number = jnp.int32(OPS.index("solarize"))
    np.testing.assert_array_equal(
        compiled(jnp.asarray(image, jnp.float32), number, jnp.float32(1), jnp.array([0, 0])), image
    )


def test_each_distortion_is_drawn_as_often_as_another():
    """Of one distortion an image, which does nothing in 1 of 16 (solarize)."""
    levels = np.random.default_rng(0).integers(20, 240, (24, 24, 3)).astype(np.uint8)
    x = jnp.broadcast_to(jnp.asarray(levels), (640, 24, 24, 3))
    y = np.asarray(jax.jit(rand_augment, static_argnums=2)(jax.random.key(0), x, 1))
    assert y.shape == x.shape and y.dtype == np.uint8
    counts = collections.Counter(image.tobytes() for image in y)

    def share(name, sign):
        x = compiled(jnp.asarray(levels, jnp.float32), jnp.int32(OPS.index(name)), jnp.float32(sign), jnp.array([0, 0]))
        return counts[np.asarray(x).astype(np.uint8).tobytes()] / 640

    for name in ("auto_contrast", "equalize", "invert", "posterize", "solarize", "color", "brightness", "solarize_add"):
        assert 1 / 32 < share(name, 1) < 1 / 10, name  # 1/16
    for name in ("rotate", "shear_x", "shear_y"):
        assert 1 / 32 < share(name, 1) + share(name, -1) < 1 / 10 and min(share(name, 1), share(name, -1)) > 0, name
