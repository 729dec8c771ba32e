"""How images are prepared for a pretrained vision model: by definition, and as transformers' image processors do it."""

import json

import numpy as np
import pytest
import their_weights as reference
from PIL import Image

from attention_jax import load_pretrained
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange
from attention_jax.pretrained.image_recipe import recipe_of, timm_recipe

PIXELS = np.random.default_rng(3).integers(0, 256, (20, 30, 3)).astype(np.uint8)
MEAN = [0.1, 0.2, 0.3]
SIX = {"size": {"height": 6, "width": 6}}


def prepare_pixels(settings: dict, image=None, model_type: str = "vit") -> np.ndarray:
    """What a model sees [H, W, C]."""
    recipe, _ = recipe_of(settings, model_type)
    pixels = recipe.pixels(Image.fromarray(PIXELS if image is None else image))
    return (pixels / 255 - recipe.mean) / recipe.deviation


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, lambda x: (x / 255 - 0.5) / 0.5),
        ({"do_normalize": False}, lambda x: x / 255),
        ({"do_normalize": None}, lambda x: x / 255),
        ({"do_rescale": False}, lambda x: (x - 0.5) / 0.5),
        ({"do_rescale": False, "do_normalize": False}, lambda x: x),
        ({"rescale_factor": 0.01}, lambda x: (x * 0.01 - 0.5) / 0.5),
        ({"image_mean": MEAN, "image_std": [0.5, 0.6, 0.7]}, lambda x: (x / 255 - MEAN) / [0.5, 0.6, 0.7]),
        ({"do_center_crop": True, "crop_size": 10}, lambda x: (x[5:15, 10:20] / 255 - 0.5) / 0.5),
        ({"do_center_crop": True, "crop_size": [11, 9]}, lambda x: (x[4:15, 10:19] / 255 - 0.5) / 0.5),
    ],
    ids=lambda value: None if callable(value) else str(value),
)  # fmt: skip
def test_a_recipe_is_carried_out_by_definition(settings, expected):
    np.testing.assert_allclose(
        prepare_pixels({"do_resize": False} | settings), expected(PIXELS.astype(float)), atol=1e-9
    )


@pytest.mark.parametrize(
    "settings", [SIX, {"size": 6}, {"size": [6, 6]}, {"size": {"shortest_edge": 6, "width": None}}]
)
def test_size_has_the_forms_of_library(settings):
    wide = "shortest_edge" in str(settings)
    expected = Image.fromarray(PIXELS).resize((9 if wide else 6, 6), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(prepare_pixels(settings), (np.asarray(expected) / 255 - 0.5) / 0.5, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_processor_type": "ConvNextImageProcessor"},
        {"do_pad": True},
        {"size": {"longest_edge": 6}},
        {"size": {"shortest_edge": 6, "longest_edge": 8}},
        {"size": None},
        {"do_center_crop": True},
        {"do_center_crop": True, "crop_size": {"shortest_edge": 6}},
        {"resample": "bicubic"},
        {"resample": None},
        {"image_mean": None},
        {"image_std": "x"},
        {"rescale_factor": None},
    ],
    ids=str,
)
def test_an_entry_that_is_not_supported_is_named(settings):
    name = list(settings)[-1]
    with pytest.raises(InputError, match=name if name != "do_center_crop" else "crop_size"):
        recipe_of(SIX | settings, "vit")


def test_an_entry_that_is_not_known_is_said():
    harmless = {"feature_extractor_type": "ViTFeatureExtractor", "do_convert_rgb": None, "processor_class": "X"}
    assert recipe_of(SIX | harmless, "vit")[1] == []
    assert recipe_of(SIX | {"sharpen": 2}, "vit")[1] == ["sharpen"]


