"""Pretrained models in a Hugging Face directory or a .gguf file: generate, embed, fill masks, attend.

`load_pretrained` reads what is there, and nothing is downloaded or executed. Options of the model can be replaced, such
as the normalizer of its attention; its weights stay what they are.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal

from attention_jax import config as configs
from attention_jax.config.per_layer import ALLOWED, layer_list, options_by_layer, overlay_per_layer
from attention_jax.errors import InputError, explain_errors
from attention_jax.pretrained import exchange, gguf, tensors
from attention_jax.pretrained.foreign_files import json_object
from attention_jax.pretrained.interface import Pretrained

SCANNED = 12
"""From this number of layers on they are in a scan, by default: the time to compile does not grow with them."""


def is_pretrained(path: Path | str) -> bool:
    """Whether `path` is a .gguf file, or a directory of a model instead of one of a run."""
    path = Path(path)
    if path.suffix == gguf.SUFFIX:
        return True
    if not path.is_dir() or any((path / name).exists() for name in ("checkpoints", "final")):
        return False
    if any(next(path.glob(pattern), None) for pattern in (tensors.INDEX, f"*{gguf.SUFFIX}", "*.safetensors")):
        return True
    try:
        return "model_type" in json_object(path / "config.json")
    except InputError:
        return False


def load_pretrained(
    path: Path | str,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    encoder_only: bool = False,
    **options: Any,
) -> Pretrained:
    """Load the model in a Hugging Face directory or a .gguf file.

    Args:
      path: a directory with config.json, one or several safetensors files and the tokenizer, or a .gguf file.
      dtype: the type of the parameters and of the computation.
      encoder_only: take the encoder of a T5 alone, whose `hidden` are states of tokens; nothing else is read.
      options: options of the model that replace those of the file, such as `normalizer="top_k(32)"`, or are laid over
        those of its layers, `per_layer="0:mask=window(16)"`. Parameters that the file does not have are initialized,
        with a note.

    Raises:
      InputError: the files are missing, damaged or of a family that is not known, an option does not exist, or the
        weights do not have the shapes that it needs.

    >>> load_pretrained("smollm2.gguf", normalizer="top_k(32)")  # doctest: +SKIP
    PretrainedLanguageModel('smollm2.gguf', LanguageModelConfig, 134,515,008 parameters)
    """
    with explain_errors():
        weights = read_pretrained(path, encoder_only)
        return build_pretrained(Path(path), weights, with_options(weights.options, options | {"dtype": dtype}))


def read_pretrained(path: Path | str, encoder_only: bool = False) -> exchange.Weights:
    """The weights of a pretrained model, with its options, or those of its encoder; InputError for one of a kind that
    is no `Pretrained`."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"a directory of a model or a .gguf file is needed; there is no {path}")
    weights = exchange.open_weights(path, encoder_only)
    if model_class(weights.options) is None:
        raise InputError(f"{path} is a {configs.model_name(weights.options)}, which has no tokenizer: load a run of it")
    if weights.note:
        print(f"note: {weights.source}", file=sys.stderr)
    return weights._replace(options=with_scan(weights.options))


def with_scan(options: configs.ModelOptions) -> configs.ModelOptions:
    """The options with `scan_layers` for as many layers as `SCANNED`."""
    deep = getattr(options, "num_layers", 0) >= SCANNED and hasattr(options, "scan_layers")
    return dataclasses.replace(options, scan_layers=True) if deep else options


def build_pretrained(path: Path, weights: exchange.Weights, options: configs.ModelOptions) -> Pretrained:
    """Build the model with `weights`, read from `path`, and `options`; print a note for positions of the file
    that are not used, and for layers that keep their own options."""
    positions, new = (getattr(o, "position_embedding", "") for o in (weights.options, options))
    if new != positions:
        print(f"note: {positions} positions of the file are not used: --model.bias adds to them", file=sys.stderr)
    for name, layers in find_layer_overrides(weights.options, options).items():
        print(f"note: layers {layers} keep their own {name}: --model.per-layer changes it", file=sys.stderr)
    return model_class(options).of(path, weights, options)


def with_options(options: configs.ModelOptions, changes: dict[str, Any]) -> configs.ModelOptions:
    """The options with `changes`; `per_layer` is laid over that of the model. InputError for an unknown one."""
    names = [field.name for field in dataclasses.fields(options)]
    if changes.get("attention_residuals") and hasattr(options, "attention_residuals"):
        changes = {"scan_layers": False} | changes  # layers that read more and more outputs are no scan
    if unknown := [name for name in changes if name not in names]:
        raise InputError(f"a {configs.model_name(options)} has no option {unknown[0]!r}; it has {', '.join(names)}")
    return overlay_per_layer(options, dataclasses.replace(options, **changes))


def find_layer_overrides(model_options: configs.ModelOptions, new_options: configs.ModelOptions) -> dict[str, str]:
    """{name: the layers that keep an option of their own}, of the options of the model that differ."""
    old_layers, new_layers = (
        options_by_layer(getattr(options, "per_layer", ""), getattr(options, "num_layers", 0))
        for options in (model_options, new_options)
    )
    same = lambda name: [
        i for i, (old, new) in enumerate(zip(old_layers, new_layers)) if name in old and old[name] == new[name]
    ]
    layers_by_name = {name: same(name) for name in ALLOWED}
    return {
        name: layer_list(layers)
        for name, layers in layers_by_name.items()
        if layers and getattr(model_options, name) != getattr(new_options, name)
    }


def model_class(options: configs.ModelOptions) -> Any:
    """Return the class of pretrained models with these options; None if there is none."""
    from attention_jax.pretrained import decoder_model, encoder_model, task_models

    return {
        configs.LanguageModelConfig: decoder_model.PretrainedLanguageModel,
        configs.MaskedLanguageModelConfig: encoder_model.PretrainedEncoder,
        configs.ViTConfig: task_models.PretrainedClassifier,
        configs.TransformerConfig: task_models.PretrainedTranslator,
    }.get(type(options))
