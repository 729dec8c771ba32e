"""Pretrained models in a Hugging Face directory or a .gguf file: generate, embed, fill masks, attend.

`load_pretrained` reads what is there, and nothing is downloaded or executed. Options of the model can be replaced, such
as the normalizer of its attention; its weights stay what they are.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attention_jax import config as configs
from attention_jax.config.per_layer import ALLOWED, layer_list, options_by_layer, overlay_per_layer
from attention_jax.errors import InputError, explain_errors
from attention_jax.pretrained import exchange, generation_config, tensors
from attention_jax.pretrained.sentence_files import sentences
from attention_jax.pretrained.tokenizer import PretrainedTokenizer, read_tokenizer as read_tokenizer

Texts = Sequence[str]
SCANNED = 12
"""From this number of layers on they are in a scan, by default: the time to compile does not grow with them."""


def is_pretrained(path: Path | str) -> bool:
    """Whether `path` is a .gguf file, or a directory of a model instead of one of a run."""
    path = Path(path)
    if path.suffix == tensors.GGUF:
        return True
    if not path.is_dir() or any((path / name).exists() for name in ("checkpoints", "final", "weights.safetensors")):
        return False
    if any(next(path.glob(pattern), None) for pattern in (tensors.INDEX, f"*{tensors.GGUF}", "*.safetensors")):
        return True
    try:
        about = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return isinstance(about, dict) and "model_type" in about
    except (OSError, ValueError):
        return False


def load_pretrained(
    path: Path | str, *, dtype: Literal["float32", "bfloat16"] = "float32", **options: Any
) -> "Pretrained":
    """Load the model in a Hugging Face directory or a .gguf file.

    Args:
      path: a directory with config.json, one or several safetensors files and the tokenizer, or a .gguf file.
      dtype: the type of the parameters and of the computation.
      options: options of the model that replace those of the file, such as `normalizer="top_k(32)"`, or are laid over
        those of its layers, `per_layer="0:mask=window(16)"`. Parameters that the file does not have are initialized,
        with a note.

    Raises:
      InputError: the files are missing, damaged or of a family that is not known, an option does not exist, or the
        weights do not have the shapes that it needs.
    """
    with explain_errors():
        weights = read_pretrained(path)
        return build_pretrained(Path(path), weights, with_options(weights.options, options | {"dtype": dtype}))


def read_pretrained(path: Path | str) -> exchange.Weights:
    """The weights of a pretrained model, with its options; InputError for one of a kind that is no `Pretrained`."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"a directory of a model or a .gguf file is needed; there is no {path}")
    weights = exchange.open_weights(path)
    if type(weights.options) not in KINDS:
        raise InputError(f"{path} is a {configs.model_name(weights.options)}, which has no tokenizer: load a run of it")
    if weights.note:
        print(f"note: {weights.source}", file=sys.stderr)
    return weights._replace(options=with_scan(weights.options))


def with_scan(options: configs.ModelOptions) -> configs.ModelOptions:
    """The options with `scan_layers` for as many layers as `SCANNED`."""
    deep = getattr(options, "num_layers", 0) >= SCANNED and hasattr(options, "scan_layers")
    return dataclasses.replace(options, scan_layers=True) if deep else options


def build_pretrained(path: Path, weights: exchange.Weights, options: configs.ModelOptions) -> "Pretrained":
    """Build the model with `weights`, read from `path`, and `options`; print a note for layers that keep their own."""
    for name, layers in find_layer_overrides(weights.options, options).items():
        print(f"note: layers {layers} keep their own {name}: --model.per-layer changes it", file=sys.stderr)
    return KINDS[type(options)].of(path, weights, options)


