"""Weights against the libraries themselves, with models that they draw: theirs read by us, ours loaded by them.

Models are small or have the published sizes. Nothing is downloaded.
"""

import dataclasses
import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types

import jax
import numpy as np
import pytest

from attention_jax.pretrained import exchange

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch", reason="parity with timm and transformers needs torch==2.13.0, an extra")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings are theirs


class NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for torchvision, of which timm's models need nothing, and which is not built for every torch."""

    def find_spec(self, name, path=None, target=None):
        mine = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        modes = ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")

        def make_enum(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {mode: mode for mode in modes})

        module.__getattr__ = make_enum
        return module

    def exec_module(self, module):
        pass


@pytest.fixture(scope="module")
def timm():
    """The library, imported without torchvision."""
    finder = NoTorchvision()
    sys.meta_path.insert(0, finder)
    try:
        return pytest.importorskip("timm", reason="parity with timm needs timm")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def perturb(model, seed=0):
    """Fresh models have biases of 0, norms of 1 and heads of 0, which would hide a swap."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # sinusoids are parameters, too
                parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def agree(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected.detach().numpy(), atol=1e-4, rtol=1e-4)


def our_logits(weights, *inputs):
    model = exchange.module_of(weights)
    return jax.jit(model.apply)({"params": exchange.nested(weights.arrays)}, *inputs)[0]


def images(size, channels=3):
    x = np.random.default_rng(3).standard_normal((2, size, size, channels)).astype(np.float32)
    return x, torch.tensor(x.transpose(0, 3, 1, 2))


SMALL = {"img_size": 12, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2.0}
TIMM = [
    pytest.param("vit_base_patch16_224", SMALL | {"num_classes": 7}, id="small"),
    pytest.param("vit_base_patch16_224", {"num_classes": 1000}, id="ViT-B/16"),
    pytest.param("deit_small_patch16_224", {"num_classes": 1000}, id="DeiT-S"),
]


@pytest.mark.parametrize(("name", "options"), TIMM)
def test_timm(timm, tmp_path, name, options):
    from safetensors.torch import load_file, save_file

    model = perturb(timm.create_model(name, pretrained=False, **options))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    if options.get("num_heads"):
        (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": options["num_heads"]}}))
    weights = exchange.read(tmp_path)
    x, torch_images = images(options.get("img_size", 224))
    agree(our_logits(weights, x), model(torch_images))

    options_copy = dataclasses.replace(weights.options)
    negated = exchange.Weights(options_copy, {name: -array for name, array in weights.arrays.items()}, "a run")
    exchange.write(negated, tmp_path / "back", "safetensors", "timm")
    again = timm.create_model(name, pretrained=False, **options).eval()
    again.load_state_dict(load_file(tmp_path / "back" / "model.safetensors"))
    agree(our_logits(negated, x), again(torch_images))


def test_timm_reads_our_google_file_as_googles(timm, tmp_path):
    """timm reads google-research's checkpoints by a program of its own (it has the exact GELU)."""
    model = perturb(timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=7, **SMALL))
    from safetensors.torch import save_file

    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 3}}))
    weights = exchange.read(tmp_path)
    exchange.write(
        weights._replace(options=dataclasses.replace(weights.options, activation="gelu_tanh")),
        tmp_path / "google",
        "npz",
        "google",
    )
    again = timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=7, **SMALL)
    again.load_pretrained(str(tmp_path / "google" / "model.npz"))
    x, torch_images = images(12)
    agree(our_logits(weights, x), again.eval()(torch_images))


BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
DEIT_S = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
TINY = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
TINY |= {"image_size": 12, "patch_size": 4, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}
HUGGINGFACE = [
    pytest.param(TINY, id="small"),
    pytest.param(BASE, id="ViT-B/16"),
    pytest.param(DEIT_S, id="DeiT-S"),
]


@pytest.mark.parametrize("options", HUGGINGFACE)
def test_huggingface(tmp_path, options):
    kind = transformers.ViTForImageClassification
    model = perturb(kind(transformers.ViTConfig(num_labels=9, **options)))
    model.save_pretrained(tmp_path / "there")
    weights = exchange.read(tmp_path / "there")
    x, torch_images = images(options.get("image_size", 224))
    agree(our_logits(weights, x), model(torch_images).logits)

    negated = weights._replace(arrays={name: -array for name, array in weights.arrays.items()})
    exchange.write(negated, tmp_path / "back", "safetensors", "huggingface")
    again, loading_info = kind.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not loading_info["missing_keys"] and not loading_info["unexpected_keys"]
    agree(our_logits(negated, x), again.eval()(torch_images).logits)


