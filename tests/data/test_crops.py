"""What is cut out of an image file, against definitions in NumPy and against the same crops on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from attention_jax.data import image_files as crops
from attention_jax.data.image_files import decode
from attention_jax.ops.images import augment
from attention_jax.ops.images.boxes import box_size

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (75, 100, 3)).astype(np.uint8)


def crop_by_definition(image, box, size):
    """Bilinear between pixel centers, written out; borders repeat."""
    left, top, right, bottom = box
    x = image[top:bottom, left:right].astype(np.float64)
    for axis in (0, 1):
        old = x.shape[axis]
        place = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
        low = np.floor(place).astype(int)
        share = (place - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        x = (1 - share) * x.take(low, axis) + share * x.take(np.minimum(low + 1, old - 1), axis)
    return np.floor(x + 1e-6)


def nearly_all_equal(actual, expected):
    difference = np.abs(np.asarray(actual).astype(int) - expected.astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01  # a level at a tie


@pytest.mark.parametrize("box", [(3, 4, 20, 30), (10, 0, 90, 75), (0, 0, 100, 75)])
def test_a_box_is_looked_at_bilinearly_without_averaging(box):
    nearly_all_equal(crops.resize_box(Image.fromarray(NOISE), box, 32), crop_by_definition(NOISE, box, 32))
    flat = Image.fromarray(np.full((75, 100, 3), 200, np.uint8))
    assert (np.asarray(crops.resize_box(flat, box, 32)) == 200).all()


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (60, 200), (5, 4)])
def test_boxes_have_documented_area_and_aspect(size):
    boxes = np.array([crops.inception_box(size, np.random.default_rng([7, 0, i])) for i in range(300)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = width * height / (size[0] * size[1])
    assert boxes[:, :2].min() >= 0 and (boxes[:, 2] <= size[0]).all() and (boxes[:, 3] <= size[1]).all()
    assert area.min() >= 0.05 and area.max() <= 1.0
    assert (np.abs(width - height * np.clip(width / height, 0.75, 1.33)) <= 0.5).all()  # to a rounded width
    if min(size) > 100:
        assert area.min() < 0.08 and area.max() > 0.7 and len(np.unique(boxes, axis=0)) > 290


def test_image_without_fitting_box_is_whole():
    assert crops.inception_box((400, 10), np.random.default_rng(0)) == (0, 0, 400, 10)


def test_crop_depends_on_its_random_numbers():
    image = Image.fromarray(NOISE)
    box = lambda draws: crops.inception_box(image.size, np.random.default_rng(draws))
    first, same, different = (np.asarray(crops.resize_box(image, box(draws), 16)) for draws in ([0, 1], [0, 1], [0, 2]))
    assert first.shape == (16, 16, 3) and (first == same).all() and (first != different).any()


def test_device_boxes_equal_host_boxes():
    aspect, draw = (RNG.random(2000).astype(np.float32) for _ in range(2))
    aspect = aspect * np.float32(0.58) + np.float32(0.75)
    on_device = [np.asarray(x) for x in box_size(jnp, (64, 64), jnp.asarray(aspect), jnp.asarray(draw))]
    on_host = box_size(np, (64, 64), aspect.astype(np.float64), draw.astype(np.float64))
    for actual, expected in zip(on_device, on_host, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert on_device[2].mean() > 0.9


def test_a_box_by_hand():
    """10 x 6 pixels at a ratio of 1: from 1.73 (5 % of the area) to 7.75 pixels high, of which 6 fit."""
    width, height, fits = box_size(np, (10, 6), np.ones(3), np.array([0.0, 0.5, 0.999]))
    assert width.tolist() == height.tolist() == [2, 4, 6] and fits.all()
    assert not box_size(np, (400, 10), 1.0, 0.5)[2], "the least height is 14"


@pytest.mark.slow
def test_the_device_crops_what_its_boxes_say():
    images = RNG.integers(0, 256, (64, 40, 40, 3)).astype(np.uint8)
    rng = jax.random.key(0)
    crops_on_device = np.asarray(jax.jit(augment.inception_crop, static_argnums=2)(rng, images, 16))
    boxes = np.asarray(augment.inception_boxes(rng, 64, 40))
    assert (boxes[:, 2] * boxes[:, 3]).min() >= 80 and len(np.unique(boxes, axis=0)) > 60
    want = np.stack(
        [crop_by_definition(x, (left, top, left + w, top + h), 16) for x, (top, left, h, w) in zip(images, boxes)]
    )
    nearly_all_equal(crops_on_device, want)


@pytest.mark.parametrize("shape", [(9, 12), (12, 9), (6, 6), (4, 5)])
def test_the_middle_after_resizing_by_area(shape, tmp_path):
    """A new pixel is the mean of the old ones it covers: exactly, by repeating each pixel 6 times."""
    image = RNG.integers(0, 256, (*shape, 3)).astype(np.uint8)
    height, width = (max(6, round(6 * side / min(shape))) for side in shape)
    fine = image.astype(np.float64).repeat(height, 0).repeat(width, 1)
    means = fine.reshape(height, shape[0], width, shape[1], 3).mean((1, 3))
    top, left = (height - 6) // 2, (width - 6) // 2
    want = np.floor(means + 1e-3)[top : top + 6, left : left + 6]
    np.testing.assert_array_equal(np.asarray(crops.center_crop(Image.fromarray(image), 6)), want)
    Image.fromarray(image).save(tmp_path / "x.png")
    np.testing.assert_array_equal(decode(str(tmp_path / "x.png"), 6, by_area=True), want)