def with_options(options: configs.ModelOptions, changes: dict[str, Any]) -> configs.ModelOptions:
    """The options with `changes`; `per_layer` is laid over that of the model. InputError for an unknown one."""
    names = [field.name for field in dataclasses.fields(options)]
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


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A loaded pretrained model. Methods it does not support (`classify` without a classifier) raise InputError."""

    path: Path
    config: configs.ModelOptions
    """The options of the model."""
    model: Any
    """The Flax module."""
    params: dict
    """Its parameters, a tree of arrays."""
    tokenizer: PretrainedTokenizer | None

    @property
    def name(self) -> str:
        """The name of the directory or of the file."""
        return self.path.resolve().stem if self.path.suffix == tensors.GGUF else self.path.resolve().name

    def attention(self, texts: Texts) -> tuple:
        """Attention maps of each text (of a vision model: each image file), as `LoadedRun.attention` has them."""
        raise self._missing_feature_error("attention maps")

    def look(self, texts: Texts) -> Any:
        """The result of `attention` as an interactive page, as `LoadedRun.look` has it."""
        from attention_jax.report.attention_page import page

        return page(self.attention(check_texts(texts, "look")), self.name)

    def predict(self, texts: Texts, attention: Path | str | None = None) -> list[str]:
        """One line of output for each text: what `launch.py predict` prints."""
        raise self._missing_feature_error("predictions")

    def logits(self, texts: Texts) -> list[np.ndarray]:
        """The logits [T, V] after each of the T tokens of each text."""
        raise self._missing_feature_error("logits of next tokens")

    def loss(self, texts: Texts) -> np.ndarray:
        """The loss [N] of each text, in nats per token."""
        raise self._missing_feature_error("a loss of texts")

    def perplexity(self, text: str) -> dict[str, float]:
        """Loss, perplexity and bits per character of a long text."""
        raise self._missing_feature_error("a perplexity")

    def generate(self, texts: Texts, stream: Callable[[str], None] | None = None, **sampling: Any) -> list[str]:
        """The continuation of each text, all in one batch; `sampling` are options of `config.Generation`: length,
        temperature, top_k, top_p, repetition_penalty, seed. Those that are left out are what generation_config.json
        says. `stream` is called with each piece of the first one."""
        raise self._missing_feature_error("continuations")

    def embed(self, texts: Texts) -> np.ndarray:
        """The embedding [N, D] of each text, with the prompt, the lower case and the greatest length that the files of
        sentence-transformers say, if there are any."""
        raise self._missing_feature_error("embeddings of texts")

    def fill_mask(self, texts: Texts, k: int = 5) -> list:
        """For each text and each mask in it the `k` most probable words, [(word, probability), ...]."""
        raise self._missing_feature_error("masked words")

    def classify(self, texts: Texts) -> np.ndarray:
        """The probabilities [N, classes] of each text (of a vision model: each image file), or what a regression says.

        They are a softmax or, as `problem_type` in config.json says or for one class, sigmoids.
        """
        raise self._missing_feature_error("classes")

    def translate(self, texts: Texts) -> list[str]:
        """The translation of each text."""
        raise self._missing_feature_error("translations")

    @property
    def _call(self) -> tuple:
        return self.model, self.params, self.tokenizer

    def _missing_feature_error(self, feature: str) -> InputError:
        can = [name for name in METHODS if getattr(type(self), name) is not getattr(Pretrained, name)]
        kind = configs.model_name(self.config)
        return InputError(f"{self.path} is a {kind}, which has no {feature}; it has {', '.join(can)}")


METHODS = ("logits", "loss", "generate", "perplexity", "embed", "fill_mask", "classify", "translate", "attention")


class PretrainedLanguageModel(Pretrained):
    """A decoder-only model: GPT-2, Llama, Mistral, Qwen, Gemma."""

    @classmethod
    def of(cls, path: Path, weights: exchange.Weights, options: configs.LanguageModelConfig) -> "Pretrained":
        tokenizer = read_tokenizer(path, tensors.config_of(path))
        model = type(exchange.module_of(weights))(options, len(weights.arrays["embedding/token/embedding"]))
        batch = np.zeros((1, 2), np.int32)
        return cls(path, options, model, params_of(weights, model, batch), tokenizer)

    def attention(self, texts: Texts) -> tuple:
        return self._view().attention_maps(*self._call, check_texts(texts, "attention"))

    def predict(self, texts: Texts, attention: Path | str | None = None, **sampling: Any) -> list[str]:
        if attention is not None:
            raise InputError("--attention is for runs: launch.py look writes the attention maps of a pretrained model")
        texts = check_texts(texts, "predict")
        return [text + written for text, written in zip(texts, self.generate(texts, **sampling))]

    def logits(self, texts: Texts) -> list[np.ndarray]:
        return self._view().logits(*self._call, check_texts(texts, "logits"))

    def loss(self, texts: Texts) -> np.ndarray:
        return self._view().losses(*self._call, check_texts(texts, "loss"))

    def perplexity(self, text: str) -> dict[str, float]:
        return self._view().perplexity(*self._call, text)

    def generate(self, texts: Texts, stream: Callable[[str], None] | None = None, **sampling: Any) -> list[str]:
        texts, options = check_texts(texts, "generate"), generation_config.sampling_in(self.path) | sampling
        total = options.pop("total", None)
        total = None if "length" in options else total
        return (
            self._view().continuations(*self._call, texts, configs.Generation(**options), stream, total)
            if texts
            else []
        )

    @staticmethod
    def _view():
        from attention_jax.pretrained import decoder_model

        return decoder_model


@dataclass(frozen=True, eq=False)
class PretrainedEncoder(Pretrained):
    """An encoder: BERT, RoBERTa, DistilBERT, and models of sentence embeddings."""

    function: str = "softmax"
    """What makes the logits of its classifier its answer."""

    @classmethod
    def of(cls, path: Path, weights: exchange.Weights, options: configs.MaskedLanguageModelConfig) -> "Pretrained":
        tokenizer = read_tokenizer(path, tensors.config_of(path))
        model = dataclasses.replace(exchange.module_of(weights), options=options)
        batch = np.zeros((1, 2), np.int32), np.array([2], np.int32)
        return cls(path, options, model, params_of(weights, model, *batch), tokenizer, weights.function)

    def attention(self, texts: Texts) -> tuple:
        texts = check_texts(texts, "attention")
        answers = self._answers(texts) or [f"embedding of {self.config.hidden_size} numbers"] * len(texts)
        return self._view().attention_maps(*self._call, texts, answers)

    def predict(self, texts: Texts, attention: Path | str | None = None) -> list[str]:
        if attention is not None:
            raise InputError("--attention is for runs: launch.py look writes the attention maps of a pretrained model")
        texts = check_texts(texts, "predict")
        return self._answers(texts) or [" ".join(f"{x:.4f}" for x in row) for row in self.embed(texts)]

    def _answers(self, texts: Texts) -> list[str] | None:
        """The class of each text, or the words in the place of its masks; None if there are neither."""
        if self.model.classes:
            labels = tensors.config_of(self.path).get("id2label") or {}
            label = lambda number: labels.get(str(number), f"class {number}")
            class_indices = lambda row: [row.argmax()] if self.function == "softmax" else range(len(row))
            return [", ".join(f"{label(i)} {row[i]:.3f}" for i in class_indices(row)) for row in self.classify(texts)]
        masked = self.config.word_head and all(self.tokenizer.mask in self.tokenizer.encode(text) for text in texts)
        if masked:
            return [", ".join(f"{word} {p:.3f}" for word, p in candidates[0]) for candidates in self.fill_mask(texts)]
        return None

    def embed(self, texts: Texts) -> np.ndarray:
        how = sentences(self.path if self.path.is_dir() else self.path.parent, self.config.max_length)
        changed = [how.preprocess(text) for text in check_texts(texts, "embed")]
        return self._view().embed(*self._call, changed, how.most)

    def fill_mask(self, texts: Texts, k: int = 5) -> list:
        return self._view().fill_mask(*self._call, check_texts(texts, "fill_mask"), k)

    def classify(self, texts: Texts) -> np.ndarray:
        return self._view().classify(*self._call, check_texts(texts, "classify"), self.function)

    @staticmethod
    def _view():
        from attention_jax.pretrained import encoder_model

        return encoder_model


@dataclass(frozen=True, eq=False)
class PretrainedTask(Pretrained):
    """A vision model (ViT, DeiT) or a translation model (Marian), with the view of a run of this kind."""

    view: Any = None

    @classmethod
    def of(cls, path: Path, weights: exchange.Weights, options: configs.ModelOptions) -> "Pretrained":
        from attention_jax.pretrained import task_models

        arrays = {name: np.asarray(array) for name, array in weights.arrays.items()}
        weights = weights._replace(options=options, arrays=arrays)
        view = task_models.view(path, weights)
        return cls(path, options, view.model, exchange.nested(weights.arrays), None, view)

    def attention(self, texts: Texts) -> tuple:
        return self.view.attention_maps(self.params, check_texts(texts, "attention"))

    def predict(self, texts: Texts, attention: Path | str | None = None) -> list[str]:
        texts = check_texts(texts, "predict")
        return self.view.predict(self.params, texts, None if attention is None else Path(attention))


class PretrainedClassifier(PretrainedTask):
    """A vision model."""

    def classify(self, texts: Texts) -> np.ndarray:
        from attention_jax.tasks.vision import EVALUATED
        from attention_jax.train.placement import map_batches

        images = self.view.read(check_texts(texts, "classify"))
        return map_batches(self.view.classify, self.params, {"image": images}, EVALUATED)


class PretrainedTranslator(PretrainedTask):
    """A translation model."""

    def translate(self, texts: Texts) -> list[str]:
        return self.predict(texts)


KINDS: dict[type, Any] = {
    configs.LanguageModelConfig: PretrainedLanguageModel,
    configs.MaskedLanguageModelConfig: PretrainedEncoder,
    configs.ViTConfig: PretrainedClassifier,
    configs.TransformerConfig: PretrainedTranslator,
}


def check_texts(texts, method: str) -> list[str]:
    """Return texts, or paths of image files, as a list of strings.

    Raises InputError for a single string instead of a list, and for elements that are empty or not strings.
    """
    if isinstance(texts, str | os.PathLike):
        raise InputError(f"{method} takes a list of texts; got one: {method}([{str(texts)!r}])")
    texts = [os.fspath(text) if isinstance(text, os.PathLike) else text for text in texts]
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"{method} takes texts; text {number} of {len(texts)} is a {type(text).__name__}")
        if not text.strip():
            raise InputError(f"a text to {method} must not be empty; text {number} of {len(texts)} is {text!r}")
    return texts


def params_of(weights: exchange.Weights, model, *batch: np.ndarray) -> dict:
    """Convert the parameters of a model to JAX arrays; each is removed from `weights.arrays` on conversion.

    Parameters that the weights do not have are initialized, with a note. Raises InputError for other shapes.
    """
    import jax
    import jax.numpy as jnp

    dtype, arrays, params = jnp.dtype(model.options.dtype), weights.arrays, {}
    start = lambda: model.init(jax.random.key(0), *batch)["params"]
    shapes = exchange.flat(jax.eval_shape(start))
    for path, leaf in shapes.items():
        if (array := take_array(arrays, path, leaf.shape, dtype, weights.source)) is not None:
            params[path] = jnp.asarray(array)
    if absent := sorted(shapes.keys() - params.keys()):
        print(f"note: initialized, as no weights have them: {', '.join(absent[:3])} ({len(absent)})", file=sys.stderr)
        fresh = jax.jit(lambda: {path: leaf for path, leaf in exchange.flat(start()).items() if path in absent})()
        params |= {path: leaf.astype(dtype) for path, leaf in fresh.items()}
    if arrays:
        print(f"note: not used with these options: {', '.join(sorted(arrays)[:3])} ({len(arrays)})", file=sys.stderr)
    return exchange.nested(params)


def take_array(arrays: dict[str, np.ndarray], path: str, shape: tuple, dtype, source: str) -> np.ndarray | None:
    """Remove the array of a parameter from `arrays` and return it; stack the arrays of layers. None if one is
    missing."""
    stacked = exchange.layer_paths(path, shape)
    names = stacked or [path]
    if not {*names} <= arrays.keys():
        return None
    flipped = stacked and path.endswith("/kernel")  # models/layer_stack.py: flip_kernels
    layer_shape = shape[:0:-1] if flipped else shape[bool(stacked) :]
    if differ := [name for name in names if arrays[name].shape != layer_shape]:
        raise InputError(
            f"{source} has {differ[0]} of {list(arrays[differ[0]].shape)}, and these options need "
            f"{list(layer_shape)}: leave out the option that changes the shapes of weights"
        )
    if not stacked:
        return np.asarray(arrays.pop(path)).astype(dtype, copy=False)
    array = np.empty(shape, dtype)
    for i, name in enumerate(names):
        array[i] = np.asarray(arrays.pop(name)).T if flipped else np.asarray(arrays.pop(name))
    return array