def test_timm_recipe_resizes_and_center_crops():
    """timm.data.transforms_factory.transforms_imagenet_eval: floor(size / crop_pct)."""
    recipe = timm_recipe({"crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.1, 0.2, 0.3], "std": [0.4] * 3}, 6)
    assert (recipe.resize, recipe.crop, recipe.resample) == ((6,), (6, 6), Image.Resampling.BICUBIC)
    np.testing.assert_allclose((recipe.mean, recipe.deviation), ([0.1, 0.2, 0.3], [0.4] * 3))
    assert timm_recipe({"crop_pct": 0.5}, 6).resize == (12,)
    with pytest.raises(InputError, match="crop_mode center"):
        timm_recipe({"crop_mode": "squash"}, 6)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A directory of a ViT for images of 6 x 6, with two of them."""
    place = tmp_path_factory.mktemp("vit")
    about = reference.VIT | {"model_type": "vit", "id2label": {str(i): f"c{i}" for i in range(5)}}
    reference.write_weights(place / "model.safetensors", reference.huggingface(reference.timm()), about)
    Image.fromarray(PIXELS[:6, :6]).save(place / "small.png")
    Image.fromarray(np.dstack([PIXELS, np.full((20, 30), 90, np.uint8)])).save(place / "clear.png")
    return place


def classify(place, recipe: dict, image: str, **about) -> tuple[np.ndarray, list[str]]:
    """The answer and the printed line of a model whose files say this."""
    (place / "preprocessor_config.json").write_text(json.dumps(recipe))
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | about))
    try:
        model = load_pretrained(place)
        return model.classify([str(place / image)])[0], model.predict([str(place / image)])
    finally:
        (place / "config.json").write_text(json.dumps(config))


def test_a_vision_model_sees_what_its_recipe_says(vit):
    logits = lambda x: reference.vit_logits(reference.timm(), x[None].astype(np.float32), 2, 1e-12, reference.gelu)[0]
    x = PIXELS[:6, :6] / 255
    for recipe, pixels in (
        ({"do_normalize": False}, x),
        ({"do_rescale": False}, (x * 255 - 0.5) / 0.5),
        ({}, 2 * x - 1),
    ):
        actual, _ = classify(vit, SIX | recipe, "small.png")
        np.testing.assert_allclose(actual, reference.softmax(logits(pixels)), atol=1e-4)
    actual, lines = classify(vit, SIX, "small.png", problem_type="multi_label_classification")
    np.testing.assert_allclose(actual, 1 / (1 + np.exp(-logits(2 * x - 1))), atol=1e-4)
    best = actual.argmax()
    assert lines[0].startswith(f"c{best} {actual[best]:.3f}")
    actual, _ = classify(vit, SIX, "small.png", problem_type="regression")
    np.testing.assert_allclose(actual, logits(2 * x - 1), atol=1e-4)
    square = np.asarray(Image.fromarray(PIXELS).resize((6, 6), Image.Resampling.BILINEAR)) / 255
    actual, _ = classify(vit, SIX, "clear.png")  # what is transparent is left out, not blended
    np.testing.assert_allclose(actual, reference.softmax(logits(2 * square - 1)), atol=1e-4)
    with pytest.raises(InputError, match="has 20 x 30 pixels after what preprocessor_config.json says"):
        classify(vit, {"do_resize": False}, "clear.png")


def test_other_class_functions_are_no_softmax(vit, tmp_path):
    from attention_jax.pretrained import adopt

    config = json.loads((vit / "config.json").read_text()) | {"problem_type": "multi_label_classification"}
    reference.write_weights(tmp_path / "model.safetensors", reference.huggingface(reference.timm()), config)
    weights = exchange.read(tmp_path)
    like = exchange.nested(weights.arrays)
    assert (
        weights.function == "sigmoid"
        and "the head re-initialized for 5 classes" in adopt.adopt_params(weights, like).summary
    )
    assert "re-initialized" not in adopt.adopt_params(exchange.read(vit), like).summary
    for naming in ("own", "huggingface"):
        exchange.write(weights, tmp_path / naming, "safetensors", naming)
        assert exchange.read(tmp_path / naming).function == "sigmoid"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_images_are_prepared_as_transformers_prepares_them(tmp_path):
    transformers = pytest.importorskip("transformers", reason="its image processors need it, of the extra `libraries`")
    crop = {"do_center_crop": True, "crop_size": 16}
    for model_type, kind in (("vit", "ViT"), ("deit", "DeiT")):
        for settings in (
            {},
            {"size": 16, "resample": 3},
            {"size": [16, 18], "resample": 1},
            {"size": {"shortest_edge": 17}} | crop,
            {"size": {"shortest_edge": 21}, "resample": 0} | crop,
            {"size": {"height": 11, "width": 10}} | crop,
            {"do_resize": False, "do_center_crop": True, "crop_size": [13, 18]},
            {"size": 16, "do_normalize": False, "do_center_crop": None},
            {"size": 16, "do_rescale": None, "do_center_crop": False},
            {"size": 16, "rescale_factor": 0.02, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]} | crop,
        ):
            (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
            settings = settings | {"image_processor_type": f"{kind}ImageProcessor"}
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
            their = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
            expected = their(Image.fromarray(PIXELS), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
            np.testing.assert_allclose(prepare_pixels(settings), expected, atol=1e-4, rtol=1e-5, err_msg=str(settings))
