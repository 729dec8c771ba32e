"""The vision task: its loss, its counting, its pictures, and the same numbers on four devices as on one."""

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import UNOPTIMIZED
from tiers import slow_but

from attention_jax.config import Config, Images, Optim, Train, ViTConfig, replace
from attention_jax.errors import InputError
from attention_jax.tasks import build, build_model, vision
from experiments import (
    cct_cifar10,
    image_size,
    pooling,
    vit_digits,
    vit_fashion_mnist,
    vit_fashion_mnist_small,
    vit_i1k_s16,
)
from experiments.papers.options import ResNetConfig

ALL = (cct_cifar10, image_size, pooling, vit_digits, vit_fashion_mnist, vit_fashion_mnist_small, vit_i1k_s16)
TINY = Config(
    "tiny",
    Images(examples=64),
    ViTConfig(2, 16, 16, 1, 2),
    Optim(),
    Train(batch_size=32, total_epochs=1, best_metric="train.loss"),
)

SIZES = {"digits": (1, 8), "fashion_mnist": (1, 28), "cifar10": (3, 32), "folder": (3, 224)}
"""The (channels, pixels) of the datasets."""


def quick(function):
    return jax.jit(function, compiler_options=UNOPTIMIZED)


def begin(task):
    return quick(task.init)(jax.random.PRNGKey(0))


@pytest.fixture(scope="module")
def tiny():
    task = build(TINY)
    return task, begin(task)


@pytest.mark.slow
@pytest.mark.parametrize("module", slow_but([pooling], ALL), ids=lambda m: m.__name__.split(".")[-1])
def test_models_of_the_experiments_are_traced(module):
    variants, traced = module.variants() if hasattr(module, "variants") else {}, set()
    for config in (module.config(), module.smoke(), *variants.values()):
        channels, size = SIZES[config.data.dataset]
        size = config.data.pixels or size
        model = build_model(config, 10, size)
        if (config.model, size) not in traced:
            assert jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, size, size, channels)))
            traced.add((config.model, size))


@pytest.mark.slow
def test_sizes_that_the_experiments_promise():
    def count(config, channels, pixels):
        model = build_model(config, 10, pixels)
        return sum(
            x.size
            for x in jax.tree.leaves(
                jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, pixels, pixels, channels)))
            )
        )

    assert all(count(config, 1, 28) <= 1_000_000 for config in vit_fashion_mnist_small.variants().values())
    assert round(count(cct_cifar10.config(), 3, 32), -3) == 284_000


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [7, *(pytest.param(size, marks=pytest.mark.slow) for size in (359, 1000))])
def test_every_test_image_is_counted_once(tiny, monkeypatch, batch_size):
    task, params = tiny
    whole = task.evaluate(params, True).metrics
    monkeypatch.setattr(vision, "EVALUATED", batch_size)
    split = task.evaluate(params, True).metrics
    assert whole["test.accuracy"] == split["test.accuracy"] and abs(whole["test.loss"] - split["test.loss"]) < 1e-5
    assert whole["test.accuracy"] * 359 == pytest.approx(round(whole["test.accuracy"] * 359), abs=1e-3)


def test_rows_of_weight_zero_do_not_count(tiny):
    task, params = tiny
    batch = {k: jnp.asarray(v[:8]) for k, v in task.buckets[0].items()}
    rng = jax.random.PRNGKey(0)
    loss = quick(task.loss)
    half = loss(params, batch | {"weight": jnp.array([1.0] * 4 + [0.0] * 4)}, rng)
    alone = loss(params, {k: v[:4] for k, v in batch.items()} | {"weight": jnp.ones(4)}, rng)
    np.testing.assert_allclose(half[0], alone[0], rtol=1e-5)
    assert half[1] == alone[1] == 4 and half[2]["accuracy"] == alone[2]["accuracy"]


@pytest.mark.slow
def test_all_augmentations_together_train(tiny):
    data = Images(
        examples=64,
        standardize=True,
        crop_padding=1,
        flip=True,
        auto_augment=True,
        erase=0.5,
        mixup=0.2,
        cutmix=1.0,
        pixels=12,
    )
    task = build(replace(TINY, data=data, model=replace(TINY.model, stochastic_depth=0.1, dropout=0.1, num_layers=2)))
    params = begin(task)
    batch = {k: jnp.asarray(v[:16]) for k, v in task.buckets[0].items()} | {"weight": jnp.ones(16)}
    step = quick(jax.value_and_grad(lambda p, rng: task.loss(p, batch, rng)[0]))
    losses = [step(params, jax.random.PRNGKey(i)) for i in range(4)]
    assert len({float(value) for value, _ in losses}) == 4 and step._cache_size() == 1
    assert all(np.isfinite(g).all() for _, gradients in losses for g in jax.tree.leaves(gradients))


