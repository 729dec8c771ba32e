"""Augmentations against NumPy, and the properties that make them safe to train on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.ops.images import augment
from attention_jax.ops.images.autoaugment import (
    OPS,
    affine,
    auto_augment,
    auto_contrast,
    distort,
    equalize,
    policy_arrays,
    smooth,
)

RNG = jax.random.key(0)
BYTES = jax.random.randint(jax.random.key(1), (6, 8, 8, 3), 0, 256).astype(jnp.uint8)


@pytest.mark.parametrize("size", slow_but([3, 12], [3, 8, 12, 20]))
def test_resize_is_jax_image_resize(size):
    both = jax.jit(lambda x: [augment.resize(x, size), jax.image.resize(x, (6, size, size, 3), "bilinear")])
    np.testing.assert_allclose(*both(augment.to_unit_range(BYTES)), atol=1e-5)


def test_center_crop_has_requested_size():
    for size in (5, 6, 7, 8):
        assert jax.eval_shape(lambda: augment.center_crop(BYTES, size)).shape == (6, size, size, 3)


def test_standardize_makes_mean_zero_and_deviation_one():
    x = augment.to_unit_range(BYTES)
    y = augment.standardize(x, x.mean((0, 1, 2)), x.std((0, 1, 2)))
    np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(y.std((0, 1, 2)), 1, atol=1e-5)


def test_crop_cuts_a_window_of_the_padded_image():
    actual = np.asarray(jax.jit(augment.crop, static_argnums=2)(RNG, BYTES, 2))
    assert actual.dtype == np.uint8
    padded = np.pad(BYTES, ((0, 0), (2, 2), (2, 2), (0, 0)))
    places = []
    for image, window in zip(padded, actual):
        matches = [(i, j) for i in range(5) for j in range(5) if (image[i : i + 8, j : j + 8] == window).all()]
        assert len(matches) == 1
        places += matches
    assert len(set(places)) > 1
    assert augment.crop(RNG, BYTES, 0) is BYTES


def test_flip_mirrors_about_half_of_the_images():
    x = jnp.broadcast_to(BYTES[:1], (400, 8, 8, 3))
    y = np.asarray(jax.jit(augment.flip)(RNG, x))
    mirrored = (y == np.asarray(x)[:, :, ::-1]).all((1, 2, 3))
    assert ((y == np.asarray(x)).all((1, 2, 3)) ^ mirrored).all() and 0.4 < mirrored.mean() < 0.6


def test_erase_replaces_boxes_with_given_probability():
    x = jnp.broadcast_to(augment.to_unit_range(BYTES[:1]), (400, 8, 8, 3))
    erase = jax.jit(augment.erase)
    changed = np.asarray(erase(RNG, x, 0.25) != x).any(-1)
    assert 0.15 < changed.any((1, 2)).mean() < 0.3
    for change in changed[changed.any((1, 2))][:20]:
        rows, columns = np.flatnonzero(change.any(1)), np.flatnonzero(change.any(0))
        assert change[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()  # a full box
    assert (erase(RNG, x, 0.0) == x).all()


@pytest.mark.parametrize("kind", [augment.mixup, augment.cutmix])
def test_mixed_images_have_mean_of_shares(kind):
    x = jnp.arange(6.0)[:, None, None, None] * jnp.ones((1, 8, 8, 1))  # image i is i everywhere
    y, partner, share = jax.jit(kind)(RNG, x, 1.0)
    expected = share * jnp.arange(6.0) + (1 - share) * partner.astype(jnp.float32)
    np.testing.assert_allclose(y.mean((1, 2, 3)), expected, atol=1e-5)
    assert sorted(partner.tolist()) == list(range(6)) and bool(((share >= 0) & (share <= 1)).all())
    if kind is augment.cutmix:
        assert set(np.unique(y).tolist()) <= set(range(6))  # pixels are moved, not blended


def test_rolled_mixup_mixes_previous_image_with_one_share():
    x = augment.to_unit_range(BYTES)
    shares = []
    for seed in range(20):
        mixed, partner, share = quick_rolled(jax.random.key(seed), x)
        assert partner.tolist() == [5, 0, 1, 2, 3, 4] and len(set(share.tolist())) == 1
        t = float(share[0])
        for i in range(6):
            np.testing.assert_allclose(mixed[i], t * x[i] + (1 - t) * x[i - 1], atol=1e-6)
        shares.append(t)
    assert 0.5 <= min(shares) < 0.9 and max(shares) <= 1 and len(set(shares)) > 15
    draws = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
    assert abs(np.mean(shares) - np.maximum(draws, 1 - draws).mean()) < 0.1


quick_rolled = jax.jit(lambda rng, x: augment.mixup_rolled(rng, x, 0.2))


def test_the_policy_has_the_papers_rows():
    op, probability, strength = policy_arrays()
    assert op.shape == (25, 2) and OPS[op[1, 0]] == "rotate" and probability[1, 0] == np.float32(0.7)
    np.testing.assert_allclose(strength[1, 0], np.pi / 6 * 2 / 9, rtol=1e-6)
    assert probability.min() == 0.0 and probability.max() == np.float32(0.9)


compiled = jax.jit(distort)  # one program does them all


@pytest.mark.parametrize("name", OPS)
def test_distortions_are_pillows(name):
    image = np.asarray(
        jax.image.resize(BYTES[0].astype(jnp.float32), (16, 16, 3), "cubic").clip(0, 255).astype(jnp.uint8)
    )
    strength = {"rotate": 0.3, "posterize": 3.0, "solarize": 100.0}.get(name, 0.25)
    number = jnp.int32(OPS.index(name))
    actual = np.asarray(compiled(jnp.asarray(image, jnp.float32), number, jnp.float32(strength), jnp.float32(1)))
    expected = np.asarray(pillow(name, image, strength), np.float32)
    geometric = name.startswith(("shear", "translate", "rotate"))
    differ = np.abs(actual - expected) > (0.5 if geometric else 2.5)  # Pillow rounds in several places
    assert differ.any(-1).mean() <= (0.15 if geometric else 0.02)  # nearest neighbors at a tie
    assert actual.min() >= 0 and actual.max() <= 255 and (actual == np.floor(actual)).all()


def pillow(name, image, strength):
    from PIL import Image, ImageEnhance, ImageOps

    picture, size = Image.fromarray(image), image.shape[0]
    if name == "rotate":
        return picture.rotate(np.rad2deg(strength), fillcolor=(128, 128, 128))
    moved = {
        "shear_x": (1, strength, -strength * size / 2, 0, 1, 0),
        "shear_y": (1, 0, 0, strength, 1, -strength * size / 2),
        "translate_x": (1, 0, strength * size, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, strength * size),
    }
    if name in moved:
        return picture.transform(
            picture.size, Image.Transform.AFFINE, moved[name], Image.Resampling.NEAREST, fillcolor=(128, 128, 128)
        )
    if name in ("color", "contrast", "sharpness", "brightness"):
        return getattr(ImageEnhance, name.capitalize())(picture).enhance(1 + strength)
    extra = {"posterize": (8 - round(strength),), "solarize": (256 - strength,)}.get(name, ())
    return getattr(ImageOps, name.replace("auto_contrast", "autocontrast"))(picture, *extra)


@pytest.mark.slow
def test_auto_augment_keeps_shape_and_varies():
    x = jnp.broadcast_to(BYTES[:1], (40, 8, 8, 3))
    y = jax.jit(auto_augment)(RNG, x)
    assert y.shape == x.shape and y.dtype == jnp.uint8 and len(np.unique(np.asarray(y).reshape(40, -1), axis=0)) > 15
    same = jnp.full((8, 8, 3), 7.0)
    for still in (equalize, auto_contrast, smooth):
        np.testing.assert_allclose(jax.jit(still)(same), same)  # nothing to stretch in one color
    whole = jnp.asarray(np.asarray(BYTES[0], np.float32))
    np.testing.assert_allclose(jax.jit(affine)(whole, 1.0, 0.0, 0.0, 0.0, 0.0), BYTES[0])