def test_deit_with_its_distillation_token(tmp_path):
    model = perturb(transformers.DeiTForImageClassification(transformers.DeiTConfig(num_labels=9, **TINY)))
    model.save_pretrained(tmp_path)
    weights = exchange.read(tmp_path)
    x, torch_images = images(12)
    assert weights.options.num_registers == 1
    agree(our_logits(weights, x), model(torch_images).logits)


def test_what_transformers_holds_in_memory(tmp_path):
    from safetensors.torch import save_file

    model = perturb(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=9, **TINY)))
    model.config.save_pretrained(tmp_path)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    x, torch_images = images(12)
    agree(our_logits(exchange.read(tmp_path), x), model(torch_images).logits)


SIDES = lambda layers, heads, ffn: {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", ffn))
}
MARIAN = [
    pytest.param({"d_model": 16, "vocab_size": 30, **SIDES(2, 2, 24)}, id="small"),
    pytest.param(
        {"d_model": 16, "vocab_size": 30, "activation_function": "relu", "scale_embedding": False, **SIDES(1, 4, 24)},
        id="relu, unscaled",
    ),
    pytest.param({"d_model": 512, "vocab_size": 58101, **SIDES(6, 8, 2048)}, id="OPUS-MT"),
]


@pytest.mark.parametrize("options", MARIAN)
def test_marian(tmp_path, options):
    options = {"activation_function": "swish", "scale_embedding": True} | options
    last = options["vocab_size"] - 1
    kind = transformers.MarianMTModel
    model = kind(transformers.MarianConfig(pad_token_id=last, decoder_start_token_id=last, **options))
    perturb(model).final_logits_bias.normal_()
    model.save_pretrained(tmp_path / "there")
    weights = exchange.read(tmp_path / "there")
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, last, (2, 7)), rng.integers(0, last, (2, 5))
    length = np.array([7, 4])
    inputs = torch.tensor(source), torch.tensor((np.arange(7) < length[:, None]).astype(np.int64))
    expected = model(inputs[0], attention_mask=inputs[1], decoder_input_ids=torch.tensor(target)).logits
    agree(our_logits(weights, source, length, target), expected)

    scaled = weights._replace(arrays={name: 0.9 * array for name, array in weights.arrays.items()})
    exchange.write(scaled, tmp_path / "back", "safetensors", "marian")
    again, loading_info = kind.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not loading_info["missing_keys"] - {"lm_head.weight"} and not loading_info["unexpected_keys"]
    expected = again.eval()(inputs[0], attention_mask=inputs[1], decoder_input_ids=torch.tensor(target)).logits
    agree(our_logits(scaled, source, length, target), expected)


TINY_GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16, "vocab_size": 30}
GPT2 = [
    pytest.param(TINY_GPT2, id="small"),
    pytest.param(TINY_GPT2 | {"n_inner": 40, "activation_function": "relu"}, id="relu"),
    pytest.param({}, id="GPT-2"),
]


@pytest.mark.parametrize("options", GPT2)
def test_gpt2(tmp_path, options):
    kind = transformers.GPT2LMHeadModel
    about = transformers.GPT2Config(bos_token_id=None, eos_token_id=None, attn_implementation="eager", **options)
    model = perturb(kind(about))
    model.save_pretrained(tmp_path / "there")
    weights = exchange.read(tmp_path / "there")
    tokens = np.random.default_rng(0).integers(0, about.vocab_size, (2, 13))
    hf_output = model(torch.tensor(tokens), output_attentions=True)
    params = {"params": exchange.nested(weights.arrays)}
    logits, maps = jax.jit(functools.partial(exchange.module_of(weights).apply, return_weights=True))(params, tokens)
    agree(logits, hf_output.logits)
    attentions = torch.stack(hf_output.attentions, 1).detach().numpy()
    np.testing.assert_allclose(maps["decoder_attention"], attentions, atol=1e-5)

    scaled = weights._replace(arrays={name: 0.9 * array for name, array in weights.arrays.items()})
    exchange.write(scaled, tmp_path / "back", "safetensors", "gpt2")
    again, loading_info = kind.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not set(loading_info["missing_keys"]) - {"lm_head.weight"} and not loading_info["unexpected_keys"]
    agree(our_logits(scaled, tokens), again.eval()(torch.tensor(tokens)).logits)