@pytest.mark.slow
def test_mixed_labels_are_shared_out(tiny):
    """With mixup the loss lies between those of the two labels: here all images are one image, so it is their weighted
    mean."""
    task, params = build(replace(TINY, **{"data.mixup": 1.0})), tiny[1]
    image = jnp.broadcast_to(jnp.asarray(task.buckets[0]["image"][:1]), (4, 8, 8, 1))
    run = quick(
        lambda label: task.loss(params, {"image": image, "label": label, "weight": jnp.ones(4)}, jax.random.PRNGKey(0))[
            0
        ]
    )
    loss = lambda label: run(jnp.array(label))
    both, loss_3, loss_5 = loss([3, 5, 5, 5]), loss([3] * 4), loss([5] * 4)
    rng = jax.random.split(jax.random.PRNGKey(0), 3)[1]  # as the task's loss divides it
    _, partner, share = quick(task.preparation.mix)(rng, image.astype(jnp.float32))
    each = jnp.array([loss_3, loss_5, loss_5, loss_5]) / 4
    np.testing.assert_allclose(both, (share * each + (1 - share) * each[partner]).sum(), rtol=1e-5)


@pytest.mark.slow
def test_the_published_recipe_trains():
    """From zero weights of the classifier, so from equal probabilities."""
    task = build(vit_i1k_s16.smoke())
    params = begin(task)
    assert not params["trunk"]["head"]["kernel"].any() and params["trunk"]["pre_logits"]["kernel"].shape == (32, 32)
    batch = {k: jnp.asarray(v[:16]) for k, v in task.buckets[0].items()} | {"weight": jnp.ones(16)}
    step = quick(jax.value_and_grad(lambda p, rng: task.loss(p, batch, rng)[0]))
    value, gradients = step(params, jax.random.PRNGKey(0))
    np.testing.assert_allclose(value / 16, np.log(10), rtol=1e-5)
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)
    assert step(params, jax.random.PRNGKey(0))[0] < value


def test_augmented_images_keep_range_and_size():
    options = replace(vit_i1k_s16.config().data, rand_augment=0)
    preparation = vision.Preparation(options, 6, *[np.full(3, 0.5, np.float32)] * 2)
    x = jax.eval_shape(preparation.augment, jax.random.PRNGKey(0), jnp.zeros((2, 8, 8, 3), jnp.uint8))
    assert x.shape == (2, 6, 6, 3) and x.dtype == jnp.float32
    ends = preparation.normalize(jnp.array([0.0, 1.0]).reshape(1, 1, 2, 1) * jnp.ones((1, 1, 1, 3)))
    assert ends.min() == -1 and ends.max() == 1


def test_evaluation_sees_the_middle():
    options = Images(pixels=4, resize_pixels=8, signed=True)
    preparation = build(replace(TINY, data=options)).preparation
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1)).astype(np.uint8)
    np.testing.assert_allclose(preparation.for_evaluation(jnp.asarray(x)), x[:, 2:6, 2:6] / 127.5 - 1, atol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        (Images(standardize=True, signed=True), "--data.standardize and --data.signed"),
        (Images(auto_augment=True, rand_augment=2), "--data.rand-augment"),
        (Images(crop_padding=1, inception_crop=True), "--data.inception-crop"),
        (Images(resize_pixels=8), "--data.pixels"),
        (Images(pixels=8, resize_pixels=6), "6 and 8"),
    ],
)
def test_options_that_contradict_each_other_are_named(options, message):
    with pytest.raises(InputError, match=message):
        build(replace(TINY, data=options))


RESNET = pytest.param(ResNetConfig((8, 8), 1, num_groups=2), marks=pytest.mark.slow)


@pytest.mark.parametrize("model", [replace(TINY.model, pool="attention"), RESNET])
def test_pictures_and_predictions(model, tmp_path):
    from PIL import Image

    task = build(replace(TINY, model=model))
    params = begin(task)
    names = {path.name for path in task.report(params, task.evaluate(params, True), tmp_path)}
    attends = isinstance(model, ViTConfig)
    assert names == {"confusion.png", "classes.png", "reliability.png", "mistakes.png"} | (
        {"attention.png", "positions.png"} if attends else set()
    )
    assert all((tmp_path / name).stat().st_size > 5000 for name in names)
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(tmp_path / "x.png")
    [line] = task.predict(params, [str(tmp_path / "x.png")], None)
    assert len(line.split(", ")) == 3
    if attends:
        task.predict(params, [str(tmp_path / "x.png")], tmp_path / "look.png")
        assert (tmp_path / "look.png").exists()
    else:
        with pytest.raises(InputError, match="no attention to draw"):
            task.predict(params, [str(tmp_path / "x.png")], tmp_path / "look.png")
    with pytest.raises(InputError, match="no image file"):
        task.predict(params, [str(tmp_path / "none.png")], None)


def test_what_the_class_token_looks_at():
    from attention_jax.tasks.vision import image_maps

    weights = np.stack([np.eye(5), np.eye(5)[[3, 1, 2, 3, 4]]])[None, :, None].astype(np.float32)
    # the first layer copies; in the second the class token reads patch 3 of 1..4
    maps = image_maps({"encoder_attention": weights})
    np.testing.assert_allclose(maps["heads"][0, 0], [[0, 0], [1, 0]])
    np.testing.assert_allclose(maps["rollout"][0], [[0, 0], [0.5, 0]], atol=1e-6)


SCRIPT = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from attention_jax.config import *
from attention_jax.tasks import build
from attention_jax.train.loop import train_one
from pathlib import Path
config = Config("tiny", Images(examples=90), ViTConfig(4, 8, 8, 1, 2), Optim("sgd", learning_rate=0.1),
                Train(batch_size=32, total_epochs=1, best_metric="train.loss"))
task = build(config)
_, params = train_one(task, config.optim, config.train, Path(sys.argv[2]), quiet=True)
metrics = [task.evaluate(params, True).metrics[f"test.{name}"] for name in ("loss", "accuracy")]
np.savez(sys.argv[3], *jax.tree.leaves(params), metrics=metrics)
"""


@pytest.mark.slow
def test_four_devices_are_one(tmp_path):
    def start(devices):
        (tmp_path / str(devices)).mkdir()
        command = [
            sys.executable,
            "-c",
            SCRIPT,
            str(devices),
            str(tmp_path / str(devices)),
            str(tmp_path / f"{devices}.npz"),
        ]
        return subprocess.Popen(command, env=os.environ | {"NPROC": "8", "PYTHONPATH": os.getcwd()})

    assert [process.wait(timeout=300) for process in [start(1), start(4)]] == [0, 0]
    single, four = (np.load(tmp_path / f"{devices}.npz") for devices in (1, 4))
    for name in single.files:
        np.testing.assert_allclose(single[name], four[name], atol=1e-4, err_msg=name)


def test_augmentation_mixing_and_dropout_use_independent_keys(monkeypatch):
    """Nothing is compiled: stand-ins note the keys that the loss gives them."""
    keys, labels, step_key = {}, jnp.zeros(2, jnp.int32), jax.random.PRNGKey(0)
    record_key = lambda name, fn: lambda rng, x: keys.update({name: rng}) or fn(x)
    mixed = record_key("mix", lambda x: (x, labels, jnp.ones(2)))
    apply = lambda params, x, train, rngs: (keys.update(rngs) or jnp.zeros((2, 10)), {})
    task = build(replace(TINY, **{"data.mixup": 1.0}))
    task = dataclasses.replace(task, model=SimpleNamespace(apply=apply))
    stand_in = SimpleNamespace(augment=record_key("augment", lambda x: x), mix=mixed)
    monkeypatch.setitem(task.__dict__, "preparation", stand_in)
    task.loss({}, {"image": jnp.zeros((2, 8, 8, 1)), "label": labels, "weight": jnp.ones(2)}, step_key)
    assert keys.keys() == {"augment", "mix", "dropout"}
    assert len({tuple(key.tolist()) for key in [step_key, *keys.values()]}) == 4


def test_predict_names_top_three_classes_in_order(tiny, tmp_path):
    from PIL import Image

    task, params = tiny
    pixels = task.data.held_out["test"].image[3]
    Image.fromarray(pixels[..., 0]).save(tmp_path / "x.png")
    image = task.preparation.for_evaluation(jnp.asarray(pixels[None]))
    logits = quick(task.model.apply)({"params": params}, image)[0][0]
    largest = np.argsort(np.asarray(logits))[::-1][:3]
    expected = [f"{task.data.names[i]} {x:.3f}" for i, x in zip(largest, np.asarray(jax.nn.softmax(logits))[largest])]
    assert task.predict(params, [str(tmp_path / "x.png")], None) == [", ".join(expected)]
